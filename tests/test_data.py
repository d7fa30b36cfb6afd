"""Data sets by name: the embedded digits, MNIST's files, downloads, and where everything is looked for (case 50)."""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from jocor_fast.data.catalogue import DATASETS, default_root, load_dataset
from jocor_fast.data.dataset import Dataset
from jocor_fast.data.memory import idx as idx_module
from jocor_fast.data.memory.download import DownloadError, download
from jocor_fast.data.memory.idx import read_idx
from jocor_fast.errors import ArgumentValueError, DataError

FILES = {
    "train-images-idx3-ubyte": (7, 5, 4),
    "train-labels-idx1-ubyte": (7,),
    "t10k-images-idx3-ubyte": (3, 5, 4),
    "t10k-labels-idx1-ubyte": (3,),
}


def idx_bytes(values: np.ndarray, kind: int = 0x08) -> bytes:
    header = bytes((0, 0, kind, values.ndim)) + b"".join(size.to_bytes(4, "big") for size in values.shape)
    return header + values.tobytes()


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    drawn = np.random.default_rng(0)
    return {
        stem: drawn.integers(0, 256 if len(shape) == 3 else 10, shape).astype(np.uint8) for stem, shape in FILES.items()
    }


def write_idx(folder: Path, arrays: dict[str, np.ndarray], *, compress: bool = True) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for stem, values in arrays.items():
        content = idx_bytes(values)
        (folder / (f"{stem}.gz" if compress else stem)).write_bytes(gzip.compress(content) if compress else content)


