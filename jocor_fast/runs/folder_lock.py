"""The lock of a run's folder: one process at a time writes into it."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

from filelock import FileLock, Timeout

from jocor_fast.errors import RunError

LOCK, OWNER = ".lock", ".lock-owner"


class FolderLock:
    """Held from `acquire` to `release`, or until the process is gone: the kernel drops it, however the process died.

    The lock is filelock's, on a hidden file; a second file names its owner (filelock may empty the first). Files that a
    killed process left lock nothing. On a file system without locks, and where the file cannot be made, runs are not
    guarded.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._path, self._owner = folder, folder / LOCK, folder / OWNER
        self._lock = FileLock(self._path, thread_local=False, mode=0o666)
        self._locked: os.stat_result | None = None

    def is_held(self) -> bool:
        """Return whether this run has the lock, on the file that is in the folder now."""
        with contextlib.suppress(OSError):
            return self._locked is not None and os.path.samestat(self._locked, os.stat(self._path))
        return False

    def acquire(self) -> None:
        """Take the lock, if this run does not have it; again if the folder was removed and made anew meanwhile.

        Raises:
            RunError: another run has it.
        """
        if self.is_held():
            return
        try:
            while not self.is_held():  # the last holder may have removed the file that was just locked
                self._unlock()
                self._lock.acquire(timeout=0)
                with contextlib.suppress(FileNotFoundError):
                    self._locked = os.stat(self._path)
        except Timeout:
            raise RunError(
                f"another run{self._named_owner()} writes into {self._folder}; wait until it ends, or stop it, "
                "or give another folder",
                "output",
            ) from None
        except PermissionError:  # the folder, or the lock file of another user
            return
        except (OSError, NotImplementedError):
            self._remove()
            return
        with contextlib.suppress(OSError):  # a full disk, or another user's file: the lock holds all the same
            self._owner.write_text(f"process {os.getpid()} on {socket.gethostname()}\n", encoding="utf-8")

    def release(self) -> None:
        """Give the lock up, and remove its files."""
        if self.is_held():
            self._remove()  # before the lock is gone: afterwards the files may be another's
        self._unlock()

    def _remove(self) -> None:
        for path in (self._owner, self._path):
            with contextlib.suppress(OSError):
                path.unlink()

    def _unlock(self) -> None:
        self._locked = None
        self._lock.release(force=True)

    def _named_owner(self) -> str:
        """Return " (process 4711 on name)", or nothing where the file does not say."""
        try:
            said = self._owner.read_text(encoding="utf-8", errors="replace")[:200].strip()
        except OSError:
            return ""
        return f" ({said})" if said else ""
