"""`jocor-fast` as a process that notes where it is, in a file that is still right after a SIGKILL.

    python tests/observed_training.py RECORD train …

is `jocor-fast train …` with a few counters around the engine's own functions. The file is mapped into memory: whoever
wants to kill the process at a certain moment watches it, and afterwards sees what was hit. Under torchrun each process
has a file of its own, RECORD.RANK.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

START, TRAINING, EVALUATION, CHECKPOINT, FILES = range(5)
PHASES = ("start-up", "training", "evaluation", "checkpoint", "other files")
FIELDS = (
    "phase", "stage", "epoch", "step",  # of the step that was done last, steps from 1; stage 1: of F-correction's two
    "began_stage", "began_epoch", "began_step",  # where the process took the run up, before its first step
    "steps", "evaluations", "checkpoints",  # how many it has begun
    "saved_stage", "saved_epoch", "saved_step",  # what the last whole checkpoint of this process holds
    "pid", "answers", "asked", "asked_at",  # whether SIGTERM is answered now; whether it came, and at which step
)  # fmt: skip


class Record:
    """The counters of one process; attributes are those of FIELDS, whole numbers, at first 0."""

    def __init__(self, path: Path) -> None:
        values = np.zeros(len(FIELDS), np.int64)
        if not path.exists():
            values.tofile(path)
        object.__setattr__(self, "_values", np.memmap(path, np.int64, "r+", shape=values.shape))

    def __getattr__(self, name: str) -> int:
        if name not in FIELDS:
            raise AttributeError(name)
        return int(self._values[FIELDS.index(name)])

    def __setattr__(self, name: str, value: int) -> None:
        self._values[FIELDS.index(name)] = value

    def at(self, prefix: str = "") -> tuple[int, int, int]:
        """(stage, epoch, step), the one that begins with "began_" or "saved_" if asked for."""
        return tuple(getattr(self, f"{prefix}{name}") for name in ("stage", "epoch", "step"))  # type: ignore[return-value]


def observe(record: Record) -> None:
    """Let the engine note in the record what it does."""
    from jocor_fast.engine import loop
    from jocor_fast.engine.state import TrainingState
    from jocor_fast.engine.step import TrainingStep
    from jocor_fast.runs.folder import RunFolder
    from jocor_fast.runs.interrupt import TerminationRequest

    def around(owner: Any, name: str, before: Callable[..., Any], after: Callable[..., Any]) -> None:
        method = getattr(owner, name)

        @functools.wraps(method)
        def wrapped(*arguments: Any, **named: Any) -> Any:
            before(*arguments)
            result = method(*arguments, **named)
            after(*arguments)
            return result

        setattr(owner, name, wrapped)

    def begin_epoch(state: TrainingState, plan: Any) -> None:
        record.stage = 1 if state.settings.method == "standard" else 2
        record.epoch, record.step = plan.epoch, 0 if state.log is None else state.log.step
        if record.phase == START:
            record.began_stage, record.began_epoch, record.began_step = record.at()
        record.phase = TRAINING

    def begin_step(*_: Any) -> None:
        record.steps += 1

    def end_step(*_: Any) -> None:
        record.step += 1

    def begin_evaluation(*_: Any) -> None:
        record.phase = EVALUATION
        record.evaluations += 1

    def begin_files(*_: Any) -> None:
        record.phase = FILES

    def begin_checkpoint(*_: Any) -> None:
        record.phase = CHECKPOINT
        record.checkpoints += 1

    def end_checkpoint(folder: RunFolder, content: dict[str, Any]) -> None:
        log = content["training"]["log"]
        record.saved_epoch = len(content["history"]) + 1
        record.saved_stage, record.saved_step = record.stage, 0 if log is None else log["step"]
        record.phase = FILES if log is None else TRAINING  # in the middle of an epoch it goes on

    def answering(*_: Any) -> None:
        record.answers += 1  # the first stage does within the run that does

    def not_answering(*_: Any) -> None:
        record.answers -= 1

    def note_request(*_: Any) -> None:
        record.asked, record.asked_at = 1, record.steps

    def nothing(*_: Any) -> None:
        pass

    around(TrainingState, "begin_epoch", begin_epoch, nothing)
    around(TrainingStep, "__call__", begin_step, end_step)
    around(loop, "evaluate_epoch", begin_evaluation, begin_files)
    around(RunFolder, "write_checkpoint", begin_checkpoint, end_checkpoint)
    around(TerminationRequest, "__enter__", nothing, answering)
    around(TerminationRequest, "__exit__", not_answering, nothing)
    around(TerminationRequest, "_note", note_request, nothing)


if __name__ == "__main__":
    own = Record(Path(".".join((sys.argv[1], *os.environ.get("RANK", ())))))
    own.pid = os.getpid()
    from jocor_fast.cli.program import main

    observe(own)
    sys.exit(main(sys.argv[2:]))
