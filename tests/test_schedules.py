"""Cases 20 to 22, and β1, epochs, steps and rounding of both recipes."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jocor_fast as jf
from jocor_fast import schedules
from jocor_fast.schedules import (
    adam_beta1,
    default_decay_start,
    keep_rate,
    lr_factor,
    lr_step_factor,
    steps_per_epoch,
    trained_epochs,
)

RATES = st.floats(0, 1, exclude_max=True)


def kept_rows(epoch: int, recipe: str, forget_rate: float = 0.5, ramp_epochs: int = 10, batch_size: int = 128) -> int:
    rate = keep_rate(epoch, forget_rate=forget_rate, ramp_epochs=ramp_epochs, recipe=recipe)
    return jf.num_keep(batch_size, 1 - rate, rounding=schedules.keep_rounding(recipe))


def test_published_ramp_keeps_the_rows_that_the_published_code_keeps():
    assert [kept_rows(t, "published") for t in range(1, 11)] == [120, 113, 106, 99, 92, 85, 78, 71, 64, 64]


def test_paper_ramp_reaches_the_full_rate_in_the_last_epoch_of_the_ramp():
    rates = [keep_rate(t, forget_rate=0.5) for t in range(1, 201)]
    assert rates[:10] == pytest.approx([1 - 0.05 * t for t in range(1, 11)], abs=1e-15)
    assert set(rates[9:]) == {0.5}


def test_product_of_ramp_and_rate_does_not_cost_a_row():
    assert kept_rows(7, "paper", forget_rate=0.2, batch_size=100) == 86


@pytest.mark.parametrize("recipe", schedules.RECIPES)
@pytest.mark.parametrize("ramp_epochs", [0, 1])
def test_no_ramp_means_the_full_rate_at_once(recipe: str, ramp_epochs: int):
    assert keep_rate(1, forget_rate=0.3, ramp_epochs=ramp_epochs, recipe=recipe) == 0.7


@given(RATES, st.integers(0, 30), st.sampled_from(schedules.RECIPES))
def test_keep_rate_falls_from_under_one_to_one_minus_tau(forget_rate: float, ramp_epochs: int, recipe: str):
    rates = [keep_rate(t, forget_rate=forget_rate, ramp_epochs=ramp_epochs, recipe=recipe) for t in range(1, 40)]
    assert all(earlier >= later for earlier, later in pairwise(rates))
    assert rates[max(0, ramp_epochs - 1) :] == [1 - forget_rate] * (39 - max(0, ramp_epochs - 1))


def test_rate_zero_keeps_everything():
    assert {keep_rate(t, forget_rate=0) for t in range(1, 20)} == {1.0}


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ("paper", {1: 1, 80: 1, 81: 1, 150: 0.425, 200: 1 / 120}),
        ("published", {1: 1, 80: 1, 81: 119 / 120, 150: 50 / 120, 199: 1 / 120}),
    ],
)
def test_rate_plan_over_200_epochs(recipe: str, expected: dict[int, float]):
    assert {t: lr_factor(t, recipe=recipe) for t in expected} == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("recipe", schedules.RECIPES)
def test_published_cifar100_plan_starts_at_100(recipe: str):
    assert default_decay_start(200, recipe=recipe, dataset="cifar100") == (100 if recipe == "published" else 80)
    assert default_decay_start(200, recipe=recipe, dataset="cifar10") == 80


@pytest.mark.parametrize("epochs", range(1, 30))
@pytest.mark.parametrize("recipe", schedules.RECIPES)
def test_few_epochs_have_a_plan(recipe: str, epochs: int):
    """Case 21: fewer epochs than T_k, than the start of the decay."""
    late = [lr_factor(t, epochs=epochs, decay_start=80, recipe=recipe) for t in range(1, epochs + 1)]
    assert late == [1.0] * epochs
    start = default_decay_start(epochs)
    factors = [lr_factor(t, epochs=epochs, decay_start=start, recipe=recipe) for t in range(1, epochs + 1)]
    assert all(0 <= factor <= 1 for factor in factors)
    assert factors[: epochs - 1] == sorted(factors[: epochs - 1], reverse=True)
    trained = epochs if recipe == "paper" else epochs - 1
    assert all(factor > 0 for factor in factors[:trained])
    assert all(0 < keep_rate(t, forget_rate=0.5, recipe=recipe) <= 1 for t in range(1, epochs + 1))


@given(st.integers(1, 10**6))
def test_default_decay_start_is_four_tenths_rounded_down(epochs: int):
    start = default_decay_start(epochs)
    assert 10 * start <= 4 * epochs < 10 * (start + 1)


def test_factor_after_the_last_epoch_is_zero():
    assert [lr_factor(t) for t in (201, 1000)] == [0, 0]
    assert lr_factor(200, recipe="published") == 0


def test_a_step_plan_has_equal_parts_and_ends_at_its_last_rate():
    assert [lr_step_factor(epoch) for epoch in (1, 5, 6, 10, 11, 15, 16)] == [
        1,
        1,
        0.625,
        0.625,
        1 / 16,
        1 / 16,
        1 / 16,
    ]
    assert [lr_step_factor(epoch, epochs=4) for epoch in (1, 2, 3, 4)] == [1, 1, 0.625, 1 / 16]
    assert lr_step_factor(1, epochs=1) == 1
    with pytest.raises(ValueError, match="epoch must be at least 1"):
        lr_step_factor(0)
    with pytest.raises(TypeError, match="epochs must be an int"):
        lr_step_factor(1, epochs=1.5)


def test_beta1_changes_with_the_published_recipe_only():
    assert [adam_beta1(t, recipe="published") for t in (1, 79, 80, 199)] == [0.9, 0.9, 0.1, 0.1]
    assert {adam_beta1(t) for t in range(1, 201)} == {0.9}


def test_beta1_and_the_cap_on_batches_are_set_apart_from_the_recipe():
    for recipe in schedules.RECIPES:
        assert [adam_beta1(t, recipe=recipe, beta1_after=0.5) for t in (79, 80, 200)] == [0.9, 0.5, 0.5]
        assert steps_per_epoch(60_000, 128, recipe, max_batches=300) == 300
        assert steps_per_epoch(60_000, 128, recipe, max_batches=500) == 468
    for wrong in (1, -0.1, math.nan):
        with pytest.raises(ValueError, match=r"^beta1_after must lie in \[0, 1\), got"):
            adam_beta1(1, beta1_after=wrong)
    with pytest.raises(ValueError, match=r"^max_batches must be at least 1, got 0"):
        steps_per_epoch(10, 1, max_batches=0)


def test_published_recipe_trains_one_epoch_fewer():
    assert (trained_epochs(200), trained_epochs(200, "published"), trained_epochs(1)) == (200, 199, 1)
    with pytest.raises(ValueError, match=r"epochs must be at least 2 with recipe 'published'.*got 1"):
        trained_epochs(1, "published")


def test_steps_are_whole_batches_and_at_most_401_in_the_published_recipe():
    assert steps_per_epoch(60_000, 128) == 468
    assert steps_per_epoch(60_000, 128, "published") == 401
    assert steps_per_epoch(50_000, 128, "published") == 390
    assert steps_per_epoch(100, 128) == steps_per_epoch(1, 128, "published") == steps_per_epoch(255, 128) == 1
    assert steps_per_epoch(3, 1) == steps_per_epoch(3, 1, "published") == 3


def test_rounding_of_the_recipes():
    assert (schedules.keep_rounding("paper"), schedules.keep_rounding("published")) == ("ceil", "floor")


def test_numpy_integers_and_integer_rates_are_numbers():
    assert keep_rate(np.int32(10), forget_rate=0, ramp_epochs=np.uint8(10)) == 1.0
    assert keep_rate(np.int64(5), forget_rate=np.float32(0.5)) == 0.75
    assert lr_factor(np.int64(150), epochs=np.int64(200), decay_start=np.int64(80)) == 0.425


@pytest.mark.parametrize("epoch", [0, -1])
def test_epochs_count_from_one(epoch: int):
    for call in (lambda: keep_rate(epoch, forget_rate=0.5), lambda: lr_factor(epoch), lambda: adam_beta1(epoch)):
        with pytest.raises(ValueError, match=rf"epoch must be at least 1, got {epoch}"):
            call()


@pytest.mark.parametrize("rate", [1, 1.0, -0.1, math.nan, math.inf])
def test_forget_rate_outside_its_range_is_a_value_error(rate: float):
    with pytest.raises(ValueError, match="forget_rate"):
        keep_rate(1, forget_rate=rate)


@pytest.mark.parametrize("wrong", [True, np.True_, 1.0, "1", None])
def test_what_is_no_integer_is_a_type_error_that_names_it(wrong: object):
    calls = {
        "epoch": [lambda: keep_rate(wrong, forget_rate=0.5), lambda: lr_factor(wrong), lambda: adam_beta1(wrong)],
        "ramp_epochs": [lambda: keep_rate(1, forget_rate=0.5, ramp_epochs=wrong)],
        "epochs": [lambda: lr_factor(1, epochs=wrong), lambda: trained_epochs(wrong)],
        "decay_start": [lambda: lr_factor(1, decay_start=wrong), lambda: adam_beta1(1, decay_start=wrong)],
        "batch_size": [lambda: steps_per_epoch(10, wrong)],
    }
    for name, named_calls in calls.items():
        for call in named_calls:
            with pytest.raises(TypeError, match=rf"^{name} must be an int"):
                call()


@pytest.mark.parametrize(
    ("recipe", "error"), [("Paper", ValueError), ("", ValueError), (None, TypeError), (1, TypeError)]
)
def test_an_unknown_recipe_is_named(recipe: object, error: type[Exception]):
    calls = [
        lambda: keep_rate(1, forget_rate=0.5, recipe=recipe),
        lambda: lr_factor(1, recipe=recipe),
        lambda: adam_beta1(1, recipe=recipe),
        lambda: trained_epochs(10, recipe),
        lambda: default_decay_start(10, recipe=recipe),
        lambda: steps_per_epoch(10, 1, recipe),
        lambda: schedules.keep_rounding(recipe),
    ]
    for call in calls:
        with pytest.raises(error, match=r"^recipe must be"):
            call()
