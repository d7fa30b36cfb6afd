"""Kills training runs at random moments, resumes them, and compares them with runs that nobody touched.

    python tests/kill_and_resume.py --output benchmarks/results/kill_and_resume.md

A run is `jocor-fast train …` in processes of its own (observed_training.py). SIGKILL or SIGTERM comes once or twice,
at moments that the seed decides: in the start-up, in a step, in an evaluation, while a checkpoint is written.
Each time it is resumed where its files say, and in the end all it has written must be what the same command writes when
it is left alone: bit for bit, but for the times.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from image_cases import damage, write_clothing1m
from observed_training import PHASES, START, Record
from run_differences import differences

ROOT = Path(__file__).parents[1]
POLL_SECONDS = 0.0005
PATIENCE_SECONDS = 120.0  # for a process that takes some seconds on a free machine

# What is trained: a second or two of work in a few epochs, so that most of a run's time is its start-up.
ARRAYS = "--dataset npz:{data}/arrays.npz --noise-rate 0.3 --epochs 4 --batch-size 32 --val-fraction 0.1"
VARIANTS = {
    "JoCoR, arrays": f"{ARRAYS} --augment crop-flip",
    "JoCoR, image files": "--dataset clothing1m --data-root {data} --loader torchvision --model shufflenet_v2_x0_5 "
    "--forget-rate 0.2 --epochs 3 --batch-size 8 --augment crop-flip",
    "F-correction, arrays": f"{ARRAYS} --method f-correction --epochs 3",
    "Co-teaching+, arrays": f"{ARRAYS} --method coteaching-plus --optimizer sgd --lr 0.05",
}
# What a moment waits for (a counter of the process), up to which count, and the seconds after it.
MOMENTS = {
    "start-up": ("", 0, 6.0),
    "training": ("steps", 18, 0.003),
    "evaluation": ("evaluations", 3, 0.01),
    "checkpoint": ("checkpoints", 3, 0.01),
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
    def drawn(phase: str, generator: np.random.Generator) -> Moment:
        counter, most, seconds = MOMENTS[phase]
        return Moment(
            counter, int(generator.integers(1, most + 1)) if most else 0, float(generator.uniform(0, seconds))
        )

    def wait(self, process: subprocess.Popen[bytes], record: Record) -> bool:
        """Wait for it; False where the process ends first."""
        due = time.monotonic() + self.seconds if not self.counter else None
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
    went_on: Place | None = None

    def __str__(self) -> str:
        hit = PHASES[self.phase] if self.phase == START else f"{PHASES[self.phase]} at {_text(self.at)}"
        return hit if self.went_on is None else f"{hit}, went on at {_text(self.went_on)}"


@dataclass
class KilledRun:
    """A run, what was done to it, and what is wrong with it afterwards: nothing, or sentences."""

    number: int
    variant: str
    signal: signal.Signals
    kills: list[Kill] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def row(self) -> str:
        hit = "; ".join(map(str, self.kills))
        codes = ", ".join(str(kill.code) for kill in self.kills)
        result = "the same" if not self.faults else "; ".join(self.faults)
        return (
            f"| {self.number} | {self.variant} | {self.signal.name} | {len(self.kills)} | {hit} | {codes} | {result} |"
        )


def main() -> int:
    """Make the runs and write the log; 1 where one is not what it should be."""
    arguments = _arguments()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="jocor-fast-kills-") as folder:
        data, runs = Path(folder, "data"), Path(folder, "runs")
        write_data(data)
        plan = planned(arguments.runs, arguments.seed)
        with ThreadPoolExecutor(arguments.jobs) as threads:
            whole = dict(zip(VARIANTS, threads.map(lambda name: trained(name, data, runs), VARIANTS), strict=True))

            def killed(run: tuple[KilledRun, np.random.Generator]) -> KilledRun:
                made = kill_and_resume(*run, data, runs, whole[run[0].variant])
                print(made.row(), flush=True)
                return made

            made = list(threads.map(killed, plan))
    if arguments.output is not None:
        arguments.output.write_text(report(made, time.monotonic() - started))
    return 1 if any(run.faults for run in made) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="runs with SIGKILL, and as many with SIGTERM")
    parser.add_argument("--seed", type=int, default=0, help="decides the moments")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--output", type=Path, help="the log, in Markdown")
    return parser.parse_args()


def planned(runs: int, seed: int) -> list[tuple[KilledRun, np.random.Generator]]:
    """The runs of either signal, their variants in turn, each with the generator of its moments."""
    numbered = enumerate(itertools.product((signal.SIGKILL, signal.SIGTERM), range(runs)), 1)
    names = list(VARIANTS)
    return [
        (KilledRun(number, names[run % len(names)], sent), np.random.default_rng([seed, number]))
        for number, (sent, run) in numbered
    ]


def kill_and_resume(
    run: KilledRun, generator: np.random.Generator, data: Path, runs: Path, whole: Path, most: int = 2
) -> KilledRun:
    """Make a run, killed once to `most` times, and note what is wrong with it."""
    output = runs / f"killed-{run.number}"
    # Each phase once before one comes again, and runs that follow each other begin with another.
    phases = itertools.islice(itertools.cycle(MOMENTS), run.number % len(MOMENTS), None)
    for phase in itertools.islice(phases, int(generator.integers(1, most + 1))):
        if not _kill(run, Moment.drawn(phase, generator), data, output):
            break
    with Process(run.variant, data, output) as process:
        if process.wait() != 0:
            run.faults.append(f"the last process ended with {process.wait()}: {process.errors()}")
        _went_on(run, process.record)
    if not run.kills:
        run.faults.append("it was over before it was killed")
    run.faults += differences(output, whole)
    shutil.rmtree(output)
    return run


def _kill(run: KilledRun, moment: Moment, data: Path, output: Path) -> bool:
    """Begin or resume the run and kill it; False where it was over before."""
    with Process(run.variant, data, output) as process:
        if not moment.wait(process.popen, process.record):
            if process.wait() != 0:
                run.faults.append(f"a process ended by itself with {process.wait()}: {process.errors()}")
            _went_on(run, process.record)
            return False
        record = process.record
        hit = record.phase, record.at()
        process.popen.send_signal(run.signal)
        code, left = process.wait(), place_on_disk(output)
        if run.signal == signal.SIGKILL:
            hit = record.phase, record.at()  # what stands there now is what was hit, to the step
        _went_on(run, record)
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
    if not record.asked_at:
        untrained = code == -signal.SIGTERM and not record.answers
        return [] if untrained else [f"it did not answer SIGTERM but ended with {code}: {errors}"]
    faults = [] if code == 143 else [f"it answered SIGTERM with the exit code {code}: {errors}"]
    if record.steps - record.asked_at > 1:
        faults.append(f"{record.steps - record.asked_at} more steps were done after SIGTERM")
    stage, epoch, step = record.at()
    if left not in {(stage, epoch, step), (stage, epoch + 1, 0)}:
        faults.append(f"it was left at {_text(record.at())}, and the checkpoint is of {_text(left)}")
    return faults


def _went_on(run: KilledRun, record: Record) -> None:
    """Note where the process began, after a kill, and whether that is where the files of the killed one end."""
    began = record.at("began_")
    if not run.kills or run.kills[-1].went_on is not None or not began[1]:
        return
    kill = run.kills[-1]
    kill.went_on = began
    if began != kill.left and not (kill.left == NOWHERE and began[1:] == (1, 0)):
        run.faults.append(f"it was taken up at {_text(began)}, its files are of {_text(kill.left)}")


class Process:
    """`jocor-fast train … --resume` of a variant, observed; killed at the end of the block if it still goes on."""

    def __init__(self, variant: str, data: Path, output: Path) -> None:
        output.parent.mkdir(parents=True, exist_ok=True)
        number = sum(1 for _ in output.parent.glob(f"{output.name}.record*"))
        path = output.with_name(f"{output.name}.record{number}")
        self.record = Record(path)
        self._log = path.with_suffix(".log")
        command = [sys.executable, Path(__file__).with_name("observed_training.py"), path, "train"]
        options = VARIANTS[variant].format(data=shlex.quote(str(data))) + " --device cpu --resume --output"
        with self._log.open("wb") as log:
            self.popen = subprocess.Popen(
                [*command, *shlex.split(options), output],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            )

    def wait(self) -> int:
        return self.popen.wait(PATIENCE_SECONDS)

    def errors(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return lines[-1] if lines else "it printed nothing"

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.popen.kill()
        self.popen.wait()


def trained(variant: str, data: Path, runs: Path) -> Path:
    """The folder of a run that nobody touched."""
    output = runs / f"whole-{list(VARIANTS).index(variant)}"
    with Process(variant, data, output) as process:
        if process.wait() != 0:
            raise SystemExit(f"{variant}: {process.errors()}")
    return output


def place_on_disk(output: Path) -> Place:
    """Where the run in a folder is to go on, by its checkpoint, which has to be whole."""
    first, second = (folder / "checkpoint.pt" for folder in (output / "first-stage", output))
    if second.exists():
        return _place(2, second)
    return _place(1, first) if first.exists() else NOWHERE


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


def report(runs: Sequence[KilledRun], seconds: float) -> str:
    """The log, with the command that makes it."""
    command = shlex.join(["python", "tests/kill_and_resume.py", *sys.argv[1:]])
    bad = sum(bool(run.faults) for run in runs)
    hit = [kill for run in runs for kill in run.kills]
    by_phase = ", ".join(f"{sum(kill.phase == number for kill in hit)} in {name}" for number, name in enumerate(PHASES))
    lines = [
        "# Runs that were killed and resumed",
        "",
        f"`{command}`, torch {torch.__version__}, on the CPU, {seconds / 60:.0f} minutes.",
        "",
        f"{len(runs)} runs, {len(hit)} kills ({by_phase}): {len(runs) - bad} ended as the same command that nobody",
        "touched, bit for bit (metrics but for times, summary but for times and environment, and in the checkpoints",
        f"networks, optimiser, generators and the history of the samples), {bad} did not.",
        "",
        "For each kill: where the run stood (the epoch, and how many of its steps were done), and where the next",
        "process took it up, if that was not killed in its start-up or had nothing left to train. Exit codes: -9 is",
        "SIGKILL's; 143 that of a run that answered SIGTERM with a checkpoint of the very step; -15, which is 143 to a",
        "shell, where SIGTERM came before there was training to save.",
        "",
        *(f"- {name}: `jocor-fast train {options}`" for name, options in VARIANTS.items()),
        "",
        "| run | what | signal | kills | hit | exit codes | result |",
        "| ---: | --- | --- | ---: | --- | --- | --- |",
        *(run.row() for run in runs),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
