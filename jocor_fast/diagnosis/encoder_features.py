"""What an encoder makes of the training samples of a data set: features, written as they come.

Until they are whole, the folder FILE.npz.partial holds the rows, float32 one after the other in the order of the data
set, and the settings that they were made with. A killed pass continues after its last whole batch, in the same batches,
so its file has the same bytes as that of a pass which nothing stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from jocor_fast.data.arrays import read_npz
from jocor_fast.data.classes import class_numbers
from jocor_fast.data.dataset import Dataset, numbered
from jocor_fast.data.images.bad_files import BadFiles
from jocor_fast.data.images.thumbnails import image_file_uri
from jocor_fast.data.samples import InputFiles, InputSource
from jocor_fast.errors import DataError, RunError
from jocor_fast.files.names import read_json
from jocor_fast.files.whole_file import PARTIAL, write_json
from jocor_fast.machine import own_modes
from jocor_fast.runs.folder_lock import FolderLock

FEATURES, LABELS, NAMES, READABLE = "features", "labels", "names", "readable"
PATHS, FOLDER, SOURCE, SETTINGS = "paths", "folder", "source", "settings"
_ROWS, _STATE, _WHOLE = "rows", "state.json", "whole.npz"
_ITEM = np.dtype(np.float32).itemsize


@dataclass(frozen=True, eq=False)
class Description:
    """What is known of the rows of features.

    Attributes:
        source: what they were made of.
        given: int64 [N], their labels.
        labels: what a file of labels calls each class.
        names: what people call it.
        readable: bool [N], which samples have features.
        paths: the files of the samples, which start from `folder`; None where they are in none.
    """

    source: str
    given: np.ndarray
    labels: Sequence[str]
    names: Sequence[str]
    readable: np.ndarray
    paths: Sequence[str] | None = None
    folder: Path = Path()

    def picture(self, number: int) -> str | None:
        """Return the picture of a sample in a file, as `audit_page` takes it."""
        assert self.paths is not None
        return image_file_uri(self.folder / self.paths[number])


def read_description(path: Path, count: int) -> Description | None:
    """Return what an archive says of its features [N, D]; None where it holds no labels with names of the classes.

    Raises:
        DataError: it does not say it of N rows, or has labels of other classes.
    """
    known = _described(path)
    if not {LABELS, NAMES} <= known.keys():
        return None
    for name in {LABELS, READABLE, PATHS} & known.keys():
        if known[name].shape != (count,):
            raise DataError(f"{path} must hold as many {name} as features, {count}, got {known[name].shape}")
    names = tuple(map(str, known[NAMES]))
    table = names if known[LABELS].dtype.kind == "U" else None
    try:
        given = class_numbers(known[LABELS], len(names), label_table=table)
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}: {error}") from None
    return Description(
        str(known.get(SOURCE, path.stem)),
        given,
        table or numbered(len(names)),
        names,
        readable=known.get(READABLE, np.ones(count)).astype(bool),
        paths=known[PATHS].tolist() if PATHS in known else None,
        folder=Path(str(known.get(FOLDER, path.parent))),
    )


def _described(path: Path) -> dict[str, np.ndarray]:
    """Return what an archive holds of what `FeaturePass` writes besides the features."""
    names: list[str] = []

    def chosen(keys: Sequence[str]) -> list[str]:
        names.extend(name for name in (LABELS, NAMES, READABLE, PATHS, FOLDER, SOURCE, SETTINGS) if name in keys)
        return names

    arrays = read_npz(path, chosen)
    return dict(zip(names, arrays, strict=True))


def partial_folder(output: Path) -> Path:
    """Return the folder of a pass that is not finished."""
    return output.with_name(f"{output.name}{PARTIAL}")


def checksums(dataset: Dataset, encoder: nn.Module) -> dict[str, str]:
    """Return what tells a data set's training part, with its labels, and the weights of an encoder from others."""
    inputs = dataset.train.inputs
    samples = inputs.checksum if isinstance(inputs, InputFiles) else _checksum(inputs)
    weights = ",".join(map(_checksum, encoder.state_dict().values()))
    return {
        "dataset": f"{samples}, labels {_checksum(dataset.train.labels)}",
        "pretrained": f"{zlib.crc32(weights.encode()):08x}",
    }


def _checksum(tensor: Tensor) -> str:
    return f"{zlib.crc32(np.ascontiguousarray(tensor.cpu().numpy()).data):08x}"


