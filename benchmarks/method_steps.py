"""What a whole training step of each method takes, next to one of Standard (one network) or JoCoR (two).

    python benchmarks/method_steps.py [--output DIR]

The paper's MNIST setting on one thread of the CPU: perceptrons 784-256-10, batch 128, half of the labels to be
forgotten, Adam, the samples' history. The methods take sixteen steps in turns, as many as the history is written at
once, and the processor time of the thread counts, so other work on the machine disturbs all alike; first deciles. (One
step in turns finds the caches full of the other methods' networks and code, which no run does.) Methods of several
phases are timed where they do most. JoCoR is timed a second time with nothing left out, as mutual learning trains on
all rows. Writes method_steps.json and method_steps.md.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import thread_time

import torch

from jocor_fast.data.samples import Samples
from jocor_fast.engine.history import STEPS_AT_ONCE
from jocor_fast.engine.plan import plan_epoch
from jocor_fast.engine.settings import TrainSettings
from jocor_fast.engine.state import TrainingState
from jocor_fast.methods import METHODS
from jocor_fast.models.networks import mlp
from record import described, parser, write
from tables import markdown_table, microseconds

BATCH, SAMPLES, CLASSES, ROUNDS, WARM_UP_ROUNDS = 128, 2048, 10, 60, 2
EPOCH = 100  # of 200: labels are learnt, warm-ups are over
BAR = 1.15
ALL_ROWS = "jocor, all rows"
COMMAND = "python benchmarks/method_steps.py"


def step_of(name: str, forget_rate: float = 0.5) -> Callable[[], None]:
    """A step of a run of the method, on the next batch each time."""
    torch.manual_seed(0)
    settings = TrainSettings(method=name, forget_rate=forget_rate, device="cpu")
    networks = [mlp(784, CLASSES) for _ in range(METHODS[name].num_networks)]
    inputs = torch.rand(SAMPLES, 784)
    data = Samples(inputs, torch.randint(CLASSES, (SAMPLES,)))
    state = TrainingState(settings, networks, data, None, None, torch.device("cpu"))
    transition = torch.full((CLASSES, CLASSES), 0.5 / (CLASSES - 1), dtype=torch.float64).fill_diagonal_(0.5)
    state.step.method.prepare(lambda *given: transition)
    log, rates = state.begin_epoch(plan_epoch(settings, EPOCH, SAMPLES))
    batches = log.order.split(BATCH)
    number = 0

    def step() -> None:
        nonlocal number
        samples = batches[number % len(batches)]
        number += 1
        labels = state.labels.index_select(0, samples)
        outcome = state.step(inputs[samples], labels, rates, state.history.ranks_of(samples), samples)
        state.history.note(samples, labels, outcome)

    return step


def seconds_of(step: Callable[[], None]) -> float:
    """Seconds of a step, of several in a row."""
    start = thread_time()
    for _ in range(STEPS_AT_ONCE):
        step()
    return (thread_time() - start) / STEPS_AT_ONCE


def measure() -> dict[str, float]:
    """First deciles of the seconds of a step, by method."""
    steps = {name: step_of(name) for name in METHODS} | {ALL_ROWS: step_of("jocor", forget_rate=0.0)}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(WARM_UP_ROUNDS + ROUNDS):
        for name, step in steps.items():
            taken = seconds_of(step)
            if number >= WARM_UP_ROUNDS:
                seconds[name].append(taken)
    return {name: statistics.quantiles(column, n=10)[0] for name, column in seconds.items()}


def compared_with(name: str) -> list[str]:
    if name == ALL_ROWS:
        return ["jocor"]
    if METHODS[name].num_networks == 1:
        return ["standard"]
    return ["jocor", ALL_ROWS] if name == "dml" else ["jocor"]


def title_of(name: str) -> str:
    return "JoCoR, nothing left out" if name == ALL_ROWS else METHODS[name].title


def table(figures: dict[str, float]) -> str:
    rows = []
    for name, seconds in figures.items():
        ratios = (f"{seconds / figures[other]:.2f} × {title_of(other)}" for other in compared_with(name))
        networks = METHODS["jocor" if name == ALL_ROWS else name].num_networks
        rows.append([title_of(name), str(networks), microseconds(seconds), "; ".join(ratios)])
    header = ["method", "networks", "a step, µs", "of a step of"]
    return (
        f"MNIST perceptrons 784-256-10, batch {BATCH}, one thread of the CPU, Adam and history included; "
        f"{STEPS_AT_ONCE} steps in turns, processor time, first deciles of {ROUNDS} turns. At most {BAR} is asked for. "
        f"Made by `{COMMAND}`.\n\n{markdown_table(header, rows)}\n{described()}\n"
    )


def main() -> None:
    arguments = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    figures = measure()
    write("method_steps", table(figures), {"command": COMMAND, "seconds": figures}, arguments.output)


if __name__ == "__main__":
    main()
