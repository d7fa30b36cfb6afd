"""The parts, their budgets, and running one: in a process group of its own, killed when the budget is spent.

What a part leaves of its budget is there for those that follow: together they end as early, and fewer are cut off.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gpu import records

ROOT = Path(__file__).resolve().parents[2]
LOG_BYTES = 400_000  # of a part's output, its end

Status = Literal["done", "failed", "ended at its budget"]


@dataclass(frozen=True)
class Part:
    name: str
    budget: float  # seconds
    command: Sequence[str]
    what: str = ""


def _part(name: str, budget: float, module: str, what: str, *arguments: str) -> Part:
    return Part(name, budget, (sys.executable, "-m", f"gpu.{module}", *arguments), what)


PARTS = {
    part.name: part
    for part in (
        _part("build", 130, "build", "the extension, in place, for the default architectures"),
        _part("tests", 60, "tests", "the tests that are marked gpu"),
        _part(
            "sanitizer", 40, "sanitizer", "memcheck, racecheck, initcheck, synccheck over a small case for each kernel"
        ),
        _part("bench-short", 70, "bench", "three shapes, and what the bars ask for", "short"),
        _part("train", 60, "train", "MNIST, 200 epochs; CIFAR-10, 15 seconds; both without graphs", "short"),
        _part("bench-full", 480, "bench", "every shape, type, contender, piece of work and cache", "full"),
        _part("steps", 240, "steps", "the training step, rung by rung, and five runs of MNIST at once"),
        _part("dali", 90, "dali", "photographs through DALI, alone and into the training of two ResNet-18"),
        _part("train-cifar", 420, "train", "CIFAR-10, 200 epochs", "cifar"),
    )
}
TOGETHER = ("build", "tests", "sanitizer", "bench-short", "train")  # six minutes


@dataclass(frozen=True)
class Outcome:
    """What came of a part: the items that it recorded, and what of its plan it left out."""

    part: Part
    status: Status
    seconds: float
    budget: float  # with what was left by the parts before
    items: list[records.Item] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    output: str = ""  # the end of what it printed


def run_part(part: Part, spare: float = 0.0) -> Outcome:
    """Runs a part until it ends or its budget does, and so many seconds more; whatever it started ends with it."""
    budget = part.budget + spare
    with tempfile.TemporaryDirectory() as scratch:
        record, log = Path(scratch, "records.jsonl"), Path(scratch, "log")
        search = [str(ROOT), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
        environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, search)),
            "PYTHONUNBUFFERED": "1",
            "MPLBACKEND": "Agg",
            records.VARIABLE: str(record),
        }
        started = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(
                part.command,
                cwd=ROOT,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code: int | None = process.wait(budget)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _kill_group(process)
        seconds = time.monotonic() - started
        items, left_out = records.read(record)
        status: Status = "ended at its budget" if code is None else "done" if code == 0 else "failed"
        return Outcome(part, status, seconds, budget, items, left_out, _end_of(log))


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kills the part and all that it started, also where the part itself has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _end_of(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - LOG_BYTES))
        return file.read().decode(errors="replace")
