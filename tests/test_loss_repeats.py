"""The same bits every time: from call to call, wherever a row lies, with any number of threads."""

from contextlib import contextmanager

import pytest
import torch

import jocor_fast
import jocor_fast.reference
from loss_cases import everywhere, random_logits, with_every_float_type


def bits(loss, z1, z2, target, num_keep):
    """Every output and both gradients; the mean loss comes first."""
    out = loss.jocor_loss(z1, z2, target, num_keep=num_keep)
    return [x.detach().clone() for x in (*out, *torch.autograd.grad(out.loss, (z1, z2)))]


def assert_same_bits(first, second):
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


@contextmanager
def threads(number):
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@everywhere
@with_every_float_type
def test_a_second_call_gives_the_same_bits(loss, device, dtype):
    for rows, classes in ((128, 10), (33, 1000), (20_000, 14)):
        inputs = random_logits(rows, classes, dtype, device)
        first = bits(loss, *inputs, rows // 2)
        for _ in range(3):
            assert_same_bits(bits(loss, *inputs, rows // 2), first)


# Enough of one kind that the batch is split over threads, and its parts end inside a vector's width.
BATCHES = [(7, 3), (61, 10), (19, 16), (35, 37), (13, 2040), (40_001, 3), (9_999, 10), (4_001, 37), (67, 2049)]


@everywhere
@with_every_float_type
@pytest.mark.parametrize(("rows", "classes"), BATCHES)
def test_equal_rows_give_equal_bits_wherever_they_lie(loss, device, dtype, rows, classes):
    if loss is jocor_fast.reference and device == "cuda" and classes > 1024:
        pytest.skip("torch's softmax on CUDA takes so long a row from its address on: it adds up in another order")
    z1, z2, _ = random_logits(1, classes, dtype, device, seed=classes)
    z1, z2 = (z.detach().expand(rows, classes).contiguous().requires_grad_() for z in (z1, z2))
    target = torch.zeros(rows, dtype=torch.long, device=device)
    losses = loss.joint_loss(z1, z2, target)
    assert (losses == losses[0]).all()
    for gradient in torch.autograd.grad(losses.sum(), (z1, z2)):
        assert (gradient == gradient[0]).all()


@everywhere
@with_every_float_type
@pytest.mark.parametrize(("rows", "classes"), [(67, 10), (35, 37), (30_011, 10)])
def test_permuted_rows_give_permuted_bits(loss, device, dtype, rows, classes):
    z1, z2, target = random_logits(rows, classes, dtype, device)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(1)).to(device)
    moved1, moved2 = (z.detach()[order].requires_grad_() for z in (z1, z2))
    losses = loss.joint_loss(z1, z2, target)
    moved = loss.joint_loss(moved1, moved2, target[order])
    assert torch.equal(moved, losses[order])
    gradients = torch.autograd.grad(losses.sum(), (z1, z2))
    for gradient, other in zip(gradients, torch.autograd.grad(moved.sum(), (moved1, moved2)), strict=True):
        assert torch.equal(other, gradient[order])


@everywhere
@with_every_float_type
def test_a_row_alone_gives_the_bits_it_has_in_a_batch(loss, device, dtype):
    z1, z2, target = random_logits(40, 10, dtype, device)
    losses = loss.joint_loss(z1, z2, target)
    for row in range(0, 40, 13):
        alone = slice(row, row + 1)
        assert torch.equal(loss.joint_loss(z1[alone], z2[alone], target[alone]), losses[alone])


@everywhere
@with_every_float_type
@pytest.mark.parametrize(("rows", "classes"), [(30_001, 3), (10_011, 10), (301, 1000)])
def test_number_of_threads_does_not_matter(loss, device, dtype, rows, classes):
    inputs = random_logits(rows, classes, dtype, device)
    first = 1 if loss is jocor_fast.reference else 0  # torch adds up a long batch thread by thread
    with threads(1):
        one = bits(loss, *inputs, rows // 3)
    with threads(2):
        assert_same_bits(bits(loss, *inputs, rows // 3)[first:], one[first:])


@everywhere
def test_an_invalid_label_is_found_on_any_thread(loss, device):
    if device == "cuda":
        pytest.skip("labels are not looked at by the host on CUDA: test_label_that_is_no_class")
    z1, z2, target = random_logits(60_000, 3)
    for row in (0, 29_999, 30_000, 59_999):
        wrong = target.clone()
        wrong[row:] = 3
        for _ in range(20):  # whichever thread is the last to meet one
            with threads(2), pytest.raises(ValueError, match=rf"got 3 in row {row}$"):
                loss.joint_loss(z1, z2, wrong)
    with threads(2):  # and the library works on afterwards
        assert loss.joint_loss(z1, z2, target).isfinite().all()


def train(loss, device, steps):
    """Losses of a few steps of JoCoR on fixed data, and what becomes of two small networks' parameters."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(256, 20, generator=generator).to(device)
    labels = torch.randint(5, (256,), generator=generator).to(device)
    torch.manual_seed(0)
    networks = torch.nn.ModuleList(
        torch.nn.Sequential(torch.nn.Linear(20, 16), torch.nn.ReLU(), torch.nn.Linear(16, 5)) for _ in range(2)
    ).to(device)
    optimizer = torch.optim.Adam(networks.parameters(), lr=1e-2)
    history = []
    for step in range(steps):
        rows = slice(64 * (step % 4), 64 * (step % 4 + 1))
        out = loss.jocor_loss(
            networks[0](inputs[rows]), networks[1](inputs[rows]), labels[rows], forget_rate=0.4 * step / steps
        )
        optimizer.zero_grad()
        out.loss.backward()
        optimizer.step()
        history.append(out.loss.detach())
    return torch.stack(history), torch.nn.utils.parameters_to_vector(networks.parameters()).detach()


@everywhere
def test_fifty_steps_from_one_seed_repeat_bitwise(loss, device):
    first_losses, first_parameters = train(loss, device, steps=50)
    losses, parameters = train(loss, device, steps=50)
    assert torch.equal(losses, first_losses)
    assert torch.equal(parameters, first_parameters)
    assert first_losses[-4:].mean() < first_losses[:4].mean()


@everywhere
def test_deterministic_algorithms_are_fine(loss, device):
    z1, z2, target = random_logits(64, 10, device=device)
    expected = bits(loss, z1, z2, target, 20)
    torch.use_deterministic_algorithms(True)
    try:
        assert_same_bits(bits(loss, z1, z2, target, 20), expected)
    finally:
        torch.use_deterministic_algorithms(False)
