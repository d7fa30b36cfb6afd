"""Class weights, label smoothing, soft targets and the selection per group, compiled and of the reference."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import jocor_fast
from loss_cases import assert_close, everywhere, random_logits, row_scale, select, with_every_float_type
from loss_cases import oracle as plain_oracle

INF, NAN = float("inf"), float("nan")


def soft_targets(rows: int, classes: int, dtype: torch.dtype = torch.float64, device: str = "cpu") -> Tensor:
    """Rows of probabilities: sharp ones, even ones, and one that is a label."""
    drawn = torch.rand(rows, classes, generator=torch.Generator().manual_seed(5), dtype=torch.float64).pow(3)
    drawn[0] = torch.eye(classes)[classes // 2]
    return (drawn / drawn.sum(1, keepdim=True)).to(device, dtype)


def class_weights(classes: int, dtype: torch.dtype = torch.float64, device: str = "cpu") -> Tensor:
    return torch.linspace(0, 3, classes, dtype=torch.float64).to(device, dtype)


def oracle(z1: Tensor, z2: Tensor, target: Tensor, co_lambda: float, weights: Tensor | None, smoothing: float) -> Any:
    """The rows' losses and gradients in float64, as sums over classes of the losses of single labels."""
    shares = target.double().cpu() if target.dim() == 2 else functional.one_hot(target.cpu(), z1.shape[1]).double()
    masked = ((z1 == -INF) | (z2 == -INF)).cpu()
    part = torch.where(masked, 0.0, torch.full_like(shares, smoothing / shares.shape[1]))
    label = shares.argmax(1)
    shares = (1 - smoothing) * shares + part
    shares[torch.arange(len(shares)), label] += smoothing - part.sum(1)
    shares = shares * (1 if weights is None else weights.double().cpu())
    losses, gradients = np.zeros(len(z1)), [np.zeros(z1.shape), np.zeros(z1.shape)]
    for number in range(z1.shape[1]):  # of a class without a share nothing is evaluated
        own = plain_oracle(z1, z2, torch.full_like(label, number), co_lambda)
        share = shares[:, number].numpy()
        losses += share * np.where(share == 0, 0, own.losses)
        for total, gradient in zip(gradients, (own.gradient1, own.gradient2), strict=True):
            total += share[:, None] * gradient
    lost = ~np.isfinite(losses)
    gradients[0][lost] = gradients[1][lost] = 0
    return plain_oracle(z1, z2, label, co_lambda).__class__(losses, *gradients, np.ones(len(z1), dtype=bool))


CASES = [
    pytest.param(soft, weighted, smoothing, id=f"{'soft' if soft else 'labels'}-{weighted}-{smoothing}")
    for soft, weighted, smoothing in itertools.product((False, True), ("weights", "none"), (0.0, 0.1, 1.0))
    if soft or weighted == "weights" or smoothing
]


@everywhere
@with_every_float_type
@pytest.mark.parametrize(("soft", "weighted", "smoothing"), CASES)
def test_rows_equal_the_oracle(loss, device, dtype, soft, weighted, smoothing):
    for classes, co_lambda, spread in itertools.product((2, 10, 40), (0.0, 0.9, 1.0), (2.0, 3000.0)):
        z1, z2, target = random_logits(17, classes, dtype, device, seed=classes, spread=spread)
        target = soft_targets(17, classes, torch.float64, device) if soft else target
        weights = class_weights(classes, torch.float64, device) if weighted == "weights" else None
        losses = loss.joint_loss(z1, z2, target, co_lambda=co_lambda, class_weights=weights, label_smoothing=smoothing)
        factor = torch.linspace(-1, 2, 17, dtype=losses.dtype, device=device)
        gradients = torch.autograd.grad(losses, (z1, z2), factor)
        expected = oracle(z1, z2, target, co_lambda, weights, smoothing)
        heaviest = 3 * row_scale(plain_oracle(z1, z2, torch.zeros(17, dtype=torch.long), 0.0))
        scale = np.maximum(row_scale(expected), heaviest)  # logits cancel, of which these are the largest
        assert losses.dtype == torch.promote_types(dtype, torch.float32)
        assert_close(losses, expected.losses, scale[:, 0])
        for gradient, right in zip(gradients, (expected.gradient1, expected.gradient2), strict=True):
            assert gradient.dtype == dtype
            assert_close(gradient, factor.double().cpu().numpy()[:, None] * right, 3 * scale)


