"""What changes from epoch to epoch: the share of rows kept, the learning rate, Adam's β1; and how long a recipe trains.

Recipe "paper" follows the paper's text, recipe "published" the authors' code; paper and code differ in the ramp, the
decay, β1, the number of epochs and of batches, and in how R·B is rounded. Every such difference stands here, once.
Epochs count from 1.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature

from jocor_fast.arguments import at_least, check_choice, check_forget_rate, check_fraction

RECIPES = ("paper", "published")

_ADAM_BETA1 = 0.9
_PUBLISHED_BETA1_IN_DECAY = 0.1
# The paper's rates for Clothing1M, 8e-4, 5e-4 and 5e-5 "for 5 epochs each", as factors on the first.
_CLOTHING1M_FACTORS = (1.0, 5 / 8, 1 / 16)
_PUBLISHED_MOST_STEPS = 401  # its loop stops after batch index 400


def keep_rate(epoch: int, *, forget_rate: float, ramp_epochs: int = 10, recipe: str = "paper") -> float:
    """Return R(t), the share of each batch that is kept in an epoch.

    Recipe "paper": 1 − min(t/T_k · τ, τ), full τ from epoch T_k. Recipe "published": the code's linspace(0, τ, T_k) is
    read from its second entry on: epoch t forgets t·τ/(T_k − 1), full τ from epoch T_k − 1.

    >>> import jocor_fast as jf
    >>> [jf.schedules.keep_rate(epoch, forget_rate=0.5) for epoch in (1, 5, 10, 200)]
    [0.95, 0.75, 0.5, 0.5]

    Args:
        epoch: t, int ≥ 1.
        forget_rate: τ, float in [0, 1).
        ramp_epochs: T_k, int ≥ 0; 0 keeps 1 − τ at once.
        recipe: "paper" or "published".

    Returns:
        A float in (0, 1].

    Raises:
        TypeError, ValueError: an argument has the wrong type or lies outside what is said above.
    """
    check_recipe(recipe)
    epoch = at_least("epoch", epoch, 1)
    forget_rate = check_forget_rate(forget_rate)
    ramp_epochs = at_least("ramp_epochs", ramp_epochs, 0)
    ramp_length = ramp_epochs if recipe == "paper" else ramp_epochs - 1
    if epoch >= ramp_length:
        return 1.0 - forget_rate
    return 1.0 - epoch / ramp_length * forget_rate


def lr_factor(epoch: int, *, epochs: int = 200, decay_start: int = 80, recipe: str = "paper") -> float:
    """Return the factor on the learning rate in an epoch: 1, then falling on a line to 0.

    Recipe "paper": 1 up to `decay_start`, then (epochs + 1 − t)/(epochs − decay_start), which still is 1 in the first
    epoch after it. Recipe "published": 1 up to `decay_start`, then (epochs − t)/(epochs − decay_start).

    >>> import jocor_fast as jf
    >>> [round(jf.schedules.lr_factor(epoch), 4) for epoch in (80, 81, 150, 200)]
    [1.0, 1.0, 0.425, 0.0083]

    Args:
        epoch: t, int ≥ 1; past `decay_start` and the last epoch the factor is 0.
        epochs: int ≥ 1, as asked for (recipe "published" trains one fewer).
        decay_start: int ≥ 0; at `epochs` or later there is no decay.
        recipe: "paper" or "published".

    Returns:
        A float in [0, 1].

    Raises:
        TypeError, ValueError: an argument has the wrong type or lies outside what is said above.
    """
    check_recipe(recipe)
    epoch = at_least("epoch", epoch, 1)
    epochs = at_least("epochs", epochs, 1)
    decay_start = at_least("decay_start", decay_start, 0)
    end = epochs + 1 if recipe == "paper" else epochs
    if epoch <= decay_start:
        return 1.0
    return max(0, end - epoch) / (epochs - decay_start) if epochs > decay_start else 0.0


def lr_step_factor(epoch: int, *, epochs: int = 15) -> float:
    """Return the factor on the learning rate by the paper's plan for Clothing1M: 1, 5/8, 1/16, a third each.

    Args:
        epoch: t, int ≥ 1; past the last epoch the factor stays at 1/16.
        epochs: int ≥ 1; where three does not divide it, the earlier parts are the longer ones.

    Raises:
        TypeError, ValueError: an argument is not an int ≥ 1.
    """
    epoch = at_least("epoch", epoch, 1)
    epochs = at_least("epochs", epochs, 1)
    parts = len(_CLOTHING1M_FACTORS)
    return _CLOTHING1M_FACTORS[min(parts - 1, (epoch - 1) * parts // epochs)]


# How the learning rate falls, by name. Each is a function of the epoch and of those of `epochs`, `decay_start` and
# `recipe` that it has parameters for.
LR_PLANS: dict[str, Callable[..., float]] = {"linear": lr_factor, "clothing1m": lr_step_factor}


def has_decay_start(lr_plan: str) -> bool:
    """Return whether a plan of `LR_PLANS` falls from a given epoch on."""
    return "decay_start" in signature(LR_PLANS[lr_plan]).parameters


def planned_lr_factor(lr_plan: str, epoch: int, *, epochs: int, decay_start: int, recipe: str = "paper") -> float:
    """Return the factor on the learning rate in an epoch by a plan of `LR_PLANS`.

    Args:
        lr_plan: its name.
        epoch: as of `lr_factor`, like those that follow; the plan takes what it has a parameter for.
        epochs: the same.
        decay_start: the same.
        recipe: the same.
    """
    function = LR_PLANS[lr_plan]
    given = {"epochs": epochs, "decay_start": decay_start, "recipe": recipe}
    return function(epoch, **{name: value for name, value in given.items() if name in signature(function).parameters})


def adam_beta1(epoch: int, *, decay_start: int = 80, recipe: str = "paper", beta1_after: float | None = None) -> float:
    """Return Adam's β1 in an epoch: 0.9; with recipe "published" 0.1 from epoch `decay_start` on.

    Args:
        epoch: int ≥ 1.
        decay_start: int ≥ 0.
        recipe: "paper" or "published".
        beta1_after: β1 from epoch `decay_start` on, float in [0, 1), whatever the recipe; None: the recipe's.

    Raises:
        TypeError, ValueError: an argument has the wrong type or lies outside what is said above.
    """
    check_recipe(recipe)
    epoch = at_least("epoch", epoch, 1)
    decay_start = at_least("decay_start", decay_start, 0)
    if beta1_after is not None:
        beta1_after = check_fraction("beta1_after", beta1_after)
    if epoch < decay_start:
        return _ADAM_BETA1
    if beta1_after is not None:
        return beta1_after
    return _PUBLISHED_BETA1_IN_DECAY if recipe == "published" else _ADAM_BETA1


def trained_epochs(epochs: int, recipe: str = "paper") -> int:
    """Return how many epochs are trained of `epochs` asked for: all of them, with recipe "published" one fewer.

    Raises:
        TypeError, ValueError: `epochs` is not an int ≥ 1 (≥ 2 for recipe "published"), or `recipe` is unknown.
    """
    check_recipe(recipe)
    if recipe == "paper":
        return at_least("epochs", epochs, 1)
    return at_least("epochs", epochs, 2, " with recipe 'published', which trains one fewer") - 1


def default_decay_start(epochs: int, *, recipe: str = "paper", dataset: str | None = None) -> int:
    """Return the last epoch at the full rate by default: 0.4 · epochs, rounded down.

    The published code starts later on CIFAR-100, at epoch 100 of 200: recipe "published" with dataset "cifar100" gives
    0.5 · epochs, rounded down.

    Args:
        epochs: int ≥ 1.
        recipe: "paper" or "published".
        dataset: its name; None where it has none.

    Raises:
        TypeError, ValueError: an argument has the wrong type or lies outside what is said above.
    """
    check_recipe(recipe)
    epochs = at_least("epochs", epochs, 1)
    if recipe == "published" and dataset == "cifar100":
        return epochs // 2
    return 2 * epochs // 5


def steps_per_epoch(num_samples: int, batch_size: int, recipe: str = "paper", max_batches: int | None = None) -> int:
    """Return how many batches an epoch trains on: all whole ones, with recipe "published" at most 401.

    Fewer samples than a batch holds are one batch.

    Args:
        num_samples: N, int ≥ 1.
        batch_size: int ≥ 1.
        recipe: "paper" or "published".
        max_batches: at most so many, int ≥ 1, whatever the recipe; None: the recipe's.

    Raises:
        TypeError, ValueError: an argument has the wrong type or lies outside what is said above.
    """
    check_recipe(recipe)
    whole = max(1, at_least("num_samples", num_samples, 1) // at_least("batch_size", batch_size, 1))
    if max_batches is not None:
        return min(whole, at_least("max_batches", max_batches, 1))
    return whole if recipe == "paper" else min(whole, _PUBLISHED_MOST_STEPS)


def keep_rounding(recipe: str = "paper") -> str:
    """Return how R(t) · B becomes a number of rows, as `num_keep` takes it: "ceil", with recipe "published" "floor".

    Raises:
        TypeError, ValueError: `recipe` is not a string, or is unknown.
    """
    return "ceil" if check_recipe(recipe) == "paper" else "floor"


def check_recipe(recipe: str) -> str:
    """Return the recipe's name; anything but one of `RECIPES` is a ValueError, anything but a string a TypeError."""
    return check_choice("recipe", recipe, RECIPES)
