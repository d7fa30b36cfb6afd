"""select_small_loss, and the selection inside jocor_loss: always the first k of a stable sort."""

import math

import numpy as np
import pytest
import torch

import jocor_fast as jf
from loss_cases import everywhere, random_logits, select, with_every_float_type

INF, NAN = float("inf"), float("nan")
# Around the sizes where a kernel may change its way: warps, blocks, a cluster of them, and more rows than that holds.
ROWS = [1, 2, 31, 32, 33, 127, 128, 1000, 1024, 1025, 4096, 8193, 65_536, 70_001]


def chosen(loss, losses, num_keep, eligible=None):
    mask = loss.select_small_loss(losses, num_keep, eligible=eligible)
    assert (mask.dtype, mask.shape, mask.device) == (torch.bool, losses.shape, losses.device)
    return mask.cpu().numpy()


def check(loss, losses, num_keep, eligible=None):
    """The mask equals that of NumPy's stable argsort."""
    numbers = losses.double().cpu().numpy()  # exact for every type
    expected = select(numbers, num_keep, None if eligible is None else eligible.cpu().numpy())
    np.testing.assert_array_equal(chosen(loss, losses, num_keep, eligible), expected)


@everywhere
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_random_losses(loss, device, rows, dtype):
    generator = torch.Generator().manual_seed(rows)
    losses = torch.rand(rows, generator=generator, dtype=torch.float64).to(device, dtype)
    some = {1, 2, rows // 3, rows // 2, rows - 1, rows, 7 * rows // 10, int(0.8 * rows)}
    for k in range(1, rows + 1) if rows <= 128 else sorted(some):
        if k >= 1:
            check(loss, losses, k)


@everywhere
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("distinct", [1, 2, 3, 300])
def test_ties_go_to_the_lower_row(loss, device, rows, distinct):
    generator = torch.Generator().manual_seed(rows)
    losses = torch.randint(distinct, (rows,), generator=generator).to(device, torch.float32) / 7 + 1
    for k in {1, max(1, rows // 3), max(1, rows // 2), rows}:
        check(loss, losses, k)


@everywhere
@with_every_float_type
def test_order_of_losses_across_signs_and_magnitudes(loss, device, dtype):
    info = torch.finfo(dtype)
    numbers = [0.0, -0.0, 1.0, -1.0, info.tiny, -info.tiny, info.max, info.min, info.eps, -info.eps]
    numbers += [info.smallest_normal / 4, -info.smallest_normal / 4, 0.5, -2.0, 3.0]
    losses = torch.tensor(numbers * 3, dtype=torch.float64).to(device, dtype)
    for k in range(1, len(losses) + 1):
        check(loss, losses, k)


@everywhere
def test_worked_examples(loss, device):
    losses = torch.tensor([2.0, 1, 1, 1, 3], device=device)
    assert chosen(loss, losses, 2).tolist() == [False, True, True, False, False]
    equal = torch.full((6,), 0.25, device=device)
    assert chosen(loss, equal, 4).tolist() == [True] * 4 + [False] * 2


@everywhere
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_minus_zero_and_plus_zero_tie(loss, device, dtype):
    losses = torch.tensor([0.0, -0.0, 0.0, -0.0, 1.0], dtype=dtype, device=device)
    for k in range(1, 5):
        assert chosen(loss, losses, k).tolist() == [row < k for row in range(5)]
        assert chosen(loss, -losses[:4], k).tolist() == [row < k for row in range(4)]


@everywhere
@with_every_float_type
def test_non_finite_losses_are_never_chosen(loss, device, dtype):
    losses = torch.tensor([NAN, 3, INF, 1, -INF, 2, -NAN], dtype=dtype, device=device)
    assert chosen(loss, losses, 2).nonzero()[0].tolist() == [3, 5]
    assert chosen(loss, losses, 5).nonzero()[0].tolist() == [1, 3, 5]
    assert not chosen(loss, torch.full((3,), NAN, dtype=dtype, device=device), 2).any()


@everywhere
def test_ineligible_rows_are_never_chosen(loss, device):
    generator = torch.Generator().manual_seed(0)
    losses = torch.rand(1000, generator=generator).to(device)
    losses[::17] = NAN
    for share in (0.0, 0.01, 0.5, 1.0):
        eligible = torch.rand(1000, generator=generator).lt(share).to(device)
        for k in (1, 5, 400, 1000):
            check(loss, losses, k, eligible)


@everywhere
@with_every_float_type
def test_layout_of_losses_and_eligible_does_not_matter(loss, device, dtype):
    numbers = torch.randn(100, 2, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    eligible = (numbers[:, 1] > -0.5).repeat_interleave(3)[::3]
    check(loss, numbers[:, 0], 30, eligible)
    check(loss, numbers[1:, 1], 30)
    check(loss, numbers[:1, 0].expand(50), 20)
    check(loss, numbers[:, 0], 30, eligible[:1].expand(100))


@everywhere
def test_number_to_keep_as_a_tensor(loss, device):
    losses = torch.rand(100, generator=torch.Generator().manual_seed(0)).to(device)
    for k in (1, 7, 100, 1000, 2**40):
        assert np.array_equal(chosen(loss, losses, torch.tensor(k, device=device)), chosen(loss, losses, k))
    k = torch.tensor([3, 9], device=device)[1]  # a view is as good
    assert chosen(loss, losses, k).sum() == 9


@pytest.mark.parametrize("k", [0, -3])
def test_a_tensor_that_keeps_no_row_is_refused_with_groups_as_without(k):
    for groups in (None, torch.zeros(3, dtype=torch.long)):
        with pytest.raises(ValueError, match=f"num_keep must be at least 1, got {k}"):
            jf.select_small_loss(torch.rand(3), torch.tensor(k), groups=groups)


@everywhere
def test_losses_are_not_written_to_and_need_no_gradient(loss, device):
    losses = torch.tensor([3.0, -0.0, 2.0, NAN], device=device, requires_grad=True)
    before = losses.detach().clone()
    mask = loss.select_small_loss(losses, 2)
    assert not mask.requires_grad
    assert torch.equal(losses.view(torch.int32), before.view(torch.int32))


# --- the same choice inside jocor_loss --------------------------------------------------------------------------------


@everywhere
@with_every_float_type
@pytest.mark.parametrize("rows", [1, 2, 31, 33, 128, 1025, 5000])
def test_jocor_loss_selects_by_its_own_per_sample_losses(loss, device, dtype, rows):
    z1, z2, target = random_logits(rows, 10, dtype, device)
    for k in {1, max(1, rows // 2), rows}:
        out = loss.jocor_loss(z1, z2, target, num_keep=k)
        np.testing.assert_array_equal(out.selected.cpu().numpy(), select(out.per_sample.cpu().numpy(), k))
        expected = out.per_sample.double()[out.selected].mean().item()
        assert math.isclose(out.loss.item(), expected, rel_tol=1e-6)


@everywhere
def test_equal_rows_are_selected_from_the_top(loss, device):
    for classes in (3, 10, 16, 33):
        z1, z2, target = (x[:1].expand(17, *x.shape[1:]).contiguous() for x in random_logits(1, classes, device=device))
        for k in range(1, 18):
            out = loss.jocor_loss(z1, z2, target, num_keep=k)
            assert out.selected.tolist() == [row < k for row in range(17)]


@everywhere
def test_one_row_is_kept_at_a_forget_rate_of_nearly_one(loss, device):
    z1, z2, target = random_logits(8, 10, device=device)
    out = loss.jocor_loss(z1, z2, target, forget_rate=0.99)
    assert out.num_selected.item() == 1
    assert out.per_sample.argmin() == out.selected.nonzero().item()


@everywhere
def test_forget_rate_counts_the_eligible_rows_and_not_the_finite_ones(loss, device):
    z1, z2, target = random_logits(20, 10, device=device)
    target[:10] = -100
    z1 = z1.detach().clone()
    z1[10:13] = NAN
    out = loss.jocor_loss(z1, z2, target, forget_rate=0.2, ignore_index=-100)  # 8 of 10 rows, and 7 are finite
    assert (out.num_selected.item(), out.num_nonfinite.item()) == (7, 3)
    out = loss.jocor_loss(z1, z2, target, forget_rate=0.5, ignore_index=-100)
    assert (out.num_selected.item(), out.num_nonfinite.item()) == (5, 3)


@everywhere
def test_number_to_keep_as_a_tensor_in_the_loss(loss, device):
    z1, z2, target = random_logits(64, 10, device=device)
    for k in (1, 20, 64, 100):
        by_number = loss.jocor_loss(z1, z2, target, num_keep=k)
        by_tensor = loss.jocor_loss(z1, z2, target, num_keep=torch.tensor(k, device=device))
        assert all(torch.equal(one, other) for one, other in zip(by_number, by_tensor, strict=True))
