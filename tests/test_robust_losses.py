"""GCE, SCE, NCE+RCE and CORES² against NumPy, with a gradient written from the formulas of the papers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import jocor_fast
from loss_cases import (
    BROADCASTS,
    INTEGER_TYPES,
    LAYOUTS,
    assert_close,
    computed_in,
    everywhere,
    random_logits,
    with_every_float_type,
)

REVERSE = -np.log(1e-4)

# The function's name and its parameters.
LOSSES: list[tuple[str, dict[str, Any]]] = [
    ("gce", {"q": 0.7}),
    ("gce", {"q": 1.0}),
    ("gce", {"q": 0.01}),
    ("sce", {"alpha": 0.1, "beta": 1.0}),
    ("sce", {"alpha": 6.0, "beta": 0.1}),
    ("sce", {"alpha": 1.0, "beta": 0.0}),
    ("nce_rce", {"alpha": 1.0, "beta": 10.0}),
    ("nce_rce", {"alpha": 3.0, "beta": 0.0}),
    ("cores", {"beta": 2.0}),
    ("cores", {"beta": 0.0}),
]
each_loss = pytest.mark.parametrize(("name", "settings"), LOSSES, ids=lambda value: str(value))
ONE_OF_EACH = [LOSSES[0], LOSSES[3], LOSSES[6], LOSSES[8]]
one_of_each = pytest.mark.parametrize(("name", "settings"), ONE_OF_EACH, ids=["gce", "sce", "nce_rce", "cores"])


def row_of(z: np.ndarray, y: int, name: str, settings: dict[str, float]) -> tuple[float, np.ndarray]:
    """A row's loss and gradient in float64; a masked class is none, and leaves with its column."""
    classes = np.flatnonzero(z != -np.inf)
    gradient = np.zeros_like(z)
    if y not in classes:
        finite = name == "gce" and bool(np.isfinite(z[classes]).all())
        return (1 / settings["q"] if finite else np.inf), gradient
    loss, gradient[classes] = row_without_masks(z[classes], int(np.searchsorted(classes, y)), name, settings)
    return loss, gradient


def row_without_masks(z: np.ndarray, y: int, name: str, settings: dict[str, float]) -> tuple[float, np.ndarray]:
    shifted = z - z.max()
    log_p = shifted - np.log(np.exp(shifted).sum())
    p, one_hot = np.exp(log_p), (np.arange(len(z)) == y).astype(float)
    n, total, count = -log_p[y], -log_p.sum(), len(z)
    alpha, beta = settings.get("alpha", 0.0), settings.get("beta", 0.0)
    if name == "gce":
        q = settings["q"]
        return -np.expm1(-q * n) / q, p[y] ** q * (p - one_hot)
    if name == "cores":
        return n - beta * (-log_p).mean(), (p - one_hot) - beta * (p - 1 / count)
    reverse, slope = beta * REVERSE * -np.expm1(-n), beta * REVERSE * p[y] * (p - one_hot)
    if name == "sce":
        return alpha * n + reverse, alpha * (p - one_hot) + slope
    if count == 1:
        return alpha + reverse, slope
    normalised = (p - one_hot) / total - n * (count * p - 1) / total**2
    return alpha * n / total + reverse, alpha * normalised + slope