@everywhere
@pytest.mark.parametrize(("soft", "weighted", "smoothing"), CASES)
def test_without_agreement_and_selection_they_are_torchs_cross_entropies(loss, device, soft, weighted, smoothing):
    z1, z2, target = random_logits(50, 7, torch.float64, device)
    target = soft_targets(50, 7, device=device) if soft else target
    terms = {"label_smoothing": smoothing}
    weights = class_weights(7, device=device) if weighted == "weights" else None
    expected = [functional.cross_entropy(z, target, weight=weights, **terms) for z in (z1, z2)]
    out = loss.jocor_loss(z1, z2, target, co_lambda=0.0, num_keep=50, class_weights=weights, **terms)
    assert_close(out.loss, sum(expected).item())
    exchanged = loss.coteaching_loss(z1, z2, target, num_keep=50, class_weights=weights, **terms)
    assert_close(exchanged.loss, sum(expected).item())
    for gradient, right in zip(
        torch.autograd.grad(exchanged.loss, (z1, z2)), torch.autograd.grad(sum(expected), (z1, z2)), strict=True
    ):
        assert_close(gradient, right.cpu().numpy())


@everywhere
@pytest.mark.parametrize("ignore_index", [None, 2])
def test_the_weights_count_in_the_mean_and_not_in_the_ranking(loss, device, ignore_index):
    z1, z2, target = random_logits(40, 6, torch.float64, device)
    weights = class_weights(6, device=device)
    plain = loss.jocor_loss(z1, z2, target, forget_rate=0.4, ignore_index=ignore_index)
    out = loss.jocor_loss(z1, z2, target, forget_rate=0.4, ignore_index=ignore_index, class_weights=weights)
    assert torch.equal(out.selected, plain.selected)
    assert torch.equal(out.per_sample, plain.per_sample)
    factor = weights[target] * out.selected / weights[target][out.selected].sum()
    assert_close(out.loss, (factor * plain.per_sample).sum().item())
    expected = torch.autograd.grad(loss.joint_loss(z1, z2, target, ignore_index=ignore_index), (z1, z2), factor)
    for gradient, right in zip(torch.autograd.grad(out.loss, (z1, z2)), expected, strict=True):
        assert_close(gradient, right.cpu().numpy())
        assert not gradient[~out.selected].any()
    unseen = loss.jocor_loss(z1, z2, target, num_keep=3, class_weights=torch.zeros_like(weights))
    unseen.loss.backward()
    assert (unseen.loss.item(), bool(z1.grad.any())) == (0.0, False)


@everywhere
@with_every_float_type
def test_smoothed_rows_are_ranked_by_their_smoothed_losses(loss, device, dtype):
    z1, z2, target = random_logits(64, 10, dtype, device)
    for soft in (False, True):
        aim = soft_targets(64, 10, device=device) if soft else target
        out = loss.jocor_loss(z1, z2, aim, num_keep=29, label_smoothing=0.2)
        rows = loss.joint_loss(z1, z2, aim, label_smoothing=0.2)
        np.testing.assert_array_equal(out.selected.cpu(), select(rows.detach().double().cpu().numpy(), 29))
        assert_close(out.per_sample, rows.detach().double().cpu().numpy())


