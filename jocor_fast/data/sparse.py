"""Sparse inputs: a matrix [N, D] in CSR form, held as a torch.sparse_csr tensor of float32 with int32 indices.

Each row's columns ascend and none comes twice. Nothing makes the whole matrix dense.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from jocor_fast._extension import compiled

_LARGEST = np.iinfo(np.int32).max
_DENSE_AT_ONCE = 64  # rows
_has_warned = False  # torch, see `csr_tensor`


def is_sparse(values: Any) -> bool:
    """Return whether this is a sparse matrix or array of SciPy, or a sparse tensor in CSR form."""
    if isinstance(values, Tensor):
        return values.layout == torch.sparse_csr
    scipy_sparse = sys.modules.get("scipy.sparse")  # where it is not imported, nothing is of its types
    return scipy_sparse is not None and bool(scipy_sparse.issparse(values))


def csr_inputs(matrix: Any, name: str) -> Tensor:
    """Return a sparse matrix as inputs; memory is shared where it is CSR of float32 with int32 indices, in order.

    Args:
        matrix: what `is_sparse` says is one. Other forms than CSR are converted; columns are put in order, and those
            that a row has twice are summed.
        name: for messages.

    Raises:
        TypeError: its entries are not real numbers.
        ValueError: it is not of shape [N, D], N, D ≥ 1, or has 2³¹ entries or columns, or its indices are wrong.
    """
    from scipy.sparse import csr_matrix

    if isinstance(matrix, Tensor):
        parts = matrix.detach().cpu()
        if parts.dim() != 2:
            raise ValueError(f"{name} must be of shape [N, D], got a sparse tensor of shape {tuple(parts.shape)}")
        values = parts.values()
        values = values.float() if values.dtype == torch.bfloat16 else values  # which NumPy does not know
        arrays = (values.numpy(), parts.col_indices().numpy(), parts.crow_indices().numpy())
        matrix = csr_matrix(arrays, shape=tuple(parts.shape))
    if matrix.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be numbers, got a sparse matrix of {matrix.dtype}")
    if len(matrix.shape) != 2 or 0 in matrix.shape:
        raise ValueError(
            f"{name} must be of shape [N, D] with at least one sample and one column, got {tuple(matrix.shape)}"
        )
    if max(matrix.nnz, matrix.shape[1]) > _LARGEST:
        raise ValueError(
            f"{name} must have less than 2³¹ entries and columns, got {matrix.nnz:,} and {matrix.shape[1]:,}"
        )
    try:
        csr = csr_matrix(matrix)  # another object, of the same arrays where it is CSR
        csr.check_format(full_check=True)
    except ValueError as error:
        raise ValueError(f"{name} must be a sound CSR matrix: {error}") from None
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    with np.errstate(over="ignore"):  # of which `input_warnings` tells
        numbers = csr.data.astype(np.float32, copy=False)
    arrays = csr.indptr.astype(np.int32, copy=False), csr.indices.astype(np.int32, copy=False), numbers
    starts, columns, entries = (torch.from_numpy(np.require(array, requirements=["C", "W"])) for array in arrays)
    return csr_tensor(starts, columns, entries, csr.shape[1])


def first_not_finite(inputs: Tensor) -> int | None:
    """Return the first sparse row with a number that is not finite; None where all are."""
    finite = inputs.values().isfinite()
    if finite.all():
        return None
    entry = int(finite.int().argmin())
    return int(torch.searchsorted(inputs.crow_indices(), entry, right=True)) - 1


def csr_tensor(starts: Tensor, columns: Tensor, values: Tensor, width: int) -> Tensor:
    """Return sparse rows [len(starts) − 1, width] of what is known to be right."""
    global _has_warned
    shape = len(starts) - 1, width
    if _has_warned:
        return torch.sparse_csr_tensor(starts, columns, values, shape, check_invariants=False)
    with warnings.catch_warnings():
        # torch says once a process that its CSR tensors are in beta state; of them, this package uses to_dense().
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        _has_warned = True
        return torch.sparse_csr_tensor(starts, columns, values, shape, check_invariants=False)


def take_rows(inputs: Tensor, rows: Tensor) -> Tensor:
    """Return the sparse rows with the numbers int64 [B], in this order."""
    starts, columns, values = inputs.crow_indices(), inputs.col_indices(), inputs.values()
    if compiled is not None and inputs.device.type == "cpu":
        parts: tuple[Tensor, Tensor, Tensor] = torch.ops.jocor_fast.sparse_rows(starts, columns, values, rows)
        return csr_tensor(*parts, inputs.shape[1])
    first = starts.index_select(0, rows)
    lengths = starts.index_select(0, rows + 1) - first
    ends = lengths.cumsum(0)  # int64
    place = torch.arange(int(ends[-1]) if len(rows) else 0, device=starts.device)
    place += (first - (ends - lengths)).repeat_interleave(lengths)
    new_starts = torch.cat((starts.new_zeros(1), ends.int()))
    return csr_tensor(new_starts, columns.index_select(0, place), values.index_select(0, place), inputs.shape[1])


def without_zeros(inputs: Tensor, scale: float) -> Tensor:
    """Return dense rows [N, D], uint8 (to multiply with `scale`) or float32, on the CPU as sparse ones; by a kernel."""
    scale = 1.0 if inputs.is_floating_point() else scale
    parts: tuple[Tensor, Tensor, Tensor] = torch.ops.jocor_fast.rows_without_zeros(inputs, scale)
    return csr_tensor(*parts, inputs.shape[1])


def as_dense(inputs: Tensor) -> Tensor:
    """Return a tensor as any network takes it: a sparse one becomes dense, another stays."""
    return inputs if inputs.layout == torch.strided else inputs.to_dense()


def dense_rows(inputs: Tensor) -> Iterator[Tensor]:
    """Yield the samples one by one, dense; of sparse ones a few at a time are made so."""
    for first in range(0, len(inputs), _DENSE_AT_ONCE):
        last = min(first + _DENSE_AT_ONCE, len(inputs))
        yield from take_rows(inputs, torch.arange(first, last)).to_dense() if is_sparse(inputs) else inputs[first:last]
