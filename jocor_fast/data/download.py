"""A file from the first of several addresses that has it, checked before it takes its name."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO

_SECONDS_WITHOUT_AN_ANSWER = 15


class DownloadError(Exception):
    """No address had the file; the message says what each answered."""


def download(urls: Sequence[str], target: Path, md5: str) -> None:
    """Write a file that appears under its name only when it is whole.

    Args:
        urls: addresses of the same file, tried in turn.
        target: its path; folders are made.
        md5: the MD5 sum that its publisher states, 32 hexadecimal digits.

    Raises:
        DownloadError: no address gave a file with that sum, or it cannot be written. Nothing is left behind.
    """
    faults: dict[str, str] = {}  # by reason: without a network, all addresses have the same
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for url in urls:
            with open(part, "wb") as file:
                fault = _copy(url, file)
            found = hashlib.md5(part.read_bytes(), usedforsecurity=False).hexdigest()
            if fault is None and found == md5:
                os.replace(part, target)
                return
            faults.setdefault(fault or f"its MD5 sum is {found}, not {md5}", url)
    except OSError as error:
        raise DownloadError(f"{target.parent} cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
    raise DownloadError("; ".join(f"{url}: {fault}" for fault, url in faults.items()))


def _copy(url: str, file: BinaryIO) -> str | None:
    """Copy what an address answers; the fault, or None. A proxy's settings are those of the environment."""
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS_WITHOUT_AN_ANSWER) as answer:
            shutil.copyfileobj(answer, file)
    except (OSError, HTTPException) as error:
        return str(getattr(error, "reason", None) or error)
    return None
