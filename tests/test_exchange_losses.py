"""Co-teaching and Decoupling, compiled and in plain PyTorch, against NumPy: cases 30, 31 and 32, and the edges."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from loss_cases import (
    INTEGER_TYPES,
    LAYOUTS,
    assert_close,
    dtype_name,
    everywhere,
    oracle,
    random_logits,
    select,
    with_every_float_type,
)

NAN, INF = float("nan"), float("inf")


class Expected:
    """The rules of the two losses for a batch, in NumPy and float64."""

    def __init__(self, z1: Tensor, z2: Tensor, target: Tensor, ignore_index: int | None = None) -> None:
        first, second = (oracle(z, z, target, 0.0, ignore_index) for z in (z1, z2))
        self.losses = (first.losses / 2, second.losses / 2)  # a network with itself: twice its cross-entropy
        self.gradients = (first.gradient1, second.gradient1)
        finite = np.isfinite(self.losses[0] + self.losses[1])
        predictions = [z.detach().double().cpu().numpy().argmax(1) if len(z) else np.zeros(0) for z in (z1, z2)]
        self.eligible = first.eligible
        self.differing = first.eligible & (predictions[0] != predictions[1])
        self.finite = finite

    def coteaching(self, num_keep: int | None = None, forget_rate: float = 0.0, disagreement: bool = False) -> tuple:
        """loss, both choices, num_nonfinite, both gradients."""
        eligible = self.differing if disagreement and self.differing.any() else self.eligible
        n = int(eligible.sum())
        k = max(1, math.ceil((1 - forget_rate) * n - 1e-9 * n)) if num_keep is None else num_keep
        choices = [select(losses, k, eligible & self.finite) for losses in self.losses]
        loss = mean(self.losses[0], choices[1]) + mean(self.losses[1], choices[0])
        gradients = [average(self.gradients[0], choices[1]), average(self.gradients[1], choices[0])]
        return loss, choices, int((eligible & ~self.finite).sum()), gradients

    def decoupling(self) -> tuple:
        """loss, the rows, both gradients."""
        rows = self.differing & self.finite
        loss = mean(self.losses[0], rows) + mean(self.losses[1], rows)
        return loss, rows, [average(gradient, rows) for gradient in self.gradients]


def mean(losses: np.ndarray, rows: np.ndarray) -> float:
    return float(losses[rows].mean()) if rows.any() else 0.0


def average(gradient: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return np.where(rows[:, None], gradient, 0) / max(1, int(rows.sum()))


def assert_coteaching(out: Any, z1: Tensor, z2: Tensor, expected: Expected, **settings: Any) -> None:
    loss, choices, num_nonfinite, gradients = expected.coteaching(**settings)
    assert_close(out.loss, loss)
    assert_close(out.per_sample1, expected.losses[0])
    assert_close(out.per_sample2, expected.losses[1])
    assert out.selected1.tolist() == choices[0].tolist()
    assert out.selected2.tolist() == choices[1].tolist()
    assert (out.num_selected1.item(), out.num_selected2.item()) == (choices[0].sum(), choices[1].sum())
    assert out.num_nonfinite.item() == num_nonfinite
    for actual, gradient in zip(torch.autograd.grad(out.loss, (z1, z2), retain_graph=True), gradients, strict=True):
        assert_close(actual, gradient)


# --- values and gradients ---------------------------------------------------------------------------------------------


@everywhere
@with_every_float_type
@pytest.mark.parametrize(("rows", "classes"), [(64, 2), (33, 10), (600, 10), (17, 100)])
def test_coteaching_exchanges_the_choices(loss, device, dtype, rows, classes):
    z1, z2, target = random_logits(rows, classes, dtype, device)
    expected = Expected(z1, z2, target)
    for settings in (
        {"num_keep": rows // 2},
        {"forget_rate": 0.3},
        {"forget_rate": 0.3, "disagreement": True},
        {"num_keep": 3, "disagreement": True},
        {"num_keep": 10 * rows},
    ):
        assert_coteaching(loss.coteaching_loss(z1, z2, target, **settings), z1, z2, expected, **settings)


@everywhere
@with_every_float_type
@pytest.mark.parametrize(("rows", "classes"), [(64, 2), (33, 10), (600, 10), (17, 100)])
def test_decoupling_trains_where_predictions_differ(loss, device, dtype, rows, classes):
    z1, z2, target = random_logits(rows, classes, dtype, device)
    value, selected, gradients = Expected(z1, z2, target).decoupling()
    out = loss.decoupling_loss(z1, z2, target)
    assert_close(out.loss, value)
    assert out.selected.tolist() == selected.tolist()
    assert out.num_selected.item() == selected.sum() > 0
    for actual, gradient in zip(torch.autograd.grad(out.loss, (z1, z2)), gradients, strict=True):
        assert_close(actual, gradient)


@everywhere
def test_gradcheck(loss, device):
    z1, z2, target = random_logits(7, 4, torch.float64, device)

    def coteaching(logits1, logits2):
        return loss.coteaching_loss(logits1, logits2, target, num_keep=3).loss

    def among_differing(logits1, logits2):
        return loss.coteaching_loss(logits1, logits2, target, forget_rate=0.5, disagreement=True).loss

    def decoupling(logits1, logits2):
        return loss.decoupling_loss(logits1, logits2, target).loss

    for function in (coteaching, among_differing, decoupling):
        assert torch.autograd.gradcheck(function, (z1, z2))


@everywhere
@pytest.mark.parametrize("frozen", [0, 1])
def test_a_frozen_network_gets_no_gradient_and_the_other_its_own(loss, device, frozen):
    both = random_logits(20, 5, device=device)
    one = [z.detach() if index == frozen else z for index, z in enumerate(both[:2])]
    for name, settings in (("coteaching_loss", {"num_keep": 9}), ("decoupling_loss", {})):
        compute = getattr(loss, name)
        (alone,) = torch.autograd.grad(compute(*one, both[2], **settings).loss, one[1 - frozen])
        together = torch.autograd.grad(compute(*both, **settings).loss, both[:2])
        assert torch.equal(alone, together[1 - frozen])


@everywhere
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_and_label_types_do_not_matter(loss, device, layout):
    z1, z2, target = (x.detach() for x in random_logits(9, 10, device=device))
    for settings in ({"num_keep": 4}, {"forget_rate": 0.4, "disagreement": True}):
        expected = loss.coteaching_loss(z1, z2, target, **settings)
        for labels in INTEGER_TYPES:
            moved = loss.coteaching_loss(LAYOUTS[layout](z1), LAYOUTS[layout](z2), target.to(labels), **settings)
            assert all(map(torch.equal, moved, expected))
    assert all(
        map(torch.equal, loss.decoupling_loss(LAYOUTS[layout](z1), z2, target), loss.decoupling_loss(z1, z2, target))
    )


@everywhere
def test_case_30_one_step_of_a_linear_model_is_the_mean_over_k_divided_once(loss, device):
    """SGD with rate 1; and a network's gradient depends on nothing but the rows that the other chose."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(12, 3, generator=generator, dtype=torch.float64).to(device)
    target = torch.randint(4, (12,), generator=generator).to(device)
    weights = [torch.randn(3, 4, generator=generator, dtype=torch.float64).to(device) for _ in range(2)]
    leaves = [weight.clone().requires_grad_() for weight in weights]
    out = loss.coteaching_loss(features @ leaves[0], features @ leaves[1], target, num_keep=5)
    updates = torch.autograd.grad(out.loss, leaves)
    one_hot = torch.nn.functional.one_hot(target, 4).double()
    for index, chosen_by_other in ((0, out.selected2), (1, out.selected1)):
        slopes = (features @ weights[index]).softmax(1) - one_hot
        by_hand = features[chosen_by_other].t() @ slopes[chosen_by_other] / 5
        torch.testing.assert_close(updates[index], by_hand, rtol=1e-12, atol=1e-12)
    assert not torch.equal(out.selected1, out.selected2)

    logits = [(features @ weight).requires_grad_() for weight in weights]
    out = loss.coteaching_loss(*logits, target, num_keep=5)
    gradients = torch.autograd.grad(out.loss, logits)
    for gradient, chosen_by_other in zip(gradients, (out.selected2, out.selected1), strict=True):
        assert (gradient != 0).any(1).tolist() == chosen_by_other.tolist()