@everywhere
@pytest.mark.parametrize("co_lambda", [0.0, 0.9, 1.0])
def test_gaps_of_ten_thousand_and_masked_classes_are_finite(loss, device, co_lambda):
    z1 = torch.tensor([[1e4, 0, 0], [0, 1e4, -1e4], [0, -INF, 1], [0.1, 0.2, 0.3]], device=device, requires_grad=True)
    z2 = torch.tensor([[0, 0, 1e4], [0, 1e4, 0], [0, -INF, 2], [-INF, 0.2, 0.3]], device=device, requires_grad=True)
    target = torch.tensor([0, 2, 0, 1], device=device)
    if co_lambda:  # a class that one network alone has masked makes the agreement infinite
        z2 = z2.detach().clamp(min=-1e4).where(torch.arange(4, device=device)[:, None] == 3, z2.detach())
        z2 = z2.clamp(min=-1e4).where(z1.detach() > -INF, -INF).requires_grad_()
    soft = torch.tensor([[0.5, 0.25, 0.25], [0, 0.5, 0.5], [0.5, 0, 0.5], [0.25, 0.5, 0.25]], device=device)
    soft[3] = torch.tensor([0.0, 0.5, 0.5])
    for aim, smoothing in ((target, 0.1), (soft, 0.0), (soft, 0.1)):
        out = loss.jocor_loss(z1, z2, aim, co_lambda=co_lambda, num_keep=4, label_smoothing=smoothing)
        gradients = torch.autograd.grad(out.loss, (z1, z2))
        assert out.selected.all()
        assert all(gradient.isfinite().all() for gradient in (out.loss, *gradients))
        expected = oracle(z1, z2, aim, co_lambda, None, smoothing)
        assert_close(out.per_sample, expected.losses, 4e4)
        assert_close(gradients[0], expected.gradient1 / 4, 4e4)


@everywhere
def test_rows_that_are_not_finite_keep_their_loss_and_get_no_gradient(loss, device):
    z1, z2, target = random_logits(6, 4, device=device)
    with torch.no_grad():
        z1[0], z2[1, 2], z1[2, target[2]], z1[3, 1] = NAN, INF, -INF, -INF
    soft = torch.full((6, 4), 0.25, device=device)
    weights = class_weights(4, torch.float32, device) + 1
    for aim, smoothing in ((target, 0.1), (soft, 0.0), (soft, 0.1)):
        lost = [True, True, True, aim is soft, False, False]
        options = {"co_lambda": 0.0, "class_weights": weights, "label_smoothing": smoothing}
        out = loss.jocor_loss(z1, z2, aim, num_keep=6, **options)
        rows = loss.joint_loss(z1, z2, aim, **options)
        assert out.num_nonfinite.item() == sum(lost)
        assert (~out.per_sample.isfinite()).tolist() == (~rows.isfinite()).tolist() == lost
        assert out.per_sample[2].item() == INF
        for total in (out.loss, rows.sum(), loss.coteaching_loss(z1, z2, aim, num_keep=6, **options_of(options)).loss):
            for gradient in torch.autograd.grad(total, (z1, z2)):
                assert gradient.isfinite().all()
                assert not gradient[torch.tensor(lost, device=device)].any()


def options_of(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "co_lambda"}


@everywhere
@pytest.mark.parametrize("disagreement", [False, True])
@pytest.mark.parametrize("keep", [{"num_keep": 9}, {"forget_rate": 0.375}, {"forget_rate": 0.375, "rounding": "floor"}])
def test_coteaching_chooses_as_without_the_terms(loss, device, disagreement, keep):
    z1, z2, target = random_logits(40, 6, torch.float64, device)
    weights = class_weights(6, device=device)
    keep = {**keep, "disagreement": disagreement, "ignore_index": 2}
    plain = loss.coteaching_loss(z1, z2, target, **keep)
    out = loss.coteaching_loss(z1, z2, target, class_weights=weights, **keep)
    for name in ("selected1", "selected2", "per_sample1", "num_selected2", "num_nonfinite"):
        assert_close(getattr(out, name).double(), getattr(plain, name).double().cpu().numpy())
    means = [
        (weights[target] * rows)[chosen].sum() / weights[target][chosen].sum()
        for rows, chosen in ((plain.per_sample1, plain.selected2), (plain.per_sample2, plain.selected1))
    ]
    assert_close(out.loss, sum(means).item())


