"""What the tests of the loss share: implementations and devices, the float64 oracle, tolerances, inputs, views.

The oracle is NumPy's: the closed forms of the paper (equations 1 to 5) written a second time, from the paper and not
from the package: `jocor_fast.reference` is tested against it like the compiled functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

import jocor_fast
import jocor_fast.reference

# Every implementation on every device: `loss` is a module with the public functions.
everywhere = pytest.mark.parametrize(
    ("loss", "device"),
    [
        pytest.param(jocor_fast.reference, "cpu", id="reference-cpu"),
        pytest.param(jocor_fast, "cpu", id="compiled-cpu"),
        pytest.param(jocor_fast.reference, "cuda", id="reference-cuda", marks=pytest.mark.gpu),
        pytest.param(jocor_fast, "cuda", id="compiled-cuda", marks=pytest.mark.gpu),
    ],
)

FLOAT_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGER_TYPES = (
    torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64, torch.int64,
)  # fmt: skip


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


with_every_float_type = pytest.mark.parametrize("dtype", FLOAT_TYPES, ids=dtype_name)


# --- the oracle -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """What the paper says of each row, in float64."""

    losses: np.ndarray  # [B]: l; 0 for ignored rows
    gradient1: np.ndarray  # [B, C]: dl/dz1; 0 for ignored rows and where l is not finite
    gradient2: np.ndarray
    eligible: np.ndarray  # [B] bool


def oracle(logits1: Tensor, logits2: Tensor, target: Tensor, co_lambda: float, ignore_index: int | None = None) -> Rows:
    z1, z2 = (logits.detach().double().cpu().resolve_neg().numpy() for logits in (logits1, logits2))
    labels = np.array(target.cpu().tolist(), dtype=np.int64).reshape(len(z1))
    eligible = np.ones(len(z1), dtype=bool) if ignore_index is None else labels != ignore_index
    rows, one_hot = np.arange(len(z1)), np.zeros_like(z1)
    y = np.where(eligible, labels, 0)
    one_hot[rows, y] = 1
    with np.errstate(all="ignore"):
        log_p, log_q = _log_softmax(z1), _log_softmax(z2)
        p, q = np.exp(log_p), np.exp(log_q)
        kl_pq, kl_qp = _kl(p, log_p, log_q), _kl(q, log_q, log_p)
        losses, gradient1, gradient2 = np.zeros(len(z1)), np.zeros_like(z1), np.zeros_like(z1)
        if co_lambda < 1:
            losses -= (1 - co_lambda) * (log_p[rows, y] + log_q[rows, y])
            gradient1 += (1 - co_lambda) * (p - one_hot)
            gradient2 += (1 - co_lambda) * (q - one_hot)
        if co_lambda > 0:
            losses += co_lambda * (kl_pq + kl_qp)
            gradient1 += co_lambda * (_times(p, log_p - log_q - kl_pq[:, None]) + p - q)
            gradient2 += co_lambda * (_times(q, log_q - log_p - kl_qp[:, None]) + q - p)
    losses[~eligible] = 0
    without_gradient = ~eligible | ~np.isfinite(losses)
    gradient1[without_gradient] = gradient2[without_gradient] = 0
    return Rows(losses, gradient1, gradient2, eligible)


def select(losses: np.ndarray, num_keep: int, eligible: np.ndarray | None = None) -> np.ndarray:
    """Mask of the first num_keep finite eligible rows of a stable sort."""
    candidates = np.isfinite(losses) if eligible is None else np.isfinite(losses) & eligible
    order = np.flatnonzero(candidates)
    order = order[np.argsort(losses[order], kind="stable")]
    mask = np.zeros(len(losses), dtype=bool)
    mask[order[:num_keep]] = True
    return mask


def _log_softmax(z: np.ndarray) -> np.ndarray:
    shifted = z - z.max(axis=1, keepdims=True, initial=-np.inf)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def _times(probability: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """A class without probability contributes nothing, whatever the factor is."""
    return np.where(probability == 0, 0, probability * factor)


def _kl(p: np.ndarray, log_p: np.ndarray, log_q: np.ndarray) -> np.ndarray:
    return _times(p, log_p - log_q).sum(axis=1)


# --- tolerances -------------------------------------------------------------------------------------------------------


def computed_in(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def assert_close(actual: Tensor, expected: np.ndarray | float, scale: np.ndarray | float = 0.0) -> None:
    """|actual - expected| <= 1e-6 (float64: 1e-12) · max(1, |expected|, scale), non-finite values alike.

    Half types: their own rounding is added, since the gradient comes back in the logits' type.
    """
    # a number in (2^e, 2^(e+1)] is rounded by at most 2^(e - bits); half an ulp of the least subnormal below
    rounding = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}.get(actual.dtype, 0.0)
    tolerance = 1e-12 if actual.dtype == torch.float64 else 1e-6
    got, expected = actual.detach().double().cpu().numpy(), np.asarray(expected, dtype=np.float64)
    assert got.shape == expected.shape
    if actual.dtype == torch.float16:
        expected = np.where(np.abs(expected) >= 65520, np.copysign(np.inf, expected), expected)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(got[~finite], expected[~finite])
    with np.errstate(invalid="ignore"):
        allowed = tolerance * np.maximum(np.maximum(1, np.abs(expected)), scale) + rounding * np.abs(expected)
        excess = np.where(finite, np.abs(got - expected) - allowed, -1.0)
    # in this form a NaN in `got` fails
    worst = np.unravel_index(np.argmax(np.where(np.isnan(excess), np.inf, excess)), excess.shape) if excess.size else ()
    assert np.all(excess <= 0), (
        f"at {worst}: got {got[worst]!r}, expected {expected[worst]!r}, allowed {allowed[worst]}"
    )


def row_scale(rows: Rows) -> np.ndarray:
    """[B, 1]: the largest number in a row's arithmetic, for gradients where large numbers cancel."""
    scales = [np.abs(rows.losses), np.abs(rows.gradient1).max(axis=1), np.abs(rows.gradient2).max(axis=1)]
    return np.max(np.where(np.isfinite(scales), scales, 0), axis=0)[:, None]