# --- the choice -------------------------------------------------------------------------------------------------------


@everywhere
def test_of_equal_losses_the_lower_rows_are_chosen(loss, device):
    zeros, target = torch.zeros(6, 3, device=device), torch.zeros(6, dtype=torch.long, device=device)
    out = loss.coteaching_loss(zeros, zeros, target, num_keep=2)
    assert out.selected1.tolist() == out.selected2.tolist() == [True, True, False, False, False, False]
    assert out.loss.item() == pytest.approx(2 * math.log(3))


def one_hot_logits(classes: list[int], device: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """Rows whose largest logit lies in these of 4 classes."""
    return 3 * torch.nn.functional.one_hot(torch.tensor(classes, device=device), 4).to(dtype)


@everywhere
def test_case_31_k_counts_the_differing_rows_and_row_0_stays(loss, device):
    z1 = one_hot_logits([0, 1, 2, 3, 0, 1, 2, 3, 0, 1], device).requires_grad_()
    z2 = one_hot_logits([1, 1, 2, 3, 1, 2, 3, 0, 1, 1], device).requires_grad_()  # rows 0, 4, 5, 6, 7, 8 differ
    target = torch.zeros(10, dtype=torch.long, device=device)
    out = loss.coteaching_loss(z1, z2, target, forget_rate=0.5, disagreement=True)
    assert (out.num_selected1.item(), out.num_selected2.item()) == (3, 3)  # of 6, not of 10
    assert out.selected1.nonzero().flatten().tolist() == [0, 4, 8]  # network 1 says class 0 of these
    assert out.selected2.nonzero().flatten().tolist() == [0, 4, 7]  # network 2 of row 7; of the equal ones the lowest
    assert out.selected1[0]
    for rate, rounding, kept in ((0.4, "ceil", 4), (0.4, "floor", 3), (0.99, "floor", 1)):
        few = loss.coteaching_loss(z1, z2, target, forget_rate=rate, disagreement=True, rounding=rounding)
        assert few.num_selected1.item() == few.num_selected2.item() == kept


@everywhere
@pytest.mark.parametrize("ignore_index", [None, 0])
def test_case_31_where_nothing_differs_the_choice_is_that_of_coteaching(loss, device, ignore_index):
    """With ignore_index: where none of the rows that are not ignored differ, all of those are eligible."""
    z1 = one_hot_logits([0, 1, 2, 3, 2, 1], device)
    z2 = (z1 * 0.5).detach()
    if ignore_index is not None:
        z2[0] = one_hot_logits([1], device)[0]  # the only row that differs is ignored
    target = torch.tensor([0, 1, 3, 2, 1, 2], device=device)
    settings: dict[str, Any] = {"forget_rate": 0.5, "ignore_index": ignore_index}
    plain, plus = (loss.coteaching_loss(z1, z2, target, disagreement=among, **settings) for among in (False, True))
    assert all(map(torch.equal, plain, plus))
    assert plus.num_selected1.item() == 3


@everywhere
def test_predictions_are_the_lowest_of_equal_classes_and_nan_is_no_prediction(loss, device):
    z1 = torch.tensor([[1.0, 1.0, 0.0], [0.0, NAN, 1.0], [NAN, 5.0, 0.0], [-INF, -INF, -INF]], device=device)
    z2 = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]], device=device)
    target = torch.zeros(4, dtype=torch.long, device=device)
    out = loss.coteaching_loss(z1, z2, target, num_keep=4, disagreement=True)
    assert out.selected1.tolist() == [True, False, False, False]  # none differs: all are eligible
    assert out.num_nonfinite.item() == 3
    assert loss.decoupling_loss(z1, z2, target).num_selected.item() == 0
    other = z2.roll(1, 1)
    differing = loss.coteaching_loss(z1, other, target, num_keep=4, disagreement=True)
    assert (differing.num_nonfinite.item(), differing.num_selected1.item()) == (2, 0)  # [1, 1, 0] is class 0 to both


