"""CIFAR's Python batches: written by Python 2 and 3, complete, broken and hostile."""

from __future__ import annotations

import functools
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jocor_fast.data.catalogue import load_dataset
from jocor_fast.data.dataset import Dataset
from jocor_fast.errors import DataError

BATCHES = {
    "cifar10": ("cifar-10-batches-py", [f"data_batch_{n}" for n in range(1, 6)] + ["test_batch"], "labels", 10),
    "cifar100": ("cifar-100-python", ["train", "test"], "fine_labels", 100),
}


def python2_pickle(batch: dict[str, Any], dtype_flags: int = 0) -> bytes:
    """A batch as the published archives hold it: byte strings for keys and pixels, and NumPy 1's module names."""

    def string(value: bytes) -> bytes:
        return b"T" + len(value).to_bytes(4, "little") + value

    def tuple_of(*items: bytes) -> bytes:
        return b"(" + b"".join(items) + b"t"

    def whole(value: int) -> bytes:
        return b"J" + value.to_bytes(4, "little", signed=True)

    data = batch["data"]
    dtype = b"cnumpy\ndtype\n" + tuple_of(string(b"u1"), whole(0), whole(1)) + b"R"
    dtype += tuple_of(whole(3), string(b"|"), b"N", b"N", b"N", whole(-1), whole(-1), whole(dtype_flags)) + b"b"
    array = b"cnumpy.core.multiarray\n_reconstruct\n" + tuple_of(b"cnumpy\nndarray\n", tuple_of(whole(0)), string(b"b"))
    shape = tuple_of(*map(whole, data.shape))
    array += b"R" + tuple_of(whole(1), shape, dtype, b"I00\n", string(data.tobytes())) + b"b"
    items = string(b"data") + array
    for key, labels in batch.items():
        if key != "data":
            items += string(key.encode()) + b"(l" + b"".join(whole(label) + b"a" for label in labels)
    return b"\x80\x02}(" + items + b"u."


def python3_pickle(protocol: int):
    return lambda batch: pickle.dumps(batch, protocol=protocol)


def some_batch(label_key: str, num_classes: int, seed: int, size: int = 4) -> dict[str, Any]:
    drawn = np.random.default_rng(seed)
    return {
        "data": drawn.integers(0, 256, (size, 3072)).astype(np.uint8),
        label_key: drawn.integers(0, num_classes, size).tolist(),
    }


def write_batches(folder: Path, name: str, dump: Any = python2_pickle) -> list[dict[str, Any]]:
    _, files, label_key, num_classes = BATCHES[name]
    folder.mkdir(parents=True, exist_ok=True)
    batches = []
    for seed, file in enumerate(files):
        batches.append(some_batch(label_key, num_classes, seed))
        (folder / file).write_bytes(dump(batches[-1]))
    return batches


def assert_is(dataset: Dataset, batches: list[dict[str, Any]], label_key: str) -> None:
    images = [batch["data"].reshape(-1, 3, 32, 32) for batch in batches]
    labels = [batch[label_key] for batch in batches]
    np.testing.assert_array_equal(dataset.train.arrays()[0], np.concatenate(images[:-1]))
    np.testing.assert_array_equal(dataset.train.arrays()[1], np.concatenate(labels[:-1]))
    np.testing.assert_array_equal(dataset.test.arrays()[0], images[-1])
    np.testing.assert_array_equal(dataset.test.arrays()[1], labels[-1])


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize(
    "dump",
    [python2_pickle, *map(python3_pickle, (2, 4, 5))],
    ids=["python 2", "protocol 2", "protocol 4", "protocol 5"],
)
def test_batches_of_either_python(tmp_path: Path, name: str, dump: Any):
    folder, _, label_key, num_classes = BATCHES[name]
    batches = write_batches(tmp_path / name / folder, name, dump)
    dataset = load_dataset(name, tmp_path)
    assert_is(dataset, batches, label_key)
    assert (dataset.num_classes, dataset.train.input_scale) == (num_classes, 1 / 255)
    for inputs in (dataset.train.arrays()[0], dataset.test.arrays()[0]):
        assert (inputs.dtype, inputs.flags.c_contiguous, inputs.flags.writeable) == (np.uint8, True, True)


def test_the_python_2_pickle_is_like_the_published_ones():
    batch = some_batch("labels", 10, 0)
    read = pickle.loads(python2_pickle(batch), encoding="bytes")
    assert set(read) == {b"data", b"labels"}
    np.testing.assert_array_equal(read[b"data"], batch["data"])


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("place", ["{name}/{folder}", "{name}", "{folder}", "."])
def test_batches_are_found_in_four_places(tmp_path: Path, name: str, place: str):
    batches = write_batches(tmp_path / place.format(name=name, folder=BATCHES[name][0]), name)
    assert_is(load_dataset(name, tmp_path), batches, BATCHES[name][2])


