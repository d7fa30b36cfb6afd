"""Atomic writes: a file is written under a temporary name in its folder, then renamed."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import json
import math
import os
import re
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

PARTIAL = ".partial"  # suffix of a file while it is written
# The temporary name of `write_bytes`: the writer's host and process. It is short, as the file's own name may have the
# maximum length.
_UNNAMED = re.compile(rf"\.(?P<host>.*)-(?P<pid>\d{{1,9}})-[0-9a-f]{{8}}{re.escape(PARTIAL)}")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write an object as JSON; non-finite numbers become null."""
    write_bytes(path, json_bytes(content))


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """Return the bytes of the JSON. File names that are not UTF-8 are escaped and read back as Python has them."""
    text = json.dumps(finite_or_none(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode(errors="backslashreplace")


def finite_or_none(value: Any) -> Any:
    """Replace every non-finite number in a value by None: files hold no NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite_or_none(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite_or_none(item) for item in value]
    return value


def check_writable(folder: Path) -> None:
    """Raise the OSError that writing into a folder would raise; the folder need not exist yet.

    Call it before a long computation whose result is written.
    """
    nearest = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not nearest.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(nearest))
    if not os.access(nearest, os.W_OK | os.X_OK):
        reason = errno.EROFS if os.statvfs(nearest).f_flag & os.ST_RDONLY else errno.EACCES
        raise OSError(reason, os.strerror(reason), os.fspath(nearest))


def write_text(path: Path, text: str) -> None:
    """Write text in UTF-8; file names keep their bytes on disk."""
    write_bytes(path, text.encode(errors="surrogateescape"))


def write_array(path: Path, array: np.ndarray) -> None:
    """Write a .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    write_bytes(path, buffer.getvalue())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically, replacing an existing one; an OSError names the file, not its temporary name.

    The temporary name differs each time: if two processes write one file at once, the later one wins. Temporary files
    of killed processes are removed.
    """
    _remove_orphans(path.parent)
    partial = path.with_name(f".{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}{PARTIAL}")
    try:
        with open(partial, "xb") as file:
            file.write(data)
        os.replace(partial, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    finally:  # leave nothing behind on a full disk
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


@functools.cache
def _remove_orphans(folder: Path) -> None:
    """Remove the temporary files of killed processes of this machine, once a folder."""
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
