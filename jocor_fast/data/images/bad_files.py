"""The files of a run that cannot be read, each met once and remembered."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from jocor_fast.errors import DataError


class BadFiles:
    """Shared by the sources of a run, which report to it; a file that is known is never tried again.

    Attributes:
        reasons: by the file's path as the data set lists it, in the order in which they were met.
    """

    def __init__(self, *, strict: bool = False) -> None:
        """Where `strict`, the first report is the end of the run."""
        self.strict = strict
        self.reasons: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self.reasons)

    def __contains__(self, path: str) -> bool:
        return path in self.reasons

    def report(self, folder: Path, path: str, reason: str) -> None:
        """Take down a file.

        Raises:
            DataError: this is a strict run; the sentence names the file.
        """
        if self.strict:
            raise DataError(f"{folder / path} cannot be used ({reason}), and no file may be skipped", "strict")
        self.reasons.setdefault(path, " ".join(reason.split()))

    def restore(self, reasons: Mapping[str, str]) -> None:
        """Know what a checkpoint knew."""
        self.reasons = dict(reasons)

    def merge(self, found: Sequence[Mapping[str, str]]) -> None:
        """Know what every process of the run knows, in an order that is the same for all."""
        merged: dict[str, str] = {}
        for reasons in found:
            for path, reason in reasons.items():
                merged.setdefault(path, reason)
        if len(found) > 1:
            merged = dict(sorted(merged.items()))  # whichever process met them first, and whenever this is called
        self.restore(merged)

    def lines(self) -> bytes:
        """The content of bad_files.txt: path TAB reason, a line a file; names keep the bytes that they have on disk."""
        return b"".join(os.fsencode(f"{path}\t{reason}\n") for path, reason in self.reasons.items())
