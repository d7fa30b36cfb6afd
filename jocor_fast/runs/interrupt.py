"""SIGTERM as a request that the run answers at its next safe point."""

from __future__ import annotations

import signal
import threading
from types import FrameType

EXIT_CODE = 128 + signal.SIGTERM  # 143, what a shell reports of a process that the signal ended


class TerminationRequest:
    """Within the context SIGTERM only sets `received`; afterwards the handler is what it was.

    Python lets only the main thread set handlers: elsewhere, and where `enabled` is false, nothing is changed.
    """

    def __init__(self, *, enabled: bool) -> None:
        self.received = False
        self._enabled = enabled and threading.current_thread() is threading.main_thread()

    def __enter__(self) -> TerminationRequest:
        if self._enabled:
            self._previous = signal.signal(signal.SIGTERM, self._note)
        return self

    def ignore_from_now_on(self) -> None:
        """Let SIGTERM do nothing, afterwards too: this process is about to end, and is to say why before it does."""
        if self._enabled:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._previous = signal.SIG_IGN

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = True

    def __exit__(self, *exception: object) -> None:
        if self._enabled:
            # None: the handler was not set from Python, and cannot be set again from there.
            signal.signal(signal.SIGTERM, signal.SIG_DFL if self._previous is None else self._previous)
