"""The numbers of the joint loss and its gradient: against worked examples and against the float64 oracle."""

import math

import numpy as np
import pytest
import torch

import jocor_fast
from loss_cases import (
    BROADCASTS,
    LAYOUTS,
    assert_close,
    computed_in,
    everywhere,
    oracle,
    random_logits,
    row_scale,
    select,
    with_every_float_type,
)

# Below, at and above the widths of the kernels' vectors (4, 8, 16, 32 columns) and of what they keep of a row (2,048).
CLASSES = [1, 2, 3, 4, 5, 7, 8, 9, 10, 14, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 1000]
LONG_ROWS = [2031, 2032, 2033, 2047, 2048, 2049, 5000, 40_000]
CO_LAMBDAS = [0.0, 0.1, 0.5, 0.9, 1.0]


def check_rows(loss, z1, z2, target, co_lambda, ignore_index=None):
    """joint_loss and its gradient under a random grad_output equal the oracle."""
    losses = loss.joint_loss(z1, z2, target, co_lambda=co_lambda, ignore_index=ignore_index)
    weights = torch.linspace(-1, 2, len(z1), dtype=losses.dtype, device=losses.device)
    gradient1, gradient2 = torch.autograd.grad(losses, (z1, z2), weights)
    expected = oracle(z1, z2, target, co_lambda, ignore_index)
    assert losses.dtype == computed_in(z1.dtype)
    assert gradient1.dtype == gradient2.dtype == z1.dtype
    assert_close(losses, expected.losses)
    weight = weights.double().cpu().numpy()[:, None]
    assert_close(gradient1, weight * expected.gradient1, row_scale(expected))
    assert_close(gradient2, weight * expected.gradient2, row_scale(expected))


@everywhere
@pytest.mark.parametrize("gap", [50.0, 104.0, 10_000.0])
def test_gap_between_logits_of_one_network(loss, device, gap):
    z1 = torch.tensor([[gap, 0, 0]], device=device, requires_grad=True)
    z2 = torch.zeros(1, 3, device=device, requires_grad=True)
    losses = loss.joint_loss(z1, z2, torch.tensor([0], device=device), co_lambda=0.9)
    losses.sum().backward()
    assert_close(losses, [0.6 * gap + 0.1 * math.log(3)])
    assert_close(z1.grad, [[0.6, -0.3, -0.3]])
    assert_close(z2.grad, [[-(0.2 * gap + 2 / 3), 0.1 * gap + 1 / 3, 0.1 * gap + 1 / 3]])


@everywhere
def test_gap_in_a_row_that_is_not_selected_leaves_no_trace(loss, device):
    z1 = torch.tensor([[104.0, 0, 0], [0.3, -0.2, 1.0]], device=device, requires_grad=True)
    z2 = torch.tensor([[0.0, 0, 0], [0.1, 0.4, 0.2]], device=device, requires_grad=True)
    target = torch.tensor([0, 2], device=device)
    out = loss.jocor_loss(z1, z2, target, co_lambda=0.9, num_keep=1)
    gradients = torch.autograd.grad(out.loss, (z1, z2))
    alone = loss.jocor_loss(z1[1:], z2[1:], target[1:], co_lambda=0.9, num_keep=1)
    gradients_alone = torch.autograd.grad(alone.loss, (z1, z2))
    assert out.selected.tolist() == [False, True]
    for gradient, gradient_alone in zip(gradients, gradients_alone, strict=True):
        assert gradient[0].tolist() == [0.0, 0.0, 0.0]
        assert gradient[1].tolist() == gradient_alone[1].tolist()


