"""Where the microseconds of a small batch's loss go: calls of more and more of it, in turns, on one thread.

    python benchmarks/loss_overhead.py [--before JSON] [--output DIR]

writes loss_overhead.md and .json. Each rung is the first decile of blocks of calls: what others do on the machine can
only add to it. --before is such a file of an older build, whose figures are shown as well.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F

import jocor_fast as jf
from cases import Case, Shape
from inputs import CO_LAMBDA, make_inputs
from jocor_fast import _C
from record import described, parser, write
from tables import markdown_table

COMMAND = "python benchmarks/loss_overhead.py"
SHAPES = (Shape(128, 10), Shape(128, 100))
SECONDS, CALLS = 4.0, 20
WHOLE, CROSS_ENTROPY = "`jf.jocor_loss` and its gradients", "`F.cross_entropy` of one matrix and its gradient"


def rungs(shape: Shape) -> dict[str, Callable[[], object]]:
    given = make_inputs(Case(shape, torch.float32, "forward + backward"), "cpu")
    logits, target, kept = (given.logits1, given.logits2), given.target, given.kept
    plain1, plain2 = (each.detach() for each in logits)
    operator, without = _C.operators.jocor_loss, (None, CO_LAMBDA, None, kept, None, False)
    backward: Any = _C.joint_loss_backward
    saved = (given.statistics, given.selected, given.num_selected, CO_LAMBDA)
    first, second = (torch.zeros((), requires_grad=True) for _ in range(2))

    def loss() -> torch.Tensor:
        return jf.jocor_loss(*logits, target, co_lambda=CO_LAMBDA, num_keep=kept).loss

    return {
        "row kernel": lambda: _C.joint_loss_forward(plain1, plain2, target, CO_LAMBDA),
        "selection": lambda: _C.select_small_loss(given.losses, kept),
        "gradient kernel": lambda: backward(given.one, plain1, plain2, target, *saved),
        "operator, nothing to differentiate": lambda: operator(plain1, plain2, target, *without),
        "operator, with what backward needs": lambda: operator(*logits, target, *without),
        "`jf.jocor_loss`, forward": loss,
        WHOLE: lambda: torch.autograd.grad(loss(), logits),
        "`F.cross_entropy` of one matrix, forward": lambda: F.cross_entropy(logits[0], target),
        CROSS_ENTROPY: lambda: torch.autograd.grad(F.cross_entropy(logits[0], target), logits[0]),
        "`a + b` of two numbers and its gradients: what autograd costs": lambda: torch.autograd.grad(
            first + second, (first, second)
        ),
    }


def measured(steps: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return microseconds of a call."""
    taken: dict[str, list[float]] = {name: [] for name in steps}
    end = perf_counter() + SECONDS
    while perf_counter() < end or len(taken[WHOLE]) < 2:
        for name, step in steps.items():
            step()
            started = perf_counter()
            for _ in range(CALLS):
                step()
            taken[name].append((perf_counter() - started) / CALLS * 1e6)
    return {name: statistics.quantiles(values, n=10)[0] for name, values in taken.items()}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--before", type=Path, help="a loss_overhead.json of another build")
    asked = options.parse_args()
    torch.set_num_threads(1)
    before = json.loads(asked.before.read_text())["microseconds"] if asked.before else {}
    found = {str(shape): measured(rungs(shape)) for shape in SHAPES}
    columns, rows = ["µs of a call"], [[name] for name in next(iter(found.values()))]
    ratios = ["ours / one `F.cross_entropy`"]
    for shape, of in found.items():
        for title, figures in (("before", before.get(shape)), ("now", of)):
            if figures is not None:
                columns.append(f"{shape}, {title}")
                for row in rows:
                    row.append(f"{figures[row[0]]:.1f}")
                ratios.append(f"{figures[WHOLE] / figures[CROSS_ENTROPY]:.2f}")
    text = (
        f"Forward and backward pass of the loss at small sizes, float32, k = B/2, one thread, by `{COMMAND}`: first "
        f"deciles of blocks of {CALLS} calls in turns. Each rung holds those it needs.\n\n"
        f"{markdown_table(columns, [*rows, ratios])}\n{described()}\n"
    )
    write("loss_overhead", text, {"command": COMMAND, "microseconds": found}, asked.output)


if __name__ == "__main__":
    main()
