"""`elr_loss` and `dml_loss` against float64 loops over rows and classes, and at the ends of what logits can be."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import jocor_fast as jf

Loss = Callable[..., Tensor]


def probabilities(row: list[float]) -> list[float]:
    highest = max(row)
    parts = [math.exp(z - highest) for z in row]
    return [part / math.fsum(parts) for part in parts]


def elr_by_hand(z: list[float], y: int, t: list[float], strength: float) -> tuple[float, list[float]]:
    """The row's loss and gradient, as issue and paper have them: (p − e) − L/(1 − s) · p (t − s)."""
    p = probabilities(z)
    s = math.fsum(a * b for a, b in zip(t, p, strict=True))
    gradient = [p[c] - (c == y) - strength / (1 - s) * p[c] * (t[c] - s) for c in range(len(z))]
    return -math.log(p[y]) + strength * math.log(1 - s), gradient


def dml_by_hand(z1: list[float], z2: list[float], y: int) -> tuple[float, list[float], list[float]]:
    p, q = probabilities(z1), probabilities(z2)
    classes = range(len(p))
    loss = -math.log(p[y]) - math.log(q[y])
    loss += math.fsum(q[c] * math.log(q[c] / p[c]) + p[c] * math.log(p[c] / q[c]) for c in classes)
    first, second = ([a[c] - (c == y) + a[c] - b[c] for c in classes] for a, b in ((p, q), (q, p)))
    return loss, first, second


def a_batch(rows: int = 9, classes: int = 5, scale: float = 3.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    z1, z2 = (scale * torch.randn(rows, classes, generator=generator, dtype=torch.float64) for _ in range(2))
    mean = 0.8 * torch.randn(rows, classes, generator=generator, dtype=torch.float64).softmax(1)
    return z1.requires_grad_(), z2.requires_grad_(), torch.randint(classes, (rows,), generator=generator), mean


@pytest.mark.parametrize("module", [jf, jf.reference], ids=["operators", "reference"])
def test_elr_is_its_formula_to_the_last_digits(module: Loss) -> None:
    z, _, y, t = a_batch()
    expected = [elr_by_hand(*row, 2.5) for row in zip(z.tolist(), y.tolist(), t.tolist(), strict=True)]
    losses = module.elr_loss(z, y, t, strength=2.5, reduction="none")
    (gradient,) = torch.autograd.grad(losses.sum(), z)
    torch.testing.assert_close(
        losses, torch.tensor([row[0] for row in expected], dtype=z.dtype), rtol=1e-12, atol=1e-12
    )
    torch.testing.assert_close(
        gradient, torch.tensor([row[1] for row in expected], dtype=z.dtype), rtol=1e-12, atol=1e-12
    )
    mean = module.elr_loss(z, y, t, strength=2.5)
    torch.testing.assert_close(mean, losses.mean(), rtol=1e-12, atol=0)
    torch.testing.assert_close(torch.autograd.grad(mean, z)[0], gradient / len(z), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("module", [jf, jf.reference], ids=["operators", "reference"])
def test_dml_is_its_formula_to_the_last_digits(module: Loss) -> None:
    z1, z2, y, _ = a_batch()
    expected = [dml_by_hand(*row) for row in zip(z1.tolist(), z2.tolist(), y.tolist(), strict=True)]
    losses = module.dml_loss(z1, z2, y, reduction="none")
    found = (losses, *torch.autograd.grad(losses.sum(), (z1, z2)))
    for one, column in zip(found, zip(*expected, strict=True), strict=True):
        torch.testing.assert_close(one, torch.tensor(column, dtype=one.dtype), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(module.dml_loss(z1, z2, y), losses.mean(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("module", [jf, jf.reference], ids=["operators", "reference"])
def test_gaps_of_ten_thousand_and_masked_classes_stay_finite(module: Loss, dtype: torch.dtype) -> None:
    z = torch.tensor([[1e4, 0, 0], [0, 1e4, 0], [-1e4, 0, 1e4], [0, 1, -math.inf], [-math.inf, 5e3, -math.inf]]).to(
        dtype
    )
    y = torch.tensor([0, 0, 1, 1, 1])
    z1, z2 = z.clone().requires_grad_(), (z / 2).clone().requires_grad_()
    sure = torch.zeros(5, 3).scatter_(1, z.argmax(1)[:, None], 1.0)  # the prediction's own class, with 1 − s = 0
    for loss in (
        module.elr_loss(z1, y, sure, reduction="none"),
        module.dml_loss(z1, z2, y, reduction="none"),
    ):
        assert loss.isfinite().all()
        assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        for gradient in torch.autograd.grad(loss.sum(), (z1, z2), allow_unused=True):
            assert gradient is None or gradient.isfinite().all()
    one, reference = (of.elr_loss(z1, y, torch.full((5, 3), 0.2)) for of in (jf, jf.reference))
    torch.testing.assert_close(one, reference, rtol=1e-6, atol=0)


@pytest.mark.parametrize("module", [jf, jf.reference], ids=["operators", "reference"])
def test_a_row_without_a_finite_loss_keeps_it_and_gets_no_gradient(module: Loss) -> None:
    z1, z2, y, t = (tensor.detach().clone() for tensor in a_batch())
    z1[0, y[0]] = -math.inf
    z1[1] = math.nan
    z1[2, 0] = math.inf
    z1.requires_grad_()
    for loss in (module.elr_loss(z1, y, t, reduction="none"), module.dml_loss(z1, z2, y, reduction="none")):
        assert loss.isfinite().tolist() == [False] * 3 + [True] * 6
        (gradient,) = torch.autograd.grad(loss[3:].sum() + loss[:3].sum(), z1)
        assert not gradient[:3].any()
        assert gradient[3:].any(1).all()
    assert not module.elr_loss(z1, y, t).isfinite()


def test_what_is_wrong_with_the_arguments_is_named() -> None:
    z, _, y, t = a_batch()
    for module in (jf, jf.reference):
        with pytest.raises(ValueError, match=r"moving_mean must have shape \[9, 5\] like logits, got \[8, 5\]"):
            module.elr_loss(z, y, t[:8])
        with pytest.raises(ValueError, match="strength must be finite and at least 0, got -1"):
            module.elr_loss(z, y, t, strength=-1)
        with pytest.raises(ValueError, match=r"target must hold labels in \[0, 5\), got 5 in row 0"):
            module.dml_loss(z, z, torch.full_like(y, 5))
        with pytest.raises(TypeError, match="target must be of an integer type, got float64"):
            module.elr_loss(z, t[:, 0], t)
        with pytest.raises(ValueError, match=r"logits2 must have shape \[9, 5\] like logits1"):
            module.dml_loss(z, z[:8], y)
        assert module.elr_loss(z[:0], y[:0], t[:0]) == 0
    (gradient,) = torch.autograd.grad(jf.elr_loss(z, y, t) ** 2, z, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
