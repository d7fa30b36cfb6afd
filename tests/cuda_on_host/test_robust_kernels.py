"""The kernels of the robust losses in csrc/cuda, run on the host, against float64 formulas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import kernel_oracle as oracle
import numpy as np
import pytest
from host_kernels import LABEL_TYPES, LOGIT_TYPES, HostKernels, RobustResults, Single
from kernel_inputs import DTYPES_AND_WIDTHS, in_memory, vector_widths
from test_row_kernels import assert_close, gradient_width, kernel_of, tolerance

Array = np.ndarray[Any, Any]

# β so small that 9.21 β, by which 1 - p_y is multiplied, leaves its digits.
LOSSES = [("gce", 0.7, 0.0), ("sce", 0.1, 0.1), ("nce_rce", 1.0, 0.1), ("cores", 0.0, 2.0)]
each_loss = pytest.mark.parametrize(("kind", "a", "b"), LOSSES, ids=[kind for kind, _, _ in LOSSES])
# Both sides of each limit of the mapping table, one class, and rows that end within a vector.
CLASSES = [1, 2, 10, 16, 17, 32, 33, 100, 256, 257, 1000, 1025, 4099]


def random_rows(
    rows: int, classes: int, kind: str, a: float, b: float, dtype: str = "float32", width: int = 1, **settings: Any
) -> Single:
    rng = np.random.default_rng(0)
    z = rng.normal(0, 3, (rows, classes))
    return Single(dtype, in_memory(z, dtype, width), rng.integers(0, classes, rows), kind, a, b, **settings)


def row(z: Array, y: int, kind: str, a: float, b: float) -> tuple[float, bool, Array]:
    """Loss, whether it is in the sieve, and gradient; the classes are those that are not masked."""
    classes = z != -np.inf
    gradient = np.zeros_like(z)
    with np.errstate(all="ignore"):
        log_p = (z - z.max()) - np.log(np.exp(z - z.max()).sum())
        p, one_hot, count = np.exp(log_p), np.arange(len(z)) == y, classes.sum()
        n, total = -log_p[y], -log_p[classes].sum()
        slope = p - one_hot
        if kind == "gce":
            loss, gradient = (1 - p[y] ** a) / a, p[y] ** a * slope
        elif kind == "cores":
            loss, gradient = n - b * total / count, slope - b * (p - classes / count)
        else:
            loss, gradient = b * np.log(1e4) * (1 - p[y]), b * np.log(1e4) * p[y] * slope
            if kind == "sce":
                loss, gradient = loss + a * n, gradient + a * slope
            elif count == 1:
                loss += a + n
            else:
                loss += a * n / total
                gradient = gradient + a * (slope / total - n * (count * p - classes) / total**2)
    return float(loss), bool(n * count <= total + 1e-9), gradient


def expected(single: Single) -> tuple[Array, Array, Array]:
    """Losses, states for the selection and gradients, of rows with any label."""
    z = oracle.widen(single.logits, single.dtype)
    losses, states, gradients = np.zeros(len(z)), np.zeros(len(z), np.uint8), np.zeros_like(z)
    for i, label in enumerate(int(value) for value in single.labels):
        if label == single.ignore_index:
            continue
        losses[i], in_sieve, states[i] = np.nan, False, oracle.ELIGIBLE
        if 0 <= label < z.shape[1]:
            losses[i], in_sieve, gradient = row(z[i], label, single.kind, single.a, single.b)
            gradients[i] = gradient if np.isfinite(losses[i]) else 0
        if single.sieve and (in_sieve or not np.isfinite(losses[i])):
            states[i] = oracle.DIFFERING
    return losses, states, gradients


def assert_rows_are_right(single: Single, results: RobustResults) -> None:
    losses, states, _ = expected(single)
    assert_close(results.per_sample, losses, tolerance(single.dtype))
    np.testing.assert_array_equal(results.row_state, states)


def assert_gradient_is_right(single: Single, gradient: Array, weights: Array) -> None:
    rounding = {"float16": 2**-11, "bfloat16": 2**-8}.get(single.dtype, 0)
    wanted = weights[:, None] * expected(single)[2]
    error = np.abs(oracle.widen(gradient, single.dtype) - wanted) - rounding * np.abs(wanted)
    error -= 2**-24 if single.dtype == "float16" else 0
    assert (error / np.maximum(1, np.abs(wanted))).max() <= tolerance(single.dtype)
    unweighted = gradient[weights == 0]
    assert not unweighted.view(np.uint8).any()  # +0 in every bit


@pytest.mark.parametrize(("dtype", "width"), DTYPES_AND_WIDTHS)
@pytest.mark.parametrize("classes", CLASSES)
def test_rows_and_gradients_in_every_tier_type_and_vector_width(
    kernels: HostKernels, dtype: str, width: int, classes: int
) -> None:
    """Each of the losses at some of the sizes."""
    for loss in LOSSES[classes % 2 :: 2]:
        single = random_rows(37 if classes <= 32 else 5, classes, *loss, dtype, width, sieve=True)
        results = kernels.robust_losses(single)
        assert_rows_are_right(single, results)
        selected = np.random.default_rng(1).integers(0, 2, len(single.labels)).astype(np.uint8)
        selected[0] = 1
        grad_output = np.broadcast_to(np.array([0.75], single.real), len(selected))
        gradient = kernels.robust_gradients(single, results.statistics, grad_output, selected=selected)
        assert_gradient_is_right(single, gradient, 0.75 * selected / selected.sum())
        rows, gradients = kernels.take_launches()
        assert kernel_of("robust_losses", dtype, classes, width) in rows.kernel
        narrowest = gradient_width(dtype, width, classes)
        assert kernel_of("robust_gradients", dtype, classes, narrowest) in gradients.kernel


@each_loss
@pytest.mark.parametrize("dtype", LOGIT_TYPES)
@pytest.mark.parametrize("classes", [10, 100, 2000])
def test_special_logits(kernels: HostKernels, kind: str, a: float, b: float, dtype: str, classes: int) -> None:
    width = vector_widths(dtype)[0]
    single = random_rows(9, classes, kind, a, b, dtype, width, sieve=True)
    z = oracle.widen(single.logits, dtype)
    z[0, 3] = np.nan
    z[1, 2] = np.inf
    z[2, :] = -np.inf
    z[3, 4:] = -np.inf  # masked
    z[4, 0] = -np.inf  # the label
    z[5, 1:] = -np.inf  # all but the label
    z[6, 1] += 10_000 if dtype != "float16" else 30_000
    z[7, 0] += 104
    z[8, :] = 0.7  # all alike: in the sieve
    single = replace(single, logits=in_memory(z, dtype, width), labels=np.zeros(9, np.int64))
    results = kernels.robust_losses(single)
    assert_rows_are_right(single, results)
    assert np.isfinite(results.per_sample).tolist() == [False] * 3 + [True, kind == "gce"] + [True] * 4
    gradient = kernels.robust_gradients(single, results.statistics, np.ones(9, single.real))
    assert np.isfinite(oracle.widen(gradient, dtype)).all()
    assert_gradient_is_right(single, gradient, np.array([0, 0, 0, 1, 1, 1, 1, 1, 1]))


@pytest.mark.parametrize("label_type", LABEL_TYPES)
@pytest.mark.parametrize("classes", [10, 2000])
def test_labels_of_any_integer_type_and_what_makes_one_invalid(
    kernels: HostKernels, label_type: str, classes: int
) -> None:
    info = np.iinfo(label_type)
    labels = np.zeros(32, label_type)[::2]
    labels[:8] = [0, 9, 5, min(classes, info.max), info.max, info.min, max(info.min, -1), 3]
    single = replace(random_rows(16, classes, *LOSSES[3]), labels=labels, ignore_index=3, sieve=True)
    results = kernels.robust_losses(single)
    assert_rows_are_right(single, results)
    gradient = kernels.robust_gradients(single, results.statistics, np.ones(16, np.float32))
    trains = np.isfinite(results.per_sample) & (labels.astype(object) != 3)
    assert_gradient_is_right(single, gradient, trains.astype(float))


@pytest.mark.parametrize("rows", [20, 128, 700])
@pytest.mark.parametrize("sieve", [False, True])
def test_the_selection_is_linked_and_takes_what_the_sieve_keeps(kernels: HostKernels, rows: int, sieve: bool) -> None:
    single = random_rows(rows, 10, *LOSSES[3], sieve=sieve, ignore_index=1)
    single.logits[0, 2] = np.nan
    single.labels[0] = 0
    losses, states, _ = expected(single)
    eligible = states == oracle.DIFFERING if sieve else states == oracle.ELIGIBLE
    kept = eligible & np.isfinite(losses)
    _, selection = kernels.robust_losses_and_selection(single)
    np.testing.assert_array_equal(selection.selected, kept)
    assert (selection.num_selected, selection.num_nonfinite) == (kept.sum(), 1)
    assert abs(selection.mean - losses[kept].mean()) < 1e-6
    assert [launch.linked for launch in kernels.take_launches()] == [False, True]


def test_a_grid_smaller_than_the_batch(kernels: HostKernels) -> None:
    kernels.set_limits(most_blocks=2)
    for classes, rows in ((10, 150), (100, 20), (1500, 6)):
        single = random_rows(rows, classes, *LOSSES[2])
        results = kernels.robust_losses(single)
        assert_rows_are_right(single, results)
        gradient = kernels.robust_gradients(single, results.statistics, np.ones(rows, np.float32))
        assert_gradient_is_right(single, gradient, np.ones(rows))


@each_loss
@pytest.mark.parametrize("classes", [10, 100, 2000])
def test_large_logits_keep_their_digits_and_the_width_of_the_loads_changes_no_bit(
    kernels: HostKernels, kind: str, a: float, b: float, classes: int
) -> None:
    results: list[list[Array]] = []
    for width in vector_widths("float32"):
        single = random_rows(9, classes, kind, a, b, width=width)
        single.logits[...] += np.float32(5000)
        rows = kernels.robust_losses(single)
        assert_rows_are_right(single, rows)
        gradient = kernels.robust_gradients(single, rows.statistics, np.ones(9, np.float32), offset=width % 4)
        assert_gradient_is_right(single, gradient, np.ones(9))
        results.append([rows.per_sample, rows.statistics, gradient])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
