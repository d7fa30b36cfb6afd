"""The pair's loss from hidden states against its contenders on the CPU: time, and memory beyond inputs and gradients.

    python benchmarks/linear_loss.py [--rounds N] [--shapes BxDxC …] [--output DIR]

Half of the rows are kept. Contenders: `F.linear` and `jf.jocor_loss`; and torch's `F.linear_cross_entropy`, once for
each network, with a mask: "selecting" ranks the rows by the sum of two cross-entropies and averages the smaller half,
"masked" is told the rows beforehand (labels of the others are ignored): no selection, but torch can work in chunks.
Times: all in one process, in turns in random order, with one thread a core; medians. Memory: the peak of a process of
its own, less what it had before the step and the gradients. Writes linear_loss.json and .md.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import jocor_fast as jf
from interleave import Quartiles
from record import described, parser, write
from tables import markdown_table

SHAPES = ("2048x512x32768", "2048x512x1000", "2048x512x131072")
TIMED = SHAPES[:2]
OURS, PLAIN, SELECTING, MASKED = "jf.linear_jocor_loss", "F.linear + jf.jocor_loss", "selecting", "masked"
CONTENDERS = (OURS, PLAIN, SELECTING, MASKED)
ROUNDS = 7


def inputs(shape: str) -> tuple[list[Tensor], Tensor]:
    """Return both hidden states [B, D] and weights [C, D], which want gradients, and labels [B]."""
    rows, features, classes = map(int, shape.split("x"))
    generator = torch.Generator().manual_seed(0)
    made = [
        torch.randn(size, generator=generator).div_(features**0.25).requires_grad_()
        for size in ((rows, features), (classes, features)) * 2
    ]
    return made, torch.randint(classes, (rows,), generator=generator)


def loss_of(contender: str, tensors: list[Tensor], target: Tensor) -> Tensor:
    """Return the contender's loss, of half of the rows."""
    hidden1, weight1, hidden2, weight2 = tensors
    if contender == OURS:
        return jf.linear_jocor_loss(hidden1, weight1, hidden2, weight2, target, forget_rate=0.5).loss
    if contender == PLAIN:
        logits = functional.linear(hidden1, weight1), functional.linear(hidden2, weight2)
        return jf.jocor_loss(*logits, target, forget_rate=0.5).loss
    pairs = ((hidden1, weight1), (hidden2, weight2))
    if contender == MASKED:
        half = torch.where(torch.arange(len(target)) % 2 == 0, target, -100)
        losses = [functional.linear_cross_entropy(*pair, half, ignore_index=-100) for pair in pairs]
        return losses[0] + losses[1]
    rows = [functional.linear_cross_entropy(*pair, target, reduction="none") for pair in pairs]
    total = rows[0] + rows[1]
    return total[jf.select_small_loss(total.detach(), len(target) // 2)].mean()


def step(contender: str, tensors: list[Tensor], target: Tensor) -> float:
    """Return the seconds of forward and backward."""
    for tensor in tensors:
        tensor.grad = None
    begun = perf_counter()
    loss_of(contender, tensors, target).backward()
    return perf_counter() - begun


def seconds(shape: str, rounds: int) -> dict[str, Any]:
    """Return the quartiles of each contender."""
    tensors, target = inputs(shape)
    turns, order = random.Random(0), list(CONTENDERS)
    taken: dict[str, list[float]] = {name: [] for name in order}
    for number in range(rounds + 1):
        turns.shuffle(order)
        for name in order:
            took = step(name, tensors, target)
            if number:
                taken[name].append(took)
    quartiles = {name: Quartiles.of(of) for name, of in taken.items()}
    return {name: {**of._asdict(), "least": min(taken[name])} for name, of in quartiles.items() if of}


def peak_bytes() -> int:
    """Of this program alone: ru_maxrss also knows what the process was before it."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def memory(contender: str, shape: str) -> int:
    """Return the bytes that a step takes beyond inputs and gradients, in this fresh process."""
    small, few = inputs("64x8x16")
    step(contender, small, few)  # loads the code
    tensors, target = inputs(shape)
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    step(contender, tensors, target)
    return peak_bytes() - before - sum(tensor.nbytes for tensor in tensors)


def in_a_process(contender: str, shape: str) -> int:
    command = [sys.executable, __file__, "--memory", contender, "--shapes", shape]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def table(figures: dict[str, dict[str, Any]]) -> str:
    rows = []
    for shape, of in figures.items():
        for name, figure in of.items():
            time = ratio = "not timed"
            if "seconds" in figure:
                median = figure["seconds"]["median"]
                spread = "–".join(f"{figure['seconds'][key] * 1e3:,.0f}" for key in ("quartile_1", "quartile_3"))
                time, ratio = f"{median * 1e3:,.0f} ({spread})", f"{median / of[OURS]['seconds']['median']:.2f}×"
            mb, share = figure["bytes"] / 1e6, figure["bytes"] / logit_bytes(shape)
            rows.append([shape, name, time, ratio, f"{mb:,.0f}", f"{share:.1%}"])
    heads = ["B×D×C", "who", "ms (quartiles)", "over ours", "MB", "of the logits"]
    doc = (__doc__ or "").split("\n\n")[2].replace("\n", " ")
    return f"{doc}\n\n{markdown_table(heads, rows)}\n{described()}\n"


def logit_bytes(shape: str) -> int:
    rows, _, classes = map(int, shape.split("x"))
    return 2 * rows * classes * 4


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=ROUNDS, help=f"turns of a contender (default: {ROUNDS})")
    options.add_argument("--shapes", nargs="+", default=SHAPES, help="such as 2048x512x32768")
    options.add_argument("--memory", choices=CONTENDERS, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.memory:
        print(json.dumps(memory(arguments.memory, arguments.shapes[0])))
        return
    figures: dict[str, dict[str, Any]] = {}
    for shape in arguments.shapes:
        print(shape, file=sys.stderr, flush=True)
        figures[shape] = {name: {"bytes": in_a_process(name, shape)} for name in CONTENDERS}
        if shape in TIMED:
            for name, of in seconds(shape, arguments.rounds).items():
                figures[shape][name]["seconds"] = of
    command = "python benchmarks/linear_loss.py"
    write("linear_loss", table(figures), {"command": command, "figures": figures}, arguments.output)


if __name__ == "__main__":
    main()
