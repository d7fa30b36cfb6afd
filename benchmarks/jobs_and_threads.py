"""Time several runs at once: how many, with how many threads each, gets through most steps of JoCoR on the CPU.

    python benchmarks/jobs_and_threads.py [--rounds N] [--output DIR]

What `reproduce`, `compare` and `search-lambda` have to choose, for MNIST's perceptrons (random inputs of which 19 % are
not 0), CIFAR-10's network and a ResNet-18 at 224 pixels: one run with all threads, as many runs as cores with one
thread each, and as many with all threads each. Every run is a process as `reproduce` starts it, which waits passively.
All runs of an arrangement make a turn of steps together, from one start until the last has ended; the arrangements take
turns in random order, stopped in between. A figure is the median of the steps of all runs per second.

Writes jobs_and_threads.json and jobs_and_threads.md.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch

from jocor_fast.data.samples import Samples
from jocor_fast.engine import loop
from jocor_fast.engine.loop import Observer
from jocor_fast.engine.settings import TrainSettings
from jocor_fast.engine.state import TrainingState
from jocor_fast.machine import usable_cores
from jocor_fast.models.networks import build_model
from record import described, parser, write
from tables import markdown_table
from turns import serve

ROUNDS, WARM_UP = 7, 2
FILLED = 0.19


class Work(NamedTuple):
    """Steps of one turn of a run."""

    model: str
    shape: tuple[int, ...]
    batch: int
    steps: int


WORK = {
    "MNIST's perceptrons, batch 128": Work("mlp", (28, 28), 128, 400),
    "CIFAR-10's network, batch 128": Work("cnn", (3, 32, 32), 128, 3),
    "ResNet-18, 224 pixels, batch 16": Work("resnet18", (3, 224, 224), 16, 1),
}


def turn(work: Work, threads: int) -> Callable[[], object]:
    """Return what trains an epoch of so many steps, as a run with `--threads` does."""
    torch.set_num_threads(threads)
    draw = torch.Generator().manual_seed(0)
    shape = (work.steps * work.batch, *work.shape)
    images = torch.randint(1, 256, shape, dtype=torch.uint8, generator=draw)
    if work.model == "mlp":
        images *= torch.rand(shape, generator=draw) < FILLED
    train = Samples(images, torch.randint(10, (len(images),), generator=draw))
    settings = TrainSettings(forget_rate=0.5, ramp_epochs=0, batch_size=work.batch, epochs=10_000, threads=threads)
    networks = [build_model(work.model, work.shape, 10) for _ in range(2)]
    state = TrainingState(settings, networks, train, None, None, torch.device("cpu"))
    epochs = count(1)
    return lambda: loop.train(state, [next(epochs)], Observer())


class Arrangement:
    """So many runs at once, which exist only while they measure or are stopped."""

    def __init__(self, name: str, jobs: int, threads: int) -> None:
        self.jobs, self.threads, self.seconds = jobs, threads, list[float]()
        environ = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": str(threads)}
        command = [sys.executable, __file__, "--serve", name, "--threads", str(threads)]
        pipe = subprocess.PIPE
        self.runs = [subprocess.Popen(command, env=environ, stdin=pipe, stdout=pipe) for _ in range(jobs)]
        for _ in range(WARM_UP):
            self.measure()
        self.seconds.clear()

    def measure(self) -> None:
        for run in self.runs:
            run.send_signal(signal.SIGCONT)
        started = perf_counter()
        for run in self.runs:
            assert run.stdin is not None
            run.stdin.write(b"\n")
            run.stdin.flush()
        for run in self.runs:
            assert run.stdout is not None
            if not run.stdout.readline():
                raise RuntimeError(f"a run with {self.threads} threads has ended with {run.wait()}")
        self.seconds.append(perf_counter() - started)
        for run in self.runs:
            run.send_signal(signal.SIGSTOP)

    def end(self) -> None:
        for run in self.runs:
            run.kill()
            run.wait()

    def __str__(self) -> str:
        runs = "1 run" if self.jobs == 1 else f"{self.jobs} runs"
        return f"{runs}, {self.threads} thread{'s' * (self.threads > 1)}{' each' * (self.jobs > 1)}"


def measured(name: str, rounds: int) -> list[Arrangement]:
    cores = usable_cores()
    arrangements: list[Arrangement] = []
    try:
        for jobs, threads in ((cores, 1), (1, cores), (cores, cores)):
            arrangements.append(Arrangement(name, jobs, threads))
        turns = random.Random(0)
        for _ in range(rounds):
            for arrangement in turns.sample(arrangements, len(arrangements)):
                arrangement.measure()
    finally:
        for arrangement in arrangements:
            arrangement.end()
    return arrangements


def main() -> None:
    parse = parser(__doc__)
    parse.add_argument("--rounds", type=int, default=ROUNDS, help=f"turns of each, default {ROUNDS}")
    parse.add_argument("--serve", help="for the script itself")
    parse.add_argument("--threads", type=int, help="for the script itself")
    given = parse.parse_args()
    if given.serve:
        serve(turn(WORK[given.serve], given.threads))
        return
    rows, seconds = [], {}
    for name, work in WORK.items():
        arrangements = measured(name, given.rounds)
        rates = [of.jobs * work.steps / median(of.seconds) for of in arrangements]
        for of, rate in zip(arrangements, rates, strict=True):
            rows.append([name, str(of), f"{rate:,.0f}" if rate > 10 else f"{rate:.2f}", f"{rate / rates[0]:.2f}"])
        seconds[name] = {str(of): of.seconds for of in arrangements}
    text = (
        f"Steps of JoCoR per second, of all runs at once together; medians of {given.rounds} turns. "
        f"By `python benchmarks/jobs_and_threads.py --rounds {given.rounds}`.\n\n"
        f"{markdown_table(['', 'at once', 'steps per second', 'share of the first'], rows)}\n{described('threads')}\n"
    )
    write("jobs_and_threads", text, {"seconds": seconds}, given.output)


if __name__ == "__main__":
    main()