GOLDEN_LOGITS1 = [[2, 0, -1], [0, 1, 0], [-1, 0, 3], [0.5, 0.5, 0.5]]
GOLDEN_LOGITS2 = [[1, 1, -1], [0, 2, 1], [0, -1, 2], [1, 0, 0]]
GOLDEN_TARGET = [0, 1, 0, 2]
GOLDEN_CROSS_ENTROPY1 = np.array([0.1698460196, 0.5514447139, 4.0658839038, 1.0986122887])
GOLDEN_CROSS_ENTROPY2 = np.array([0.7586236757, 0.4076059644, 2.1698460196, 1.5514447139])
GOLDEN_AGREEMENT = np.array([0.7295995351, 0.1219109844, 0.1940947477, 0.2427835514])
ZERO = [0.0, 0.0, 0.0]


@everywhere
@with_every_float_type
def test_golden_example(loss, device, dtype):
    z1 = torch.tensor(GOLDEN_LOGITS1, dtype=dtype, device=device, requires_grad=True)  # exact in every type
    z2 = torch.tensor(GOLDEN_LOGITS2, dtype=dtype, device=device, requires_grad=True)
    target = torch.tensor(GOLDEN_TARGET, device=device)
    out = loss.jocor_loss(z1, z2, target, forget_rate=0.5)
    out.loss.backward()
    # the example is printed to ten digits
    assert_close(out.per_sample.float(), [0.7494865511, 0.2056249538, 0.7982582652, 0.4835108965])
    assert_close(out.loss.float(), 0.3445679252)
    assert out.selected.tolist() == [False, True, False, True]
    assert (out.num_selected.item(), out.num_nonfinite.item()) == (2, 0)
    rounding = 1 if dtype in (torch.float32, torch.float64) else 0
    gradient1 = [ZERO, [0.1406170711, -0.1162463872, -0.0243706839], ZERO, [-0.1925859315, 0.1212929657, 0.0712929657]]
    gradient2 = [ZERO, [-0.0872246954, 0.0503192908, 0.0369054046], ZERO, [0.2479512413, -0.0989756207, -0.1489756207]]
    assert_close(z1.grad.float() if rounding else z1.grad, gradient1)
    assert_close(z2.grad.float() if rounding else z2.grad, gradient2)


@everywhere
@pytest.mark.parametrize(("co_lambda", "order"), [(0.9, [1, 3, 0, 2]), (0.0, [0, 1, 3, 2]), (1.0, [1, 2, 3, 0])])
def test_golden_example_selects_in_the_order_of_the_losses(loss, device, co_lambda, order):
    z1 = torch.tensor(GOLDEN_LOGITS1, dtype=torch.float32, device=device)
    z2 = torch.tensor(GOLDEN_LOGITS2, dtype=torch.float32, device=device)
    target = torch.tensor(GOLDEN_TARGET, device=device)
    cross_entropy = GOLDEN_CROSS_ENTROPY1 + GOLDEN_CROSS_ENTROPY2
    for k in range(1, 5):
        out = loss.jocor_loss(z1, z2, target, co_lambda=co_lambda, num_keep=k)
        assert_close(out.per_sample, (1 - co_lambda) * cross_entropy + co_lambda * GOLDEN_AGREEMENT)
        assert out.selected.nonzero().flatten().tolist() == sorted(order[:k])


@everywhere
@with_every_float_type
@pytest.mark.parametrize(
    ("classes", "co_lambda", "expected"),
    [(10, 0.9, 0.4605170186), (100, 0.85, 1.3815510558), (14, 0.9, 0.5278114659), (1, 0.9, 0.0)],
)
def test_zero_logits_cost_the_logarithm_of_the_number_of_classes(loss, device, dtype, classes, co_lambda, expected):
    zeros = torch.zeros(3, classes, dtype=dtype, device=device)
    losses = loss.joint_loss(zeros, zeros, torch.zeros(3, dtype=torch.long, device=device), co_lambda=co_lambda)
    assert_close(losses.float(), np.full(3, expected))


@everywhere
@with_every_float_type
@pytest.mark.parametrize("co_lambda", CO_LAMBDAS)
def test_rows_equal_the_oracle_at_every_vector_width(loss, device, dtype, co_lambda):
    for classes in CLASSES:
        z1, z2, target = random_logits(9, classes, dtype, device, seed=classes)
        check_rows(loss, z1, z2, target, co_lambda)


