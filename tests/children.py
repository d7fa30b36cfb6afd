"""Processes that tests start, and how long they wait for one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import jocor_fast as jf

# Seconds. What takes some of them on a free machine takes minutes on a loaded one; what hangs takes for ever.
PATIENCE = 600.0
IMPORTED = os.pathsep.join((str(Path(jf.__file__).parents[1]), str(Path(__file__).parent)))


@contextlib.contextmanager
def signalled(number: int, ready: Callable[[], bool]) -> Iterator[None]:
    """Send this process a signal once it is ready, as a user would while a command works in it."""
    done = threading.Event()

    def send() -> None:
        while not done.wait(0.01):
            if ready():
                os.kill(os.getpid(), number)
                return

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def copied(work: Callable[[], None]) -> int:
    """Return the number of a copy of this process that does some work and ends, with status 0 unless it fails.

    It starts at once, but cannot train: autograd refuses to work in a copy.
    """
    number = os.fork()
    if number == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return number


def python(*arguments: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    """`python …`, once it has ended; it can import this package and what tests share.

    Args:
        arguments: of python.
        cwd: where it is started; by default here.
        environ: variables, besides those of this process.
    """
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": IMPORTED, **environ},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
