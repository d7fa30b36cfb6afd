"""What `jocor-fast train` shows while it trains."""

from __future__ import annotations

from jocor_fast.engine.epoch_log import EpochLog
from jocor_fast.report.screen import TrainingProgress, say
from jocor_fast.report.tensorboard import TensorBoardLog
from jocor_fast.runs.fit import EpochEvent, Observer


class Shown(Observer):
    """Shows a run on the screen, and in TensorBoard where that is asked for."""

    def __init__(self, progress: TrainingProgress, board: TensorBoardLog | None) -> None:
        self.progress, self.board = progress, board
        self._waited = 0.0  # in the epoch under way
        self.on_stage = progress.on_stage  # type: ignore[method-assign]

    def on_threads(self, sentence: str) -> None:
        say(self.progress.console, sentence)

    def on_step(self, epoch: int, log: EpochLog) -> None:
        if log.waited:
            self.progress.on_wait(log.waited - self._waited)
            self._waited = log.waited
        self.progress.on_step(epoch, log.step, log.steps)

    def on_epoch(self, event: EpochEvent) -> None:
        self._waited = 0.0
        self.progress.on_epoch(event.metrics)
        if self.board is not None and not event.first_stage:
            self.board.on_epoch(event.metrics)
