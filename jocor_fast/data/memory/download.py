"""A file of some megabytes from the first of several addresses that has it, checked before it is written."""

from __future__ import annotations

import hashlib
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path

from jocor_fast.files.whole_file import check_writable, write_bytes

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
    try:
        check_writable(target.parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        for url in urls:
            try:
                data = _answer(url)
            except (OSError, HTTPException) as error:
                faults.setdefault(str(getattr(error, "reason", None) or error), url)
                continue
            found = hashlib.md5(data, usedforsecurity=False).hexdigest()
            if found == md5:
                write_bytes(target, data)
                return
            faults.setdefault(f"its MD5 sum is {found}, not {md5}", url)
    except OSError as error:
        raise DownloadError(f"{target.parent} cannot be written: {error.strerror or error}") from error
    raise DownloadError("; ".join(f"{url}: {fault}" for fault, url in faults.items()))


def _answer(url: str) -> bytes:
    """What an address answers. A proxy's settings are those of the environment."""
    with urllib.request.urlopen(url, timeout=_SECONDS_WITHOUT_AN_ANSWER) as answer:
        content: bytes = answer.read()
        return content
