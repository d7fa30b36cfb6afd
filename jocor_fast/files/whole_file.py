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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
        read_only = os.name != "nt" and os.statvfs(nearest).f_flag & os.ST_RDONLY
        reason = errno.EROFS if read_only else errno.EACCES
        raise OSError(reason, os.strerror(reason), os.fspath(nearest))


def write_text(path: Path, text: str) -> None:
    """Write text in UTF-8; file names keep their bytes on disk."""
    write_bytes(path, text.encode(errors="surrogateescape"))


def write_array(path: Path, array: np.ndarray) -> None:
    """Write a .npy file."""
    import numpy as np

    buffer = io.BytesIO()
    np.save(buffer, array)
    write_bytes(path, buffer.getvalue())


def write_bytes(
    path: Path, data: bytes, *, partial: Path | None = None, keep_as: Path | None = None, flush: bool = False
) -> None:
    """Write a file atomically, replacing an existing one; an OSError names the file, not its temporary name.

    Args:
        path: the file.
        data: its content.
        partial: its temporary name. By default it differs each time: if two processes write one file at once, the later
            one wins, and temporary files of killed processes are removed.
        keep_as: another name for the file that is replaced.
        flush: whether to wait until the file and its name are on the disk.
    """
    if partial is None:
        _remove_orphans(path.parent)
        partial = path.with_name(f".{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}{PARTIAL}")
    try:
        with open(partial, "wb") as file:
            file.write(data)
            if flush:
                file.flush()
                os.fsync(file.fileno())
        if keep_as is not None and path.is_file():
            _keep(path, keep_as)
        os.replace(partial, path)
        if flush:
            _flush_names(path.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    finally:  # leave nothing behind on a full disk
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _keep(target: Path, kept: Path) -> None:
    """Give a file a second name, replacing the file of that name; it is never missing under its own."""
    link = kept.with_name(f"{kept.name}{PARTIAL}")
    try:
        link.unlink(missing_ok=True)
        os.link(target, link)
        os.replace(link, kept)
    except OSError:  # a file system without links
        os.replace(target, kept)
    finally:
        link.unlink(missing_ok=True)  # still there if both names were those of one file already


def _flush_names(folder: Path) -> None:
    """Bring renamed names to the disk; Windows, which opens no folders, does that itself."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
