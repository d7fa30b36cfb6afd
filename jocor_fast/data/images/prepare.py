"""A data set of image files, resized once: with the same layout, names and lists as the original.

Decoding large files costs several times what the rest of loading does, and a run does it in every epoch.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image

from jocor_fast.data.dataset import Dataset
from jocor_fast.data.images.bad_files import BadFiles
from jocor_fast.data.images.image_file import BadImage, decode_by_pillow, read_bytes
from jocor_fast.data.images.preprocessing import Preparation, Preprocessing
from jocor_fast.data.images.source import MOST_TRIED, ImageFiles, none_readable, spread
from jocor_fast.errors import ArgumentValueError, DataError
from jocor_fast.files.names import BAD_FILES, PREPARED, read_json
from jocor_fast.files.whole_file import write_bytes, write_text
from jocor_fast.machine import usable_cores

FILES_PER_CORE = 64  # handed to the threads together: a million futures would fill the memory


def prepare(dataset: Dataset, output: Path, preparation: Preparation, on_file: Callable[[int, int], None]) -> BadFiles:
    """Write the resized images and the lists; files that are there from an earlier call are left.

    Every file is a JPEG, under the name that it had, whatever that ends in: what a file is shows in its content. Files
    that cannot be read are left out; a run on the prepared data set finds them missing.

    Args:
        on_file: told (files done, files in all) after each.

    Returns:
        The files that cannot be read, which also stand in bad_files.txt there.

    Raises:
        DataError: the folder holds the data set itself, or one that was prepared otherwise, or an image lies outside
            the data set's folder, or no image can be read.
    """
    assert dataset.files is not None
    folder = dataset.files.folder
    paths = _paths(dataset, folder)
    if output.resolve() == folder.resolve():
        raise ArgumentValueError("output", f"must be another folder than that of the data set, {folder}")
    _check_readable(folder, output, paths)
    output.mkdir(parents=True, exist_ok=True)
    _claim(output, preparation)
    bad_files = BadFiles()

    def resized(path: str) -> BadImage | None:
        return _resize(folder / path, output / path, preparation)

    cores = usable_cores()
    with ThreadPoolExecutor(cores) as threads:
        at_once = FILES_PER_CORE * cores
        parts = (paths[start : start + at_once] for start in range(0, len(paths), at_once))
        faults = (fault for part in parts for fault in threads.map(resized, part))
        for done, (path, fault) in enumerate(zip(paths, faults, strict=True), 1):
            if fault is not None:
                bad_files.report(folder, path, str(fault))
            on_file(done, len(paths))
    for file in dataset.lists:
        (output / file).parent.mkdir(exist_ok=True)
        shutil.copyfile(folder / file, output / file)
    if len(bad_files):
        write_bytes(output / BAD_FILES, bad_files.lines())
    return bad_files


def _paths(dataset: Dataset, folder: Path) -> list[str]:
    """Return all of the data set's files, each once."""
    parts = [part.inputs for part in (dataset.train, dataset.val, dataset.test) if part is not None]
    paths = list(dict.fromkeys(path for files in parts if isinstance(files, ImageFiles) for path in files.paths))
    outside = next((path for path in paths if os.path.isabs(path) or os.path.normpath(path).startswith("..")), None)
    if outside is not None:
        raise DataError(f"{dataset.source}: {outside} lies outside {folder}, and has no place in a copy")
    return paths


def _check_readable(folder: Path, output: Path, paths: list[str]) -> None:
    """DataError where none of some files can be read, nor was any in an earlier call: it will be none of a million."""
    reasons: list[str] = []
    for place in islice(spread(len(paths)), MOST_TRIED):
        if (output / paths[place]).exists():
            return
        try:
            decode_by_pillow(read_bytes(folder / paths[place]))
        except BadImage as error:
            reasons.append(str(error))
        else:
            return
    raise none_readable(folder, len(reasons), paths[0], reasons[0])


def _claim(output: Path, preparation: Preparation) -> None:
    """Note how the files in a folder are made, or see that it was the same before."""
    wanted = json.loads(json.dumps(asdict(preparation)))
    note = output / PREPARED
    if note.exists():
        found = read_json(note) or "something else"
        if found != wanted:
            raise DataError(f"{output} was prepared with {found}, not with {wanted}; give another folder", "output")
    write_text(note, json.dumps(wanted) + "\n")


def _resize(source: Path, target: Path, preparation: Preparation) -> BadImage | None:
    """Write one file, unless it is there; why it cannot be, as a BadImage."""
    if target.exists():
        return None
    try:
        pixels = decode_by_pillow(read_bytes(source))
    except BadImage as error:
        return error
    data = prepared_jpeg(pixels, preparation)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(target, data)  # whole or not there: a call that is killed leaves no half of a file
    return None


def prepared_jpeg(pixels: np.ndarray, preparation: Preparation) -> bytes:
    """Pixels uint8 [H, W, 3] as the file that is made of them."""
    height, width = Preprocessing(preparation.resize).resized(*pixels.shape[:2])
    if isinstance(preparation.resize, int) and preparation.resize > min(pixels.shape[:2]):
        height, width = pixels.shape[:2]
    image = Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)
    encoded = io.BytesIO()
    image.save(encoded, "JPEG", quality=preparation.quality)
    return encoded.getvalue()