@pytest.mark.parametrize("name", BATCHES)
def test_an_npz_archive_serves_in_the_place_of_batches(tmp_path: Path, name: str):
    drawn = np.random.default_rng(0)
    arrays = {
        "x_train": drawn.integers(0, 256, (6, 32, 32, 3)).astype(np.uint8),
        "y_train": drawn.integers(0, 9, (6, 1)),
        "x_test": drawn.integers(0, 256, (2, 32, 32, 3)).astype(np.uint8),
        "y_test": np.array([0, 9], np.uint8),
    }
    (tmp_path / name).mkdir()
    np.savez(tmp_path / name / f"{name}.npz", **arrays)
    dataset = load_dataset(name, tmp_path)
    np.testing.assert_array_equal(dataset.train.arrays()[0], arrays["x_train"].transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(dataset.train.arrays()[1], arrays["y_train"][:, 0])
    np.testing.assert_array_equal(dataset.test.arrays()[0], arrays["x_test"].transpose(0, 3, 1, 2))
    assert dataset.train.arrays()[0].flags.c_contiguous
    assert (dataset.name, dataset.num_classes, dataset.label_table) == (name, BATCHES[name][3], None)
    assert dataset.train.input_scale == 1 / 255


def test_labels_of_the_archive_must_be_classes_of_the_data_set(tmp_path: Path):
    images = np.zeros((2, 32, 32, 3), np.uint8)
    np.savez(tmp_path / "cifar10.npz", x_train=images, y_train=[0, 10], x_test=images, y_test=[0, 1])
    with pytest.raises(DataError, match=r"cifar10\.npz: labels must lie in 0 … 9, got 10 in row 1"):
        load_dataset("cifar10", tmp_path)


def test_a_missing_batch_is_named(tmp_path: Path):
    write_batches(tmp_path, "cifar10")
    (tmp_path / "data_batch_4").unlink()
    with pytest.raises(DataError, match=r"data_batch_4 does not exist"):
        load_dataset("cifar10", tmp_path)


class Hostile:
    """Unpickled carelessly, it leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def changed(**entries: Any) -> bytes:
    batch = {**some_batch("labels", 10, 0), **entries}
    return pickle.dumps({key: value for key, value in batch.items() if value is not None})


BROKEN = {
    "empty": (b"", "CIFAR batch"),
    "rubbish": (b"rubbish", "CIFAR batch"),
    "cut": (changed()[:-5000], "CIFAR batch"),
    "no dict": (pickle.dumps([1, 2]), "holds a list, not a dict"),
    "no data": (changed(data=None), "has no entry 'data', only labels"),
    "no labels": (changed(labels=None), "has no entry 'labels', only data"),
    "data is a list": (changed(data=[1]), r"must hold data of uint8 \[N, 3072\], got list"),
    "data of floats": (changed(data=np.zeros((4, 3072))), r"got float64 \[4, 3072\]"),
    "data of another size": (changed(data=np.zeros((4, 3000), np.uint8)), r"got uint8 \[4, 3000\]"),
    "data of one image": (changed(data=np.zeros(3072, np.uint8)), r"got uint8 \[3072\]"),
    "fewer labels": (changed(labels=[1, 2]), "holds 4 images and 2 labels"),
    "label too large": (changed(labels=[1, 2, 10, 3]), "labels must lie in 0 … 9, got 10 in row 2"),
    "labels of objects": (changed(labels=[1, 2, None, 3]), "labels must be whole numbers"),
    "labels of a dict": (changed(labels={1: 2}), "labels must"),
    "array of objects": (
        changed(labels=np.array([1, 2, 3, {}], object)),
        "an array of Python objects that are not num",
    ),
    "array of objects, mixed": (changed(labels=np.array([1, 2, 3, "x"], object)), "got objects of type int and str"),
    "array of dates": (changed(labels=np.zeros(4, "M8[s]")), "an array of type 'M8', not of numbers"),
    "array of records": (changed(labels=np.zeros(4, "i4,i4")), "an array of type 'V8', not of numbers"),
    "array without content": (
        pickle.dumps({"data": np.zeros((0, 3072), np.uint8), "labels": []}),
        r"0 bytes for the shape \[0, 3072\]",
    ),
    "a builtin": (pickle.dumps({"data": print}), "names builtins.print, which is not loaded"),
    "an encoding": (
        b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x04\x00\x00\x00zlib\x86R.",
        "as 'zlib', not 'latin1'",
    ),
    "absurd size": (
        pickle.dumps(np.zeros((0,), np.uint8)).replace(b"K\x00\x85", b"\x8a\x06\xff\xff\xff\xff\xff\x7f\x85"),
        r"an array of 0 bytes for the shape \[140737488355327\] of uint8",
    ),
}


@pytest.mark.parametrize(("content", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_batch_is_one_sentence_that_names_it(tmp_path: Path, content: bytes, message: str):
    write_batches(tmp_path, "cifar10")
    (tmp_path / "data_batch_3").write_bytes(content)
    with pytest.raises(DataError, match=rf"data_batch_3.*{message}") as raised:
        load_dataset("cifar10", tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_hostile_batch_runs_nothing(tmp_path: Path, protocol: int):
    write_batches(tmp_path, "cifar10")
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps({"data": Hostile(tmp_path / "harm")}, protocol=protocol))
    with pytest.raises(DataError, match=r"data_batch_1 .*posix\.mkdir|nt\.mkdir"):
        load_dataset("cifar10", tmp_path)
    assert not (tmp_path / "harm").exists()


def test_a_damaged_type_does_not_reach_numpy(tmp_path: Path):
    """NumPy's own constructor takes these flags for uint8 (it holds Python objects, they say) and fails later."""
    batches = write_batches(tmp_path, "cifar10", functools.partial(python2_pickle, dtype_flags=63))
    assert_is(load_dataset("cifar10", tmp_path), batches, "labels")
    assert not np.dtype(np.uint8).hasobject
