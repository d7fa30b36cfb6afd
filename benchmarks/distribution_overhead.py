"""What distribution costs a step on the CPU, of one process and of one with DistributedDataParallel around it.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/distribution_overhead.py [--output DIR]

Steps of the same training are timed in turns: as `jocor-fast train` runs them alone; as it runs them under torchrun
with one process (the same code, which is the point); and with the machinery of several processes in a world of one
(DistributedDataParallel with its reducer and copies of buffers, the answer to SIGTERM that is agreed on), which no run
uses, to see what it costs before a byte travels. That is compared with plain modules, since several processes do not
pair perceptrons (engine/paired_mlp.py). Medians of the steps, and of the ratios of neighbours. Writes
distribution_overhead.json and .md.
"""

from __future__ import annotations

import contextlib
import os
import statistics
from collections.abc import Callable
from time import perf_counter

import torch
from torch import nn

from jocor_fast.data.samples import Samples
from jocor_fast.engine import loop
from jocor_fast.engine.epoch_log import EpochLog
from jocor_fast.engine.loop import Observer
from jocor_fast.engine.networks import DistributedNetworks, SeparateNetworks
from jocor_fast.engine.optimizer import build_optimizer
from jocor_fast.engine.processes import ALONE, Processes, SharedRequest, joined_processes
from jocor_fast.engine.settings import TrainSettings
from jocor_fast.engine.state import TrainingState
from jocor_fast.models.networks import build_model, mlp
from record import described, parser, write
from tables import markdown_table

WARM_UP, SECONDS = 3, 20.0
BAR = 0.03
COMMAND = "OMP_WAIT_POLICY=PASSIVE python benchmarks/distribution_overhead.py"
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "MNIST's perceptrons, batch 128": (lambda: mlp(784, 10), (1, 28, 28), 128),
    "ResNet-18, 14 classes, 64×64, batch 32": (lambda: build_model("resnet18", (3, 64, 64), 14), (3, 64, 64), 32),
}
ALONE_AS_IT_IS, UNDER_TORCHRUN, PLAIN, WRAPPED = "alone", "torchrun, one process", "plain modules", "wrapped"


class StepEnd(Exception):
    """Ends the loop after a step; the next call takes it up there."""


class OneStep(Observer):
    def __init__(self, request: SharedRequest) -> None:
        self.request = request

    def pause_due(self, log: EpochLog) -> bool:
        return self.request.answered(False)

    def on_step(self, epoch: int, log: EpochLog) -> None:
        raise StepEnd


def stepper(kind: str, case: str, processes: Processes) -> Callable[[], float]:
    """What trains one step of a case and returns its seconds."""
    build, shape, batch = CASES[case]
    torch.manual_seed(0)
    settings = TrainSettings(forget_rate=0.5, batch_size=batch, device="cpu")
    data = Samples(torch.randint(256, (20 * batch, *shape), dtype=torch.uint8), torch.randint(10, (20 * batch,)))
    state = TrainingState(settings, (build(), build()), data, None, None, torch.device("cpu"), processes)
    if kind in (PLAIN, WRAPPED):
        modules, sample = state.networks, state.source.first()
        state.step.group.release()
        wrapped = kind == WRAPPED
        state.step.group = DistributedNetworks(modules, sample) if wrapped else SeparateNetworks(modules)
        state.step.optimizer = build_optimizer(settings, state.step.group)
    request = SharedRequest(Processes(count=2, control=torch.distributed.group.WORLD) if kind == WRAPPED else processes)

    def step() -> float:
        if state.log is not None and state.log.step == state.log.steps:
            state.log = None  # the next epoch, without an evaluation
        begun = perf_counter()
        with contextlib.suppress(StepEnd):
            loop.train(state, [20], OneStep(request))
        return perf_counter() - begun

    return step


def measure(case: str, processes: Processes) -> dict[str, dict[str, float]]:
    """Median seconds of a step of each kind, and the median ratio to what it is compared with."""
    kinds = (ALONE_AS_IT_IS, UNDER_TORCHRUN, PLAIN, WRAPPED)
    steps = {kind: stepper(kind, case, processes if kind == UNDER_TORCHRUN else ALONE) for kind in kinds}
    taken: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(WARM_UP):
        for step in steps.values():
            step()
    end = perf_counter() + SECONDS
    while perf_counter() < end:
        for kind, step in steps.items():
            taken[kind].append(step())
    against = {UNDER_TORCHRUN: ALONE_AS_IT_IS, WRAPPED: PLAIN}
    figures = {kind: {"seconds": statistics.median(taken[kind]), "steps": float(len(taken[kind]))} for kind in kinds}
    for kind, other in against.items():
        ratios = [mine / theirs for mine, theirs in zip(taken[kind], taken[other], strict=True)]
        figures[kind]["ratio"] = statistics.median(ratios)
    return figures


def table(figures: dict[str, dict[str, dict[str, float]]]) -> str:
    names = {
        ALONE_AS_IT_IS: "one process",
        UNDER_TORCHRUN: "one process that torchrun has started",
        PLAIN: "one process, networks as plain modules",
        WRAPPED: "the same, with DistributedDataParallel and the agreement on SIGTERM",
    }
    rows = [
        [case, names[kind], f"{1e3 * of['seconds']:.2f}", f"{100 * (of['ratio'] - 1):+.1f} %" if "ratio" in of else ""]
        for case, kinds in figures.items()
        for kind, of in kinds.items()
    ]
    header = ["step", "how", "ms", "more than the row above"]
    return (
        f"Steps of JoCoR on the CPU, {torch.get_num_threads()} threads, medians; at most {BAR:.0%} is asked for of one "
        f"process. Made by `{COMMAND}`.\n\n{markdown_table(header, rows)}\n{described()}\n"
    )


def main() -> None:
    arguments = parser(__doc__).parse_args()
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    with joined_processes("cpu") as processes:
        figures = {case: measure(case, processes) for case in CASES}
    torch.distributed.destroy_process_group()
    write("distribution_overhead", table(figures), {"command": COMMAND, "figures": figures}, arguments.output)


if __name__ == "__main__":
    main()