@everywhere
@with_every_float_type
def test_long_rows_equal_the_oracle(loss, device, dtype):
    for classes in LONG_ROWS:
        z1, z2, target = random_logits(2, classes, dtype, device, seed=classes)
        check_rows(loss, z1, z2, target, 0.9)


@everywhere
@with_every_float_type
def test_many_rows_equal_the_oracle(loss, device, dtype):
    check_rows(loss, *random_logits(20_011, 11, dtype, device), 0.9)


@everywhere
@with_every_float_type
@pytest.mark.parametrize("spread", [1e-30, 1e-4, 30.0, 3000.0])
def test_tiny_and_large_logits_equal_the_oracle(loss, device, dtype, spread):
    for classes in (3, 10, 100):
        z1, z2, target = random_logits(64, classes, dtype, device, seed=classes, spread=spread)
        for co_lambda in CO_LAMBDAS:
            check_rows(loss, z1, z2, target, co_lambda)


@everywhere
@pytest.mark.parametrize("offset", [16.0, 1024.0, 16_384.0])
def test_logits_far_from_zero_lose_no_digits(loss, device, offset):
    """log-sum-exps are as large as the logits here: differences must be taken before small numbers are added."""
    z1, z2, target = random_logits(64, 10, device=device)
    steps = 1 / 64  # adding the offset is exact
    z1, z2 = (((z.detach() / steps).round() * steps + offset).requires_grad_() for z in (z1, z2))
    for co_lambda in CO_LAMBDAS:
        check_rows(loss, z1, z2, target, co_lambda)


@everywhere
@pytest.mark.parametrize("co_lambda", [1e-8, 0.01, 0.99, 0.999_999])
def test_weights_near_zero_and_one_keep_their_digits(loss, device, co_lambda):
    z1, z2, target = random_logits(64, 10, device=device, spread=300.0)
    check_rows(loss, z1, z2, target, co_lambda)


@everywhere
@pytest.mark.parametrize("classes", [2, 10, 14, 100])
@pytest.mark.parametrize("co_lambda", CO_LAMBDAS)
def test_mean_over_the_selected_rows_and_its_gradient(loss, device, classes, co_lambda):
    z1, z2, target = random_logits(64, classes, torch.float64, device)
    out = loss.jocor_loss(z1, z2, target, co_lambda=co_lambda, num_keep=29)
    gradient1, gradient2 = torch.autograd.grad(3 * out.loss, (z1, z2))
    expected = oracle(z1, z2, target, co_lambda)
    selected = select(expected.losses, 29)
    weight = 3 * selected[:, None] / 29
    np.testing.assert_array_equal(out.selected.cpu().numpy(), selected)
    assert_close(out.per_sample, expected.losses)
    assert_close(out.loss, expected.losses[selected].mean())
    assert_close(gradient1, weight * expected.gradient1)
    assert_close(gradient2, weight * expected.gradient2)
    assert gradient1.cpu().numpy()[~selected].any() == gradient2.cpu().numpy()[~selected].any() == False  # noqa: E712


@everywhere
def test_mean_of_losses_near_the_largest_float_is_finite(loss, device):
    z1 = torch.tensor([[3e38, 0.0], [3e38, 0.0]], device=device, requires_grad=True)
    z2 = torch.zeros(2, 2, device=device, requires_grad=True)
    out = loss.jocor_loss(z1, z2, torch.tensor([1, 1], device=device), co_lambda=0.0, num_keep=2)
    assert_close(out.loss, 3e38, scale=1e39)
    out.loss.backward()
    assert z1.grad.isfinite().all()
    assert z2.grad.isfinite().all()


@everywhere
def test_label_zero_is_a_class_and_not_padding(loss, device):
    z1, z2, _ = random_logits(16, 10, device=device)
    check_rows(loss, z1, z2, torch.zeros(16, dtype=torch.long, device=device), 0.9)


