"""One training run in processes of its own, killed at moments that a generator draws, resumed and compared."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from children import IMPORTED, PATIENCE
from image_cases import damage, write_clothing1m
from observed_training import PHASES, START, Record
from run_differences import differences

POLL_SECONDS = 0.0005


@dataclass(frozen=True)
class Variant:
    """What is trained: a second or two of work, so that most of a run's time is its start-up.

    Attributes:
        options: of `jocor-fast train`; DATA is the folder of `write_data`.
        epochs: in both stages of a method that has two; steps: in each.
    """

    options: str
    epochs: int = 4
    steps: int = 13


ARRAYS = "--dataset npz:DATA/arrays.npz --noise-rate 0.3 --batch-size 32 --val-fraction 0.1"
VARIANTS = {
    "JoCoR, arrays": Variant(f"{ARRAYS} --epochs 4 --augment crop-flip"),
    "JoCoR, arrays, checkpoints amid epochs": Variant(f"{ARRAYS} --epochs 4 --checkpoint-every 5"),
    "JoCoR, image files": Variant(
        "--dataset clothing1m --data-root DATA --loader pillow --model shufflenet_v2_x0_5 --forget-rate 0.2 "
        "--epochs 3 --batch-size 8 --augment crop-flip",
        epochs=3,
        steps=4,
    ),
    "F-correction, arrays": Variant(f"{ARRAYS} --epochs 3 --method f-correction", epochs=6),
    "Co-teaching+, arrays": Variant(f"{ARRAYS} --epochs 4 --method coteaching-plus --optimizer sgd --lr 0.05"),
}
# What a moment of a phase waits for (a counter of the process), and at most how many seconds after it.
MOMENTS = {
    "start-up": ("pid", 5.0),
    "training": ("steps", 0.003),
    "evaluation": ("evaluations", 0.01),
    "checkpoint": ("checkpoints", 0.01),
}

Place = tuple[int, int, int]  # stage, epoch and how many of its steps are done
NOWHERE = (0, 0, 0)  # before the first checkpoint


@dataclass(frozen=True)
class Moment:
    """When to kill: some seconds after a counter of the process has reached a count."""

    counter: str
    count: int
    seconds: float

    @staticmethod
    def drawn(phase: str, variant: Variant, generator: np.random.Generator, processes: int = 1) -> Moment:
        """One before the last epoch; a run that is resumed may be over before it comes."""
        counter, seconds = MOMENTS[phase]
        most = {"pid": 1, "steps": (variant.epochs - 1) * (variant.steps // processes)}.get(counter, variant.epochs - 1)
        return Moment(counter, int(generator.integers(1, most + 1)), float(generator.uniform(0, seconds)))

    def wait(self, process: subprocess.Popen[bytes], record: Record) -> bool:
        """Wait for it; False where the process ends first."""
        due = None
        while process.poll() is None:
            if due is None and getattr(record, self.counter) >= self.count:
                due = time.monotonic() + self.seconds
            if due is not None and time.monotonic() >= due:
                return True
            time.sleep(POLL_SECONDS)
        return False


@dataclass
class Kill:
    """What a signal hit, with what exit code, what files it left, and where the next process took the run up."""

    phase: int
    at: Place
    code: int
    left: Place
    rank: int | None = None  # of several processes
    seconds: float | None = None  # until all of them were gone
    went_on: Place | None = None

    def __str__(self) -> str:
        hit = PHASES[self.phase] if self.phase == START else f"{PHASES[self.phase]} at {_text(self.at)}"
        if self.rank is not None:
            hit = f"process {self.rank}, {hit}, all gone after {self.seconds:.1f} s"
        return hit if self.went_on is None else f"{hit}, went on at {_text(self.went_on)}"


@dataclass
class KilledRun:
    """A run, what was done to it, and what is wrong with it afterwards: nothing, or sentences."""

    number: int
    variant: str
    signal: signal.Signals
    kills: list[Kill] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)  # by the processes that were left

    def row(self) -> str:
        hit = "; ".join(map(str, self.kills))
        codes = ", ".join(str(kill.code) for kill in self.kills)
        result = "the same" if not self.faults else "; ".join(self.faults)
        return (
            f"| {self.number} | {self.variant} | {self.signal.name} | {len(self.kills)} | {hit} | {codes} | {result} |"
        )


TRIES = 5  # to hit a run before it is over, whose moments another machine has at other times


def kill_and_resume(
    run: KilledRun, generator: np.random.Generator, data: Path, runs: Path, whole: Path, most: int = 2
) -> KilledRun:
    """Make a run, killed once to `most` times, and note what is wrong with it."""
    output = runs / f"killed-{run.number}"
    for phase in phases_in_turn(run.number, int(generator.integers(1, most + 1))):
        for _ in range(1 if run.kills else TRIES):
            killed = _kill(run, Moment.drawn(phase, VARIANTS[run.variant], generator), data, output)
            if killed or run.kills:
                break
            shutil.rmtree(output)  # it was over first: once more, at another moment
        if not killed:
            break
    return brought_to_its_end(run, Process(run.variant, data, output), output, whole)


def brought_to_its_end(run: KilledRun, resumed: Process, output: Path, whole: Path) -> KilledRun:
    """The run, resumed for the last time, with what is wrong with its end."""
    with resumed as process:
        if process.wait() != 0:
            run.faults.append(f"what was resumed last ended with {process.wait()}: {process.errors()}")
        note_resumption(run, process.record)
    if not run.kills:
        run.faults.append("it was over before it was killed")
    run.faults += differences(output, whole)
    shutil.rmtree(output)
    return run


def phases_in_turn(number: int, kills: int) -> list[str]:
    """The phases to kill run `number` in: the next begins with another, and so does its variant's next."""
    first = number // len(VARIANTS) + number % len(VARIANTS)
    return list(itertools.islice(itertools.cycle(MOMENTS), first, first + kills))


