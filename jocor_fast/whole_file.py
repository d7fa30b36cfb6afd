"""Files that are whole or not there: what is written goes beside its place first, under another name."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PARTIAL = ".partial"  # ends the name of a file while it is written


_NAMELESS = re.compile(rf"\.\d+-[0-9a-f]{{8}}{re.escape(PARTIAL)}")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write an object; numbers in it that are not finite become null."""
    write_bytes(path, json_bytes(content))


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """The same as bytes. Names of files that are not UTF-8 are escaped, and so read back as Python has them."""
    text = json.dumps(finite_or_none(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode(errors="backslashreplace")


def finite_or_none(value: Any) -> Any:
    """The value with every number in it that is not finite replaced by None: files hold no NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite_or_none(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite_or_none(item) for item in value]
    return value


def check_writable(folder: Path) -> None:
    """An OSError, as writing would end in, where files cannot be written into a folder, which need not be there yet.

    For what is computed at length before it is written.
    """
    nearest = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not nearest.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(nearest))
    if not os.access(nearest, os.W_OK | os.X_OK):
        reason = errno.EROFS if os.statvfs(nearest).f_flag & os.ST_RDONLY else errno.EACCES
        raise OSError(reason, os.strerror(reason), os.fspath(nearest))


def write_text(path: Path, text: str) -> None:
    """Write text in UTF-8; names of files keep the bytes that they have on disk."""
    write_bytes(path, text.encode(errors="surrogateescape"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file, in the place of what has its name; an OSError names it, not what it is called meanwhile.

    That is another name each time: of two processes that write one file at the same moment the later one's is kept.
    """
    # Short, as the file's may not be; `_NAMELESS` knows it.
    partial = path.with_name(f".{os.getpid()}-{secrets.token_hex(4)}{PARTIAL}")
    try:
        with open(partial, "xb") as file:
            file.write(data)
        os.replace(partial, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    finally:  # of a full disk nothing is left behind
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def remove_unnamed(folder: Path) -> None:
    """Remove what `write_bytes` was writing into a folder when its process was killed; for who writes there alone."""
    with contextlib.suppress(OSError):
        for path in list(folder.iterdir()):
            if _NAMELESS.fullmatch(path.name):
                path.unlink(missing_ok=True)