@everywhere
@with_every_float_type
@pytest.mark.parametrize("network", [0, 1])
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_row_that_is_not_finite_in_one_network_is_chosen_by_neither(loss, device, dtype, network, bad):
    z1, z2, target = random_logits(12, 5, dtype, device)
    logits = [z1.detach().clone(), z2.detach().clone()]
    logits[network][3, target[3]] = bad  # the label's logit: also -inf makes the loss infinite
    z1, z2 = (z.requires_grad_() for z in logits)
    for settings in ({"num_keep": 12}, {"forget_rate": 0.2}):
        out = loss.coteaching_loss(z1, z2, target, **settings)
        assert_coteaching(out, z1, z2, Expected(z1, z2, target), **settings)
        assert not (out.selected1 | out.selected2)[3]
        assert out.num_nonfinite.item() == 1
        for gradient in torch.autograd.grad(out.loss, (z1, z2)):
            assert (gradient[3] == 0).all()
            assert gradient.isfinite().all()
    out = loss.decoupling_loss(z1, z2, target)
    assert not out.selected[3]
    assert out.loss.isfinite()
    assert all((gradient[3] == 0).all() for gradient in torch.autograd.grad(out.loss, (z1, z2)))


@everywhere
def test_more_broken_rows_than_may_be_left_out(loss, device):
    z1, z2, target = random_logits(6, 3, device=device)
    broken = z1.detach().clone()
    broken[1:] = NAN
    for rows, kept in ((broken, 1), (torch.full_like(broken, NAN), 0)):
        z = rows.requires_grad_()
        out = loss.coteaching_loss(z, z2, target, num_keep=4)
        assert (out.num_selected1.item(), out.num_nonfinite.item()) == (kept, 6 - kept)
        assert out.loss.isfinite()
        assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(out.loss, (z, z2)))