def _kill(run: KilledRun, moment: Moment, data: Path, output: Path) -> bool:
    """Begin or resume the run and kill it; False where it was over before."""
    with Process(run.variant, data, output) as process:
        if not moment.wait(process.popen, process.record):
            if process.wait() != 0:
                run.faults.append(f"a process ended by itself with {process.wait()}: {process.errors()}")
            note_resumption(run, process.record)
            return False
        record = process.record
        hit = record.phase, record.at()
        process.popen.send_signal(run.signal)
        code, left = process.wait(), place_on_disk(output, run.variant)
        if run.signal == signal.SIGKILL:
            hit = record.phase, record.at()  # what stands there now is what was hit, to the step
        note_resumption(run, record)
        run.kills.append(Kill(*hit, code, left))
        if left < record.at("saved_"):
            run.faults.append(f"what was saved at {_text(record.at('saved_'))} is lost, there is {_text(left)}")
        if run.signal == signal.SIGTERM:
            run.faults += _term_faults(record, code, left, process.errors())
        elif code != -signal.SIGKILL:
            run.faults.append(f"SIGKILL gave the exit code {code}")
        return True


def _term_faults(record: Record, code: int, left: Place, errors: str) -> list[str]:
    """SIGTERM: 143 with a checkpoint of the very step; before there is anything to save, the signal's own end."""
    if not record.asked:
        not_training = code in (-signal.SIGTERM, 0) and not record.answers
        return [] if not_training else [f"it did not answer SIGTERM but ended with {code}: {errors}"]
    faults = [] if code == 143 else [f"it answered SIGTERM with the exit code {code}: {errors}"]
    if record.steps - record.asked_at > 1:
        faults.append(f"{record.steps - record.asked_at} more steps were done after SIGTERM")
    stage, epoch, step = record.at()
    if left not in {(stage, epoch, step), (stage, epoch + 1, 0), (stage + 1, 1, 0)}:
        faults.append(f"it was left at {_text(record.at())}, and the checkpoint is of {_text(left)}")
    return faults


