"""Each loader there is, and what it makes of lists of image files."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from jocor_fast.data.images.bad_files import BadFiles
from jocor_fast.data.images.preprocessing import Preprocessing
from jocor_fast.data.images.source import ImageFiles
from jocor_fast.data.samples import InputSource

CPU = torch.device("cpu")
SMALL = Preprocessing((36, 36), crop=32)
BATCH = 8


def _present(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False


LOADERS = [
    pytest.param(name, marks=pytest.mark.skipif(not _present(module), reason=f"needs {module}"))
    for name, module in (("dali", "nvidia.dali"), ("pillow", "PIL"))
]
EACH_LOADER = pytest.mark.parametrize("loader", LOADERS)


def opened(
    images: ImageFiles,
    loader: str,
    *,
    preprocessing: Preprocessing = SMALL,
    training: bool = True,
    bad_files: BadFiles | None = None,
    seed: int = 0,
) -> InputSource:
    bad_files = BadFiles() if bad_files is None else bad_files
    files = replace(images, preprocessing=preprocessing, loader=loader, bad_files=bad_files, seed=seed)
    return files.open(CPU, BATCH, training=training)


def pixels(source: InputSource, stored: Tensor, preprocessing: Preprocessing = SMALL) -> Tensor:
    """[B, H, W, 3] in 0 … 255, of what a source gave."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (preprocessing.mean, preprocessing.std))
    return (255 * (source.network_input(stored) * std + mean)).permute(0, 2, 3, 1)


def numbers_and_pixels(source: InputSource, order: Tensor, epoch: int = 1) -> tuple[list[int], Tensor]:
    batches = list(source.batches(order, BATCH, epoch))
    return [i for batch in batches for i in batch.samples.tolist()], torch.cat(
        [pixels(source, b.stored) for b in batches]
    )


def write_list(folder: Path, files: dict[str, bytes]) -> ImageFiles:
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return ImageFiles(folder, list(files))
