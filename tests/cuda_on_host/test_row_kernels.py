"""The row and gradient kernels of csrc/cuda, run on the host, against float64 formulas."""

from __future__ import annotations

import mmap
from dataclasses import replace
from typing import Any

import kernel_oracle as oracle
import numpy as np
import pytest
from host_kernels import LABEL_TYPES, LOGIT_TYPES, HostKernels, Pair, RowResults
from kernel_inputs import CXX_NAMES, DTYPES_AND_WIDTHS, in_memory, random_pair, vector_widths

Array = np.ndarray[Any, Any]

# Both sides of each limit of the mapping table, one class, and rows that end within a vector.
CLASSES = [1, 2, 10, 14, 16, 17, 31, 32, 33, 100, 255, 256, 257, 1000, 1024, 1025, 4099]


def kernel_of(step: str, dtype: str, classes: int, width: int) -> str:
    """Return the kernel that must serve these rows: part of a warp, a warp, or a block that loops over each."""
    name = CXX_NAMES[dtype]
    longest = 256 if dtype == "float64" else 1024
    if classes > longest:
        return f"{step}_by_block<{name}, {width}>"
    limits = (16 if dtype in ("float32", "float64") else 0, 32, 256)
    return f"{step}_in_registers<{name}, {sum(classes > limit for limit in limits)}, {width}>"


def tolerance(dtype: str) -> float:
    return 1e-12 if dtype == "float64" else 1e-6


def assert_close(actual: Array, expected: Array, tolerance: float) -> None:
    """|error| <= tolerance · max(1, |expected|); NaN and inf in the same places."""
    actual = actual.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(actual[~finite & ~np.isnan(expected)], expected[~finite & ~np.isnan(expected)])
    error = np.abs(actual[finite] - expected[finite]) / np.maximum(1, np.abs(expected[finite]))
    assert error.max(initial=0) <= tolerance, error.max()


def as_float64(pair: Pair) -> tuple[Array, Array]:
    return oracle.widen(pair.logits1, pair.dtype), oracle.widen(pair.logits2, pair.dtype)


def assert_rows_are_right(pair: Pair, results: RowResults) -> None:
    z1, z2 = as_float64(pair)
    expected = oracle.rows(z1, z2, pair.labels, pair.co_lambda, pair.ignore_index)
    for name in ("per_sample", "cross_entropy1", "cross_entropy2"):
        assert_close(getattr(results, name), expected[name], tolerance(pair.dtype))
    np.testing.assert_array_equal(results.row_state, expected["row_state"])
    finite = np.isfinite(expected["per_sample"])  # the first number says so to the gradient
    np.testing.assert_array_equal(np.isfinite(results.statistics[:, 0]), finite)
    finite &= np.isfinite(expected["kl12"]) & np.isfinite(expected["kl21"])
    for column, name in enumerate(("log_sum1", "log_sum2", "kl12", "kl21")):
        assert_close(results.statistics[finite, column], expected[name][finite], tolerance(pair.dtype))


@pytest.mark.parametrize(("dtype", "width"), DTYPES_AND_WIDTHS)
@pytest.mark.parametrize("classes", CLASSES)
def test_rows_equal_the_formulas_in_every_tier_type_and_vector_width(
    kernels: HostKernels, dtype: str, width: int, classes: int
) -> None:
    pair = random_pair(37 if classes <= 32 else 5, classes, dtype, width)
    assert_rows_are_right(pair, kernels.row_losses(pair))
    (launch,) = kernels.take_launches()
    assert kernel_of("row_losses", dtype, classes, width) in launch.kernel


@pytest.mark.parametrize("classes", [10, 100, 1000, 2000])
@pytest.mark.parametrize("co_lambda", [0.0, 0.5, 1.0])
def test_the_weights_at_their_ends_leave_a_term_out(kernels: HostKernels, classes: int, co_lambda: float) -> None:
    pair = random_pair(6, classes, co_lambda=co_lambda)
    pair.logits1[0, 1] = -np.inf  # the second network does not rule that class out: J is infinite
    pair.labels[0] = 0
    results = kernels.row_losses(pair)
    assert_rows_are_right(pair, results)
    assert np.isinf(results.per_sample[0]) == (co_lambda > 0)