@everywhere
def test_what_is_wrong_with_the_terms(loss, device):
    z1, z2, target = random_logits(5, 3, device=device)
    even = torch.full((5, 3), 1 / 3, device=device)

    def refused(kind: type[Exception], message: str, aim: Tensor = target, **terms: Any) -> None:
        for function in (loss.jocor_loss, loss.coteaching_loss):
            with pytest.raises(kind, match=message):
                function(z1, z2, aim, num_keep=2, **terms)
        with pytest.raises(kind, match=message):
            loss.joint_loss(z1, z2, aim, **terms)

    refused(TypeError, "class_weights must be a tensor, got list", class_weights=[1.0, 1.0, 1.0])
    refused(TypeError, "class_weights must be of type .*, got int64", class_weights=torch.ones(3).long())
    refused(ValueError, r"class_weights must have shape \[3\], got \[2\]", class_weights=torch.ones(2))
    refused(ValueError, r"label_smoothing must lie in \[0, 1\], got 1.5", label_smoothing=1.5)
    refused(TypeError, "label_smoothing must be a float, got bool", label_smoothing=True)
    refused(ValueError, r"target must have shape \[5, 3\] like the logits, got \[5, 2\]", even[:, :2])
    refused(ValueError, "ignore_index must be left out where target holds probabilities", even, ignore_index=1)
    refused(TypeError, "target must be of an integer type, got float32", even[:, 0])
    if device == "cpu":
        refused(ValueError, "class_weights must be finite and at least 0, got -1", class_weights=-torch.ones(3))
        refused(ValueError, "target must hold rows of probabilities that sum to 1, got .* in row 0", 2 * even)
        refused(ValueError, r"target must hold labels in \[0, 3\), got . in row 0", target + 3, label_smoothing=0.1)


def test_a_module_has_the_terms_and_moves_its_weights():
    z1, z2, target = random_logits(9, 4)
    module = jocor_fast.JoCoRLoss(0.5, class_weights=torch.arange(4.0), label_smoothing=0.1)
    expected = jocor_fast.jocor_loss(
        z1, z2, target, co_lambda=0.5, num_keep=5, class_weights=torch.arange(4.0), label_smoothing=0.1
    )
    assert torch.equal(module(z1, z2, target, num_keep=5).loss, expected.loss)
    assert module.double().class_weights.dtype == torch.float64
    assert "label_smoothing=0.1" in repr(module)


def test_a_plain_loss_runs_the_compiled_operator_alone(monkeypatch):
    def forbidden(*arguments: Any, **terms: Any) -> None:
        raise AssertionError("the composed loss")

    for name in ("jocor", "coteaching", "joint_rows"):
        monkeypatch.setattr(jocor_fast.composed_losses, name, forbidden)
    z1, z2, target = random_logits(9, 4)
    jocor_fast.jocor_loss(z1, z2, target, num_keep=5, class_weights=None, label_smoothing=0.0)
    jocor_fast.coteaching_loss(z1, z2, target, num_keep=5)
    jocor_fast.joint_loss(z1, z2, target)


def test_compiled_whole_and_under_autocast():
    def step(z1: Tensor, z2: Tensor, target: Tensor, soft: Tensor, weights: Tensor, k: Any) -> tuple[Tensor, ...]:
        first = jocor_fast.jocor_loss(z1, z2, target, num_keep=k, class_weights=weights, label_smoothing=0.1)
        second = jocor_fast.jocor_loss(z1, z2, soft, forget_rate=0.3, class_weights=weights)
        third = jocor_fast.coteaching_loss(
            z1, z2, target, forget_rate=0.3, disagreement=True, ignore_index=0, class_weights=weights
        )
        rows = jocor_fast.joint_loss(z1, z2, soft, label_smoothing=0.2)
        chosen = jocor_fast.select_small_loss(rows.detach(), k, groups=target)
        return first.loss + second.loss + third.loss + (rows * chosen).sum(), first.selected, chosen

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows, classes, k in ((12, 5, 4), (64, 10, torch.tensor(30))):
        z1, z2, target = random_logits(rows, classes)
        inputs = (z1, z2, target, soft_targets(rows, classes, torch.float32), class_weights(classes, torch.float32), k)
        with torch.autocast("cpu", torch.bfloat16):
            results, expected = compiled(*inputs), step(*inputs)
        assert results[0].dtype == torch.float32
        torch.testing.assert_close(results, expected)
        torch.testing.assert_close(
            torch.autograd.grad(results[0], (z1, z2)), torch.autograd.grad(expected[0], (z1, z2))
        )