def assert_is(dataset: Dataset, arrays: dict[str, np.ndarray]) -> None:
    parts = (dataset.train.arrays()[0], dataset.train.arrays()[1], dataset.test.arrays()[0], dataset.test.arrays()[1])
    for got, expected in zip(parts, arrays.values(), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that nobody answers at, so that no test ever reaches a real site."""
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
        monkeypatch.delenv(name.upper(), raising=False)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


class _SilentHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    """The address of a local web server, and the folder that it serves."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    folder = tmp_path / "site"
    folder.mkdir()
    handler = functools.partial(_SilentHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/", folder
        server.shutdown()
        thread.join()


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


# -- the embedded digits


def test_digits_are_split_by_a_fixed_permutation():
    digits = load_dataset("digits")
    assert (digits.train.arrays()[0].shape, digits.test.arrays()[0].shape) == ((1437, 8, 8), (360, 8, 8))
    assert (digits.train.arrays()[0].dtype, digits.train.arrays()[0].max(), digits.train.input_scale) == (
        np.uint8,
        16,
        1 / 16,
    )
    assert (digits.num_classes, digits.val, digits.label_table) == (10, None, None)
    assert digits.train.arrays()[1].dtype == np.int64
    assert digits.train.arrays()[1][:10].tolist() == [2, 8, 2, 6, 6, 7, 1, 9, 8, 5]
    assert hashlib.sha256(digits.train.arrays()[0].tobytes()).hexdigest()[:16] == "8dc700dcd0f18c4f"


def test_digits_are_all_of_scikit_learns():
    digits = load_dataset("digits")
    everything = np.concatenate([digits.train.arrays()[0], digits.test.arrays()[0]]).reshape(1797, 64)
    labels = np.concatenate([digits.train.arrays()[1], digits.test.arrays()[1]])
    from sklearn.datasets import load_digits

    raw = load_digits()
    mine = sorted(map(tuple, np.column_stack([everything, labels]).tolist()))
    assert mine == sorted(map(tuple, np.column_stack([raw.data, raw.target]).astype(int).tolist()))


@pytest.mark.parametrize("prefix", ["npz:", "folder:", "csv:"])
def test_a_prefix_without_a_path_is_not_the_current_folder(prefix: str):
    with pytest.raises(ArgumentValueError, match=f"^dataset must name a file or folder after '{prefix}', got nothing$"):
        load_dataset(prefix)


# -- IDX files


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("compress", [True, False], ids=["gz", "raw"])
@pytest.mark.parametrize("nested", [True, False], ids=["root/NAME", "root"])
def test_idx_files_are_read_from_either_place(
    tmp_path: Path, arrays: dict[str, np.ndarray], name: str, compress: bool, nested: bool
):
    write_idx(tmp_path / name if nested else tmp_path, arrays, compress=compress)
    dataset = load_dataset(name, tmp_path)
    assert_is(dataset, arrays)
    assert (dataset.name, dataset.num_classes, dataset.train.input_scale) == (name, 10, 1 / 255)
    assert dataset.input_shape == (5, 4)
    for inputs in (dataset.train.arrays()[0], dataset.test.arrays()[0]):
        assert inputs.flags.c_contiguous
        assert inputs.flags.writeable


def test_the_folder_of_the_name_goes_first(tmp_path: Path, arrays: dict[str, np.ndarray]):
    write_idx(tmp_path, {stem: np.zeros_like(values) for stem, values in arrays.items()})
    write_idx(tmp_path / "mnist", arrays)
    assert_is(load_dataset("mnist", tmp_path), arrays)


def test_gzip_is_told_by_content_not_by_name(tmp_path: Path, arrays: dict[str, np.ndarray]):
    write_idx(tmp_path, arrays, compress=False)
    for path in list(tmp_path.iterdir()):
        path.rename(path.with_name(f"{path.name}.gz"))
    assert_is(load_dataset("mnist", tmp_path), arrays)


IMAGES = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
BROKEN_IDX = {
    "absent": (None, "does not exist"),
    "empty": (b"", "starts with 0x, not 0x00000803"),
    "one byte": (b"\0", "starts with 0x00, not"),
    "another magic": (b"PK\3\4" + idx_bytes(IMAGES)[4:], "starts with 0x504b0304, not 0x00000803"),
    "floats": (idx_bytes(IMAGES, kind=0x0D), "starts with 0x00000d03"),
    "labels for images": (idx_bytes(IMAGES[:, 0, 0].copy()), "starts with 0x00000801"),
    "header cut": (idx_bytes(IMAGES)[:10], "truncated: it has 10 bytes, its header alone has 16"),
    "values cut": (idx_bytes(IMAGES)[:-1], "holds 23 values, its header says 2×3×4"),
    "values too many": (idx_bytes(IMAGES) + b"\0", "holds 25 values, its header says 2×3×4"),
    "absurd header": (idx_bytes(IMAGES)[:4] + b"\xff" * 12, "its header says 4294967295×4294967295×4294967295"),
    "gzip cut": (gzip.compress(idx_bytes(IMAGES))[:-9], "IDX file"),
    "gzip header only": (b"\x1f\x8b", "IDX file"),
    "gzip flipped": (gzip.compress(idx_bytes(IMAGES))[:-8] + b"\0" * 8, "IDX file"),
    "gzip of rubbish": (gzip.compress(b"rubbish"), "starts with 0x72756262"),
    "html": (b"<html>404</html>", "starts with 0x3c68746d"),
}


@pytest.mark.parametrize(("content", "message"), BROKEN_IDX.values(), ids=BROKEN_IDX)
def test_a_broken_idx_file_is_one_sentence_that_names_it(tmp_path: Path, content: bytes | None, message: str):
    path = tmp_path / "train-images-idx3-ubyte"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=rf"train-images-idx3-ubyte .*{message}") as raised:
        read_idx(path, 3)
    assert "\n" not in str(raised.value)


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path: Path):
    with pytest.raises(DataError, match=f"{tmp_path} cannot be read as an IDX file: Is a directory"):
        read_idx(tmp_path, 3)


