"""What LibTorch's stable ABI would cost: the loss at 128×10 registered by it, and as it is, in turns on one thread.

It has no C++ autograd and no way around torch.ops, so the backward pass is a torch.autograd.Function in Python.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.utils import cpp_extension

import record
from jocor_fast import _operators

CO_LAMBDA, FORGET_RATE = 0.9, 0.2
ROUNDS, CALLS = 60, 400


class StableLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *pair: Tensor) -> tuple[Tensor, ...]:
        *out, rows = torch.ops.jocor_fast_stable.loss.default(*pair, CO_LAMBDA, FORGET_RATE)
        ctx.mark_non_differentiable(*out[1:])
        ctx.save_for_backward(*pair, rows, *out[2:4])
        return tuple(out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *others: Tensor) -> tuple[Tensor | None, ...]:
        pair, saved = ctx.saved_tensors[:3], ctx.saved_tensors[3:]
        return *torch.ops.jocor_fast_stable.loss_backward.default(grad, *pair, CO_LAMBDA, *saved), None


def main(output: Path) -> None:
    torch.set_num_threads(1)
    here = Path(__file__).resolve()
    csrc = here.parents[1] / "csrc"
    sources = [here.with_suffix(".cpp"), *sorted((csrc / "cpu").glob("*.cpp"))]
    flags = ["-O3", "-std=c++20", "-fopenmp", "-DTORCH_TARGET_VERSION=0x020b000000000000"]  # 2.11
    cpp_extension.load(
        "stable", list(map(str, sources)), flags, extra_include_paths=[str(csrc)], is_python_module=False
    )
    generator = torch.Generator().manual_seed(0)
    logits = [torch.randn(128, 10, generator=generator).requires_grad_() for _ in range(2)]
    pair = (*logits, torch.randint(10, (128,), generator=generator))
    others = (None, CO_LAMBDA, FORGET_RATE, None, None, False)
    eager, ops = _operators.operator("jocor_loss"), torch.ops.jocor_fast.jocor_loss.default
    losses = {
        "the stable ABI": lambda: StableLoss.apply(*pair),
        "today's library, through torch.ops": lambda: ops(*pair, *others),
        "today's library, as `jf.jocor_loss` calls it": lambda: eager(*pair, *others),
    }
    gradients = [torch.autograd.grad(loss()[0], logits) for loss in losses.values()]
    torch.testing.assert_close(gradients[0], gradients[2])
    times = defaultdict[tuple[str, bool], list[float]](list)
    for _ in range(ROUNDS):
        for name, loss in losses.items():
            for backward in (False, True):
                started = perf_counter()
                for _ in range(CALLS):
                    out = loss()
                    if backward:
                        torch.autograd.grad(out[0], logits)
                times[name, backward].append((perf_counter() - started) / CALLS * 1e6)
    found = {key: statistics.median(values) for key, values in times.items()}
    title = f"The joint loss at 128×10, float32, one thread: medians of {ROUNDS} rounds of {CALLS} calls, in turns."
    head = "| registered by | forward, µs | of today's | forward and backward, µs | of today's |"
    lines = [title, "", head, "| --- | ---: | ---: | ---: | ---: |"]
    for name in losses:
        cells = [f"{found[name, b]:.1f} | {found[name, b] / found[list(losses)[2], b]:.2f}" for b in (False, True)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    medians = {f"{name}, {'with' if b else 'without'} backward": value for (name, b), value in found.items()}
    record.write("stable_abi", "\n".join([*lines, "", f"{record.described()}.", ""]), {"microseconds": medians}, output)


if __name__ == "__main__":
    main(record.parser(__doc__).parse_args().output)