def note_resumption(run: KilledRun, record: Record) -> None:
    """Note where the process began, after a kill, and whether that is where the files of the killed one end."""
    began = record.at("began_")
    if not run.kills or run.kills[-1].went_on is not None or not began[1]:
        return
    kill = run.kills[-1]
    kill.went_on = began
    if began != kill.left and not (kill.left == NOWHERE and began[1:] == (1, 0)):
        run.faults.append(f"it was taken up at {_text(began)}, its files are of {_text(kill.left)}")


class Process:
    """`jocor-fast train … --resume` of a variant, observed; killed at the end of the block if it still goes on.

    Where `processes` are several, it is torchrun with so many of them.
    """

    def __init__(self, variant: str, data: Path, output: Path, processes: int = 1) -> None:
        output.parent.mkdir(parents=True, exist_ok=True)
        number = sum(1 for _ in output.parent.glob(f"{output.name}-*.log"))
        path = output.with_name(f"{output.name}-{number}")
        ranks = [f".{rank}" for rank in range(processes)] if processes > 1 else [""]
        self.records = [Record(path.with_name(path.name + rank)) for rank in ranks]
        self._log = path.with_name(f"{path.name}.log")
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        script = Path(__file__).with_name("observed_training.py")
        options = VARIANTS[variant].options.replace("DATA", str(data)).split()
        command = [sys.executable, *(launcher if processes > 1 else ()), script, path, "train", *options]
        with self._log.open("wb") as log:
            self.popen = subprocess.Popen(
                [*command, "--device", "cpu", "--resume", "--output", output],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": IMPORTED, "OMP_NUM_THREADS": "1"},
            )

    @property
    def record(self) -> Record:
        """Of the process that writes the files."""
        return self.records[0]

    def wait(self) -> int:
        return self.popen.wait(PATIENCE)

    def lines(self) -> list[str]:
        """What it has printed."""
        return self._log.read_text(errors="replace").splitlines()

    def errors(self) -> str:
        """What it has printed last."""
        return next(reversed(self.lines()), "it printed nothing")

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.popen.terminate()  # torchrun ends its processes then
        try:
            self.popen.wait(10)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()


def trained(variant: str, data: Path, runs: Path, processes: int = 1) -> Path:
    """The folder of a run that nobody touched."""
    output = runs / f"whole-{list(VARIANTS).index(variant)}"
    with Process(variant, data, output, processes) as process:
        if process.wait() != 0:
            raise SystemExit(f"{variant}: {process.errors()}")
    return output


def place_on_disk(output: Path, variant: str) -> Place:
    """Where the run in a folder is to go on, by its checkpoint, which has to be whole."""
    first, second = (folder / "checkpoint.pt" for folder in (output / "first-stage", output))
    if second.exists():
        return _place(2, second)
    if not first.exists():
        return NOWHERE
    place = _place(1, first)
    return place if place[1] <= VARIANTS[variant].epochs // 2 else (2, 1, 0)


def _place(stage: int, checkpoint: Path) -> Place:
    content = torch.load(checkpoint, weights_only=True)
    log = content["training"]["log"]
    return stage, len(content["history"]) + 1, 0 if log is None else log["step"]


def _text(place: Place) -> str:
    stage, epoch, step = place
    return f"{'stage 1, ' if stage == 1 else ''}epoch {epoch}, step {step}"


def write_data(folder: Path) -> None:
    """arrays.npz (480 images to train on, 20,000 to test on, so that evaluations are long) and a small Clothing1M."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    centres = generator.integers(40, 200, (4, 8, 8))
    parts = {}
    for name, count in (("train", 480), ("test", 20_000)):
        labels = generator.integers(0, 4, count)
        parts[f"x_{name}"] = (centres[labels] + generator.integers(-40, 41, (count, 8, 8))).astype(np.uint8)
        parts[f"y_{name}"] = labels
    np.savez(folder / "arrays.npz", **parts)
    damage(folder / "clothing1m", write_clothing1m(folder / "clothing1m"))
