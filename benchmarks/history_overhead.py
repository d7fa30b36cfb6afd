"""What the history of each sample costs a training step on the CPU: with it and without, in turns.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/history_overhead.py [--output DIR]

JoCoR on MNIST's perceptrons, batch 128, of 60,000 samples of noise; spells of 48 steps (three recordings of sixteen
steps each), whose order changes from round to round. At most 2 % of a step is asked for. Writes history_overhead.json
and .md.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable
from time import perf_counter

import torch

from jocor_fast.data.samples import Samples
from jocor_fast.engine import loop
from jocor_fast.engine.epoch_log import EpochLog
from jocor_fast.engine.loop import Observer
from jocor_fast.engine.settings import TrainSettings
from jocor_fast.engine.state import TrainingState
from jocor_fast.models.networks import mlp
from record import described, parser, write
from tables import markdown_table

SAMPLES, BATCH, SPELL, WARM_UP, SECONDS = 60_000, 128, 48, 5, 40.0
BAR = 0.02
COMMAND = "OMP_WAIT_POLICY=PASSIVE python benchmarks/history_overhead.py"


class SpellEnd(Exception):
    """Ends the loop after a step; the next call takes it up there."""


class Spell(Observer):
    steps = 0

    def on_step(self, epoch: int, log: EpochLog) -> None:
        self.steps += 1
        if self.steps == SPELL:
            raise SpellEnd


def spell(*, history: bool) -> Callable[[], float]:
    """What trains `SPELL` steps and returns the seconds of one."""
    torch.manual_seed(0)
    settings = TrainSettings(forget_rate=0.5, batch_size=BATCH, device="cpu")
    data = Samples(torch.randint(256, (SAMPLES, 1, 28, 28), dtype=torch.uint8), torch.randint(10, (SAMPLES,)))
    state = TrainingState(settings, (mlp(784, 10), mlp(784, 10)), data, None, None, torch.device("cpu"))
    if not history:
        state.history.note = lambda *_: None  # type: ignore[method-assign]

    def train() -> float:
        if state.log is not None and state.log.step + SPELL > state.log.steps:
            state.log = None  # the next epoch, without an evaluation
        begun = perf_counter()
        with contextlib.suppress(SpellEnd):
            loop.train(state, [20], Spell())
        return (perf_counter() - begun) / SPELL

    return train


def measure(threads: int) -> dict[str, float]:
    """Median seconds of a step without and with the history, and the median ratio of spells of one round."""
    torch.set_num_threads(threads)
    without, with_it = spell(history=False), spell(history=True)
    for _ in range(WARM_UP):
        without()
        with_it()
    rounds: list[tuple[float, float]] = []
    end = perf_counter() + SECONDS
    while perf_counter() < end:
        if len(rounds) % 2:
            second, first = with_it(), without()
        else:
            first, second = without(), with_it()
        rounds.append((first, second))
    plain, kept = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratio = statistics.median(second / first for first, second in rounds)
    return {"without": plain, "with": kept, "share": ratio - 1, "rounds": len(rounds)}


def main() -> None:
    arguments = parser(__doc__).parse_args()
    figures = {threads: measure(threads) for threads in (1, 2)}
    rows = [
        [str(threads), f"{1e6 * of['without']:.0f}", f"{1e6 * of['with']:.0f}", f"{100 * of['share']:+.1f} %"]
        for threads, of in figures.items()
    ]
    text = (
        f"A step of JoCoR on MNIST's perceptrons, batch {BATCH}, on the CPU, with the history of each sample and "
        f"without; medians, the share that of neighbours. At most {BAR:.0%} is asked for. Made by `{COMMAND}`.\n\n"
        f"{markdown_table(['threads', 'without, µs', 'with, µs', 'share'], rows)}\n{described()}\n"
    )
    write("history_overhead", text, {"command": COMMAND, "figures": figures}, arguments.output)


if __name__ == "__main__":
    main()
