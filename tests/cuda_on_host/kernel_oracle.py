"""What the kernels must compute, row by row in float64, written from paper.md's formulas without their tricks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

INELIGIBLE, ELIGIBLE, DIFFERING = 0, 1, 2


def widen(logits: Array, dtype: str) -> Array:
    """Return logits as float64; "bfloat16" comes as its bits."""
    if dtype == "bfloat16":
        return (logits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return logits.astype(np.float64)


def narrow(values: Array, dtype: str) -> Array:
    """float64 values rounded to a logit type; "bfloat16": its bits, to nearest even."""
    if dtype != "bfloat16":
        return values.astype(dtype)
    bits = values.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def _log_softmax(z: Array) -> Array:
    with np.errstate(all="ignore"):
        shifted = z - z.max(axis=1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def _weighted(weight: Array, value: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.where(weight == 0, 0.0, weight * value)


def rows(z1: Array, z2: Array, labels: Array, co_lambda: float, ignore_index: int | None) -> dict[str, Array]:
    """Return what step 1 writes for float64 logits [rows, classes], by the names of joint_loss.h."""
    classes = z1.shape[1]
    values = [int(label) for label in labels]
    ignored = np.array([ignore_index is not None and v == ignore_index for v in values])
    invalid = np.array([not 0 <= v < classes for v in values]) & ~ignored
    safe = np.array([v if 0 <= v < classes else 0 for v in values])
    log_p, log_q = _log_softmax(z1), _log_softmax(z2)
    p, q = np.exp(log_p), np.exp(log_q)
    with np.errstate(all="ignore"):
        delta = log_p - log_q
    here = np.arange(len(safe))
    ce1, ce2 = -log_p[here, safe], -log_q[here, safe]
    kl12, kl21 = _weighted(p, delta).sum(axis=1), _weighted(q, -delta).sum(axis=1)
    with np.errstate(all="ignore"):
        supervised = 0.0 if co_lambda == 1 else (1 - co_lambda) * (ce1 + ce2)
        agreement = 0.0 if co_lambda == 0 else co_lambda * _weighted(p - q, delta).sum(axis=1)
        loss = supervised + agreement
    for array in (loss, ce1, ce2):
        array[invalid] = np.nan
        array[ignored] = 0.0
    differ = np.argmax(np.nan_to_num(z1, nan=-np.inf), axis=1) != np.argmax(np.nan_to_num(z2, nan=-np.inf), axis=1)
    state = np.where(ignored, INELIGIBLE, np.where(differ, DIFFERING, ELIGIBLE)).astype(np.uint8)
    zero = np.zeros_like(kl12)
    with np.errstate(all="ignore"):
        log_sum1, log_sum2 = (np.log(np.exp(z - z.max(axis=1, keepdims=True)).sum(axis=1)) for z in (z1, z2))
    return {
        "per_sample": loss, "cross_entropy1": ce1, "cross_entropy2": ce2, "row_state": state,
        "log_sum1": log_sum1, "log_sum2": log_sum2,
        "kl12": kl12 if co_lambda else zero, "kl21": kl21 if co_lambda else zero,
    }  # fmt: skip


def gradients(z1: Array, z2: Array, labels: Array, co_lambda: float) -> tuple[Array, Array]:
    """dl/dz1 and dl/dz2 of every row, all labels valid."""
    log_p, log_q = _log_softmax(z1), _log_softmax(z2)
    p, q = np.exp(log_p), np.exp(log_q)
    one_hot = np.eye(z1.shape[1])[labels]
    if co_lambda == 0:
        return p - one_hot, q - one_hot
    with np.errstate(all="ignore"):
        delta = log_p - log_q
    kl12, kl21 = _weighted(p, delta).sum(axis=1, keepdims=True), _weighted(q, -delta).sum(axis=1, keepdims=True)
    with np.errstate(all="ignore"):
        grad1 = (1 - co_lambda) * (p - one_hot) + co_lambda * (_weighted(p, delta - kl12) + p - q)
        grad2 = (1 - co_lambda) * (q - one_hot) + co_lambda * (_weighted(q, -delta - kl21) + q - p)
    return grad1, grad2


def select(
    losses: Array,
    *,
    row_state: Array | None = None,
    also_finite: Array | None = None,
    disagreement: str = "ignored",
    num_keep: int | None = None,
    forget_rate: float = 0.0,
    round_down: bool = False,
    mean_of: Array | None = None,
    mean_offset: float | None = None,
) -> tuple[Array, int, int, float]:
    """selected, num_selected, num_nonfinite and the mean, by NumPy's stable sort."""
    eligible = np.ones(len(losses), bool) if row_state is None else row_state != INELIGIBLE
    differing = row_state == DIFFERING
    if disagreement == "required" or (disagreement == "preferred" and np.any(differing)):
        eligible = eligible & differing
    finite = eligible & np.isfinite(losses)
    if also_finite is not None:
        finite &= np.isfinite(also_finite)
    n = int(eligible.sum())
    if num_keep is None:
        exact, slack = (1 - forget_rate) * n, 1e-9 * n
        num_keep = min(max(math.floor(exact + slack) if round_down else math.ceil(exact - slack), 1), n)
    candidates = np.flatnonzero(finite)
    chosen = candidates[np.argsort(losses[candidates], kind="stable")[: max(num_keep, 0)]]
    selected = np.zeros(len(losses), bool)
    selected[chosen] = True
    mean = 0.0 if mean_of is None or not len(chosen) else float(mean_of[selected].astype(np.float64).mean())
    return selected, len(chosen), n - int(finite.sum()), mean + (mean_offset or 0.0)
