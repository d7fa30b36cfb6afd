"""A run of two processes under torchrun, one of which is killed: the other says so and ends, and the run is resumed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from killed_run import (
    VARIANTS,
    Kill,
    KilledRun,
    Moment,
    Process,
    brought_to_its_end,
    phases_in_turn,
    place_on_disk,
)

PROCESSES = 2
MOST_SECONDS = 30.0  # from the kill until all processes are gone
ERROR = "jocor-fast: error: "


def kill_one_and_resume(
    run: KilledRun, generator: np.random.Generator, data: Path, runs: Path, whole: Path
) -> KilledRun:
    """Make a run of two processes, kill one of them, resume it, and note what is wrong with it."""
    output = runs / f"killed-{run.number}"
    (phase,) = phases_in_turn(run.number, 1)
    moment = Moment.drawn(phase, VARIANTS[run.variant], generator, PROCESSES)
    rank = int(generator.integers(PROCESSES))
    with Process(run.variant, data, output, PROCESSES) as process:
        watched = 0 if moment.counter == "checkpoints" else rank  # the first process writes them for both
        if moment.wait(process.popen, process.records[watched]):
            _kill_one(run, process, rank, output)
    return brought_to_its_end(run, Process(run.variant, data, output, PROCESSES), output, whole)


def _kill_one(run: KilledRun, process: Process, rank: int, output: Path) -> None:
    """Kill the process of a rank; torchrun must end with a sentence of the other's about it, and in time."""
    victim, other = (process.records[number] for number in (rank, 1 - rank))
    in_time = other.steps > 0  # before its first step the other may be torchrun's to stop, and has nothing to say
    os.kill(victim.pid, run.signal)
    killed = time.monotonic()
    code = process.wait()
    seconds = time.monotonic() - killed
    run.kills.append(Kill(victim.phase, victim.at(), code, place_on_disk(output, run.variant), rank, seconds))
    if code == 0:
        run.faults.append("torchrun ended with 0")
    if seconds > MOST_SECONDS:
        run.faults.append(f"the other process ended {seconds:.0f} s after the kill")
    said = [line.partition(ERROR)[2].replace(str(output), "RUN") for line in process.lines() if ERROR in line]
    if len(said) != 1 and in_time:
        run.faults.append(f"{len(said)} sentences were said of it: {' / '.join(said) or process.errors()}")
    run.said += said
