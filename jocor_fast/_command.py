"""How the command ends before its own code is there: while the package is imported, which takes seconds.

An import that fails ends in one sentence, as any other error does; Ctrl-C ends the process, as it ends other programs,
with a sentence and without a traceback. Nothing here needs torch or the compiled part.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import PurePath
from types import FrameType


def end_command(error: ImportError) -> None:
    """SystemExit with a sentence and exit code 1 if this process is the command."""
    if _is_the_command():
        raise SystemExit(f"jocor-fast: error: {' '.join(str(error).split())}")


def end_at_once_on_interrupt() -> None:
    """Let Ctrl-C end the process, if it is the command, until `answer_interrupts`."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler and _is_the_command():
        signal.signal(signal.SIGINT, _end)


def _end(number: int, frame: FrameType | None) -> None:
    """End as the signal would, once it is said that nothing was begun."""
    with contextlib.suppress(OSError):
        os.write(2, b"jocor-fast: error: interrupted before it began\n")
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def answer_interrupts() -> None:
    """Have Ctrl-C raise KeyboardInterrupt again; where it is ignored (nohup), or the caller's affair, it stays so."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _is_the_command() -> bool:
    """Whether this process is `jocor-fast` or `python -m jocor_fast`."""
    started = sys.argv[0] if sys.argv else ""
    # While Python looks for the module of -m, that flag itself stands in the place of the program's name.
    module = started == "-m" and {"jocor_fast", "-mjocor_fast"} & set(sys.orig_argv)
    return bool(module) or PurePath(started).stem == "jocor-fast"