def expected(
    logits: Tensor, target: Tensor, name: str, settings: dict[str, float], ignore_index: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The losses [B] and gradients [B, C]; ignored rows have 0, and those without a finite loss no gradient."""
    z = logits.detach().double().cpu().resolve_neg().numpy()
    losses, gradients = np.zeros(len(z)), np.zeros_like(z)
    for i, y in enumerate(target.tolist()):
        if y != ignore_index:
            with np.errstate(all="ignore"):
                losses[i], gradients[i] = row_of(z[i], y, name, settings)
    gradients[~np.isfinite(losses)] = 0
    return losses, gradients


def rows_of(loss: Any, name: str, settings: dict[str, float], logits: Tensor, target: Tensor, **more: Any) -> Tensor:
    """The differentiable loss of each row; of `cores`, which has none, its mean times the number of rows."""
    function = getattr(loss, f"{name}_loss")
    if name != "cores":
        return function(logits, target, **settings, reduction="none", **more)
    return torch.stack([function(z, y, **settings, sieve=False, **more).loss for z, y in zip_rows(logits, target)])


def scale_of(name: str, settings: dict[str, float]) -> float:
    """The largest number in a row's arithmetic: 1 - p_y is rounded before it is multiplied."""
    weight = settings.get("beta", 0.0) * (1.0 if name == "cores" else REVERSE)
    return max(weight, settings.get("alpha", 0.0))


def zip_rows(logits: Tensor, target: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [(logits[i : i + 1], target[i : i + 1]) for i in range(len(target))]


# --- numbers ----------------------------------------------------------------------------------------------------------


def check_rows(loss: Any, name: str, settings: dict[str, float], logits: Tensor, target: Tensor) -> None:
    """Values and gradients of all rows, each with a weight of its own."""
    losses, gradients = expected(logits, target, name, settings)
    rows = rows_of(loss, name, settings, logits, target)
    assert rows.dtype == computed_in(logits.dtype)
    assert_close(rows, losses, scale_of(name, settings))
    weights = torch.linspace(0.1, 1, len(rows), dtype=rows.dtype, device=rows.device)
    (gradient,) = torch.autograd.grad(rows, logits, weights)
    assert gradient.dtype == logits.dtype
    assert gradient.isfinite().all()
    assert_close(gradient, gradients * weights.cpu().numpy()[:, None], scale_of(name, settings))


@everywhere
@with_every_float_type
@each_loss
def test_values_and_gradients(loss, device, dtype, name, settings):
    """19 rows: one block of the kernel's and a part of the next."""
    for classes in (1, 2, 10):
        logits, _, target = random_logits(19, classes, dtype, device)
        check_rows(loss, name, settings, logits, target)


@everywhere
@with_every_float_type
def test_values_and_gradients_around_every_vector_width(loss, device, dtype):
    for classes in (3, 5, 7, 8, 9, 12, 15, 16, 17, 31, 32, 33, 100):
        logits, _, target = random_logits(3, classes, dtype, device)
        for name, settings in ONE_OF_EACH:
            check_rows(loss, name, settings, logits, target)


@everywhere
@pytest.mark.parametrize("classes", [1025, 5000, 40_000])
def test_long_rows(loss, device, classes):
    for dtype in (torch.float32, torch.float64):
        logits, _, target = random_logits(2, classes, dtype, device)
        for name, settings in ONE_OF_EACH:
            check_rows(loss, name, settings, logits, target)


@everywhere
@with_every_float_type
@pytest.mark.parametrize("gap", [104.0, 1e4])
def test_tiny_and_large_probabilities_stay_finite(loss, device, dtype, gap):
    rows = [[gap, 0.0, 0.5], [0.0, gap, 0.5], [-gap, 0.0, gap], [0.0, -gap, gap]]
    logits = torch.tensor(rows, dtype=dtype, device=device, requires_grad=True)
    target = torch.tensor([0, 0, 0, 0], device=device)
    for name, settings in LOSSES:
        check_rows(loss, name, settings, logits, target)
        assert rows_of(loss, name, settings, logits, target).isfinite().all()


@everywhere
def test_logits_far_from_zero_keep_their_digits(loss, device):
    logits, _, target = random_logits(12, 10, device=device)
    far = (logits.detach() + 5000).requires_grad_()
    for name, settings in ONE_OF_EACH:
        check_rows(loss, name, settings, far, target)


@everywhere
@with_every_float_type
def test_a_class_masked_in_a_row_leaves_with_its_column(loss, device, dtype):
    """So do all others but the label, of which the normalised cross-entropy is 1."""
    logits, _, target = random_logits(4, 7, dtype, device)
    z = logits.detach().clone()
    target[:] = torch.tensor([3, 3, 0, 6], device=device)
    z[0, 0] = z[1, 6] = z[2, 3:] = z[3, :6] = -torch.inf
    z.requires_grad_()
    for name, settings in LOSSES:
        check_rows(loss, name, settings, z, target)
        whole = rows_of(loss, name, settings, z[:1], target[:1])
        assert whole.isfinite().all()
        without = rows_of(loss, name, settings, z[:1, 1:], target[:1] - 1)
        torch.testing.assert_close(whole, without, rtol=1e-5, atol=1e-5)


@everywhere
@each_loss
def test_a_masked_label_trains_nothing(loss, device, name, settings):
    """GCE is finite there, 1/q; the others are infinite."""
    z = torch.tensor([[0.5, -torch.inf, 1.0]], device=device, requires_grad=True)
    values = rows_of(loss, name, settings, z, torch.tensor([1], device=device))
    if name != "cores":  # whose mean leaves the row out
        assert values.item() == (pytest.approx(1 / settings["q"]) if name == "gce" else np.inf)
    (gradient,) = torch.autograd.grad(values.sum(), z)
    assert (gradient == 0).all()


@everywhere
@pytest.mark.parametrize("name", ["sce", "nce_rce"])
def test_a_term_without_weight_is_left_out(loss, device, name):
    z = torch.tensor([[0.5, -torch.inf, 1.0]], device=device, requires_grad=True)
    value = getattr(loss, f"{name}_loss")(z, torch.tensor([1], device=device), alpha=0.0, beta=2.0)
    assert_close(value, 2 * REVERSE)
    assert (torch.autograd.grad(value, z)[0] == 0).all()


# --- reduction, ignored rows, rows without a finite loss --------------------------------------------------------------


@everywhere
@pytest.mark.parametrize(("name", "settings"), ONE_OF_EACH[:3], ids=["gce", "sce", "nce_rce"])
def test_the_mean_is_over_the_rows_that_are_not_ignored(loss, device, name, settings):
    logits, _, target = random_logits(20, 5, device=device)
    target[::4] = -100
    losses, gradients = expected(logits, target, name, settings, -100)
    value = getattr(loss, f"{name}_loss")(logits, target, **settings, ignore_index=-100)
    assert_close(value, losses.sum() / 15, scale_of(name, settings))
    assert_close(torch.autograd.grad(value, logits)[0], gradients / 15)
    nothing = getattr(loss, f"{name}_loss")(logits, torch.full_like(target, -100), **settings, ignore_index=-100)
    assert nothing.item() == 0
    assert (torch.autograd.grad(nothing, logits)[0] == 0).all()


@everywhere
@pytest.mark.parametrize(("name", "settings"), ONE_OF_EACH[:3], ids=["gce", "sce", "nce_rce"])
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_a_row_with_a_non_finite_logit_keeps_its_loss_and_gets_no_gradient(loss, device, name, settings, wrong):
    logits = torch.tensor([[1.0, wrong, 0.0], [1.0, 2.0, 3.0]], device=device, requires_grad=True)
    target = torch.tensor([0, 1], device=device)
    _, gradients = expected(logits, target, name, settings)
    rows = rows_of(loss, name, settings, logits, target)
    assert rows.isfinite().tolist() == [False, True]
    assert not getattr(loss, f"{name}_loss")(logits, target, **settings).isfinite()
    (gradient,) = torch.autograd.grad(rows.sum(), logits)
    assert (gradient[0] == 0).all()
    assert_close(gradient[1], gradients[1])


@everywhere
@with_every_float_type
def test_the_sieve_of_cores(loss, device, dtype):
    """Rows with n <= S / C; not those that are ignored or not finite, and the latter are counted."""
    logits, _, target = random_logits(40, 10, dtype, device)
    z = logits.detach().clone()
    target[0] = -1
    z[1, 3], z[2, target[2]], z[3, 4] = torch.nan, -torch.inf, torch.inf
    z.requires_grad_()
    losses, gradients = expected(z, target, "cores", {"beta": 2.0}, -1)
    plain, _ = expected(z, target, "cores", {"beta": 0.0}, -1)
    with np.errstate(invalid="ignore"):
        kept = np.isfinite(losses) & (plain <= (plain - losses) / 2)
    kept[0] = False
    assert 0 < kept.sum() < 36
    out = loss.cores_loss(z, target, ignore_index=-1)
    assert out.selected.tolist() == kept.tolist()
    assert (out.num_selected.item(), out.num_nonfinite.item()) == (kept.sum(), 3)
    assert_close(out.per_sample[kept], losses[kept])
    assert out.per_sample[0] == 0
    assert_close(out.loss, losses[kept].mean())
    assert_close(torch.autograd.grad(out.loss, z)[0], gradients * kept[:, None] / kept.sum())
    every = loss.cores_loss(z, target, ignore_index=-1, sieve=False)
    assert (every.num_selected.item(), every.num_nonfinite.item()) == (36, 3)
    assert_close(every.loss, losses[np.isfinite(losses)].sum() / 36)


@everywhere
@with_every_float_type
def test_equal_logits_are_in_the_sieve(loss, device, dtype):
    """n is S / C there: an untrained network trains on every row."""
    for classes in range(1, 40):
        z = torch.full((3, classes), 0.7, dtype=dtype, device=device)
        target = torch.tensor([0, classes // 2, classes - 1], device=device)
        assert loss.cores_loss(z, target).selected.all(), classes


@everywhere
def test_a_sieve_that_keeps_nothing(loss, device):
    z = torch.tensor([[5.0, 0.0, 0.0]], device=device, requires_grad=True)
    out = loss.cores_loss(z, torch.tensor([1], device=device))
    assert (out.loss.item(), out.num_selected.item(), out.num_nonfinite.item()) == (0, 0, 0)
    assert (torch.autograd.grad(out.loss, z)[0] == 0).all()


@everywhere
@one_of_each
def test_an_empty_batch_has_loss_0(loss, device, name, settings):
    logits, _, target = random_logits(0, 3, device=device)
    value = getattr(loss, f"{name}_loss")(logits, target, **settings)
    value = value.loss if name == "cores" else value
    assert value.item() == 0
    assert torch.autograd.grad(value, logits)[0].shape == (0, 3)


# --- inputs -----------------------------------------------------------------------------------------------------------


def value_and_gradient(loss: Any, name: str, settings: dict[str, float], z: Tensor, y: Tensor) -> list[Tensor]:
    out = getattr(loss, f"{name}_loss")(z, y, **settings)
    results = list(out) if name == "cores" else [out]
    return [each.detach() for each in results] + list(torch.autograd.grad(results[0], z))


@everywhere
@one_of_each
def test_layout_in_memory_and_type_of_the_labels_change_no_bit(loss, device, name, settings):
    for layout in (*LAYOUTS, *BROADCASTS):
        check_layout(loss, device, name, settings, layout)


def check_layout(loss: Any, device: str, name: str, settings: dict[str, float], layout: str) -> None:
    logits, _, target = random_logits(9, 10, device=device)
    if layout in BROADCASTS:
        logits = BROADCASTS[layout](logits.detach()).contiguous().requires_grad_()
    other = {**LAYOUTS, **BROADCASTS}[layout](logits.detach()).requires_grad_()
    before = other.detach().clone()
    plain = value_and_gradient(loss, name, settings, logits, target)
    for labels in INTEGER_TYPES:
        for one, same in zip(plain, value_and_gradient(loss, name, settings, other, target.to(labels)), strict=True):
            assert torch.equal(one, same)
    spread = target.repeat_interleave(3)[::3]
    assert torch.equal(plain[0], value_and_gradient(loss, name, settings, other, spread)[0])
    assert torch.equal(other, before)


@one_of_each
def test_equal_rows_have_equal_bits_wherever_they_lie(name, settings):
    z, _, target = random_logits(1, 13)
    numbers = settings.get("q", settings.get("alpha", 0.0)), settings.get("beta", 0.0)
    kind = jocor_fast.reference.ROBUST_KINDS.index(name)
    out = torch.ops.jocor_fast.robust_loss(z.expand(70, 13), target.expand(70), None, kind, *numbers, False, True)
    assert len(out[1].unique()) == 1
    assert len(out[5].unique(dim=0)) == 1


@everywhere
@pytest.mark.parametrize(
    ("name", "change", "error", "match"),
    [
        ("gce", {"q": 0.0}, ValueError, r"^q must lie in \(0, 1\], got 0.0"),
        ("gce", {"q": 1.5}, ValueError, "^q must"),
        ("gce", {"q": float("nan")}, ValueError, "^q must"),
        ("gce", {"q": "1"}, TypeError, "^q must be a float, got str"),
        ("sce", {"alpha": -1.0}, ValueError, "^alpha must be finite and at least 0, got -1.0"),
        ("sce", {"beta": float("inf")}, ValueError, "^beta must"),
        ("nce_rce", {"beta": True}, TypeError, "^beta must"),
        ("cores", {"beta": float("nan")}, ValueError, "^beta must"),
        ("cores", {"sieve": 1}, TypeError, "^sieve must be a bool"),
        ("gce", {"reduction": "sum"}, ValueError, "^reduction must"),
        ("gce", {"ignore_index": 1.0}, TypeError, "^ignore_index must"),
        ("gce", {"target": [0, 1]}, TypeError, "^target must be a tensor"),
        ("gce", {"logits": [[0.0]]}, TypeError, "^logits must be a tensor"),
        ("gce", {"target": torch.tensor([0.0, 1.0])}, TypeError, "^target must be of an integer type"),
        ("gce", {"target": torch.tensor([0])}, ValueError, r"^target must have shape \[2\]"),
        ("gce", {"logits": torch.zeros(2, 3, dtype=torch.long)}, TypeError, "^logits must be of type"),
        ("gce", {"logits": torch.zeros(3)}, ValueError, "^logits must have shape"),
        ("gce", {"logits": torch.zeros(2, 0)}, ValueError, "^logits must have shape"),
    ],
)
def test_wrong_arguments_are_named(loss, device, name, change, error, match):
    logits, _, target = random_logits(2, 3, device=device)
    arguments: dict[str, Any] = {"logits": logits, "target": target}
    arguments |= {key: value.to(device) if isinstance(value, Tensor) else value for key, value in change.items()}
    with pytest.raises(error, match=match):
        getattr(loss, f"{name}_loss")(**arguments)


@everywhere
@one_of_each
@pytest.mark.parametrize("label", [-1, 3])
def test_an_invalid_label_is_an_error_or_a_loss_that_is_nan(loss, device, name, settings, label):
    logits, _, target = random_logits(4, 3, device=device)
    target[2] = label
    function = getattr(loss, f"{name}_loss")
    if device == "cpu":
        with pytest.raises(ValueError, match=rf"^target must hold labels in \[0, 3\), got {label} in row 2$"):
            function(logits, target, **settings)
        return
    if name == "cores":
        out = function(logits, target, **settings)
        assert out.per_sample.isnan().tolist() == [False, False, True, False]
        assert (out.num_nonfinite.item(), out.selected[2].item()) == (1, False)
        return
    losses = function(logits, target, **settings, reduction="none")
    assert losses.isnan().tolist() == [False, False, True, False]
    assert (torch.autograd.grad(losses.sum(), logits)[0][2] == 0).all()


# --- autograd ---------------------------------------------------------------------------------------------------------


@everywhere
@one_of_each
def test_gradcheck(loss, device, name, settings):
    logits, _, target = random_logits(5, 4, torch.float64, device)
    function = getattr(loss, f"{name}_loss")

    def value(z: Tensor) -> Tensor:
        out = function(z, target, **settings)
        return out.loss if name == "cores" else out

    assert torch.autograd.gradcheck(value, (logits,))
    if name != "cores":
        assert torch.autograd.gradcheck(lambda z: rows_of(loss, name, settings, z, target), (logits,))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@one_of_each
def test_a_second_derivative_is_refused(device, name, settings):
    logits, _, target = random_logits(5, 4, device=device)
    value = getattr(jocor_fast, f"{name}_loss")(logits, target, **settings)
    value = value.loss if name == "cores" else value
    (gradient,) = torch.autograd.grad(value, logits, create_graph=True)
    with pytest.raises(RuntimeError, match="twice"):
        gradient.square().sum().backward()


def test_logits_changed_in_place_before_backward_are_an_error():
    leaf, _, target = random_logits(4, 3)
    logits = leaf * 1
    value = jocor_fast.gce_loss(logits, target)
    logits.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


def test_a_long_batch_is_shared_between_threads_and_stays_the_same():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        logits, _, target = random_logits(30_000, 10)
        whole = jocor_fast.nce_rce_loss(logits, target, reduction="none")
        parts = zip(logits.split(1000), target.split(1000), strict=True)
        assert torch.equal(whole, torch.cat([jocor_fast.nce_rce_loss(z, y, reduction="none") for z, y in parts]))
        target[[20_000, 29_000]] = -7
        with pytest.raises(ValueError, match="got -7 in row 20000"):
            jocor_fast.nce_rce_loss(logits, target)
    finally:
        torch.set_num_threads(before)


@everywhere
def test_a_small_loss_selection_of_their_rows(loss, device):
    logits, _, target = random_logits(30, 5, device=device)
    rows = loss.gce_loss(logits, target, reduction="none")
    selected = loss.select_small_loss(rows.detach(), 10)
    (gradient,) = torch.autograd.grad(rows[selected].mean(), logits)
    assert (gradient != 0).any(1).tolist() == selected.tolist()