@dataclass(frozen=True, eq=False)
class FeaturePass:
    """A pass of an encoder over the training samples of a data set.

    Attributes:
        encoder: from a batch of samples to features [B, D], in evaluation mode, on the device.
        output: the .npz archive: features float32 [N, D], in the order of the data set, and NaN where `readable`, bool
            [N], is false; labels [N] as they are given, names [C], and of image files paths [N] from a folder.
        settings: what the features depend on, as JSON has it; `checksums` is a part of it.
    """

    dataset: Dataset
    encoder: nn.Module
    output: Path
    settings: Mapping[str, Any]
    device: torch.device
    batch_size: int

    def is_written(self) -> bool:
        """Return whether the archive is there; RunError where it has other settings."""
        if not self.output.exists():
            return False
        known = _described(self.output)
        self._check(self.output, json.loads(str(known[SETTINGS])) if SETTINGS in known else {})
        return True

    def write(self, announce: Callable[[str], None], on_sample: Callable[[int, int], None]) -> BadFiles:
        """Write the archive, or continue to.

        Args:
            announce: called with what the pass needs before it begins.
            on_sample: called with (samples done, samples in all) after each batch.

        Returns:
            The files that cannot be read.

        Raises:
            RunError: an unfinished pass there had other settings, or is at work, or the disk has too little room.
            DataError: no file can be read, or features are not finite.
            OSError: the folder cannot be written.
        """
        folder = partial_folder(self.output)
        folder.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(folder)
        lock.acquire()
        try:
            with own_modes(self.device), torch.no_grad():
                return self._compute(folder, announce, on_sample)
        finally:
            if not any(path.stat().st_size for path in folder.glob(_ROWS)):  # nothing to continue, or no more
                shutil.rmtree(folder)
            lock.release()

    def _check(self, place: Path, found: Mapping[str, Any]) -> None:
        others = [name for name, value in self.settings.items() if found.get(name) != value]
        if others:
            raise RunError(f"{place} was made with another {', '.join(others)}; give another file", "output")

    def _compute(
        self, folder: Path, announce: Callable[[str], None], on_sample: Callable[[int, int], None]
    ) -> BadFiles:
        """Write the rows that are missing, and the archive of all; return the files that cannot be read."""
        rows, state, count = folder / _ROWS, read_json(folder / _STATE), len(self.dataset.train)
        if state is None:
            rows.unlink(missing_ok=True)
        else:
            self._check(folder, state.get(SETTINGS, {}))
        source = self.dataset.train.open(self.device, self.batch_size)
        bad_files = BadFiles() if source.bad_files is None else source.bad_files
        bad_files.restore({} if state is None else state["bad_files"])
        width = self.encoder(source.first(1)).shape[1]
        size = rows.stat().st_size if rows.exists() else 0
        done, noted = min(size // (_ITEM * width), count) // self.batch_size * self.batch_size, -1
        self._check_room(folder, count, width, size, announce)
        with open(rows, "ab") as file:
            file.truncate(done * width * _ITEM)
            for some in self._missing(source, done, width):
                with self._writing():
                    if len(bad_files) != noted:  # before the rows, which do not say why files are bad
                        noted = len(bad_files)
                        write_json(folder / _STATE, {SETTINGS: self.settings, "bad_files": bad_files.reasons})
                    file.write(some.data)
                    file.flush()
                done += len(some)
                on_sample(done, count)
        features = np.memmap(rows, np.float32, "r", shape=(count, width))
        readable = ~np.isnan(features[:, 0])
        with self._writing():
            self._write_archive(folder / _WHOLE, features, readable)
            os.replace(folder / _WHOLE, self.output)
            rows.unlink()
        paths = [] if self.dataset.files is None else self.dataset.files.paths
        unread = [paths[number] for number in np.flatnonzero(~readable).tolist()]
        bad_files.restore({path: bad_files.reasons[path] for path in unread})
        return bad_files

    def _check_room(self, folder: Path, count: int, width: int, size: int, announce: Callable[[str], None]) -> None:
        """Say what the pass needs; RunError where the disk has less, besides `size` bytes of rows."""
        megabytes, room = count * width * _ITEM / 1e6, (shutil.disk_usage(folder).free + size) / 1e6
        if room < 2 * megabytes:
            needed = f"needs {2 * megabytes:,.1f} MB until it is whole, there is {room:,.1f} MB"
            raise RunError(f"{self.output} {needed}", "output")
        announce(
            f"{count:,} × {width:,} features: {megabytes:,.1f} MB in {self.output}, and as much again until it is whole"
        )

    def _missing(self, source: InputSource, at: int, width: int) -> Iterator[np.ndarray]:
        """Yield the features of the samples from number `at` on, float32 [B, D], batch by batch."""
        count = len(source)
        for samples, stored in source.batches(torch.arange(at, count, device=self.device), self.batch_size):
            numbers = samples.cpu().numpy()
            features = self.encoder(source.network_input(stored)).float().cpu().numpy()
            finite = np.isfinite(features).all(1)
            if not finite.all():
                sample = int(numbers[finite.argmin()])
                raise DataError(f"the features of sample {sample} are not finite", "pretrained")
            after = min(int(numbers[0]) // self.batch_size * self.batch_size + self.batch_size, count)
            rows = np.full((after - at, width), np.nan, np.float32)
            rows[numbers - at] = features
            yield rows
            at = after
        if at < count:  # the last batches are of bad files alone
            yield np.full((count - at, width), np.nan, np.float32)

    def _write_archive(self, path: Path, features: np.ndarray, readable: np.ndarray) -> None:
        dataset, files, labels = self.dataset, self.dataset.files, self.dataset.train.labels.numpy()
        arrays: dict[str, Any] = {FEATURES: features, LABELS: labels, READABLE: readable, NAMES: dataset.class_names}
        arrays |= {SOURCE: dataset.name, SETTINGS: json.dumps(self.settings)}
        if dataset.label_table is not None:
            arrays[LABELS] = np.array(dataset.label_table)[labels]
        if files is not None:
            arrays |= {PATHS: files.paths, FOLDER: os.path.abspath(files.folder)}
        np.savez(path, **arrays)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Let an OSError name the file of the user's."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, os.fspath(self.output)) from error
