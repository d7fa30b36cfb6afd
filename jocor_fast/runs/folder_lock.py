"""The lock of a run's folder: one process at a time trains into it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from pathlib import Path

from jocor_fast.errors import RunError

LOCK = ".lock"


class FolderLock:
    """Held from `acquire` to `release`, or until the process is gone: the kernel drops it, however the process died.

    The lock is the kernel's, on a hidden file; the file itself says only who holds it, and one that a killed process
    left behind locks nothing. On a file system without locks, and where the file cannot be made, runs go unguarded.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, folder / LOCK
        self._descriptor: int | None = None

    def is_held(self) -> bool:
        """Whether this run has it, on the file that is in the folder now."""
        return self._descriptor is not None and _is_at(self._descriptor, self._path)

    def acquire(self) -> None:
        """Take the lock, if this run does not have it; again where the folder was removed and made anew meanwhile.

        Raises:
            RunError: another run has it.
        """
        if self.is_held():
            return
        while not self.is_held():  # what we have locked may be out of place by then: its last holder removed it
            self._close()
            try:
                self._descriptor = _open(self._path)
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = self._holder()
                self._close()
                raise RunError(
                    f"output: another run{holder} trains into {self._folder}; wait until it ends, or stop it, or give "
                    "another folder"
                ) from None
            except OSError:
                self._remove()
                return
        self._sign()

    def release(self) -> None:
        """Give it up, and remove the file."""
        if self.is_held():
            self._remove()  # before the lock is gone: afterwards it may be another's
        self._close()

    def _remove(self) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
            with contextlib.suppress(OSError):  # closing is not enough where a child process has the descriptor too
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._close()

    def _sign(self) -> None:
        with contextlib.suppress(OSError):  # a full disk, or another user's file: the lock holds all the same
            assert self._descriptor is not None
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def _holder(self) -> str:
        """ " (process 4711 on name)", or nothing where the file does not say."""
        with contextlib.suppress(OSError):
            assert self._descriptor is not None
            said = os.pread(self._descriptor, 200, 0).decode(errors="replace").strip()
            return f" ({said})" if said else ""
        return ""

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _open(path: Path) -> int:
    """The lock file, made if need be; for reading alone where it is another user's, which suffices but on NFS."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False
