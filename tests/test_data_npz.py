"""Data sets in one .npz archive: names, layouts, number types, labels of every kind, and what is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jocor_fast.data.catalogue import load_dataset
from jocor_fast.data.dataset import Dataset
from jocor_fast.data.memory.npz import load_npz_dataset
from jocor_fast.errors import DataError

IMAGES = np.random.default_rng(0).integers(0, 256, (4, 5, 6)).astype(np.uint8)
COLOUR = np.random.default_rng(1).integers(0, 256, (4, 5, 6, 3)).astype(np.uint8)
LABELS = np.array([0, 1, 2, 1])


def saved(folder: Path, **arrays: Any) -> str:
    np.savez(folder / "set.npz", **arrays)
    return f"npz:{folder / 'set.npz'}"


def load(folder: Path, **arrays: Any) -> Dataset:
    return load_dataset(saved(folder, **arrays))


def test_names_of_keras(tmp_path: Path):
    name = saved(tmp_path, x_train=IMAGES, y_train=LABELS, x_test=IMAGES[:2], y_test=LABELS[:2])
    dataset = load_dataset(name)
    np.testing.assert_array_equal(dataset.train.arrays()[0], IMAGES)
    np.testing.assert_array_equal(dataset.train.arrays()[1], LABELS)
    np.testing.assert_array_equal(dataset.test.arrays()[0], IMAGES[:2])
    np.testing.assert_array_equal(dataset.test.arrays()[1], LABELS[:2])
    assert (dataset.name, dataset.num_classes, dataset.label_table) == (name, 3, None)
    assert dataset.val is None
    assert dataset.source == str(tmp_path / "set.npz")


def test_names_of_medmnist_with_its_validation_set(tmp_path: Path):
    dataset = load(
        tmp_path,
        train_images=COLOUR,
        train_labels=LABELS[:, None].astype(np.uint8),
        val_images=COLOUR[:1],
        val_labels=LABELS[:1, None].astype(np.uint8),
        test_images=COLOUR[:2],
        test_labels=LABELS[:2, None].astype(np.uint8),
    )
    np.testing.assert_array_equal(dataset.val.arrays()[0], COLOUR[:1].transpose(0, 3, 1, 2))
    assert (dataset.val.arrays()[1].tolist(), dataset.test.arrays()[1].tolist()) == ([0], [0, 1])
    assert dataset.train.arrays()[1].dtype == dataset.val.arrays()[1].dtype == np.int64


def test_only_the_training_part_must_be_there(tmp_path: Path):
    dataset = load(tmp_path, x_train=IMAGES, y_train=LABELS, other=np.zeros(3))
    assert (dataset.test, dataset.val) == (None, None)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (IMAGES, IMAGES),
        (IMAGES[..., None], IMAGES),
        (IMAGES[:, None], IMAGES),
        (COLOUR, COLOUR.transpose(0, 3, 1, 2)),
        (np.ascontiguousarray(COLOUR.transpose(0, 3, 1, 2)), COLOUR.transpose(0, 3, 1, 2)),
        (IMAGES.reshape(4, 30), IMAGES.reshape(4, 30)),
        (np.asfortranarray(IMAGES), IMAGES),
        (IMAGES.astype(np.int64), IMAGES),
        (IMAGES.astype(">u2"), IMAGES),
    ],
    ids=["gray", "gray HW1", "gray 1HW", "colour HWC", "colour CHW", "features", "Fortran", "int64", "big-endian"],
)
def test_layouts_and_integer_types_become_uint8_with_channels_first(
    tmp_path: Path, array: np.ndarray, expected: np.ndarray
):
    dataset = load(tmp_path, x_train=array, y_train=LABELS)
    np.testing.assert_array_equal(dataset.train.arrays()[0], expected)
    assert (dataset.train.arrays()[0].dtype, dataset.train.input_scale) == (np.uint8, 1 / 255)
    assert dataset.train.arrays()[0].flags.c_contiguous
    assert dataset.train.arrays()[0].flags.writeable


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f8"])
def test_floats_are_taken_as_they_are(tmp_path: Path, dtype: str):
    dataset = load(tmp_path, x_train=(IMAGES / 256).astype(dtype), y_train=LABELS)
    np.testing.assert_array_equal(dataset.train.arrays()[0], (IMAGES / 256).astype(np.float32))
    assert (dataset.train.arrays()[0].dtype, dataset.train.input_scale) == (np.float32, 1.0)


@pytest.mark.parametrize(
    ("train", "test", "numbers", "table"),
    [
        ([0, 1, 2, 1], [2, 0], ([0, 1, 2, 1], [2, 0]), None),
        ([0, 1, 3, 1], [2, 0], ([0, 1, 3, 1], [2, 0]), None),  # a class that only the test set has
        ([0, 2, 5, 2], [5, 0], ([0, 1, 2, 1], [2, 0]), ("0", "2", "5")),
        ([1, 2, 3, 2], [1, 3], ([0, 1, 2, 1], [0, 2]), ("1", "2", "3")),
        ([-1, 1, -1, 1], [1, -1], ([0, 1, 0, 1], [1, 0]), ("-1", "1")),
        (["dog", "cat", "owl", "cat"], ["owl", "dog"], ([1, 0, 2, 0], [2, 1]), ("cat", "dog", "owl")),
        ([b"dog", b"cat", b"cat", b"cat"], [b"dog", b"dog"], ([1, 0, 0, 0], [1, 1]), ("cat", "dog")),
        ([[0.0], [2.0], [5.0], [2.0]], [[5.0], [0.0]], ([0, 1, 2, 1], [2, 0]), ("0", "2", "5")),
    ],
    ids=["plain", "absent class", "gaps", "from one", "signs", "strings", "bytes", "floats"],
)
def test_case_29_all_parts_together_define_the_classes(
    tmp_path: Path,
    train: list[Any],
    test: list[Any],
    numbers: tuple[list[int], list[int]],
    table: tuple[str, ...] | None,
):
    dataset = load(tmp_path, x_train=IMAGES, y_train=np.array(train), x_test=IMAGES[:2], y_test=np.array(test))
    assert (dataset.train.arrays()[1].tolist(), dataset.test.arrays()[1].tolist()) == numbers
    assert dataset.train.arrays()[1].dtype == dataset.test.arrays()[1].dtype == np.int64
    assert dataset.label_table == table
    assert dataset.num_classes == 1 + max(numbers[0] + numbers[1])


@given(hnp.arrays(np.uint8, hnp.array_shapes(min_dims=3, max_dims=3, min_side=1, max_side=5)), st.data())
def test_whatever_is_saved_is_read(tmp_path_factory: pytest.TempPathFactory, images: np.ndarray, data: st.DataObject):
    labels = data.draw(hnp.arrays(np.int8, len(images)))
    path = tmp_path_factory.mktemp("npz") / "set.npz"
    np.savez_compressed(path, x_train=images, y_train=labels)
    dataset = load_npz_dataset(path, name="any")
    np.testing.assert_array_equal(dataset.train.arrays()[0], images)
    table = np.array(dataset.label_table or range(dataset.num_classes)).astype(int)
    np.testing.assert_array_equal(table[dataset.train.arrays()[1]], labels)
    assert dataset.num_classes == len(table) == len(set(labels.tolist()))


def archive(**arrays: Any) -> dict[str, Any]:
    return {"x_train": IMAGES, "y_train": LABELS, **arrays}


BAD_ARRAYS = {
    "other names": (
        {"a": IMAGES, "b": LABELS},
        "must hold x_train and y_train, or train_images and train_labels, got a, b",
    ),
    "nothing": ({}, "got nothing"),
    "no labels": ({"x_train": IMAGES}, "has no array 'y_train', only x_train"),
    "no test labels": (archive(x_test=IMAGES), "has no array 'y_test'"),
    "no test images": (archive(y_test=LABELS), "has no array 'x_test'"),
    "counts": (archive(y_train=LABELS[:3]), "as many train labels as images.* 4 images and 3 labels"),
    "no samples": (archive(x_train=IMAGES[:0], y_train=LABELS[:0]), "at least one, got 0 images and 0 labels"),
    "test size": (
        archive(x_test=IMAGES[:, :3], y_test=LABELS),
        r"test images like its train images, \(5, 6\) of uint8, got \(3, 6\) of uint8",
    ),
    "test type": (archive(x_test=IMAGES / 2, y_test=LABELS), "got .* of float32"),
    "objects": (archive(x_train=np.array([{}] * 4)), "Python objects, which are never loaded"),
    "label objects": (archive(y_train=np.array([0, None, 1, 2])), "got objects of type NoneType and int"),
    "label objects of a class": (
        archive(y_train=np.array([0, Path("x"), 1, 2], object)),
        r"y_train holds Python objects, which are never loaded .*: save y_train\.astype\(str\) in its place",
    ),
    "four channels": (
        archive(x_train=np.zeros((4, 5, 5, 4), np.uint8)),
        r"x_train must have shape .*\[4, 5, 5, 4\]",
    ),
    "volumes": (archive(x_train=np.zeros((4, 5, 5, 5, 1), np.uint8)), "x_train must have shape"),
    "one dimension": (archive(x_train=np.zeros(4, np.uint8)), r"x_train must have shape .*got \[4\]"),
    "a number": (archive(x_train=np.uint8(3)), r"x_train must have shape .*got \[\]"),
    "16 bits": (
        archive(x_train=IMAGES.astype("u2") * 257),
        "x_train must be whole numbers in 0 … 255 or floats, got uint16",
    ),
    "negative": (archive(x_train=-IMAGES.astype(int)), "got int64 from -"),
    "nothing in a sample": (archive(x_train=np.zeros((4, 0))), r"x_train must have shape .*got \[4, 0\]"),
    "no width": (archive(x_train=np.zeros((4, 5, 0))), r"x_train must have shape .*got \[4, 5, 0\]"),
    "NaN": (
        archive(x_train=np.where(np.arange(20).reshape(4, 5) == 13, np.nan, 0)),
        "x_train must be finite in float32, got nan in sample 2",
    ),
    "too large": (
        archive(x_train=np.full((4, 5), 1e300)),
        r"x_train must be finite in float32, got 1e\+300 in sample 0",
    ),
    "bool": (archive(x_train=IMAGES > 9), "got bool"),
    "complex": (archive(x_train=IMAGES * 1j), "got complex128"),
    "strings": (archive(x_train=np.array([["a"]] * 4)), "got <U1"),
    "many labels": (
        archive(y_train=np.zeros((4, 14), int)),
        r"labels must have shape \(N,\) or \(N, 1\), got \(4, 14\)",
    ),
    "half labels": (
        archive(y_train=LABELS + 0.5),
        "labels must be whole numbers or strings, got 0.5 in row 0",
    ),
    "NaN labels": (archive(y_train=np.array([0, 1, np.nan, 2])), "got nan in row 2"),
    "bool labels": (archive(y_train=LABELS > 0), "labels must be whole numbers or strings, got bool"),
    "mixed": (
        archive(x_test=IMAGES, y_test=LABELS.astype(str)),
        "all whole numbers or all strings",
    ),
}


@pytest.mark.parametrize(("arrays", "message"), BAD_ARRAYS.values(), ids=BAD_ARRAYS)
def test_an_archive_that_is_no_data_set_is_one_sentence(tmp_path: Path, arrays: dict[str, Any], message: str):
    with pytest.raises(DataError, match=rf"^{tmp_path}/set\.npz.*{message}") as raised:
        load(tmp_path, **arrays)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("cut", [0, 1, 100, 300, -1, -30, -200])
def test_an_archive_cut_anywhere_is_named(tmp_path: Path, cut: int):
    name = saved(tmp_path, x_train=IMAGES, y_train=LABELS)
    path = tmp_path / "set.npz"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match=r"set\.npz") as raised:
        load_dataset(name)
    assert "\n" not in str(raised.value)


@given(st.data())
def test_an_archive_with_one_changed_byte_is_read_or_named(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
):
    """The checksum of the archive covers the arrays; what a header can be turned into must not end in a traceback."""
    path = tmp_path_factory.mktemp("npz") / "set.npz"
    np.savez_compressed(path, x_train=IMAGES, y_train=LABELS)
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        inputs = load_npz_dataset(path, name="any").train.arrays()[0]
    except DataError:
        return
    np.testing.assert_array_equal(inputs, IMAGES)


def test_other_files_are_no_archives(tmp_path: Path):
    np.save(tmp_path / "array.npy", IMAGES)
    (tmp_path / "text.npz").write_text("x_train")
    for name, message in (
        ("array.npy", "is a single array, not an .npz archive"),
        (
            "text.npz",
            "is not an .npz archive: it holds Python objects, which are never loaded, or is of another format",
        ),
        ("absent.npz", "does not exist"),
        ("", "cannot be read as an .npz archive: Is a directory"),
    ):
        with pytest.raises(DataError, match=f"{tmp_path / name} {message}"):
            load_dataset(f"npz:{tmp_path / name}")


def test_a_large_image_archive_is_copied_once(tmp_path: Path):
    """Channels first and contiguous, whatever the file's order."""
    images = np.random.default_rng(0).integers(0, 256, (100, 32, 32, 3)).astype(np.uint8)
    dataset = load(tmp_path, x_train=images, y_train=np.arange(100))
    assert dataset.train.arrays()[0].strides == (3072, 1024, 32, 1)
    np.testing.assert_array_equal(dataset.train.arrays()[0], np.moveaxis(images, -1, 1))


def test_strings_in_object_arrays_are_read_as_pandas_hands_them_over(tmp_path: Path):
    """Case 55."""
    names = np.array(["cat", "dog", "cat", "ölvogel"], dtype=object)
    for labels in (names, names.astype(str), names[:, None]):
        np.savez_compressed(tmp_path / "set.npz", x_train=IMAGES, y_train=labels)
        dataset = load_npz_dataset(tmp_path / "set.npz", name="any")
        assert (dataset.label_table, dataset.train.arrays()[1].tolist()) == (("cat", "dog", "ölvogel"), [0, 1, 0, 2])
