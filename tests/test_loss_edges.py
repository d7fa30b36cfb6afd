"""Rows that are not ordinary: masked classes, non-finite numbers, ignored rows, odd labels, empty and tiny batches."""

import numpy as np
import pytest
import torch

from loss_cases import (
    FLOAT_TYPES,
    INTEGER_TYPES,
    assert_close,
    computed_in,
    dtype_name,
    everywhere,
    oracle,
    random_logits,
    row_scale,
    select,
    with_every_float_type,
)

INF, NAN = float("inf"), float("nan")


def pair(rows1, rows2, device, dtype=torch.float32):
    return tuple(torch.tensor(rows, dtype=dtype, device=device, requires_grad=True) for rows in (rows1, rows2))


def losses_and_gradients(loss, z1, z2, target, **settings):
    """joint_loss and the gradients of its sum; a non-finite gradient never comes out."""
    losses = loss.joint_loss(z1, z2, target, **settings)
    gradients = torch.autograd.grad(losses, (z1, z2), torch.ones_like(losses))
    assert all(gradient.isfinite().all() for gradient in gradients)
    return losses.detach(), *gradients


# --- masked classes (-inf) --------------------------------------------------------------------------------------------


@everywhere
@with_every_float_type
@pytest.mark.parametrize("classes", [3, 16, 17, 100])
def test_class_masked_in_both_networks_counts_as_nothing(loss, device, dtype, classes):
    z1, z2, target = random_logits(8, classes, dtype, device)
    keep = torch.arange(classes, device=device) != classes // 2
    kept1, kept2 = (z.detach()[:, keep].requires_grad_() for z in (z1, z2))
    masked1, masked2 = (z.detach().masked_fill(~keep, -INF).requires_grad_() for z in (z1, z2))
    target = target.masked_fill(target == classes // 2, 0)
    kept_target = target - (target > classes // 2).long()
    for co_lambda in (0.0, 0.5, 0.9, 1.0):
        losses, gradient1, gradient2 = losses_and_gradients(loss, masked1, masked2, target, co_lambda=co_lambda)
        expected = oracle(kept1, kept2, kept_target, co_lambda)
        assert_close(losses, expected.losses)
        assert_close(gradient1[:, keep], expected.gradient1)
        assert_close(gradient2[:, keep], expected.gradient2)
        assert not gradient1[:, ~keep].any()
        assert not gradient2[:, ~keep].any()


@everywhere
@with_every_float_type
@pytest.mark.parametrize("exchanged", [False, True])
@pytest.mark.parametrize("co_lambda", [0.1, 0.9, 1.0])
def test_class_masked_in_one_network_is_an_infinite_loss(loss, device, dtype, exchanged, co_lambda):
    z1, z2 = pair([[1, -INF, 0], [1, 2, 0]], [[1, 0.5, 0], [0, 1, 0]], device, dtype)
    if exchanged:
        z1, z2 = z2, z1
    target = torch.tensor([0, 0], device=device)
    losses, gradient1, gradient2 = losses_and_gradients(loss, z1, z2, target, co_lambda=co_lambda)
    assert losses[0].item() == INF
    assert not gradient1[0].any()
    assert not gradient2[0].any()
    out = loss.jocor_loss(z1, z2, target, co_lambda=co_lambda, num_keep=2)
    assert out.selected.tolist() == [False, True]
    assert (out.num_selected.item(), out.num_nonfinite.item()) == (1, 1)
    assert torch.equal(out.loss, out.per_sample[1])


@everywhere
@with_every_float_type
def test_class_masked_in_one_network_is_fine_without_agreement(loss, device, dtype):
    z1, z2 = pair([[1, -INF, 0]], [[1, 0.5, 0]], device, dtype)
    target = torch.tensor([0], device=device)
    losses, gradient1, gradient2 = losses_and_gradients(loss, z1, z2, target, co_lambda=0.0)
    expected = oracle(z1, z2, target, 0.0)
    assert np.isfinite(expected.losses).all()
    assert_close(losses, expected.losses)
    assert_close(gradient1, expected.gradient1)
    assert_close(gradient2, expected.gradient2)


@everywhere
@with_every_float_type
def test_label_masked_in_both_networks(loss, device, dtype):
    z1, z2 = pair([[1, -INF, 0]], [[0, -INF, 2]], device, dtype)
    target = torch.tensor([1], device=device)
    losses, gradient1, gradient2 = losses_and_gradients(loss, z1, z2, target, co_lambda=1.0)
    expected = oracle(z1, z2, target, 1.0)  # labels do not matter here: J
    assert np.isfinite(expected.losses).all()
    assert_close(losses, expected.losses)
    assert_close(gradient1, expected.gradient1)
    assert_close(gradient2, expected.gradient2)
    losses, gradient1, gradient2 = losses_and_gradients(loss, z1, z2, target, co_lambda=0.9)
    assert losses.tolist() == [INF]
    assert not gradient1.any()
    assert not gradient2.any()


@everywhere
@pytest.mark.parametrize("classes", [1, 3, 16, 40])
def test_row_with_every_class_masked_is_not_finite(loss, device, classes):
    z1, z2, target = random_logits(3, classes, device=device)
    z1 = z1.detach().clone().index_fill_(0, torch.tensor(1, device=device), -INF).requires_grad_()
    for co_lambda in (0.0, 0.9, 1.0):
        losses, gradient1, gradient2 = losses_and_gradients(loss, z1, z2, target, co_lambda=co_lambda)
        assert losses.isfinite().tolist() == [True, False, True]
        assert not gradient1[1].any()
        assert not gradient2[1].any()


@everywhere
def test_gradient_is_finite_where_a_masked_class_is_about_to_underflow(loss, device):
    """Class 2 is masked in network 1; in network 2 its probability lies around the smallest float32.

    Whether it is 0 decides whether the loss is finite. The gradient computes it once more, by another way.
    """
    logits = torch.arange(-106.0, -86.0, 1 / 128)
    z2 = torch.stack([torch.zeros_like(logits), torch.zeros_like(logits), logits], 1).to(device)
    z1 = torch.tensor([0.0, 1.0, -INF], device=device).repeat(len(logits), 1)
    target = torch.zeros(len(logits), dtype=torch.int64, device=device)
    losses, *_ = losses_and_gradients(loss, z1.requires_grad_(), z2.requires_grad_(), target, co_lambda=0.9)
    assert losses.isfinite().any()
    assert losses.isinf().any()


@everywhere
@pytest.mark.parametrize("classes", [3, 16, 17, 100])
def test_probability_that_underflows_is_not_a_masked_class(loss, device, classes):
    """p_j = 0 with a finite log p_j: the loss stays finite however small p_j is in one network or in both."""
    z1, z2, target = random_logits(12, classes, device=device)
    for column, low1, low2 in ((0, -200.0, 0.0), (1, 0.0, -1e4), (2, -500.0, -1e5), (0, -95.0, -88.0)):
        low1, low2 = torch.tensor(low1, device=device), torch.tensor(low2, device=device)
        z1 = torch.cat([z1[:, :column], z1[:, column, None] + low1, z1[:, column + 1 :]], dim=1)
        z2 = torch.cat([z2[:, :column], z2[:, column, None] + low2, z2[:, column + 1 :]], dim=1)
        z1, z2 = z1.detach().requires_grad_(), z2.detach().requires_grad_()
        for co_lambda in (0.0, 0.5, 1.0):
            losses, gradient1, gradient2 = losses_and_gradients(loss, z1, z2, target, co_lambda=co_lambda)
            expected = oracle(z1, z2, target, co_lambda)
            assert_close(losses, expected.losses)
            assert_close(gradient1, expected.gradient1, row_scale(expected))
            assert_close(gradient2, expected.gradient2, row_scale(expected))


# --- non-finite rows --------------------------------------------------------------------------------------------------


@everywhere
@with_every_float_type
@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("network", [0, 1])
@pytest.mark.parametrize("classes", [1, 3, 16, 17, 33])
def test_row_with_a_non_finite_logit_is_left_out_and_counted(loss, device, dtype, value, network, classes):
    for column in {0, classes // 2, classes - 1}:
        logits = [z.detach().clone() for z in random_logits(8, classes, dtype, device)[:2]]
        logits[network][3, column] = value
        z1, z2 = (z.requires_grad_() for z in logits)
        target = torch.zeros(8, dtype=torch.long, device=device)
        for co_lambda in (0.0, 0.9, 1.0):
            out = loss.jocor_loss(z1, z2, target, co_lambda=co_lambda, forget_rate=0.2)
            gradients = torch.autograd.grad(out.loss, (z1, z2))
            assert not out.per_sample[3].isfinite()
            assert not out.selected[3]
            assert (out.num_selected.item(), out.num_nonfinite.item()) == (7, 1)
            assert out.loss.isfinite()
            assert all(gradient.isfinite().all() and not gradient[3].any() for gradient in gradients)


@everywhere
def test_with_too_few_finite_rows_those_are_taken(loss, device):
    logits1, z2, target = random_logits(8, 10, device=device)
    z1 = logits1.detach().clone()
    z1[[0, 2, 3, 5, 7], 4] = NAN
    z1.requires_grad_()
    out = loss.jocor_loss(z1, z2, target, forget_rate=0.2)
    expected = oracle(z1, z2, target, 0.9)
    finite = np.isfinite(expected.losses)
    gradient1, gradient2 = torch.autograd.grad(out.loss, (z1, z2))
    assert out.selected.cpu().numpy().tolist() == finite.tolist()
    assert (out.num_selected.item(), out.num_nonfinite.item()) == (3, 5)
    assert_close(out.loss, expected.losses[finite].mean())
    assert_close(gradient1, expected.gradient1 * finite[:, None] / 3)
    assert_close(gradient2, expected.gradient2 * finite[:, None] / 3)


@everywhere
@with_every_float_type
def test_without_a_finite_row_loss_and_gradients_are_zero(loss, device, dtype):
    z1 = torch.full((4, 3), NAN, dtype=dtype, device=device, requires_grad=True)
    z2 = torch.zeros(4, 3, dtype=dtype, device=device, requires_grad=True)
    out = loss.jocor_loss(z1, z2, torch.zeros(4, dtype=torch.long, device=device), num_keep=2)
    assert out.loss.item() == 0
    assert (out.num_selected.item(), out.num_nonfinite.item()) == (0, 4)
    assert not out.selected.any()
    for gradient in torch.autograd.grad(out.loss, (z1, z2)):
        assert gradient.tolist() == [[0.0] * 3] * 4


@everywhere
def test_non_finite_grad_output_does_not_reach_rows_without_gradient(loss, device):
    z1, z2 = pair([[NAN, 0, 1], [1, 2, 0], [0, 1, 1]], [[0, 1, 0], [0, 1, 0], [1, 1, 0]], device)
    target = torch.tensor([0, 0, 2], device=device)
    losses = loss.joint_loss(z1, z2, target, ignore_index=2)
    grad_output = torch.tensor([INF, 2.0, NAN], device=device)
    expected = oracle(z1, z2, target, 0.9, ignore_index=2)
    gradient1, gradient2 = torch.autograd.grad(losses, (z1, z2), grad_output)
    assert_close(gradient1, 2 * expected.gradient1)
    assert_close(gradient2, 2 * expected.gradient2)


# --- ignored rows -----------------------------------------------------------------------------------------------------


@everywhere
@with_every_float_type
@pytest.mark.parametrize("ignore_index", [-100, -1, 0, 3, 255])
def test_ignored_rows_take_no_part(loss, device, dtype, ignore_index):
    z1, z2, target = random_logits(40, 10, dtype, device)
    target[[0, 5, 17, 39]] = ignore_index
    ignored = (target == ignore_index).cpu().numpy()
    out = loss.jocor_loss(z1, z2, target, forget_rate=0.3, ignore_index=ignore_index)
    expected = oracle(z1, z2, target, 0.9, ignore_index)
    k = loss.num_keep(int((~ignored).sum()), 0.3)
    selected = select(expected.losses, k, ~ignored)
    assert_close(out.per_sample, expected.losses)
    assert out.selected.cpu().numpy().tolist() == selected.tolist()
    assert (out.num_selected.item(), out.num_nonfinite.item()) == (k, 0)
    assert_close(out.loss, expected.losses[selected].mean())
    gradient1, gradient2 = torch.autograd.grad(out.loss, (z1, z2))
    assert_close(gradient1, expected.gradient1 * selected[:, None] / k)
    assert_close(gradient2, expected.gradient2 * selected[:, None] / k)


@everywhere
def test_ignored_rows_may_hold_anything(loss, device):
    z1, z2 = pair([[NAN, INF, 0], [1, 2, 0]], [[-INF, -INF, -INF], [0, 1, 0]], device)
    target = torch.tensor([-100, 1], device=device)
    losses, gradient1, gradient2 = losses_and_gradients(loss, z1, z2, target, ignore_index=-100)
    assert losses[0].item() == 0
    assert not gradient1[0].any()
    assert not gradient2[0].any()
    out = loss.jocor_loss(z1, z2, target, num_keep=2, ignore_index=-100)
    assert out.selected.tolist() == [False, True]
    assert (out.num_selected.item(), out.num_nonfinite.item()) == (1, 0)


@everywhere
@with_every_float_type
def test_every_row_ignored(loss, device, dtype):
    z1, z2, target = random_logits(5, 3, dtype, device)
    target.fill_(-100)
    for keep in ({"forget_rate": 0.5}, {"num_keep": 3}):
        out = loss.jocor_loss(z1, z2, target, ignore_index=-100, **keep)
        assert out.loss.item() == 0
        assert not out.per_sample.any()
        assert not out.selected.any()
        assert (out.num_selected.item(), out.num_nonfinite.item()) == (0, 0)
        for gradient in torch.autograd.grad(out.loss, (z1, z2)):
            assert gradient.shape == z1.shape
            assert not gradient.any()


# --- labels -----------------------------------------------------------------------------------------------------------


@everywhere
@pytest.mark.parametrize("dtype", INTEGER_TYPES, ids=dtype_name)
def test_labels_of_every_integer_type(loss, device, dtype):
    z1, z2, target = random_logits(33, 100, device=device)
    expected = loss.joint_loss(z1, z2, target)
    typed = target.to(dtype)
    spaced = torch.stack([typed.cpu(), torch.full_like(typed.cpu(), 99)], dim=1).to(device)[:, 0]
    assert torch.equal(loss.joint_loss(z1, z2, typed), expected)
    assert torch.equal(loss.joint_loss(z1, z2, spaced), expected)
    one_label = typed[:1].expand(33)
    assert torch.equal(loss.joint_loss(z1, z2, one_label), loss.joint_loss(z1, z2, one_label.long().contiguous()))


@everywhere
@pytest.mark.parametrize(
    ("dtype", "label", "ignore_index"),
    [
        (torch.uint8, 156, -100),
        (torch.uint16, 65_436, -100),
        (torch.int8, -1, 255),
        (torch.int32, -1, 2**32 - 1),
        (torch.uint64, 2**64 - 100, -100),
    ],
    ids=str,
)
def test_ignore_index_is_compared_as_a_number_and_not_as_bits(loss, device, dtype, label, ignore_index):
    z1, z2, _ = random_logits(1, 70_000, device=device)
    target = torch.tensor([label], dtype=dtype, device=device)
    if 0 <= label < z1.shape[1]:
        assert loss.joint_loss(z1, z2, target, ignore_index=ignore_index).item() != 0
    elif device == "cuda":
        assert loss.joint_loss(z1, z2, target, ignore_index=ignore_index).isnan().all()  # no class, and not ignored
    else:
        with pytest.raises(ValueError, match=rf"got {label} in row 0$"):
            loss.joint_loss(z1, z2, target, ignore_index=ignore_index)


@everywhere
@pytest.mark.parametrize("label", [-1, 10, 2**40, -(2**40), 2**32, -100])
@pytest.mark.parametrize("rows", [3, 5000])
def test_label_that_is_no_class(loss, device, label, rows):
    z1, z2, target = random_logits(rows, 10, device=device)
    target[-1] = label
    if device == "cpu":
        for keep in ({}, {"ignore_index": -7}):
            message = rf"^target must hold labels in .* got {label} in row {rows - 1}$"
            with pytest.raises(ValueError, match=message):
                loss.joint_loss(z1, z2, target, **keep)
            with pytest.raises(ValueError, match=message):
                loss.jocor_loss(z1, z2, target, num_keep=2, **keep)
        return
    out = loss.jocor_loss(z1, z2, target, num_keep=rows)
    assert out.per_sample[-1].isnan()
    assert (out.selected[-1].item(), out.num_selected.item(), out.num_nonfinite.item()) == (False, rows - 1, 1)
    for gradient in torch.autograd.grad(out.loss, (z1, z2)):
        assert gradient.isfinite().all()
        assert not gradient[-1].any()


# --- sizes ------------------------------------------------------------------------------------------------------------


@everywhere
@with_every_float_type
@pytest.mark.parametrize("classes", [1, 3, 1000])
def test_empty_batch(loss, device, dtype, classes):
    z1, z2, target = random_logits(0, classes, dtype, device)
    for keep in ({"forget_rate": 0.5}, {"num_keep": 1}, {"num_keep": loss.num_keep(0, 0.5)}):
        out = loss.jocor_loss(z1, z2, target, **keep)
        assert (out.loss.item(), out.loss.dtype) == (0, computed_in(dtype))
        assert out.per_sample.shape == out.selected.shape == (0,)
        assert (out.num_selected.item(), out.num_nonfinite.item()) == (0, 0)
        assert [gradient.shape for gradient in torch.autograd.grad(out.loss, (z1, z2))] == [(0, classes)] * 2
    losses = loss.joint_loss(z1, z2, target)
    assert losses.shape == (0,)
    assert [gradient.shape for gradient in torch.autograd.grad(losses.sum(), (z1, z2))] == [(0, classes)] * 2
    assert loss.select_small_loss(losses.detach(), 1).shape == (0,)


@everywhere
@with_every_float_type
def test_batch_of_one_keeps_its_row(loss, device, dtype):
    z1, z2, target = random_logits(1, 10, dtype, device)
    out = loss.jocor_loss(z1, z2, target, forget_rate=0.99)
    assert out.selected.tolist() == [True]
    assert out.loss.item() == out.per_sample.item()
    assert_close(out.loss, oracle(z1, z2, target, 0.9).losses[0])


@everywhere
@with_every_float_type
def test_single_class_costs_nothing(loss, device, dtype):
    z1, z2, target = random_logits(20, 1, dtype, device, spread=50.0)
    out = loss.jocor_loss(z1, z2, target, num_keep=7)
    assert out.loss.item() == 0
    assert not out.per_sample.any()
    assert out.selected.tolist() == [True] * 7 + [False] * 13
    for gradient in torch.autograd.grad(out.loss, (z1, z2)):
        assert not gradient.any()


@everywhere
@pytest.mark.parametrize("num_keep", [8, 9, 2**31, 2**63 - 1])
def test_more_rows_to_keep_than_there_are(loss, device, num_keep):
    z1, z2, target = random_logits(8, 10, device=device)
    for keep in (num_keep, torch.tensor(num_keep, device=device)):
        out = loss.jocor_loss(z1, z2, target, num_keep=keep)
        assert out.selected.all()
        assert out.num_selected.item() == 8


@everywhere
@pytest.mark.parametrize("dtype", FLOAT_TYPES, ids=dtype_name)
def test_outputs_have_the_promised_types(loss, device, dtype):
    z1, z2, target = random_logits(6, 4, dtype, device)
    out = loss.jocor_loss(z1, z2, target, num_keep=2)
    assert type(out).__name__ == "JoCoROutput"
    assert out._fields == ("loss", "per_sample", "selected", "num_selected", "num_nonfinite")
    assert out.loss.dtype == out.per_sample.dtype == computed_in(dtype)
    assert out.loss.shape == out.num_selected.shape == out.num_nonfinite.shape == ()
    assert out.per_sample.shape == out.selected.shape == (6,)
    assert out.selected.dtype == torch.bool
    assert out.num_selected.dtype == out.num_nonfinite.dtype == torch.int64
    assert {tensor.device.type for tensor in out} == {device}
    assert [tensor.requires_grad for tensor in out] == [True, False, False, False, False]