@pytest.mark.parametrize(
    ("stem", "values", "message"),
    [
        (
            "train-labels-idx1-ubyte",
            np.array([0, 1], np.uint8),
            "as many train labels as images.* 7 images and 2 labels",
        ),
        ("t10k-images-idx3-ubyte", np.zeros((3, 4, 4), np.uint8), r"test images like its train images, \(5, 4\)"),
        (
            "train-labels-idx1-ubyte",
            np.full(7, 10, np.uint8),
            "train-labels-idx1-ubyte.gz: labels must lie in 0 … 9, got 10",
        ),
        ("t10k-labels-idx1-ubyte", np.zeros(0, np.uint8), "3 images and 0 labels"),
    ],
)
def test_parts_that_do_not_fit_are_named(
    tmp_path: Path, arrays: dict[str, np.ndarray], stem: str, values: np.ndarray, message: str
):
    write_idx(tmp_path, {**arrays, stem: values})
    with pytest.raises(DataError, match=rf"{tmp_path}.*{message}"):
        load_dataset("mnist", tmp_path)


def test_mnist_itself(data_root: Path):
    if not (data_root / "mnist").is_dir():
        pytest.skip("JOCOR_FAST_DATA has no folder mnist")
    mnist = load_dataset("mnist", data_root)
    assert (mnist.train.arrays()[0].shape, mnist.test.arrays()[0].shape) == ((60_000, 28, 28), (10_000, 28, 28))
    assert mnist.train.arrays()[1][:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert np.bincount(mnist.test.arrays()[1]).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert mnist.train.arrays()[0].mean() / 255 == pytest.approx(0.1307, abs=1e-4)


# -- downloads


def serve_mnist(monkeypatch: pytest.MonkeyPatch, site: tuple[str, Path], arrays: dict[str, np.ndarray]) -> None:
    address, folder = site
    write_idx(folder, arrays)
    (folder / "gone").mkdir()
    sums = tuple(md5((folder / f"{stem}.gz").read_bytes()) for stem in FILES)
    monkeypatch.setitem(idx_module.IDX_SITES, "mnist", idx_module.IdxSite((f"{address}gone/", address), sums))


def test_absent_files_are_downloaded_and_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, site: tuple[str, Path], arrays: dict[str, np.ndarray]
):
    serve_mnist(monkeypatch, site, arrays)
    root, said = tmp_path / "new" / "root", []
    assert_is(load_dataset("mnist", root, announce=said.append), arrays)
    assert sorted(path.name for path in (root / "mnist").iterdir()) == sorted(f"{stem}.gz" for stem in FILES)
    assert said == [f"downloading {stem}.gz of mnist into {root / 'mnist'}" for stem in FILES]
    for path in site[1].glob("*.gz"):
        path.unlink()
    assert_is(load_dataset("mnist", root, announce=said.append), arrays)
    assert len(said) == len(FILES)


def test_only_missing_files_are_downloaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, site: tuple[str, Path], arrays: dict[str, np.ndarray]
):
    serve_mnist(monkeypatch, site, arrays)
    stem = "t10k-labels-idx1-ubyte"
    write_idx(tmp_path / "mnist", {stem: arrays[stem]}, compress=False)
    (site[1] / f"{stem}.gz").unlink()
    assert_is(load_dataset("mnist", tmp_path), arrays)


def test_a_download_with_another_sum_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, site: tuple[str, Path], arrays: dict[str, np.ndarray]
):
    serve_mnist(monkeypatch, site, arrays)
    (site[1] / "train-labels-idx1-ubyte.gz").write_bytes(b"<html>sign in</html>")
    root = tmp_path / "root"
    with pytest.raises(DataError, match=r"its MD5 sum is .*needs train-labels-idx1-ubyte\.gz, t10k-images") as raised:
        load_dataset("mnist", root)
    assert "gone/train-labels-idx1-ubyte.gz: File not found" in str(raised.value)  # what the first address answered
    assert [path.name for path in (root / "mnist").iterdir()] == ["train-images-idx3-ubyte.gz"]