@everywhere
def test_case_32_decoupling_without_and_with_one_difference(loss, device):
    z1 = one_hot_logits([0, 1, 2], device).requires_grad_()
    z2 = (0.5 * one_hot_logits([0, 1, 2], device)).requires_grad_()
    target = torch.tensor([3, 1, 0], device=device)
    out = loss.decoupling_loss(z1, z2, target)
    assert (out.loss.item(), out.num_selected.item(), out.selected.any().item()) == (0.0, 0, False)
    assert all((gradient == 0).all() for gradient in torch.autograd.grad(out.loss, (z1, z2)))
    z2 = torch.cat([one_hot_logits([1], device), z2.detach()[1:]]).requires_grad_()
    out = loss.decoupling_loss(z1, z2, target)
    entropies = [torch.nn.functional.cross_entropy(z[:1].double(), target[:1]).item() for z in (z1, z2)]
    assert out.loss.item() == pytest.approx(sum(entropies), rel=1e-6)
    assert out.selected.tolist() == [True, False, False]


# --- sizes and repeats ------------------------------------------------------------------------------------------------


@everywhere
def test_empty_batches_ignored_batches_and_one_class(loss, device):
    z1, z2, target = random_logits(0, 3, device=device)
    for settings in ({"num_keep": 0}, {"num_keep": 5}, {"forget_rate": 0.5, "disagreement": True}):
        out = loss.coteaching_loss(z1, z2, target, **settings)
        assert [x.sum().item() for x in out] == [0] * 8
        assert [gradient.shape for gradient in torch.autograd.grad(out.loss, (z1, z2))] == [(0, 3)] * 2
    assert loss.decoupling_loss(z1, z2, target).loss.item() == 0

    z1, z2, target = random_logits(5, 3, device=device)
    ignored = torch.full_like(target, -100)
    for out in (
        loss.coteaching_loss(z1, z2, ignored, forget_rate=0.5, disagreement=True, ignore_index=-100),
        loss.decoupling_loss(z1, z2, ignored, ignore_index=-100),
    ):
        assert [x.sum().item() for x in out] == [0] * len(out)
        assert all((gradient == 0).all() for gradient in torch.autograd.grad(out.loss, (z1, z2)))

    z1, z2, target = random_logits(5, 1, device=device)
    assert loss.coteaching_loss(z1, z2, target, num_keep=2).selected1.tolist() == [True, True, False, False, False]
    assert loss.decoupling_loss(z1, z2, target).num_selected.item() == 0


@everywhere
def test_ignored_rows_take_no_part(loss, device):
    z1, z2, target = random_logits(40, 5, device=device)
    expected = Expected(z1, z2, target, ignore_index=2)
    for settings in ({"forget_rate": 0.5}, {"forget_rate": 0.5, "disagreement": True}, {"num_keep": 7}):
        out = loss.coteaching_loss(z1, z2, target, ignore_index=2, **settings)
        assert_coteaching(out, z1, z2, expected, **settings)
    assert loss.decoupling_loss(z1, z2, target, ignore_index=2).selected.tolist() == expected.differing.tolist()


@everywhere
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=dtype_name)
def test_a_second_call_gives_the_same_bits(loss, device, dtype):
    z1, z2, target = random_logits(3000, 14, dtype, device)
    for _ in range(2):
        runs = [loss.coteaching_loss(z1, z2, target, forget_rate=0.4, disagreement=True) for _ in range(2)]
        assert all(map(torch.equal, *runs))
        gradients = [torch.autograd.grad(out.loss, (z1, z2)) for out in runs]
        assert all(map(torch.equal, *gradients))
