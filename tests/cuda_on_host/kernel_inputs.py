"""Logit pairs in memory, laid out for a chosen vector width to be the widest that the kernels may use."""

from __future__ import annotations

from typing import Any

import numpy as np
from host_kernels import LOGIT_TYPES, Pair
from kernel_oracle import narrow

Array = np.ndarray[Any, Any]

ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
CXX_NAMES = {"float16": "__half", "bfloat16": "__nv_bfloat16", "float32": "float", "float64": "double"}


def vector_widths(dtype: str) -> list[int]:
    """Return the columns in a load: 16 bytes, for half precision 4 bytes, one."""
    return sorted({16 // ITEM_BYTES[dtype], max(1, 4 // ITEM_BYTES[dtype]), 1}, reverse=True)


DTYPES_AND_WIDTHS = [(dtype, width) for dtype in LOGIT_TYPES for width in vector_widths(dtype)]


def in_memory(values: Array, dtype: str, width: int, *, by_stride: bool = False) -> Array:
    """Return `values` (float64 [rows, classes]) in `dtype`, as rows that allow vectors of `width` columns and no wider.

    Every row starts `width` columns past a multiple of 16 bytes; with `by_stride` the first starts at one, and each is
    that much further from it than the row before. The memory around the rows is NaN: a column read from outside a row
    shows.
    """
    rows, classes = values.shape
    widest = 16 // ITEM_BYTES[dtype]
    stride = -(-classes // widest) * widest + (width if by_stride else widest)
    memory = np.full(rows * stride + 2 * widest, np.nan)
    stored = narrow(memory, dtype)
    start = (-stored.ctypes.data // ITEM_BYTES[dtype]) % widest + (0 if by_stride or width == widest else width)
    view = stored[start : start + rows * stride].reshape(rows, stride)[:, :classes]
    view[...] = narrow(values, dtype)
    return view


def random_pair(
    rows: int,
    classes: int,
    dtype: str = "float32",
    width: int = 1,
    *,
    seed: int = 0,
    co_lambda: float = 0.9,
    **settings: Any,
) -> Pair:
    """Return logits as of a network half-way through its training; the second network agrees in part with the first."""
    rng = np.random.default_rng(seed)
    z1 = rng.normal(0, 3, (rows, classes))
    z2 = 0.5 * z1 + rng.normal(0, 2, (rows, classes))
    labels = rng.integers(0, classes, rows)
    return Pair(dtype, in_memory(z1, dtype, width), in_memory(z2, dtype, width), labels, co_lambda, **settings)
