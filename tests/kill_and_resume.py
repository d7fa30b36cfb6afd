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
import shlex
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from killed_processes import PROCESSES, kill_one_and_resume
from killed_run import VARIANTS, Kill, KilledRun, kill_and_resume, trained, write_data
from observed_training import PHASES


def main() -> int:
    """Make the runs and write the log; 1 where one is not what it should be."""
    arguments = _arguments()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="jocor-fast-kills-") as folder:
        data, runs = Path(folder, "data"), Path(folder, "runs")
        write_data(data)
        alone = arguments.processes == 1
        signals = (signal.SIGKILL, signal.SIGTERM) if alone else (signal.SIGKILL,)
        make = kill_and_resume if alone else kill_one_and_resume
        with ThreadPoolExecutor(arguments.jobs) as threads:
            names = list(VARIANTS)
            whole = dict(
                zip(names, threads.map(lambda name: trained(name, data, runs, arguments.processes), names), strict=True)
            )

            def killed(run: tuple[KilledRun, np.random.Generator]) -> KilledRun:
                made = make(*run, data, runs, whole[run[0].variant])
                print(made.row(), flush=True)
                return made

            made = list(threads.map(killed, planned(arguments.runs, arguments.seed, signals)))
    if arguments.output is not None:
        arguments.output.write_text(report(made, time.monotonic() - started))
    return 1 if any(run.faults for run in made) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--runs", type=int, default=20, help="runs of one process with SIGKILL, and as many with SIGTERM"
    )
    parser.add_argument(
        "--processes", type=int, default=1, choices=(1, PROCESSES), help="2: runs under torchrun, SIGKILL to one of two"
    )
    parser.add_argument("--seed", type=int, default=0, help="decides the moments")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--output", type=Path, help="the log, in Markdown")
    return parser.parse_args()


def planned(runs: int, seed: int, signals: Sequence[signal.Signals]) -> list[tuple[KilledRun, np.random.Generator]]:
    """So many runs of each signal, their variants in turn, each with the generator of its moments."""
    numbered = enumerate(itertools.product(signals, range(runs)), 1)
    names = list(VARIANTS)
    return [
        (KilledRun(number, names[run % len(names)], sent), np.random.default_rng([seed, number]))
        for number, (sent, run) in numbered
    ]


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
        f"{len(runs)} runs, {len(hit)} kills ({by_phase}): {len(runs) - bad} ended as",
        "the same command that nobody touched, bit for bit (metrics and summary but for times and environment; in the",
        f"checkpoints networks, optimiser, generators and the history of the samples), {bad} did not.",
        "",
        *_on_processes(hit, [sentence for run in runs for sentence in run.said]),
        "For each kill: where the run stood (the epoch, and how many of its steps were done), and where the next",
        "process took it up, if that was not killed in its start-up or had nothing left to train. Exit codes: -9 is",
        "SIGKILL's, and 1 torchrun's after it; 143 that of a run that answered SIGTERM with a checkpoint of the very",
        "step; -15, which is 143 to a shell, where SIGTERM came before there was training to save.",
        "",
        *(f"- {name}: `jocor-fast train {variant.options}`" for name, variant in VARIANTS.items()),
        "",
        "| run | what | signal | kills | hit | exit codes | result |",
        "| ---: | --- | --- | ---: | --- | --- | --- |",
        *(run.row() for run in runs),
    ]
    return "\n".join(lines) + "\n"


def _on_processes(hit: Sequence[Kill], said: Sequence[str]) -> list[str]:
    """Of runs of several processes: how long the others went on, and what they said."""
    seconds = [kill.seconds for kill in hit if kill.seconds is not None]
    if not seconds:
        return []
    return [
        f"One of two processes was killed each time; all were gone after {max(seconds):.1f} s at most. What was said:",
        "",
        *(f"- {sentence} ({number} times)" for sentence, number in Counter(said).most_common()),
        "",
    ]


if __name__ == "__main__":
    sys.exit(main())
