"""Time an MNIST epoch of JoCoR with its evaluation against plain PyTorch loops of the same recipe, on the CPU.

    JOCOR_FAST_DATA=DIR python benchmarks/mnist_epoch.py [--rounds N] [--filled SHARE | --denormals] [--output DIR]

Symmetric noise at 50 %, two perceptrons 784-256-10, batch 128, Adam at 0.001, half of the rows kept, and after each
epoch both networks on the 10,000 test images. The loops hold all data in memory as float32 and compute the loss as a
careful user writes it (contenders.py); one is compiled by torch.compile, forward pass and loss. Every contender runs in
processes of its own: on one thread, and on two whose idle thread spins or sleeps. They take turns, an epoch each, in
random order, stopped in between; a contender's figure is the median of its fastest setting. "dense products" is ours
without the road for inputs with many zeros. --filled times these two roads alone, on random inputs of which such a
share is not 0, to see where they are as fast.

All take denormal numbers as 0, as our trainer sees to by itself. --denormals times what that gains: the eager loop and
ours, each also with these numbers kept, to which Adam's moments decay in the first epochs.

Writes mnist_epoch.json and mnist_epoch.md; with --filled 0.5 mnist_epoch_0.5.json and .md, with --denormals
mnist_epoch_denormals.json and .md.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count

import torch
from torch import Tensor

import jocor_fast as jf
from contenders import eager
from jocor_fast.data.catalogue import load_dataset
from jocor_fast.data.samples import Samples
from jocor_fast.engine import loop, sparse_perceptrons
from jocor_fast.engine.loop import Observer
from jocor_fast.engine.settings import TrainSettings
from jocor_fast.engine.state import TrainingState
from jocor_fast.machine import flush_denormals
from jocor_fast.models.networks import build_model
from record import described, parser, write
from turns import seconds, serve, table, take_turns

BATCH, KEPT, ROUNDS = 128, 64, 15
EAGER, COMPILED = "plain loop, eager", "plain loop, torch.compile"
OURS, DENSE = "jocor_fast", "jocor_fast, dense products"
CONTENDERS = (EAGER, COMPILED, OURS, DENSE)
KEPT_DENORMALS = ", denormal numbers kept"


def data_of(filled: float | None) -> tuple[Samples, Samples]:
    """Training and test part, the labels of the former half wrong; random inputs where `filled`."""
    data = load_dataset("mnist")
    assert data.test is not None
    draw = torch.Generator().manual_seed(0)
    parts = []
    for part in (data.train, data.test):
        assert isinstance(part.inputs, Tensor)
        images = part.inputs
        if filled is not None:
            images = torch.randint(1, 256, images.shape, dtype=torch.uint8, generator=draw)
            images *= torch.rand(images.shape, generator=draw) < filled
        parts.append(Samples(images, part.labels))
    train, test = parts
    noisy = jf.noise.corrupt(train.labels.numpy(), jf.noise.symmetric(10, 0.5), seed=1)
    return Samples(train.inputs, torch.from_numpy(noisy)), test


class PlainLoop:
    """In plain PyTorch, data in memory; returns when an epoch and its evaluation are done."""

    def __init__(self, train: Samples, test: Samples, *, compiled: bool) -> None:
        assert isinstance(train.inputs, Tensor)
        assert isinstance(test.inputs, Tensor)
        self.inputs, self.labels = train.inputs.flatten(1).float() / 255, train.labels
        self.test_inputs, self.test_labels = test.inputs.flatten(1).float() / 255, test.labels
        self.networks = [build_model("mlp", (784,), 10) for _ in range(2)]
        parameters = [parameter for network in self.networks for parameter in network.parameters()]
        self.optimizer = torch.optim.Adam(parameters, lr=1e-3, fused=True)
        self.loss: Callable[[Tensor, Tensor], Tensor] = torch.compile(self._loss) if compiled else self._loss

    def _loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        first, second = (network(inputs) for network in self.networks)
        return eager(first, second, labels, KEPT)

    def epoch(self) -> None:
        order = torch.randperm(len(self.labels))
        for rows in order[: len(order) // BATCH * BATCH].split(BATCH):
            loss = self.loss(self.inputs[rows], self.labels[rows])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        with torch.no_grad():
            for network in self.networks:
                right = 0
                for inputs, labels in zip(self.test_inputs.split(1000), self.test_labels.split(1000), strict=True):
                    right += int((network(inputs).argmax(1) == labels).sum())
                assert right > 0


class OurLoop:
    """The trainer, without an output folder, as the plain loops have none."""

    def __init__(self, train: Samples, test: Samples) -> None:
        settings = TrainSettings(forget_rate=0.5, ramp_epochs=0, co_lambda=0.9, batch_size=BATCH, epochs=200)
        assert isinstance(train.inputs, Tensor)
        shape = tuple(train.inputs.shape[1:])
        networks = [build_model("mlp", shape, 10) for _ in range(2)]
        self.state = TrainingState(settings, networks, train, test, None, torch.device("cpu"))
        self.epochs = count(1)

    def epoch(self) -> None:
        loop.train(self.state, [next(self.epochs)], Observer())


def contender(name: str, filled: float | None) -> PlainLoop | OurLoop:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(0)
    flush_denormals(not name.endswith(KEPT_DENORMALS))
    name = name.removesuffix(KEPT_DENORMALS)
    train, test = data_of(filled)
    if name == DENSE or filled is not None:
        sparse_perceptrons.MOST_FILLED = 0.0 if name == DENSE else 1.0
    if name in (OURS, DENSE):
        return OurLoop(train, test)
    return PlainLoop(train, test, compiled=name == COMPILED)


def main() -> None:
    parse = parser(__doc__)
    parse.add_argument("--rounds", type=int, default=ROUNDS, help=f"epochs of each, default {ROUNDS}")
    kind = parse.add_mutually_exclusive_group()
    kind.add_argument("--filled", type=float, help="share of random inputs that is not 0")
    kind.add_argument("--denormals", action="store_true", help="also with denormal numbers kept")
    parse.add_argument("--serve", help="for the script itself")
    given = parse.parse_args()
    if given.serve:
        serve(contender(given.serve, given.filled).epoch)
        return
    asked, what, table_of = list[str](), "MNIST,", "mnist_epoch"
    names: tuple[str, ...] = CONTENDERS
    if given.filled is not None:
        asked, names = ["--filled", str(given.filled)], (OURS, DENSE)
        what = f"random inputs of MNIST's shape, {given.filled:.0%} not 0, read as sparse rows,"
        table_of += f"_{given.filled}"
    elif given.denormals:
        asked = ["--denormals"]
        names = tuple(name + kept for name in (EAGER, OURS) for kept in ("", KEPT_DENORMALS))
        table_of += "_denormals"
    processes = take_turns({name: [__file__, "--serve", name, *asked] for name in names}, given.rounds)
    text = (
        f"An epoch of JoCoR with its evaluation, {what} median of {given.rounds} epochs in turns, each contender's "
        f"fastest setting. By `{' '.join(['python benchmarks/mnist_epoch.py', *asked])}`.\n\n"
        f"{table(processes, OURS)}\n{described('threads')}\n"
    )
    write(table_of, text, {"seconds": seconds(processes)}, given.output)


if __name__ == "__main__":
    main()
