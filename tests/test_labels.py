"""Label files (`--labels`, `--clean-labels`) in every form, whole, broken and hostile."""

from __future__ import annotations

import os
import random
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from jocor_fast.data.labels import read_labels, read_reviewed
from jocor_fast.errors import ArgumentValueError, DataError

CLEAN = np.array([0, 1, 2, 0, 1, 2])
NOISY = np.array([0, 2, 2, 1, 1, 0])


def written(folder: Path, form: str, values: Any) -> str:
    """The spec of a file that holds labels in a form."""
    path = folder / f"labels{form}"
    if form == ".npy":
        np.save(path, values)
    elif form == ".npz":
        np.savez(path, noisy=values, other=[1, 2])
        return f"{path}:noisy"
    elif form == ".pt":
        torch.save({"noisy": values, "other": torch.ones(3)}, path)
        return f"{path}:noisy"
    else:
        path.write_text("id,label\n" + "".join(f"{n},{value}\n" for n, value in enumerate(np.ravel(values))))
    return str(path)


FORMS = [".npy", ".npz", ".pt", ".csv"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("values", [NOISY, NOISY[:, None].astype(np.uint8), NOISY.astype(float)], ids=str)
def test_every_form_holds_labels(tmp_path: Path, form: str, values: np.ndarray):
    labels = read_labels(written(tmp_path, form, values), CLEAN, 3)
    assert labels.noisy.dtype == np.int64
    assert labels.noisy.tolist() == NOISY.tolist()
    assert labels.clean is None


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("clean_form", FORMS)
def test_clean_labels_come_in_the_same_forms(tmp_path: Path, form: str, clean_form: str):
    (tmp_path / "clean").mkdir()
    clean_spec = written(tmp_path / "clean", clean_form, CLEAN)
    labels = read_labels(written(tmp_path, form, NOISY), CLEAN, 3, clean_spec=clean_spec)
    assert (labels.noisy.tolist(), labels.clean.tolist()) == (NOISY.tolist(), CLEAN.tolist())


@pytest.mark.parametrize(
    "values",
    [
        torch.tensor(NOISY, dtype=torch.uint8),
        torch.tensor(NOISY)[:, None],
        torch.tensor(NOISY, dtype=torch.bfloat16),
        NOISY.tolist(),
        *(NOISY.astype(t) for t in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", ">i4")),
    ],
    ids=lambda values: str(getattr(values, "dtype", "list")),
)
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_pt_files_hold_tensors_arrays_or_lists(tmp_path: Path, values: Any, zipped: bool):
    torch.save({"key": values}, tmp_path / "labels.pt", _use_new_zipfile_serialization=zipped)
    noisy = read_labels(f"{tmp_path}/labels.pt:key", CLEAN, 3).noisy
    assert noisy.tolist() == NOISY.tolist()
    assert noisy.flags.writeable


def test_a_pt_file_that_numpy_1_wrote_is_read(tmp_path: Path):
    """CIFAR-10N is published so: a dict of arrays, pickled under the module names of NumPy 1."""
    torch.save({"worse_label": NOISY}, tmp_path / "new.pt")
    with zipfile.ZipFile(tmp_path / "new.pt") as new, zipfile.ZipFile(tmp_path / "old.pt", "w") as old:
        for item in new.infolist():
            old.writestr(item, new.read(item).replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    assert read_labels(f"{tmp_path}/old.pt:worse_label", CLEAN, 3).noisy.tolist() == NOISY.tolist()


class Hostile:
    """Unpickled carelessly, it leaves a folder behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_a_hostile_pt_file_runs_nothing(tmp_path: Path, zipped: bool):
    torch.save({"key": Hostile(tmp_path / "harm")}, tmp_path / "x.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(DataError, match=r"x\.pt is not .*Python objects, which are never loaded") as raised:
        read_labels(f"{tmp_path}/x.pt:key", CLEAN, 3)
    assert "weights_only" not in str(raised.value)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("form", [".npy", ".npz"])
def test_a_hostile_array_runs_nothing(tmp_path: Path, form: str):
    values = np.array([Hostile(tmp_path / "harm"), 1], object)
    with pytest.raises(DataError, match="Python objects, which are never loaded"):
        read_labels(written(tmp_path, form, values), CLEAN, 3)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("form", [".npy", ".npz", ".pt"])
def test_strings_in_object_arrays_are_labels(tmp_path: Path, form: str):
    table = ("cat", "dog", "fox")
    values = np.array(table, object)[NOISY]
    assert read_labels(written(tmp_path, form, values), CLEAN, 3, label_table=table).noisy.tolist() == NOISY.tolist()


@pytest.mark.parametrize("form", FORMS)
def test_suffixes_may_be_in_capitals(tmp_path: Path, form: str):
    spec = written(tmp_path, form, NOISY)
    capitals = spec.replace(form, form.upper())
    os.rename(spec.removesuffix(":noisy"), capitals.removesuffix(":noisy"))
    assert read_labels(capitals, CLEAN, 3).noisy.tolist() == NOISY.tolist()


def test_a_key_may_hold_blanks_and_a_path_colons(tmp_path: Path):
    folder = tmp_path / "a:b.npz:c"
    folder.mkdir()
    np.savez(folder / "x.npz", **{"my key": NOISY, "old.csv": NOISY})
    for key in ("my key", "old.csv"):
        assert read_labels(f"{folder}/x.npz:{key}", CLEAN, 3).noisy.tolist() == NOISY.tolist()


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for form in FORMS:
        spec = written(tmp_path, form, NOISY).replace(str(tmp_path), "~")
        assert read_labels(spec, CLEAN, 3).noisy.tolist() == NOISY.tolist()


# -- .csv


def csv_file(folder: Path, text: str, encoding: str = "utf-8") -> str:
    path = folder / "labels.csv"
    path.write_bytes(text.encode(encoding))
    return str(path)


@pytest.mark.parametrize(
    "text",
    [
        "id,label,clean\n0,0,0\n1,2,1\n2,2,2\n3,1,0\n4,1,1\n5,0,2\n",
        "id,label,clean\n5,0,2\n3,1,0\n4,1,1\n0,0,0\n2,2,2\n1,2,1",
        "clean,id,label\r\n0,0,0\r\n1,1,2\r\n2,2,2\r\n0,3,1\r\n1,4,1\r\n2,5,0\r\n",
        '\ufeffid, label ,clean\n\n"0","0","0"\n1, 2, 1\n 2,2.0,2\n3,1,0\n\n4,1,1\n5,0,2\n\n',
        ",label,clean\n0,0,0\n1,2,1\n2,2,2\n3,1,0\n4,1,1\n5,0,2\n",
        "Unnamed: 0,ID,Target,True_Label\n9,0,0,0\n8,1,2,1\n7,2,2,2\n6,3,1,0\n5,4,1,1\n4,5,0,2\n",
        '"id";"label";"clean"\r\n0;0;0\r\n1;2;1\r\n2;2;2\r\n3;1;0\r\n4;1;1\r\n5;0;2\r\n;;\r\n',
        "id\tlabel\tclean\n0\t0\t0\n1\t2\t1\n2\t2\t2\n3\t1\t0\n4\t1\t1\n5\t0\t2\n",
    ],
    ids=["plain", "any order", "columns and line ends", "BOM, blanks, quotes", "pandas", "names", "semicolons", "tabs"],
)
def test_csv_rows_are_matched_by_id(tmp_path: Path, text: str):
    labels = read_labels(csv_file(tmp_path, text), CLEAN, 3)
    assert (labels.noisy.tolist(), labels.clean.tolist()) == (NOISY.tolist(), CLEAN.tolist())


def test_columns_that_are_not_read_are_named(tmp_path: Path):
    text = "id,label,cleen,note\n" + "".join(f"{row},{label},0,x\n" for row, label in enumerate(NOISY))
    with pytest.warns(UserWarning, match=r"labels\.csv: columns that are not read: cleen, note"):
        assert read_labels(csv_file(tmp_path, text), CLEAN, 3).clean is None


@given(st.lists(st.integers(0, 9), min_size=1, max_size=50), st.randoms(use_true_random=False))
def test_shuffled_csv_rows_come_back_in_order(
    tmp_path_factory: pytest.TempPathFactory, noisy: list[int], shuffle: random.Random
):
    rows = [f"{n},{label}" for n, label in enumerate(noisy)]
    shuffle.shuffle(rows)
    spec = csv_file(tmp_path_factory.mktemp("csv"), "\n".join(["id,label", *rows]))
    assert read_labels(spec, np.zeros(len(noisy), np.int64), 10).noisy.tolist() == noisy


HEADER = "id,label\n"
BAD_CSV = {
    "empty": ("", "line 1: the header must have the columns id, label, and may have clean, got ''"),
    "no header": ("0,1\n1,2\n", "line 1: the header must .*got '0,1'"),
    "other columns": ("id,labels\n", "line 1: the header"),
    "twice a column": ("id,label,label\n", "line 1: 'label' and 'label' could both be the column label"),
    "two names of a column": ("id,Label,class\n", "line 1: 'Label' and 'class' could both be the column label"),
    "colons": ("id:label\n0:1\n", "line 1: the header"),
    "cells": (HEADER + "0,1\n1\n", "line 3: there must be 2 cells, got 1"),
    "more cells": (HEADER + "0,1,1\n", "line 2: there must be 2 cells, got 3"),
    "id is a word": (HEADER + "a.png,1\n", "line 2: the id must lie in 0 … 5, got 'a.png'"),
    "id too large": (HEADER + "0,1\n6,1\n", "line 3: the id must lie in 0 … 5, got '6'"),
    "id negative": (HEADER + "-1,1\n", "line 2: the id must lie in 0 … 5, got '-1'"),
    "id fraction": (HEADER + "0.0,1\n", "line 2: the id must lie in 0 … 5, got '0.0'"),
    "id endless": (HEADER + "9" * 5000 + ",1\n", "line 2: the id must lie in 0 … 5"),
    "id superscript": (HEADER + "²,1\n", "line 2: the id must lie in 0 … 5"),
    "id twice": (HEADER + "0,1\n\n1,1\n0,2\n", "line 5: the id 0 stands in line 2 already"),
    "id missing": (
        HEADER + "0,1\n1,1\n3,1\n4,1\n5,1\n",
        "each id of 0 … 5 once, but 2 is missing; samples dropped in .*--write-folder",
    ),
    "no rows": (HEADER, "but 0 is missing"),
    "label too large": (HEADER + "5,0\n4,3\n0,0\n1,0\n2,0\n3,0\n", "line 3: labels must lie in 0 … 2, got 3"),
    "label negative": (HEADER + "".join(f"{n},{-1 if n == 4 else 0}\n" for n in range(6)), "line 6: .*got -1"),
    "label half": (HEADER + "".join(f"{n},{0.5 if n == 4 else 0}\n" for n in range(6)), "line 6: .*got 0.5"),
    "label NaN": (HEADER + "".join(f"{n},{'nan' if n == 4 else 0}\n" for n in range(6)), "line 6: .*got nan"),
    "label empty": (HEADER + "".join(f"{n},{'' if n == 4 else 0}\n" for n in range(6)), "line 6: .*got ''"),
    "label is a word": (HEADER + "".join(f"{n},{'cat' if n == 4 else 0}\n" for n in range(6)), "line 6: .*got 'cat'"),
    "label endless": (HEADER + "".join(f"{n},{10**400 if n == 4 else 0}\n" for n in range(6)), "line 6: .*64 bits"),
    "label of 5000 digits": (HEADER + "".join(f"{n},{'9' * 5000 if n == 4 else 0}\n" for n in range(6)), "line 6: "),
    "clean is a word": ("id,label,clean\n" + "".join(f"{n},0,{'?' if n == 1 else 0}\n" for n in range(6)), "line 3: "),
    "quote": (HEADER + '0,"1\n', "line 2: "),
    "NUL": (HEADER + "".join(f"{n},{n % 3}\0\n" if n == 4 else f"{n},0\n" for n in range(6)), "line 6: "),
}


@pytest.mark.parametrize(("text", "message"), BAD_CSV.values(), ids=BAD_CSV)
def test_a_wrong_csv_is_one_sentence_that_names_the_line(tmp_path: Path, text: str, message: str):
    with pytest.raises(DataError, match=rf"^{tmp_path}/labels\.csv.*{message}") as raised:
        read_labels(csv_file(tmp_path, text), CLEAN, 3)
    assert "\n" not in str(raised.value)


def test_a_csv_in_another_encoding_is_named(tmp_path: Path):
    with pytest.raises(DataError, match=r"labels\.csv is not a \.csv file in UTF-8"):
        read_labels(csv_file(tmp_path, HEADER + "0,é\n", "latin-1"), CLEAN, 3)


def test_a_table_in_utf_16_is_read_as_spreadsheets_save_it(tmp_path: Path):
    rows = "".join(f"{n}\t{label}\n" for n, label in enumerate(NOISY))
    spec = csv_file(tmp_path, "id\tlabel\n" + rows, "utf-16")
    np.testing.assert_array_equal(read_labels(spec, CLEAN, 3).noisy, NOISY)


def test_of_a_csv_of_clean_labels_the_clean_column_counts(tmp_path: Path):
    rows = "".join(f"{n},{noisy},{clean}\n" for n, (noisy, clean) in enumerate(zip(NOISY, CLEAN, strict=True)))
    clean_spec = csv_file(tmp_path, "id,label,clean\n" + rows)
    labels = read_labels(written(tmp_path, ".npy", NOISY), CLEAN, 3, clean_spec=clean_spec)
    assert labels.clean.tolist() == CLEAN.tolist()
    with pytest.raises(DataError, match=r"labels\.csv has a clean column already"):
        read_labels(clean_spec, CLEAN, 3, clean_spec=written(tmp_path, ".npy", CLEAN))


def test_names_that_are_not_utf_8_are_known_in_what_a_browser_exports_unless_two_look_alike(tmp_path: Path):
    names = ["ant", os.fsdecode(b"caf\xe9"), os.fsdecode(b"r\xe9"), os.fsdecode(b"r\xe8")]
    spec = Path(csv_file(tmp_path, HEADER + "0,ant\n1,caf\ufffd\n"))
    assert read_reviewed(spec, names, 3).tolist() == [0, 1, -1]
    spec.write_bytes(b"id,label\n0,r\xe8\n")
    assert read_reviewed(spec, names, 1).tolist() == [3]
    csv_file(tmp_path, HEADER + "0,r\ufffd\n")
    with pytest.raises(DataError, match="line 2: the label must be one of the audit's, got 'r\ufffd'"):
        read_reviewed(spec, names, 1)


# -- what the clean labels prove


@pytest.mark.parametrize(("size", "mismatches", "accepted"), [(3000, 3, True), (3000, 4, False), (999, 1, False)])
def test_clean_labels_must_agree_in_999_rows_of_1000(tmp_path: Path, size: int, mismatches: int, accepted: bool):
    own = np.arange(size) % 3
    clean = own.copy()
    clean[:mismatches] = (clean[:mismatches] + 1) % 3
    np.savez(tmp_path / "x.npz", noisy=np.zeros(size, int), clean=clean)
    arguments = (f"{tmp_path}/x.npz:noisy", own, 3)
    if accepted:
        labels = read_labels(*arguments, clean_spec=f"{tmp_path}/x.npz:clean")
        assert labels.clean.tolist() == clean.tolist()
        return
    message = rf"x\.npz:clean: its clean labels differ from the data set's own in {mismatches} of {size} rows.*order"
    with pytest.raises(DataError, match=message):
        read_labels(*arguments, clean_spec=f"{tmp_path}/x.npz:clean")


def test_the_clean_column_is_held_against_the_data_set(tmp_path: Path):
    rows = "".join(f"{n},0,{(n + 1) % 3}\n" for n in range(6))
    with pytest.raises(DataError, match=r"labels\.csv: its clean labels differ .* in 6 of 6 rows"):
        read_labels(csv_file(tmp_path, "id,label,clean\n" + rows), CLEAN, 3)


def test_cifar10n_has_the_rates_that_are_published(data_root: Path):
    path = data_root / "cifar10" / "cifar10n_labels.npz"
    if not path.is_file():
        pytest.skip("JOCOR_FAST_DATA has no cifar10/cifar10n_labels.npz")
    with np.load(path) as archive:
        own = archive["clean_label"].astype(np.int64)
    for key, rate in (("aggre_label", 0.0903), ("worse_label", 0.4021), ("random_label1", 0.1723)):
        labels = read_labels(f"{path}:{key}", own, 10, clean_spec=f"{path}:clean_label")
        assert (labels.noisy != labels.clean).mean() == pytest.approx(rate, abs=0.001)
    with pytest.raises(DataError, match=r"order"):
        read_labels(f"{path}:worse_label", own[::-1], 10, clean_spec=f"{path}:clean_label")
    with pytest.raises(DataError, match=r"has no array 'worse', only clean_label"):
        read_labels(f"{path}:worse", own, 10)


# -- data sets with a table of labels


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("table", "originals"),
    [
        (("0", "2", "5"), [0, 5, 5, 2, 2, 0]),
        (("cat", "dog", "owl"), ["cat", "owl", "owl", "dog", "dog", "cat"]),
        (("-1", "0", "1"), [-1.0, 1.0, 1.0, 0.0, 0.0, -1.0]),
        (("007", "8", "9"), ["007", "9", "9", "8", "8", "007"]),
    ],
    ids=["gaps", "strings", "floats", "digits"],
)
def test_files_hold_the_original_labels(tmp_path: Path, form: str, table: tuple[str, ...], originals: list[Any]):
    spec = written(tmp_path, form, np.array(originals))
    assert read_labels(spec, CLEAN, 3, label_table=table).noisy.tolist() == NOISY.tolist()


def test_a_label_outside_the_table_is_named(tmp_path: Path):
    rows = "".join(f"{n},{'cow' if n == 3 else 'cat'}\n" for n in range(6))
    with pytest.raises(DataError, match=r"labels\.csv, line 5: labels must be among cat, dog, owl, got 'cow'"):
        read_labels(csv_file(tmp_path, HEADER + rows), CLEAN, 3, label_table=("cat", "dog", "owl"))
    with pytest.raises(
        DataError, match=r"labels\.npy: labels must be among c0, .*c9, … \(12 in all\), got '1' in row 0"
    ):
        read_labels(written(tmp_path, ".npy", [1] * 6), CLEAN, 12, label_table=[f"c{n}" for n in range(12)])


# -- files and specs that are wrong


@pytest.mark.parametrize("form", FORMS[:3])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        (NOISY[:5], "holds 5 labels, the data set has 6 samples"),
        (NOISY + 1, "labels must lie in 0 … 2, got 3 in row 1"),
        (NOISY / 2, "labels must be whole numbers or strings, got 0.5 in row 3"),
        (NOISY[None], r"shape \(N,\) or \(N, 1\), got \(1, 6\)"),
        (NOISY > 1, "got bool"),
        (NOISY.astype(str), "labels must be whole numbers in 0 … 2, got strings like '0'"),
        (np.array(3), r"got \(\)"),
    ],
    ids=["length", "range", "fractions", "shape", "bool", "strings", "a number"],
)
def test_wrong_values_are_one_sentence_that_names_the_file(tmp_path: Path, form: str, values: np.ndarray, message: str):
    spec = written(tmp_path, form, values)
    with pytest.raises(DataError, match=f"^{re.escape(spec)}:? .*{message}"):
        read_labels(spec, CLEAN, 3)


@pytest.mark.parametrize("end", ["", ":"])
def test_a_file_of_several_arrays_without_a_key_is_told_which_there_are(tmp_path: Path, end: str) -> None:
    np.savez(tmp_path / "l.npz", first=np.zeros(3), second=np.zeros(3))
    torch.save({f"part{number}": torch.zeros(3) for number in range(30)}, tmp_path / "l.pt")
    with pytest.raises(DataError, match=r"l.npz must be given as .*l.npz:KEY, .* it holds first, second$"):
        read_labels(f"{tmp_path / 'l.npz'}{end}", np.zeros(3, np.int64), 2)
    with pytest.raises(DataError, match=r"l.pt must be given as .*l.pt:KEY, .* it holds part0, .*, part19 …$"):
        read_labels(f"{tmp_path / 'l.pt'}{end}", np.zeros(3, np.int64), 2)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("labels", "labels must be given as FILE.npy, FILE.npz:KEY, FILE.pt:KEY or FILE.csv, got 'labels'"),
        ("labels.txt", "got 'labels.txt'"),
        ("labels.npz", "labels.npz does not exist"),
        ("labels.npz:", "labels.npz does not exist"),
        ("labels.pt", "labels.pt does not exist"),
        ("labels.npy:key", "got 'labels.npy:key'"),
        ("", "got ''"),
        ("absent.npy", "absent.npy does not exist"),
        ("~nobody-of-that-name/absent.npy", "absent.npy does not exist"),
        ("absent.npz:key", "absent.npz does not exist"),
        ("absent.pt:key", "absent.pt does not exist"),
        ("absent.csv", "absent.csv does not exist"),
    ],
)
def test_a_spec_that_names_no_file_of_labels(tmp_path: Path, spec: str, message: str):
    for arguments in ({"spec": spec}, {"spec": written(tmp_path, ".npy", NOISY), "clean_spec": spec}):
        with pytest.raises((ArgumentValueError, DataError), match=message) as refused:
            read_labels(dataset_labels=CLEAN, num_classes=3, **arguments)
        assert refused.value.argument in (None, "clean_labels" if "clean_spec" in arguments else "labels")


@pytest.mark.parametrize("spec", [3, ["labels.npy"], b"labels.npy"])
def test_a_spec_of_another_type_is_a_type_error(spec: object):
    with pytest.raises(TypeError):
        read_labels(spec, CLEAN, 3)


@pytest.mark.parametrize("spec", ["x.npy", "x.npz:noisy", "x.pt:noisy", "x.csv"])
@pytest.mark.parametrize(
    "content", [b"", b"rubbish", b"PK\3\4rubbish", b"\x93NUMPY\1\0rubbish", b"\x80\x02.", b"\0" * 999]
)
def test_rubbish_is_named(tmp_path: Path, spec: str, content: bytes):
    (tmp_path / spec.split(":")[0]).write_bytes(content)
    with pytest.raises(DataError, match=rf"^{tmp_path}/x\..*") as raised:
        read_labels(f"{tmp_path}/{spec}", CLEAN, 3)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("spec", ["x.npy", "x.npz:noisy", "x.pt:noisy", "x.csv"])
def test_a_folder_is_no_file(tmp_path: Path, spec: str):
    (tmp_path / spec.split(":")[0]).mkdir()
    with pytest.raises(DataError, match=rf"{tmp_path}/x\.\w+ cannot be read as .*: Is a directory"):
        read_labels(f"{tmp_path}/{spec}", CLEAN, 3)


def test_files_of_another_kind_are_told_apart(tmp_path: Path):
    np.savez(tmp_path / "a.npz", noisy=NOISY)
    (tmp_path / "a.npz").rename(tmp_path / "a.npy")
    np.save(tmp_path / "b.npy", NOISY)
    (tmp_path / "b.npy").rename(tmp_path / "b.npz")
    torch.save(torch.tensor(NOISY), tmp_path / "c.pt")
    torch.save({1: torch.tensor(NOISY), "d": {}}, tmp_path / "d.pt")
    for spec, message in (
        ("a.npy", r"a\.npy is an \.npz archive, not a \.npy array"),
        ("b.npz:noisy", r"b\.npz is a single array, not an \.npz archive"),
        ("c.pt:noisy", r"c\.pt holds a Tensor, not a dict of tensors or arrays"),
        ("d.pt:noisy", r"d\.pt has no entry 'noisy', only 1, d"),
        ("d.pt:d", r"d\.pt:d: labels must"),
    ):
        with pytest.raises(DataError, match=message):
            read_labels(f"{tmp_path}/{spec}", CLEAN, 3)