@pytest.mark.parametrize("dtype", LOGIT_TYPES)
@pytest.mark.parametrize("classes", [10, 100, 300, 2000])
def test_special_logits(kernels: HostKernels, dtype: str, classes: int) -> None:
    width = vector_widths(dtype)[0]
    z1, z2 = as_float64(random_pair(12, classes, dtype, width, seed=3))
    z1[0, 3] = np.nan
    z1[1, 0] = np.nan  # column 0 decides the arg-max of such a row
    z1[2, 4] = z2[2, 4] = -np.inf  # masked in both: counts as 0
    z1[3, 4] = -np.inf
    z1[4, :] = -np.inf
    z1[5, 2] = np.inf
    z1[6, :], z2[6, :], z2[6, 0] = 0.0, 0.0, 1.0  # all columns tie, and the lowest is the prediction of both
    z1[7, 1] += 104  # the other classes' probabilities underflow
    z1[8, 1] += 10_000 if dtype != "float16" else 30_000
    z2[9, 2], z1[9, 2] = z2[9].max(), z1[9].max()  # two tie
    z1[10, :], z1[10, -1] = -np.inf, 1.0
    labels = np.full(12, 0)
    pair = Pair(dtype, in_memory(z1, dtype, width), in_memory(z2, dtype, width), labels)
    results = kernels.row_losses(pair)
    finite = np.array([0, 0, 1, 0, 0, 0, 1, 1, 1, 1, 0, 1], bool)
    np.testing.assert_array_equal(np.isfinite(results.per_sample), finite)
    # the oracle's arg-max takes NaN for the lowest
    rows = np.flatnonzero(finite | (np.arange(12) == 3))
    some = replace(pair, logits1=pair.logits1[rows], logits2=pair.logits2[rows], labels=labels[rows])
    picked = RowResults(**{name: array[rows] for name, array in vars(results).items()})
    assert_rows_are_right(some, picked)
    difference = oracle.DIFFERING if np.argmax(as_float64(pair)[1][1]) != 0 else oracle.ELIGIBLE
    assert results.row_state[1] == difference


@pytest.mark.parametrize("label_type", LABEL_TYPES)
@pytest.mark.parametrize("classes", [10, 300, 2000])
def test_labels_of_any_integer_type_and_stride_and_what_makes_one_invalid(
    kernels: HostKernels, label_type: str, classes: int
) -> None:
    info = np.iinfo(label_type)
    labels = np.zeros(32, label_type)[::2]
    labels[:8] = [0, 9, 5, min(classes, info.max), info.max, info.min, max(info.min, -1), 3]
    pair = replace(random_pair(16, classes, "float32"), labels=labels, ignore_index=3)
    results = kernels.row_losses(pair)
    assert_rows_are_right(pair, results)
    assert results.per_sample[7] == 0.0
    assert results.row_state[7] == oracle.INELIGIBLE
    expanded = replace(pair, labels=np.broadcast_to(np.array([4], label_type), 16))
    assert_rows_are_right(expanded, kernels.row_losses(expanded))


def test_a_broadcast_row_and_a_grid_smaller_than_the_batch(kernels: HostKernels) -> None:
    kernels.set_limits(most_blocks=2)
    for classes, rows in ((10, 150), (100, 20), (1000, 20), (1500, 6)):
        pair = random_pair(rows, classes)
        pair.logits2 = np.broadcast_to(pair.logits2[:1], pair.logits2.shape)
        assert_rows_are_right(pair, kernels.row_losses(pair))


@pytest.mark.parametrize("classes", [10, 64, 1000, 1500])
def test_equal_rows_have_equal_bits_wherever_they_lie(kernels: HostKernels, classes: int) -> None:
    pair = random_pair(70, classes)
    pair.logits1[...], pair.logits2[...], pair.labels[...] = pair.logits1[0], pair.logits2[0], pair.labels[0]
    results = kernels.row_losses(pair)
    assert len(np.unique(results.per_sample)) == 1
    assert len(np.unique(results.statistics, axis=0)) == 1


