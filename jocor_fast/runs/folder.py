"""The folder of a run: its files, of which a crash at any moment loses none, and its checkpoints, read."""

from __future__ import annotations

import contextlib
import io
import json
import os
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from jocor_fast.engine.history import SampleStatistics
from jocor_fast.errors import RunError
from jocor_fast.files.names import (
    BAD_FILES,
    BEST,
    CHECKPOINT,
    CONFIG,
    CURVES,
    FIRST_STAGE,
    METRICS,
    PREVIOUS_CHECKPOINT,
    SUMMARY,
)
from jocor_fast.files.whole_file import PARTIAL, check_writable, finite_or_none, json_bytes, write_bytes
from jocor_fast.report.curves import draw_curves
from jocor_fast.runs.folder_lock import FolderLock

DAMAGED_CHECKPOINT = "checkpoint-damaged.pt"
_OF_A_RUN = (CONFIG, METRICS, SUMMARY, CHECKPOINT, PREVIOUS_CHECKPOINT, BEST)


class RunFolder:
    """The files of one run. Whatever keeps one from being written is a RunError that names it.

    A file is written under another name, flushed to the disk and renamed: under its own it is whole or absent.
    The folder is locked until `release`: no second run writes into it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Make the folder, if it is not there; a RunError where another run trains into it."""
        self.path = Path(path)
        self._lock = FolderLock(self.path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritten(self.path, error) from error
        self._lock.acquire()
        if self._lock.is_held():  # then what is half-written is what a killed process left
            for name in (*_OF_A_RUN, BAD_FILES):
                with contextlib.suppress(OSError):
                    (self.path / f"{name}{PARTIAL}").unlink(missing_ok=True)

    def release(self) -> None:
        """Let other runs have the folder."""
        self._lock.release()

    def clear(self) -> None:
        """Remove what an earlier run left."""
        for name in (*_OF_A_RUN, CURVES, BAD_FILES):
            with self._writing(name):
                (self.path / name).unlink(missing_ok=True)

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write config.json or summary.json; numbers that are not finite become null."""
        self._replace(name, json_bytes(content))

    def write_metrics(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Write metrics.jsonl anew."""
        self._replace(METRICS, "".join(map(_json_line, lines)).encode())

    def append_metrics(self, line: Mapping[str, Any]) -> None:
        """Add an epoch to metrics.jsonl."""
        with self._writing(METRICS), open(self.path / METRICS, "a", encoding="utf-8") as file:
            file.write(_json_line(line))

    def write_best(self, content: Mapping[str, Any]) -> None:
        self._replace(BEST, _serialized(content))

    def write_checkpoint(self, content: Mapping[str, Any]) -> None:
        """Write checkpoint.pt; the one that was there becomes checkpoint-previous.pt."""
        self._replace(CHECKPOINT, _serialized(content), keep_as=PREVIOUS_CHECKPOINT)

    def write_bad_files(self, lines: bytes) -> None:
        self._replace(BAD_FILES, lines)

    def write_curves(self, metrics: Sequence[Mapping[str, Any]]) -> None:
        with self._writing(CURVES):
            draw_curves(metrics, self.path / CURVES)

    def read_checkpoint(self) -> dict[str, Any] | None:
        """Return the latest whole checkpoint, on the CPU; None where there is none.

        Where checkpoint.pt is damaged and checkpoint-previous.pt is whole, the first is put aside, with a warning: left
        there, it would take the place of the second when the next checkpoint is written.

        Raises:
            RunError: there are checkpoints, and all are damaged, or one cannot be read.
        """
        content, damaged = _latest_whole(self.path, "output")
        if content is None and damaged:
            raise RunError(
                f"{self.path} has no whole checkpoint to resume from, damaged: {' and '.join(damaged)}; "
                "remove the folder or give another to start afresh",
                "output",
            )
        if damaged:
            warnings.warn(
                f"{self.path / CHECKPOINT} is damaged: resuming from {PREVIOUS_CHECKPOINT}, it is kept as "
                f"{DAMAGED_CHECKPOINT}",
                stacklevel=2,
            )
            with self._writing(DAMAGED_CHECKPOINT):
                os.replace(self.path / CHECKPOINT, self.path / DAMAGED_CHECKPOINT)
        return content

    def _replace(self, name: str, data: bytes, keep_as: str | None = None) -> None:
        kept = None if keep_as is None else self.path / keep_as
        with self._writing(name):
            write_bytes(self.path / name, data, partial=self.path / f"{name}{PARTIAL}", keep_as=kept, flush=True)

    @contextlib.contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        self._lock.acquire()  # again: the folder may have been removed, and another run begun in its place
        try:
            yield
        except OSError as error:
            raise _unwritten(self.path / name, error) from error


class _DamagedError(Exception):
    """A file is no whole checkpoint; the message is the class of the error that reading it caused."""


def check_free(path: Path, resume: str = "resume=True") -> None:
    """Raise RunError where a run has been started in the folder, which `resume` continues."""
    if any((path / name).exists() for name in (*_OF_A_RUN, FIRST_STAGE)):
        raise RunError(f"{path} holds a run already; {resume} continues it, or give another folder", "output")


def check_place(path: Path) -> None:
    """Raise RunError where no run can write into the folder, which need not exist yet."""
    try:
        check_writable(path)
    except OSError as error:
        raise _unwritten(path, error) from error


def _unwritten(path: Path, error: OSError) -> RunError:
    return RunError(f"{path} cannot be written ({error.strerror or error}); the existing file is kept", "output")


def history_in(path: Path, checkpoint: Mapping[str, Any]) -> SampleStatistics:
    """Return what the run in the folder `path` has seen of each sample, by its checkpoint.

    Raises:
        RunError: the checkpoint is from before there was a history.
    """
    state = checkpoint["training"].get("history")
    if state is None:
        raise RunError(f"the checkpoint in {path} is from before runs kept a history; train again to have one", "RUN")
    return SampleStatistics.of(state)


def read_whole_checkpoint(path: Path) -> dict[str, Any]:
    """Return the latest whole checkpoint of the run in a folder, on the CPU.

    Raises:
        RunError: there is none, or it cannot be read.
    """
    content, _ = _latest_whole(path, "RUN")
    if content is None:
        raise RunError(f"{path} holds no whole {CHECKPOINT}, which `jocor-fast train` writes after every epoch", "RUN")
    return content


def _latest_whole(folder: Path, argument: str) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the latest whole checkpoint, if there is one, and of each later one that it is damaged: "NAME (why)"."""
    damaged: list[str] = []
    for name in (CHECKPOINT, PREVIOUS_CHECKPOINT):
        if (folder / name).exists():
            try:
                return _read(argument, folder / name, resumable=True), damaged
            except _DamagedError as error:
                damaged.append(f"{name} ({error})")
    return None, damaged


def read_weights(path: Path) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Return what a checkpoint.pt or best.pt says of its networks' input (None where it does not) and their weights.

    Raises:
        RunError: it is absent, damaged or something else.
    """
    try:
        content = _read("CHECKPOINT", path)
    except _DamagedError as error:
        raise RunError(f"{path} is no whole checkpoint of a run ({error})", "CHECKPOINT") from error
    return content.get("input"), content.get("training", content)["networks"]


def plain(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content as JSON gives it back; raise TypeError where JSON has no form for it."""
    result: dict[str, Any] = json.loads(json.dumps(finite_or_none(content)))
    return result


def _json_line(line: Mapping[str, Any]) -> str:
    return json.dumps(finite_or_none(line), allow_nan=False) + "\n"


def _serialized(content: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(dict(content), buffer)
    return buffer.getvalue()


def _read(argument: str, path: Path, *, resumable: bool = False) -> dict[str, Any]:
    """A checkpoint, on the CPU; where `resumable`, one that holds more than the weights, which is all best.pt has.

    Raises:
        RunError: the file cannot be read; it names the argument that gave it.
        _DamagedError: it is damaged, or something else than a checkpoint.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror or error})", argument) from error
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if archive.testzip() is not None:  # torch does not look at the checksums in the archive
                raise ValueError("it is damaged")
        content: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        if "networks" not in content.get("training", {} if resumable else content):
            raise ValueError("it is something else")
        return content
    except MemoryError:
        raise
    except Exception as error:  # a broken file makes zipfile, pickle and torch raise errors of every class
        raise _DamagedError(type(error).__name__) from error