# --- per group --------------------------------------------------------------------------------------------------------


@everywhere
def test_each_group_keeps_its_share_of_its_smallest_losses(loss, device):
    generator = torch.Generator().manual_seed(3)
    for rows, groups in ((1, 1), (7, 7), (50, 3), (128, 10), (1000, 100)):
        losses = torch.randn(rows, generator=generator).mul(2).round().to(device)  # ties
        losses[rows // 2 + 1 :: 9] = NAN
        group = (torch.randint(groups, (rows,), generator=generator) - 3).to(device)
        eligible = (torch.rand(rows, generator=generator) < 0.8).to(device)
        taking_part = (losses.isfinite() & eligible).cpu()
        for k in {1, max(1, rows // 3), max(1, 4 * rows // 5), rows}:
            mask = loss.select_small_loss(losses, k, eligible=eligible, groups=group).cpu()
            assert mask.sum() == min(k, int(taking_part.sum()))
            for name in group.unique():
                own = (group == name).cpu()
                kept, share = int((mask & own).sum()), min(k, int(taking_part.sum())) * int((taking_part & own).sum())
                assert abs(kept - share / max(1, int(taking_part.sum()))) < 1
                smallest = select(losses.double().cpu().numpy(), kept, (taking_part & own).numpy())
                np.testing.assert_array_equal((mask & own).numpy(), smallest)


@everywhere
def test_the_largest_remainders_get_the_rows_that_are_left_and_of_equals_the_smaller_loss(loss, device):
    losses = torch.tensor([5.0, 4, 3, 2, 1, 9, 8, 7], device=device)
    group = torch.tensor([0, 0, 0, 0, 0, 1, 1, 2], device=device, dtype=torch.uint8)
    # of 4 of 8: 2.5, 1 and 0.5 rows; groups 0 and 2 have the same remainder
    assert loss.select_small_loss(losses, 4, groups=group).tolist() == [False] * 2 + [True] * 3 + [False, True, False]
    losses[:3] += 5
    assert loss.select_small_loss(losses, 4, groups=group).tolist() == [False] * 3 + [True] * 2 + [False, True, True]
    every_row_alone = torch.arange(8, device=device)
    assert torch.equal(loss.select_small_loss(losses, 3, groups=every_row_alone), loss.select_small_loss(losses, 3))


@everywhere
def test_what_is_wrong_with_groups(loss, device):
    losses = torch.zeros(3, device=device)
    with pytest.raises(TypeError, match=r"groups must be of type .*, got float32"):
        loss.select_small_loss(losses, 1, groups=losses)
    with pytest.raises(ValueError, match=r"groups must have shape \[3\] like losses, got \[2\]"):
        loss.select_small_loss(losses, 1, groups=torch.zeros(2, dtype=torch.long, device=device))


def test_with_a_precedence_a_group_of_one_row_keeps_it_as_often_as_its_share():
    """1,000 batches of 32 rows, one of which is the only one of its group, as of a rare class."""
    generator = torch.Generator().manual_seed(0)
    group = (torch.arange(32) >= 31).long()
    for k in (6, 16, 29):
        kept = lowest = 0
        for rank in torch.randperm(1000, generator=generator) / 1000:
            precedence = torch.cat([torch.rand(31, generator=generator), rank[None]])
            losses = torch.rand(32, generator=generator)
            mask = jocor_fast.composed_losses.select_per_group(losses, k, None, group, precedence)
            assert mask.sum() == k
            kept += int(mask[31])
            lowest += int(mask[31] and rank < k / 32)
        assert math.isclose(kept / 1000, k / 32, abs_tol=0.01)
        assert lowest > 0.99 * kept
