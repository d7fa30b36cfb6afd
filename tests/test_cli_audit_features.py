"""`jocor-fast audit --features`: its files, and what it refuses."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from jocor_fast.cli.program import main

NAMES = ("ant", "bee", "cat")
COUNT, WRONG = 300, 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Embeddings, labels of which the first 30 are wrong, and the other files of the command."""
    folder = tmp_path_factory.mktemp("features")
    true = np.arange(COUNT) % len(NAMES)
    features = np.random.default_rng(0).normal(size=(COUNT, 6)) + 6 * np.eye(len(NAMES), 6)[true]
    given = np.where(np.arange(COUNT) < WRONG, (true + 1) % len(NAMES), true)
    np.savez(folder / "x.npz", train=features, broken=np.where(features > 7, np.nan, features))
    np.save(folder / "x.npy", features)
    np.save(folder / "y.npy", given)
    lines = [f"{number},{NAMES[label]}" for number, label in enumerate(given)]
    (folder / "y.csv").write_text("\n".join(["id,label", *reversed(lines)]))
    (folder / "names.txt").write_text("Formica\nApis\nFelis\n")
    (folder / "paths.csv").write_text("\n".join(["id,path", *(f"{number},{number}.png" for number in range(COUNT))]))
    return folder


def audit(folder: Path, features: str, labels: str, *others: str) -> int:
    files = [f"--features={folder / features}", f"--labels={folder / labels}", f"--output={folder / 'audit'}"]
    return main(["audit", *files, "--device=cpu", *others])


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_wrong_labels_lead_the_list_and_are_corrected(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--apply", f"--names={folder / 'names.txt'}", f"--paths={folder / 'paths.csv'}")
    assert audit(folder, "x.npz:train", "y.csv", *options) == 0
    output = capsys.readouterr().out
    assert re.search(
        r"300 rows of 6 features, 3 classes: about \d+ MB of memory on top of the features, and \d+ s\n", output
    )
    rows = table(folder / "audit" / "suspicious.csv")
    assert {int(row["id"]) for row in rows[:WRONG]} == set(range(WRONG))
    assert rows[0]["path"] == f"{rows[0]['id']}.png"
    corrected = [row["label"] for row in table(folder / "audit" / "corrected.csv")]
    assert np.mean(np.array(corrected) == np.array(NAMES)[np.arange(COUNT) % 3]) > 0.98
    assert "Felis" in (folder / "audit" / "audit.html").read_text()


def test_a_mapped_file_and_numbers_give_the_same_list(folder: Path) -> None:
    assert audit(folder, "x.npz:train", "y.csv") == 0
    expected = [(row["id"], row["score"]) for row in table(folder / "audit" / "suspicious.csv")]
    assert audit(folder, "x.npy", "y.npy") == 0
    assert [(row["id"], row["score"]) for row in table(folder / "audit" / "suspicious.csv")] == expected


@pytest.mark.parametrize(
    ("features", "labels", "others", "code", "message"),
    [
        ("x.npz:broken", "y.csv", (), 2, "--features must be finite, got nan in row"),
        ("x.npz:none", "y.csv", (), 1, "has no array 'none'"),
        ("absent.npy", "y.csv", (), 1, "absent.npy does not exist"),
        ("x.txt", "y.csv", (), 2, "--features must be given as FILE.npy"),
        ("y.npy", "y.npy", (), 2, "--features must have shape"),
        ("x.npy", "y.npy", ("run",), 2, "the folder of a run, or --features and --labels, got both"),
        ("x.npy", "y.npy", ("--forget-rate=1",), 2, "--forget-rate must lie in [0, 1), got"),
        ("x.npy", "y.npy", ("--forget-rate=2",), 2, "--forget-rate must lie in [0, 1), got 2.0"),
        ("x.npy", "y.npy", ("--forget-rate=x",), 2, "--forget-rate must be a number or auto, got 'x'"),
        ("x.npy", "y.npy", ("--forget-rate=adaptive",), 2, "--forget-rate must be a number or auto, got 'adaptive'"),
        ("x.npy", "y.npy", ("--seed=-1",), 2, "--seed must be at least 0, got -1"),
        ("x.npy", "y.npy", ("--seed=1.5",), 2, "--seed must be a whole number, got '1.5'"),
        ("x.npy", "y.npy", ("--names=y.csv",), 1, "y.csv"),
    ],
)
def test_unusable_files_end_in_an_error_that_names_them(
    features: str,
    labels: str,
    others: tuple[str, ...],
    code: int,
    message: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert audit(folder, features, labels, *others) == code
    assert message in capsys.readouterr().err


def test_a_share_that_is_to_be_estimated_may_be_called_auto(folder: Path) -> None:
    assert audit(folder, "x.npy", "y.npy") == 0
    expected = (folder / "audit" / "suspicious.csv").read_bytes()
    assert audit(folder, "x.npy", "y.npy", "--forget-rate=auto") == 0
    assert (folder / "audit" / "suspicious.csv").read_bytes() == expected


def test_a_table_of_paths_without_paths_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(folder, "x.npy", "y.npy", f"--paths={folder / 'y.csv'}") == 1
    assert "line 1: the header must have the columns id, path, got 'id,label'" in capsys.readouterr().err


def test_features_without_labels_or_output_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", f"--features={folder / 'x.npy'}", f"--output={folder / 'audit'}"]) == 2
    assert "together, got no --labels" in capsys.readouterr().err


def test_an_output_that_is_a_file_is_refused_before_anything_is_read(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", "--features=absent.npy", "--labels=y.npy", f"--output={folder / 'x.npy'}"]) == 1
    assert "x.npy: Not a directory" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--names=n.txt", "--paths=p.csv", "--forget-rate=0.1"])
def test_an_option_of_features_is_refused_with_a_run(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "run", option]) == 2
    assert f"{option.partition('=')[0]} goes with --features" in capsys.readouterr().err