def test_a_download_that_breaks_off_leaves_nothing(tmp_path: Path, site: tuple[str, Path]):
    address, folder = site
    (folder / "file").write_bytes(b"whole")
    target = tmp_path / "kept" / "file"
    with pytest.raises(DownloadError, match="its MD5 sum is"):
        download([f"{address}file"], target, md5(b"more than that"))
    with pytest.raises(DownloadError, match="File not found"):
        download([f"{address}other"], target, md5(b""))
    assert list(target.parent.iterdir()) == []
    download([f"{address}other", f"{address}file"], target, md5(b"whole"))
    assert [path.read_bytes() for path in target.parent.iterdir()] == [b"whole"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, site: tuple[str, Path]):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DownloadError, match=rf"{tmp_path / 'file'} cannot be written"):
        download([site[0]], tmp_path / "file" / "below", md5(b""))


# -- absent data sets (case 50) and names


def load_dataset_error(name: str) -> str:
    with pytest.raises(DataError) as raised:
        load_dataset(name)
    return str(raised.value)


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize(
    ("name", "files", "where"),
    [
        ("mnist", ["train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"], "https://ossci-datasets"),
        ("fashion-mnist", ["train-images-idx3-ubyte.gz"], "https://github.com/zalandoresearch/fashion-mnist"),
        ("cifar10", ["cifar-10-batches-py", "data_batch_1", "test_batch", "cifar10.npz"], "cs.toronto.edu/~kriz/cifar"),
        (
            "cifar100",
            ["cifar-100-python", "train", "test", "cifar100.npz"],
            "https://www.cs.toronto.edu/~kriz/cifar.html",
        ),
    ],
)
def test_case_50_an_absent_data_set_is_one_sentence(tmp_path: Path, name: str, files: list[str], where: str):
    with pytest.raises(DataError) as raised:
        load_dataset(name, tmp_path)
    sentence = str(raised.value)
    assert sentence.startswith(f"{name} is not in {tmp_path / name} or {tmp_path}")
    assert all(file in sentence for file in [*files, where])
    assert "\n" not in sentence
    assert list(tmp_path.rglob("*.part")) == []


def test_the_root_is_the_environments_else_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arrays: dict[str, np.ndarray]
):
    monkeypatch.setenv("JOCOR_FAST_DATA", str(tmp_path / "data"))
    assert default_root() == tmp_path / "data"
    write_idx(tmp_path / "data" / "mnist", arrays)
    assert_is(load_dataset("mnist"), arrays)
    for unset in (lambda: monkeypatch.setenv("JOCOR_FAST_DATA", ""), lambda: monkeypatch.delenv("JOCOR_FAST_DATA")):
        unset()
        monkeypatch.setenv("HOME", str(tmp_path))
        assert default_root() == tmp_path / ".cache" / "jocor_fast"
    assert load_dataset_error("npz:~nobody-of-that-name/x.npz").endswith("x.npz does not exist")
    write_idx(tmp_path / "own" / "mnist", arrays)
    assert_is(load_dataset("mnist", "~/own"), arrays)


def test_a_user_without_a_home_is_told_to_name_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def unknown(user: int):
        raise KeyError(f"uid not found: {user}")

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JOCOR_FAST_DATA", raising=False)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", unknown)
    for call in (default_root, lambda: load_dataset("mnist")):
        with pytest.raises(DataError, match=r"^data_root: .* no home; give one, or set \$JOCOR_FAST_DATA"):
            call()
    assert load_dataset("digits").num_classes == 10
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "MNIST", "cifar-10", "npz", "../mnist"])
def test_an_unknown_name_is_answered_with_the_known_ones(tmp_path: Path, name: str):
    known = f"dataset must be one of {', '.join(list(DATASETS)[:-3])}, npz:FILE, folder:DIR or csv:FILE, got '{name}'"
    with pytest.raises(ArgumentValueError, match=known):
        load_dataset(name, tmp_path)


def test_a_name_that_is_no_string_is_a_type_error():
    with pytest.raises(TypeError, match="dataset must be a str, got int"):
        load_dataset(10)
