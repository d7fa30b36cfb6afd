"""Parts "bench-short" and "bench-full": cases of the loss benches, what the bars need first.

python -m gpu.bench short|full
"""

from __future__ import annotations

import sys
from dataclasses import replace

import torch

import jocor_fast as jf
from cases import (
    COMPILED,
    COMPILED_TO_GRAPH,
    EAGER,
    IN_GRAPH,
    KERNELS_ALONE,
    OURS,
    PUBLISHED,
    SELECTIONS,
    Case,
    Shape,
    Work,
    gpu_cases,
)
from gpu import records
from gpu.bars import MEMORY
from inputs import CO_LAMBDA, make_inputs
from interleave import measure
from timing import GpuClock, copy_bytes_per_second

COPY = "copy"
SECONDS_PER_CACHE = {"short": 0.5, "full": 0.4}
SMALL, MIDDLE, LARGE = Shape(128, 10), Shape(4096, 1000), Shape(65536, 1000)


def short_cases() -> list[Case]:
    """Each compilation takes seconds: those that no bar needs come last."""
    f32, bf16 = torch.float32, torch.bfloat16
    three = (EAGER, COMPILED, OURS)
    both: Work = "forward + backward"
    return [
        Case(SMALL, f32, both, (PUBLISHED, *three, COMPILED_TO_GRAPH, IN_GRAPH, KERNELS_ALONE), ("warm",)),
        Case(SMALL, f32, "forward", (EAGER, OURS), ("warm",)),
        Case(SMALL, f32, "gradient alone", (), ("warm",)),
        Case(LARGE, f32, "rows alone"),
        Case(LARGE, f32, "gradient alone"),
        *SELECTIONS,
        Case(MIDDLE, bf16, both, three),
        Case(MIDDLE, f32, both, three),
        Case(LARGE, f32, both, three),
        Case(LARGE, bf16, both, three),
        Case(SMALL, bf16, both, three, ("warm",)),
    ]


def bytes_a_row_kept_for_backward(rows: int = 65536) -> float:
    """What the loss holds beside its outputs until the backward pass; the allocator counts in blocks of 512 bytes."""
    inputs = make_inputs(Case(Shape(rows, 10), torch.float32, "forward"), "cuda")
    before = torch.cuda.memory_allocated()
    out = jf.jocor_loss(inputs.logits1, inputs.logits2, inputs.target, co_lambda=CO_LAMBDA, num_keep=inputs.kept)
    held = torch.cuda.memory_allocated() - before
    outputs = sum(-(-tensor.nbytes // 512) * 512 for tensor in out)
    return (held - outputs) / rows


def main() -> int:
    (extent,) = sys.argv[1:]
    cases = short_cases() if extent == "short" else gpu_cases()
    records.plan([COPY, MEMORY, *map(str, cases)])
    copy = copy_bytes_per_second()
    records.done(COPY, bytes_per_second=copy)
    records.done(MEMORY, bytes_a_row=bytes_a_row_kept_for_backward())
    clock = GpuClock()
    failures = 0
    for case in cases:
        print(case, flush=True)
        try:
            figures = measure(case, "cuda", clock, seconds=SECONDS_PER_CACHE[extent])
        except Exception as error:  # a contender that torch cannot compile must not cost the other cases
            records.done(str(case), error=f"{type(error).__name__}: {error}"[:500])
            failures += 1
            continue
        records.done(str(case), rows=[replace(f, copy_bytes_per_second=copy).as_row() for f in figures])
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