# --- inputs -----------------------------------------------------------------------------------------------------------


def random_logits(
    rows: int, classes: int, dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 0, spread: float = 2.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Two logit matrices that require gradients, and int64 labels."""
    generator = torch.Generator().manual_seed(seed)
    logits1 = torch.randn(rows, classes, generator=generator, dtype=torch.float64) * spread
    logits2 = torch.randn(rows, classes, generator=generator, dtype=torch.float64) * spread
    target = torch.randint(classes, (rows,), generator=generator)
    leaves = [logits.to(device, dtype).requires_grad_() for logits in (logits1, logits2)]
    return leaves[0], leaves[1], target.to(device)


def _misaligned(x: Tensor) -> Tensor:
    """The same numbers, one element past the start of an allocation."""
    storage = torch.empty(x.numel() + 1, dtype=x.dtype, device=x.device)
    view = storage[1:].view(x.shape)
    return view.copy_(x)


def _every_second_column(x: Tensor) -> Tensor:
    return torch.stack([x, torch.full_like(x, torch.nan)], dim=2).flatten(1)[:, ::2]


def _with_padded_rows(x: Tensor) -> Tensor:
    return torch.cat([x, torch.full_like(x[:, :1], torch.nan)], dim=1)[:, : x.shape[1]]


def _without_first_row(x: Tensor) -> Tensor:
    return torch.cat([torch.full_like(x[:1], torch.nan), x])[1:] if len(x) else x


# Each keeps the numbers of a [B, C] matrix and changes how they lie in memory.
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": Tensor.contiguous,
    "every second column": _every_second_column,
    "transposed": lambda x: x.t().contiguous().t(),
    "without first row": _without_first_row,
    "misaligned": _misaligned,
    "padded rows": _with_padded_rows,
    "lazily negated": lambda x: torch._neg_view(-x),  # as the imaginary part of a conjugate is
}

# Each makes a [rows, columns] matrix that repeats numbers without storing them again.
BROADCASTS: dict[str, Callable[[Tensor], Tensor]] = {
    "one row": lambda x: x[:1].expand_as(x),
    "one column": lambda x: x[:, :1].expand_as(x),
    "one number": lambda x: x[:1, :1].expand_as(x),
}


# --- samples for every operator ---------------------------------------------------------------------------------------


def operator_samples(name: str, device: str) -> list[tuple]:
    """Positional arguments of torch.ops.jocor_fast.<name> for opcheck; every operator of both devices is in here.

    Which arguments are given does not depend on the type: the other types have one sample each.
    """
    sizes = [(6, 5), (1, 17), (0, 3)]
    samples = [sample for size in sizes for sample in _samples_of_size(name, torch.float32, *size, device)]
    others = [dtype for dtype in FLOAT_TYPES if dtype != torch.float32]
    return samples + [_samples_of_size(name, dtype, 6, 5, device)[0] for dtype in others]


def _samples_of_size(name: str, dtype: torch.dtype, rows: int, classes: int, device: str) -> list[tuple]:
    operators = torch.ops.jocor_fast
    z1, z2, target = random_logits(rows, classes, dtype, device)
    z1_frozen, z2_frozen = z1.detach(), z2.detach()
    num_keep = torch.tensor(2, device=device)
    if name == "jocor_loss":
        return [
            (z1, z2, target, None, 0.9, 0.4, None, None, False),
            (z1, z2_frozen, target.to(torch.uint8), 1, 0.0, None, 3, None, True),
            (z1_frozen, z2.t().contiguous().t(), target, None, 1.0, None, None, num_keep, False),
        ]
    if name == "coteaching_loss":
        rate = torch.tensor(0.4, dtype=torch.float64, device=device)
        return [
            (z1, z2, target, None, 0.4, None, None, None, False, False),
            (z1, z2_frozen, target.to(torch.uint8), 1, None, rate, None, None, True, True),
            (z1_frozen, z2, target, None, None, None, 3, None, False, True),
            (z1_frozen, z2.t().contiguous().t(), target, None, None, None, None, num_keep, False, False),
        ]
    if name == "forward_corrected_loss":
        matrix = torch.full((classes, classes), 0.1 / classes, device=device).fill_diagonal_(1 - 0.1 + 0.1 / classes)
        return [
            (z1, target, matrix.log(), True),
            (z1.t().contiguous().t(), target.to(torch.uint8), matrix.log(), False),
        ]
    if name == "forward_corrected_loss_backward":
        log_t = torch.full((classes, classes), 1 / classes, device=device).log()
        mean, losses, _, statistics = operators.forward_corrected_loss(z1_frozen, target, log_t, True)
        return [
            (grad, z1_frozen, target, log_t, statistics) for grad in (torch.ones_like(mean), torch.ones_like(losses))
        ]
    if name == "robust_loss":
        return [
            (z1, target, None, 0, 0.7, 0.0, False, True),
            (z1.t().contiguous().t(), target.to(torch.uint8), 1, 3, 0.0, 2.0, True, True),
            (z1, target, 1, 2, 1.0, 10.0, False, False),
        ]
    if name == "robust_loss_backward":
        loss, _, selected, count, _, statistics = operators.robust_loss(z1_frozen, target, 1, 3, 0.0, 2.0, True, True)
        rows, *_, statistics_of_rows = operators.robust_loss(z1_frozen, target, None, 1, 0.1, 1.0, False, False)
        return [
            (torch.ones_like(loss), z1_frozen, target, 1, statistics, selected, count),
            (torch.ones_like(rows), z1_frozen, target, None, statistics_of_rows, None, None),
        ]
    if name == "joint_loss":
        return [(z1, z2, target, None, 0.9), (z1_frozen, z2, target.int(), 1, 0.5)]
    if name.startswith("linear_joint_loss"):
        tensors = [torch.randn(size, device=device).to(dtype) for size in ((rows, 4), (classes, 4), (classes,)) * 2]
        wanted = [tensor.clone().requires_grad_() for tensor in tensors]
        samples = [(*wanted, target, None, 0.9, 4, False, rows), (*wanted, target.int(), 1, 0.5, 4, True, rows)]
        samples.append((*wanted[:2], None, *tensors[3:5], None, target, None, 0.9, 4, False, rows))
        if name == "linear_joint_loss":
            return samples
        backward = []
        for *inputs, labels, ignored, co_lambda, chunk, keep, most in samples:
            frozen = [None if each is None else each.detach() for each in inputs]
            results = operators.linear_joint_loss(*frozen, labels, ignored, co_lambda, chunk, keep, most)
            needed = [each is not None and each.requires_grad for each in inputs]
            grad = torch.ones_like(results[0])
            backward.append((grad, *frozen, labels, *results, ignored, co_lambda, chunk, most, needed))
        return backward
    if name == "select_small_loss":
        losses = z1_frozen[:, 0]
        return [(losses, 2, None, None), (losses, None, num_keep, losses > 0)]
    if name == "joint_loss_backward":
        losses, statistics = operators.joint_loss(z1_frozen, z2_frozen, target, None, 0.9)
        mean, _, selected, count, _, statistics_of_mean = operators.jocor_loss(
            z1_frozen, z2_frozen, target, None, 0.9, None, 3, None, False
        )
        inputs = (z1_frozen, z2_frozen, target, None, 0.9)
        return [
            (torch.ones_like(mean), *inputs, statistics_of_mean, selected, count, selected, count, True, True),
            (torch.ones_like(losses), *inputs, statistics, *[None] * 4, True, False),
        ]
    raise KeyError(f"there are no samples for the operator {name}")