@everywhere
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [1e-7, 1.0, 1e5])
def test_half_precision_is_float32_rounded_once_at_the_end(loss, device, dtype, scale):
    """Bit for bit, to the nearest and even, with results that are subnormal or overflow.

    On CUDA of few classes: there the types add up more than four in an order of their own each (kChunk).
    """
    for classes in (2, 3, 4) if loss is jocor_fast and device == "cuda" else (3, 10, 16, 37, 2100):
        z1, z2, target = random_logits(33, classes, dtype, device)
        wide1, wide2 = (z.detach().float().requires_grad_() for z in (z1, z2))
        losses, wide = loss.joint_loss(z1, z2, target), loss.joint_loss(wide1, wide2, target)
        assert torch.equal(losses, wide)
        weights = torch.full_like(losses, scale)
        gradients = torch.autograd.grad(losses, (z1, z2), weights)
        for gradient, exact in zip(gradients, torch.autograd.grad(wide, (wide1, wide2), weights), strict=True):
            assert torch.equal(gradient, exact.to(dtype))


# --- what must not change the numbers ---------------------------------------------------------------------------------


@everywhere
@with_every_float_type
@pytest.mark.parametrize("layout1", LAYOUTS)
@pytest.mark.parametrize("layout2", ["contiguous", "every second column", "transposed"])
def test_layout_in_memory_does_not_matter(loss, device, dtype, layout1, layout2):
    for rows, classes in ((6, 10), (5, 37), (1, 16)):
        z1, z2, target = random_logits(rows, classes, dtype, device)
        view1 = LAYOUTS[layout1](z1.detach()).requires_grad_()
        view2 = LAYOUTS[layout2](z2.detach()).requires_grad_()
        assert torch.equal(view1, z1)
        same(loss, (z1, z2, target), (view1, view2, target))


@everywhere
@pytest.mark.parametrize("broadcast", BROADCASTS)
def test_broadcast_views_equal_their_copies(loss, device, broadcast):
    z1, z2, target = random_logits(6, 10, device=device)
    view1 = BROADCASTS[broadcast](z1.detach()).requires_grad_()
    copy1 = view1.detach().clone(memory_format=torch.contiguous_format).requires_grad_()
    same(loss, (copy1, z2, target), (view1, z2, target))
    same(loss, (z2, copy1, target), (z2, view1, target))
    same(loss, (copy1, copy1, target), (view1, view1, target))


@everywhere
@pytest.mark.parametrize(
    ("shape", "rows"),
    [((2, 7, 5), lambda z: z.flatten(0, 1)), ((2, 5, 3, 4), lambda z: z.movedim(1, -1).flatten(0, -2))],
    ids=["tokens", "pixels"],
)
def test_tokens_and_pixels_are_rows_as_the_readme_lays_them_out(loss, device, shape, rows):
    logits = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)
    by_class = logits if len(shape) == 4 else logits.movedim(-1, 1)  # as torch's cross-entropy has it
    target = torch.arange(by_class[:, 0].numel(), device=device).reshape(by_class[:, 0].shape) % 5
    target[0, -1] = -100
    losses = loss.joint_loss(rows(logits), rows(logits), target.flatten(), co_lambda=0.0, ignore_index=-100)
    expected = 2 * torch.nn.functional.cross_entropy(by_class, target, ignore_index=-100, reduction="none")
    torch.testing.assert_close(losses.reshape(target.shape), expected)


