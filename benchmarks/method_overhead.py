"""What the loss of each method, its selection and their backward pass add to a training step.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/method_overhead.py [--output DIR]

The paper's MNIST setting on the CPU: two perceptrons 784-256-10 (one for the one-network methods), batch 128, half of
the labels to be forgotten. A round times, one after the other, the forward and backward passes of a step with the loss
between them, and the loss with its gradient with respect to the logits by itself; the share is that over the rest. The
optimiser is not part of it. First deciles: what other work on the machine adds is left out of both. PASSIVE: spinning
threads of one operator would take the core of the next. Writes method_overhead.json and method_overhead.md.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor

import jocor_fast as jf
from jocor_fast.engine.networks import NetworkGroup, SeparateNetworks
from jocor_fast.engine.paired_mlp import PairedMLP
from jocor_fast.engine.settings import TrainSettings
from jocor_fast.methods import METHODS, Keep
from jocor_fast.models.networks import mlp
from record import described, parser, write
from tables import markdown_table, microseconds

THREADS, BATCH, CLASSES, FORGET_RATE = 2, 128, 10, 0.5
WARM_UP_ROUNDS, SECONDS_PER_METHOD = 30, 5.0
BAR = 0.10
COMMAND = "OMP_WAIT_POLICY=PASSIVE python benchmarks/method_overhead.py"


def seconds_of(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


def measure(name: str) -> dict[str, float]:
    """First deciles in seconds: the loss with its gradient, and the passes without it; and their ratio."""
    torch.manual_seed(0)
    settings = TrainSettings(method=name, forget_rate=FORGET_RATE, device="cpu")
    method = METHODS[name].of(settings.as_dict())
    method.prepare(lambda method, estimate, held_out: torch.from_numpy(jf.noise.symmetric(CLASSES, FORGET_RATE)))
    networks = [mlp(784, CLASSES) for _ in range(method.num_networks)]
    inputs, labels = torch.rand(BATCH, 784), torch.randint(CLASSES, (BATCH,))
    method.start(labels, CLASSES)
    paired = PairedMLP.fits(networks, inputs)
    group: NetworkGroup = PairedMLP(networks) if paired else SeparateNetworks(networks)
    keep = Keep(jf.num_keep(BATCH, FORGET_RATE), FORGET_RATE, samples=torch.arange(BATCH))

    def passes() -> None:
        group.backward(method.loss(group.logits(inputs), labels, keep).loss)

    leaves = [logits.detach().requires_grad_() for logits in group.logits(inputs)]

    def loss() -> tuple[Tensor, ...]:
        return torch.autograd.grad(method.loss(tuple(leaves), labels, keep).loss, leaves)

    for _ in range(WARM_UP_ROUNDS):
        passes()
        loss()
    rounds: list[tuple[float, float]] = []
    end = perf_counter() + SECONDS_PER_METHOD
    while perf_counter() < end:
        rounds.append((seconds_of(passes), seconds_of(loss)))
    whole, alone = (statistics.quantiles(column, n=10)[0] for column in zip(*rounds, strict=True))
    return {"loss": alone, "passes": whole - alone, "share": alone / (whole - alone), "rounds": len(rounds)}


def table(figures: dict[str, dict[str, float]]) -> str:
    rows = [
        [
            METHODS[name].title,
            str(METHODS[name].num_networks),
            microseconds(of["loss"]),
            microseconds(of["passes"]),
            f"{100 * of['share']:.1f} %",
        ]
        for name, of in figures.items()
    ]
    header = ["method", "networks", "loss, selection and their backward, µs", "passes of the networks, µs", "share"]
    return (
        f"MNIST perceptrons 784-256-10, batch {BATCH} on the CPU, {THREADS} threads; first deciles. "
        f"At most {BAR:.0%} is asked for. Made by `{COMMAND}`.\n\n"
        f"{markdown_table(header, rows)}\n{described()}\n"
    )


def main() -> None:
    arguments = parser(__doc__).parse_args()
    torch.set_num_threads(THREADS)
    figures = {name: measure(name) for name in METHODS}
    write("method_overhead", table(figures), {"command": COMMAND, "seconds": figures}, arguments.output)


if __name__ == "__main__":
    main()