@pytest.mark.parametrize("dtype", LOGIT_TYPES)
@pytest.mark.parametrize("classes", [10, 16, 37, 100, 300, 1500])
def test_the_width_of_the_loads_changes_no_bit(kernels: HostKernels, dtype: str, classes: int) -> None:
    """A row has the same loss and gradient however its logits are laid out, and alone as in a batch."""
    results: list[list[Any]] = []
    for width in vector_widths(dtype):
        pair = random_pair(9, classes, dtype, width)
        rows = kernels.row_losses(pair)
        gradients = kernels.row_gradients(pair, rows.statistics, np.ones(9, pair.real))
        results.append([rows.per_sample, rows.statistics, rows.row_state, *gradients])
    for others in results[1:]:
        for one, other in zip(results[0], others, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", LOGIT_TYPES)
def test_the_width_of_the_loads_follows_the_distance_between_rows(kernels: HostKernels, dtype: str) -> None:
    """A first row at a multiple of 16 bytes says nothing of the others; each network's rows have their own distance."""
    widest = vector_widths(dtype)[0]
    for width in vector_widths(dtype):
        for name in ("logits1", "logits2"):
            wide = random_pair(9, 40, dtype, widest)
            values = oracle.widen(getattr(wide, name), dtype)
            pair = replace(wide, **{name: in_memory(values, dtype, width, by_stride=True)})
            results = kernels.row_losses(pair)
            assert_rows_are_right(pair, results)
            kernels.row_gradients(pair, results.statistics, np.ones(9, pair.real))
            rows, gradients = kernels.take_launches()
            assert kernel_of("row_losses", dtype, 40, width) in rows.kernel
            assert kernel_of("row_gradients", dtype, 40, width) in gradients.kernel


def test_rows_further_apart_than_32_bits_count(kernels: HostKernels) -> None:
    classes, stride = 16, 2**31 + 8  # columns; untouched pages of the mapping cost nothing
    try:
        memory = mmap.mmap(
            -1, 4 * (stride + classes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000
        )  # no reserve
    except (OSError, ValueError) as error:
        pytest.skip(f"8 GiB of address space: {error}")
    flat = np.frombuffer(memory, np.float32)
    far = np.lib.stride_tricks.as_strided(flat, (2, classes), (4 * stride, 4))
    near = random_pair(2, classes)
    far[...] = near.logits1
    pair = replace(near, logits1=far)
    results = kernels.row_losses(pair)
    assert_rows_are_right(pair, results)
    gradient, _ = kernels.row_gradients(pair, results.statistics, np.ones(2, np.float32))
    expected, _ = oracle.gradients(*as_float64(near), near.labels, near.co_lambda)
    assert gradient is not None
    assert_close(gradient, expected, 1e-6)


# --- gradients ------------------------------------------------------------------------------------------------------


def gradient_width(dtype: str, width: int, classes: int) -> int:
    """Return the widest vector that the logits allow and that divides a row of the gradient."""
    return next(w for w in vector_widths(dtype) if w <= width and classes % w == 0)


def expected_gradients(pair: Pair, weights: Array) -> tuple[Array, Array]:
    """`weights` [2, rows]; a row of weight 0 gets zeros whatever its logits are."""
    both = oracle.gradients(
        *as_float64(pair), np.asarray(pair.labels, np.int64) % pair.logits1.shape[1], pair.co_lambda
    )
    grad1, grad2 = (np.where(w[:, None] == 0, 0.0, w[:, None] * g) for w, g in zip(weights, both, strict=True))
    return grad1, grad2


def assert_gradients_are_right(pair: Pair, gradients: tuple[Array | None, Array | None], weights: Array) -> None:
    rounding = {"float16": 2**-11, "bfloat16": 2**-8}.get(pair.dtype, 0)
    for actual, expected in zip(gradients, expected_gradients(pair, weights), strict=True):
        if actual is None:
            continue
        values = oracle.widen(actual, pair.dtype)
        error = np.abs(values - expected) - rounding * np.abs(expected) - (2**-24 if pair.dtype == "float16" else 0)
        scale = np.maximum(
            1, np.abs(expected).max(axis=1, keepdims=True)
        )  # delta - KL cancels where both are thousands
        assert (error / scale).max() <= tolerance(pair.dtype), (error / scale).max()
        unweighted = actual[(expected == 0).all(axis=1)]
        assert not unweighted.view(np.uint8).any()  # +0 in every bit


@pytest.mark.parametrize(("dtype", "width"), DTYPES_AND_WIDTHS)
@pytest.mark.parametrize("classes", [1, 10, 32, 40, 100, 256, 1000, 1001, 1032, 4100])
def test_gradients_equal_the_closed_form_in_every_type_and_vector_width(
    kernels: HostKernels, dtype: str, width: int, classes: int
) -> None:
    rows = 37 if classes <= 32 else 9
    pair = random_pair(rows, classes, dtype, width)
    statistics = kernels.row_losses(pair).statistics
    kernels.take_launches()
    rng = np.random.default_rng(1)
    selected1, selected2 = rng.integers(0, 2, (2, rows)).astype(np.uint8)
    selected1[0], selected2[0] = 1, 0
    pair.logits1[(selected1 | selected2) == 0] = oracle.narrow(np.array(np.nan), dtype)  # such rows are not read
    grad_output = np.array([0.75], pair.real)[::1] if rows == 1 else np.broadcast_to(np.array([0.75], pair.real), rows)
    gradients = kernels.row_gradients(pair, statistics, grad_output, selected1=selected1, selected2=selected2)
    weights = 0.75 * np.stack([selected1 / selected1.sum(), selected2 / max(1, selected2.sum())])
    clean = replace(
        pair,
        logits1=np.where(np.isnan(oracle.widen(pair.logits1, dtype)), oracle.narrow(np.zeros(1), dtype), pair.logits1),
    )
    assert_gradients_are_right(clean, gradients, weights)
    (launch,) = kernels.take_launches()
    assert kernel_of("row_gradients", dtype, classes, gradient_width(dtype, width, classes)) in launch.kernel


@pytest.mark.parametrize("co_lambda", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("wanted", [(True, False), (False, True), (True, True)])
def test_gradients_with_a_weight_for_each_row_and_of_one_network_only(
    kernels: HostKernels, co_lambda: float, wanted: tuple[bool, bool]
) -> None:
    pair = random_pair(40, 12, co_lambda=co_lambda, ignore_index=2)
    pair.labels[5] = -7
    pair.logits1[6, 3] = np.nan
    results = kernels.row_losses(pair)
    upstream = np.random.default_rng(2).normal(size=80).astype(np.float32)[::2]
    gradients = kernels.row_gradients(pair, results.statistics, upstream, wanted=wanted)
    assert [g is not None for g in gradients] == list(wanted)
    trains = (pair.labels != 2) & (pair.labels >= 0) & np.isfinite(results.per_sample)
    pair.logits1[6, 3] = 0.0
    assert_gradients_are_right(pair, gradients, np.stack([upstream * trains] * 2))


@pytest.mark.parametrize("classes", [10, 100, 1000, 2000])
def test_gradients_keep_their_digits_where_logits_are_large(kernels: HostKernels, classes: int) -> None:
    """lse itself, rounded to float32, would be wrong by 2e-4 here."""
    pair = random_pair(5, classes)
    pair.logits1 += np.float32(5000)
    pair.logits2 -= np.float32(3000)
    gradients = kernels.row_gradients(pair, kernels.row_losses(pair).statistics, np.ones(5, np.float32))
    assert_gradients_are_right(pair, gradients, np.ones((2, 5)))


def test_classes_ruled_out_have_no_gradient_and_make_none_nan(kernels: HostKernels) -> None:
    pair = random_pair(8, 16, width=4)
    pair.labels[...] = 0
    pair.logits1[:, 5] = pair.logits2[:, 5] = -np.inf
    pair.logits1[2, 1] += 104
    pair.logits2[3, 1] += 10_000
    statistics = kernels.row_losses(pair).statistics
    gradients = kernels.row_gradients(pair, statistics, np.ones(8, np.float32))
    for gradient in gradients:
        assert gradient is not None
        assert np.isfinite(gradient).all()
        assert (gradient[:, 5] == 0).all()
    assert_gradients_are_right(replace_infinities(pair), gradients, np.ones((2, 8)))


def replace_infinities(pair: Pair) -> Pair:
    """Return the masked class as a very small logit, which float64 formulas without guards can read."""
    low1, low2 = (
        np.where(np.isinf(z), z.min(where=np.isfinite(z), initial=0, axis=1, keepdims=True) - 700, z)
        for z in as_float64(pair)
    )
    return replace(pair, dtype="float32", logits1=low1.astype(np.float32), logits2=low2.astype(np.float32))


def test_a_gradient_at_an_odd_address_is_written_whole(kernels: HostKernels) -> None:
    pair = random_pair(11, 16, "bfloat16", 8)
    statistics = kernels.row_losses(pair).statistics
    for offset in (1, 2):
        gradients = kernels.row_gradients(pair, statistics, np.ones(11, np.float32), offset=offset)
        assert_gradients_are_right(pair, gradients, np.ones((2, 11)))