def same(loss, arguments, other_arguments):
    for name, keep in (("joint_loss", {}), ("jocor_loss", {"num_keep": max(1, len(arguments[0]) // 2)})):
        results = [getattr(loss, name)(*each, **keep) for each in (arguments, other_arguments)]
        values = [result if name == "joint_loss" else result.loss for result in results]
        torch.testing.assert_close(values[0], values[1], rtol=0, atol=0)
        gradients = [
            torch.autograd.grad(value.sum(), each[:2])
            for value, each in zip(values, (arguments, other_arguments), strict=True)
        ]
        for gradient, other in zip(*gradients, strict=True):
            torch.testing.assert_close(gradient, other, rtol=0, atol=0)


@everywhere
def test_identical_networks_agree_exactly(loss, device):
    z, _, target = random_logits(64, 10, device=device, spread=20.0)
    twin = z.detach().clone().requires_grad_()
    losses = loss.joint_loss(z, twin, target, co_lambda=1.0)
    assert losses.abs().max() <= 1e-7
    assert not torch.signbit(losses).any()
    for gradient in torch.autograd.grad(losses.sum(), (z, twin)):
        assert gradient.abs().max() <= 1e-6


@everywhere
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("co_lambda", [0.0, 0.9, 1.0])
def test_exchanging_the_networks_exchanges_the_gradients(loss, device, dtype, co_lambda):
    z1, z2, target = random_logits(65, 10, dtype, device)
    losses = loss.joint_loss(z1, z2, target, co_lambda=co_lambda)
    exchanged = loss.joint_loss(z2, z1, target, co_lambda=co_lambda)
    assert_close(losses, exchanged.detach().double().cpu().numpy())
    gradients = torch.autograd.grad(losses.sum(), (z1, z2))
    gradients_of_exchanged = torch.autograd.grad(exchanged.sum(), (z1, z2))
    for gradient, other in zip(gradients, gradients_of_exchanged, strict=True):
        assert_close(gradient, other.double().cpu().numpy())


@everywhere
@pytest.mark.parametrize("co_lambda", [0.0, 0.9, 1.0])
def test_adding_a_constant_to_a_row_changes_nothing(loss, device, co_lambda):
    z1, z2, target = random_logits(64, 10, torch.float64, device)
    constant = torch.linspace(-10, 10, 64, dtype=torch.float64, device=device)[:, None]
    moved1, moved2 = ((z.detach() + c).requires_grad_() for z, c in ((z1, constant), (z2, constant.flip(0))))
    losses = loss.joint_loss(z1, z2, target, co_lambda=co_lambda)
    moved = loss.joint_loss(moved1, moved2, target, co_lambda=co_lambda)
    assert_close(moved, losses.detach().cpu().numpy())
    gradients = torch.autograd.grad(losses.sum(), (z1, z2))
    for gradient, other in zip(gradients, torch.autograd.grad(moved.sum(), (moved1, moved2)), strict=True):
        assert_close(other, gradient.cpu().numpy())


@everywhere
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("co_lambda", CO_LAMBDAS)
def test_every_gradient_row_sums_to_zero(loss, device, dtype, tolerance, co_lambda):
    z1, z2, target = random_logits(64, 100, dtype, device)
    losses = loss.joint_loss(z1, z2, target, co_lambda=co_lambda)
    for gradient in torch.autograd.grad(losses.sum(), (z1, z2)):
        assert gradient.double().sum(dim=1).abs().max() <= tolerance * max(1, gradient.abs().max().item())


@everywhere
def test_without_agreement_the_loss_is_the_sum_of_cross_entropies(loss, device):
    z1, z2, target = random_logits(64, 10, torch.float64, device)
    cross_entropy = torch.nn.functional.cross_entropy
    expected = cross_entropy(z1, target, reduction="none") + cross_entropy(z2, target, reduction="none")
    assert_close(loss.joint_loss(z1, z2, target, co_lambda=0.0), expected.detach().cpu().numpy())


@everywhere
def test_with_agreement_alone_the_labels_do_not_matter(loss, device):
    z1, z2, target = random_logits(64, 10, device=device)
    losses = loss.joint_loss(z1, z2, target, co_lambda=1.0)
    other_losses = loss.joint_loss(z1, z2, (target + 1) % 10, co_lambda=1.0)
    assert torch.equal(losses, other_losses)
    gradients = torch.autograd.grad(losses.sum(), (z1, z2))
    for gradient, other in zip(gradients, torch.autograd.grad(other_losses.sum(), (z1, z2)), strict=True):
        assert torch.equal(gradient, other)
