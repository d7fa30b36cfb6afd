"""MNIST and Fashion-MNIST: four IDX files, plain or gzip, downloaded where the network allows."""

from __future__ import annotations

import gzip
import math
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jocor_fast.data.arrays import reading
from jocor_fast.data.dataset import Dataset, DataShape, Entry, Wanted, in_memory
from jocor_fast.errors import DataError

if TYPE_CHECKING:
    import numpy as np

_STEMS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_NUM_CLASSES = 10
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class IdxSite:
    """Where the gzip files of a data set are found."""

    addresses: tuple[str, ...]  # of the folder; the first is the one that a reader is pointed to
    md5: tuple[str, ...]  # of the four gzip files, as their publishers state them


IDX_SITES = {
    "mnist": IdxSite(
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    "fashion-mnist": IdxSite(
        (
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ),
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
}


def load_idx_dataset(wanted: Wanted) -> Dataset:
    """Load MNIST or Fashion-MNIST: images [N, 28, 28] uint8, ten classes.

    Raises:
        DataError: a file is absent and cannot be downloaded, or is broken.
    """
    folder = find_idx_dataset(wanted.folders)
    paths = _downloaded(wanted) if folder is None else _found(folder)
    arrays = [read_idx(paths[stem], 3 if "images" in stem else 1) for stem in _STEMS]
    parts = {
        "train": (arrays[0], _as_labels(arrays[1], paths[_STEMS[1]])),
        "test": (arrays[2], _as_labels(arrays[3], paths[_STEMS[3]])),
    }
    return in_memory(wanted.name, parts, _NUM_CLASSES, source=paths[_STEMS[0]].parent)


def find_idx_dataset(folders: Sequence[Path]) -> Path | None:
    """The first of the folders that holds all four files, or None."""
    return next((folder for folder in folders if len(_found(folder)) == len(_STEMS)), None)


def read_idx(path: Path, num_dimensions: int) -> np.ndarray:
    """The uint8 array of an IDX file, plain or gzip (told apart by content, not by name).

    Raises:
        DataError: the file is absent, truncated, too long, or holds another type or number of dimensions.
    """
    import numpy as np

    with reading(path, "an IDX file"):
        content = path.read_bytes()
        if content.startswith(_GZIP_MAGIC):
            content = gzip.decompress(content)
    magic, header = bytes((0, 0, 0x08, num_dimensions)), 4 + 4 * num_dimensions  # 0x08: unsigned bytes
    if content[:4] != magic:
        raise DataError(
            f"{path} is not an IDX file of {num_dimensions}-dimensional unsigned bytes: it starts with "
            f"0x{content[:4].hex()}, not 0x{magic.hex()}"
        )
    if len(content) < header:
        raise DataError(f"{path} is truncated: it has {len(content)} bytes, its header alone has {header}")
    shape = struct.unpack(f">{num_dimensions}I", content[4:header])
    if len(content) - header != math.prod(shape):
        raise DataError(f"{path} holds {len(content) - header} values, its header says {'×'.join(map(str, shape))}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy()  # a copy can be written to


def _as_labels(values: np.ndarray, path: Path) -> np.ndarray:
    from jocor_fast.data.classes import class_numbers

    try:
        return class_numbers(values, _NUM_CLASSES)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None


def _found(folder: Path) -> dict[str, Path]:
    """The files of the set that lie in a folder, by stem; a plain file goes before a gzip one."""
    found: dict[str, Path] = {}
    for stem in _STEMS:
        for path in (folder / stem, folder / f"{stem}.gz"):
            if os.path.isfile(path):  # False, too, where a folder may not be searched
                found.setdefault(stem, path)
    return found


def _downloaded(wanted: Wanted) -> dict[str, Path]:
    from jocor_fast.data.memory.download import DownloadError, download

    name, folder, site = wanted.name, wanted.folders[0], IDX_SITES[wanted.name]
    for stem, md5 in zip(_STEMS, site.md5, strict=True):
        if stem in _found(folder):
            continue
        file = f"{stem}.gz"
        wanted.announce(f"downloading {file} of {name} into {folder}")
        try:
            download([address + file for address in site.addresses], folder / file, md5)
        except DownloadError as error:
            files = ", ".join(f"{stem}.gz" for stem in _STEMS if stem not in _found(folder))
            raise DataError(
                f"{name} is not in {' or '.join(map(str, wanted.folders))}, and cannot be downloaded ({error}): "
                f"{folder} needs {files} from {site.addresses[0]}"
            ) from None
    return _found(folder)


_MNIST_COUNTS = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
_SHAPES = {"mnist": (_MNIST_COUNTS, 0.191), "fashion-mnist": ((6000,) * 10, 0.498)}
IDX = [
    Entry(name, load_idx_dataset, find_idx_dataset, shape=DataShape(60_000, 10_000, (28, 28), counts, filled=filled))
    for name, (counts, filled) in _SHAPES.items()
]
