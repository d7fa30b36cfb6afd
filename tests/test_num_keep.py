"""How many rows a forget rate keeps (cases of the paper's and the published code's rounding)."""

import math
from fractions import Fraction

import numpy as np
import pytest

import jocor_fast
import jocor_fast.reference
from loss_cases import everywhere, random_logits

hypothesis = pytest.importorskip("hypothesis")
given, st = hypothesis.given, hypothesis.strategies
with_every_implementation = pytest.mark.parametrize(
    "num_keep",
    [
        pytest.param(jocor_fast.reference.num_keep, id="reference"),
        pytest.param(jocor_fast.num_keep, id="compiled"),
    ],
)

# batch size, forget rate, rows kept by "ceil", by "floor"
TABLE = [
    (128, 0.2, 103, 102),
    (128, 0.5, 64, 64),
    (128, 0.8, 26, 25),
    (100, 0.8, 20, 20),  # int((1 - 0.8) * 100) is 19
    (10, 0.9, 1, 1),  # int((1 - 0.9) * 10) is 0
    (10, 0.3, 7, 7),
    (10, 0.7, 3, 3),  # ceil((1 - 0.7) * 10) is 4
    (100, 0.3, 70, 70),
    (100, 0.29, 71, 71),
    (100, 0.07, 93, 93),
    (60, 0.9, 6, 6),
    (5, 0.8, 1, 1),
    (100, 7 / 10 * 0.2, 86, 86),  # epoch 7 of a ramp of ten
    (8, 0.99, 1, 1),
    (8, 0.0, 8, 8),
    (1, 0.5, 1, 1),
    (0, 0.5, 0, 0),
    (10**6, 0.5, 500_000, 500_000),
]


@with_every_implementation
@pytest.mark.parametrize(("rows", "forget_rate", "ceil", "floor"), TABLE)
def test_rows_kept(num_keep, rows, forget_rate, ceil, floor):
    for rate in (forget_rate, 1 - (1 - forget_rate)):  # also through a keep rate
        assert num_keep(rows, rate) == ceil
        assert num_keep(rows, rate, rounding="ceil") == ceil
        assert num_keep(rows, rate, rounding="floor") == floor
        assert type(num_keep(rows, rate)) is int


@everywhere
@pytest.mark.parametrize(("rows", "forget_rate", "ceil", "floor"), [case for case in TABLE if 0 < case[0] < 1000])
def test_the_loss_keeps_as_many(loss, device, rows, forget_rate, ceil, floor):
    z1, z2, target = random_logits(rows, 3, device=device)
    for rate in (forget_rate, 1 - (1 - forget_rate)):
        out = loss.jocor_loss(z1, z2, target, forget_rate=rate)
        assert out.num_selected.item() == out.selected.sum().item() == ceil


@with_every_implementation
@given(rows=st.integers(1, 100_000), thousandths=st.integers(0, 999))
def test_a_decimal_rate_is_taken_for_the_decimal_number(num_keep, rows, thousandths):
    exact = rows * (1 - Fraction(thousandths, 1000))
    for rate in (thousandths / 1000, 1 - (1 - thousandths / 1000)):
        assert num_keep(rows, rate) == max(1, math.ceil(exact))
        assert num_keep(rows, rate, rounding="floor") == max(1, math.floor(exact))


@with_every_implementation
@given(rows=st.integers(1, 10_000), hundredths=st.integers(1, 99), ramp=st.integers(1, 30), data=st.data())
def test_a_rate_on_the_ramp_is_taken_for_the_exact_product(num_keep, rows, hundredths, ramp, data):
    epoch = data.draw(st.integers(1, ramp))
    exact = rows * (1 - Fraction(epoch, ramp) * Fraction(hundredths, 100))
    assert num_keep(rows, epoch / ramp * (hundredths / 100)) == max(1, math.ceil(exact))
    assert num_keep(rows, epoch / ramp * (hundredths / 100), rounding="floor") == max(1, math.floor(exact))


@given(
    rows=st.integers(1, 2**40),
    forget_rate=st.floats(0, 1, exclude_max=True),
    rounding=st.sampled_from(["ceil", "floor"]),
)
def test_both_implementations_agree(rows, forget_rate, rounding):
    compiled = jocor_fast.num_keep(rows, forget_rate, rounding=rounding)
    assert compiled == jocor_fast.reference.num_keep(rows, forget_rate, rounding=rounding)
    assert 1 <= compiled <= rows


@everywhere
@pytest.mark.parametrize(
    ("rows", "forget_rate", "kept"),
    [(3, 0.3333333323333333, 3), (5, 0.19999999899999993, 4), (7, 0.4285714275714285, 5), (10, 0.299999999, 8)],
)
def test_k_is_rounded_step_by_step(loss, device, rows, forget_rate, kept):
    """1 - m/n - 1e-9, where a fused multiply-add gives another number: compilers put one in where they are allowed."""
    assert loss.num_keep(rows, forget_rate) == kept
    z1, z2, target = random_logits(rows, 3, device=device)
    assert loss.jocor_loss(z1, z2, target, forget_rate=forget_rate).num_selected.item() == kept


@with_every_implementation
@pytest.mark.parametrize("forget_rate", [1, 1.0, 1.5, -0.1, -1, math.nan, math.inf, -math.inf, 10**400])
def test_rate_outside_zero_to_one_is_refused(num_keep, forget_rate):
    with pytest.raises(ValueError, match="forget_rate"):
        num_keep(8, forget_rate)


@with_every_implementation
@pytest.mark.parametrize(
    ("rows", "forget_rate", "rounding", "error", "name"),
    [
        (8.0, 0.5, "ceil", TypeError, "batch_size"),
        (True, 0.5, "ceil", TypeError, "batch_size"),
        ("8", 0.5, "ceil", TypeError, "batch_size"),
        (None, 0.5, "ceil", TypeError, "batch_size"),
        (-1, 0.5, "ceil", ValueError, "batch_size"),
        (2**63, 0.5, "ceil", ValueError, "batch_size"),
        (8, False, "ceil", TypeError, "forget_rate"),
        (8, "0.5", "ceil", TypeError, "forget_rate"),
        (8, None, "ceil", TypeError, "forget_rate"),
        (8, 0.5, "round", ValueError, "rounding"),
        (8, 0.5, None, TypeError, "rounding"),
    ],
)
def test_wrong_arguments_are_named(num_keep, rows, forget_rate, rounding, error, name):
    with pytest.raises(error, match=name):
        num_keep(rows, forget_rate, rounding=rounding)


@with_every_implementation
def test_numpy_numbers_and_whole_rates_are_accepted(num_keep):
    assert num_keep(np.int32(10), np.float64(0.3)) == 7
    assert num_keep(np.int64(8), np.float32(0.5)) == 4
    assert num_keep(8, 0) == 8
    assert num_keep(8, np.int8(0)) == 8
