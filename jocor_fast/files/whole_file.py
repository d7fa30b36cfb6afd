"""Files that are whole or not there: what is written goes beside its place first, under another name."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import math
import os
import re
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PARTIAL = ".partial"  # ends the name of a file while it is written
# What `write_bytes` calls one: short, as the file's own name may be as long as names can be; who writes it, and where.
_UNNAMED = re.compile(rf"\.(?P<host>.*)-(?P<pid>\d{{1,9}})-[0-9a-f]{{8}}{re.escape(PARTIAL)}")


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
    What processes that were killed have left there is removed.
    """
    _remove_orphans(path.parent)
    partial = path.with_name(f".{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}{PARTIAL}")
    try:
        with open(partial, "xb") as file:
            file.write(data)
        os.replace(partial, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    finally:  # of a full disk nothing is left behind
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


@functools.cache
def _remove_orphans(folder: Path) -> None:
    """Once a folder: remove what `write_bytes` was writing into it when its process was killed, on this machine."""
    with contextlib.suppress(OSError):
        for path in list(folder.iterdir()):
            found = _UNNAMED.fullmatch(path.name)
            if found and found["host"] == socket.gethostname() and not _is_running(int(found["pid"])):
                path.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return error.errno != errno.ESRCH  # another user's is
    return True
