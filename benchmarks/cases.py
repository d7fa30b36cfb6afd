"""What the benches measure: shapes, types, pieces of work, contenders by name, and the bytes that must move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

# The loss without and with its gradients; one kernel alone (ours only); the choice of rows alone.
Work = Literal["forward", "forward + backward", "rows alone", "gradient alone", "selection"]
LOSSES: tuple[Work, ...] = ("forward + backward", "forward")
KERNELS: tuple[Work, ...] = ("rows alone", "gradient alone")

Cache = Literal["warm", "cold"]
INDEX_BYTES, STATISTICS_BYTES = 8, 16

OURS, KERNELS_ALONE = "jocor_fast", "its kernels alone"
PUBLISHED, EAGER, COMPILED = "published formula", "eager PyTorch", "torch.compile"
COMPILED_TO_GRAPH, IN_GRAPH = "torch.compile reduce-overhead", "jocor_fast in a graph"
TOPK, ARGSORT = "torch.topk", "torch.argsort"
LOSS_CONTENDERS = (PUBLISHED, EAGER, COMPILED, COMPILED_TO_GRAPH, OURS, IN_GRAPH, KERNELS_ALONE)


@dataclass(frozen=True)
class Shape:
    rows: int
    classes: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.classes}"

    @property
    def kept(self) -> int:
        """About so many; `inputs.number_to_keep`."""
        return self.rows // 2


@dataclass(frozen=True)
class Case:
    """One piece of work. `contenders`: those that are measured; empty for all that apply. `caches`: likewise."""

    shape: Shape
    dtype: torch.dtype
    work: Work
    contenders: tuple[str, ...] = ()
    caches: tuple[Cache, ...] = ("warm", "cold")

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def __str__(self) -> str:
        return f"{self.shape} {self.dtype_name} {self.work}"

    @property
    def bytes_moved(self) -> int:
        """The least that must be read and written, by whatever means: each input once, each result once.

        The gradient reads the kept rows only, and writes all.
        """
        rows, size = self.shape.rows, self.dtype.itemsize
        matrix = rows * self.shape.classes * size
        per_sample = rows * (4 + 1)  # the loss and whether it is kept
        forward = 2 * matrix + rows * (INDEX_BYTES + STATISTICS_BYTES) + per_sample
        kept = self.shape.kept
        gradient = 2 * matrix * kept // rows + 2 * matrix + rows + kept * (INDEX_BYTES + STATISTICS_BYTES)
        return {
            "forward": forward,
            "rows alone": forward,
            "gradient alone": gradient,
            "forward + backward": forward + gradient,
            "selection": per_sample,
        }[self.work]


# --- which cases ------------------------------------------------------------------------------------------------------

CPU_SHAPES = (Shape(128, 10), Shape(128, 100), Shape(1024, 14), Shape(4096, 100), Shape(4096, 1000))
GPU_SHAPES = (
    Shape(128, 10),
    Shape(64, 14),
    Shape(256, 100),
    Shape(4096, 10),
    Shape(1024, 1000),
    Shape(4096, 1000),
    Shape(65536, 1000),
)
SELECTIONS = tuple(Case(Shape(rows, 1), torch.float32, "selection") for rows in (128, 4096, 65536))


_SMALL, _MIDDLE, _LARGE = Shape(128, 10), Shape(4096, 1000), Shape(65536, 1000)
_THREE = (EAGER, COMPILED, OURS)
BAR_CASES = (  # what the bars of a GPU need; each compilation takes seconds: those that no bar needs come last
    Case(
        _SMALL, torch.float32, "forward + backward", (PUBLISHED, *_THREE, COMPILED_TO_GRAPH, IN_GRAPH, KERNELS_ALONE),
        ("warm",),
    ),
    Case(_SMALL, torch.float32, "forward", (EAGER, OURS), ("warm",)),
    Case(_SMALL, torch.float32, "gradient alone", (), ("warm",)),
    Case(_LARGE, torch.float32, "rows alone"),
    Case(_LARGE, torch.float32, "gradient alone"),
    *SELECTIONS,
    *(Case(_MIDDLE, dtype, "forward + backward", _THREE) for dtype in (torch.bfloat16, torch.float32)),
    *(Case(_LARGE, dtype, "forward + backward", _THREE) for dtype in (torch.float32, torch.bfloat16)),
    Case(_SMALL, torch.bfloat16, "forward + backward", _THREE, ("warm",)),
)  # fmt: skip


def cpu_cases() -> list[Case]:
    """float32 throughout; bfloat16 where a CPU may meet it, in one shape that fits the cache and one that does not."""
    float32 = [Case(shape, torch.float32, work) for shape in CPU_SHAPES for work in LOSSES]
    bfloat16 = [Case(shape, torch.bfloat16, "forward + backward") for shape in (Shape(128, 10), Shape(4096, 100))]
    return [*float32, *bfloat16, *SELECTIONS]


def gpu_cases() -> list[Case]:
    types = (torch.float32, torch.bfloat16)
    losses = [Case(shape, dtype, work) for shape in GPU_SHAPES for dtype in types for work in LOSSES]
    kernels = [Case(shape, dtype, work) for shape in GPU_SHAPES for dtype in types for work in KERNELS]
    return [*SELECTIONS, *kernels, *losses]


def cases_of(device: str) -> list[Case]:
    return gpu_cases() if device == "cuda" else cpu_cases()
