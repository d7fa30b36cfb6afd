"""The loss of forward correction against NumPy, and where a naive one is not finite (case 34)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import jocor_fast
from jocor_fast import noise
from loss_cases import (
    INTEGER_TYPES,
    LAYOUTS,
    assert_close,
    computed_in,
    everywhere,
    random_logits,
    with_every_float_type,
)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def expected(logits: Tensor, target: Tensor, transition: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """-log((p·T)[y]) of each row and its gradient, in float64 and from the definition."""
    z = logits.detach().double().cpu().numpy()
    exponentials = np.exp(z - z.max(axis=1, keepdims=True, initial=-np.inf))
    p = exponentials / exponentials.sum(axis=1, keepdims=True)
    columns = transition.T[target.cpu().numpy()]  # [B, C]: T[i, y]
    product = (p * columns).sum(axis=1, keepdims=True)
    return -np.log(product[:, 0]), p - p * columns / product


@everywhere
@with_every_float_type
@pytest.mark.parametrize("matrix", [noise.symmetric(10, 0.5), noise.pairflip(10, 0.45), np.eye(10)])
def test_values_and_gradients(loss, device, dtype, matrix):
    logits, _, target = random_logits(40, 10, dtype, device)
    losses, gradients = expected(logits, target, matrix)
    rows = loss.forward_corrected_loss(logits, target, matrix, reduction="none")
    assert rows.dtype == computed_in(dtype)
    assert_close(rows, losses)
    mean = loss.forward_corrected_loss(logits, target, matrix)
    assert_close(mean, losses.mean())
    (gradient,) = torch.autograd.grad(mean, logits)
    assert gradient.dtype == dtype
    assert_close(gradient, gradients / 40)


@everywhere
@with_every_float_type
@pytest.mark.parametrize("classes", [1, 2, 3, 5, 7, 8, 9, 12, 16, 17, 31, 33, 100])
def test_values_and_gradients_around_every_vector_width(loss, device, dtype, classes):
    """19 rows: one block of the kernel's and a part of the next."""
    logits, _, target = random_logits(19, classes, dtype, device)
    matrix = np.full((classes, classes), 0.4 / classes) + 0.6 * np.eye(classes)
    losses, gradients = expected(logits, target, matrix)
    rows = loss.forward_corrected_loss(logits, target, matrix, reduction="none")
    assert_close(rows, losses)
    weights = torch.linspace(0.1, 1, 19, dtype=rows.dtype, device=device)
    (gradient,) = torch.autograd.grad(rows, logits, weights)
    assert_close(gradient, gradients * weights.cpu().numpy()[:, None])


@everywhere
def test_gradcheck(loss, device):
    logits, _, target = random_logits(5, 4, torch.float64, device)
    matrix = noise.symmetric(4, 0.3)

    def mean(z):
        return loss.forward_corrected_loss(z, target, matrix)

    def rows(z):
        return loss.forward_corrected_loss(z, target, matrix, reduction="none")

    assert torch.autograd.gradcheck(mean, (logits,))
    assert torch.autograd.gradcheck(rows, (logits,))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_second_derivative_is_refused(device):
    logits, _, target = random_logits(5, 4, device=device)
    value = jocor_fast.forward_corrected_loss(logits, target, noise.symmetric(4, 0.3))
    (gradient,) = torch.autograd.grad(value, logits, create_graph=True)
    with pytest.raises(RuntimeError, match="twice"):
        gradient.square().sum().backward()


def test_a_long_batch_is_shared_between_threads_and_stays_the_same(two_threads):
    logits, _, target = random_logits(30_000, 10)
    matrix = noise.symmetric(10, 0.3)
    whole = jocor_fast.forward_corrected_loss(logits, target, matrix, reduction="none")
    parts = [
        jocor_fast.forward_corrected_loss(z, y, matrix, reduction="none")
        for z, y in zip(logits.split(1000), target.split(1000), strict=True)
    ]
    assert torch.equal(whole, torch.cat(parts))


@everywhere
@with_every_float_type
def test_the_identity_gives_cross_entropy(loss, device, dtype):
    logits, _, target = random_logits(40, 10, dtype, device)
    value = loss.forward_corrected_loss(logits, target, torch.eye(10, device=device))
    assert_close(value, F.cross_entropy(logits.double(), target).item())


@everywhere
@pytest.mark.parametrize("gap", [104.0, 1e4])
def test_probabilities_that_underflow_stay_finite(loss, device, gap):
    """The label's class and all that flip to it have probability 0 in float32; its logarithm is -gap and some."""
    logits = torch.tensor([[gap, 0.0, 0.0]], device=device, requires_grad=True)
    matrix = np.array([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5], [0.0, 0.5, 0.5]])
    value = loss.forward_corrected_loss(logits, torch.tensor([1], device=device), matrix)
    assert value.item() == pytest.approx(gap, rel=1e-6)
    (gradient,) = torch.autograd.grad(value, logits)
    torch.testing.assert_close(gradient.cpu(), torch.tensor([[1.0, -0.5, -0.5]]))


@everywhere
@with_every_float_type
def test_a_masked_class_is_a_class_of_probability_0(loss, device, dtype):
    logits = torch.tensor([[1.0, -torch.inf, 0.0]], dtype=dtype, device=device, requires_grad=True)
    matrix = noise.symmetric(3, 0.5)
    losses, gradients = expected(logits, torch.tensor([0]), matrix)
    value = loss.forward_corrected_loss(logits, torch.tensor([0], device=device), matrix)
    assert_close(value, losses[0])
    assert_close(*torch.autograd.grad(value, logits), gradients)


@everywhere
@pytest.mark.parametrize(
    ("row", "infinite"),
    [([1.0, torch.nan, 0.0], False), ([1.0, torch.inf, 0.0], False), ([0.0, -torch.inf, 0.0], True)],
)
def test_a_row_without_a_finite_loss_keeps_it_and_gets_no_gradient(loss, device, row, infinite):
    """With T the identity a masked label has probability 0: its loss is infinite."""
    logits = torch.tensor([row, [1.0, 2.0, 3.0]], device=device, requires_grad=True)
    target = torch.tensor([1, 1], device=device)
    losses = loss.forward_corrected_loss(logits, target, torch.eye(3, device=device), reduction="none")
    assert losses.isfinite().tolist() == [False, True]
    assert losses[0].isinf().item() == infinite
    (gradient,) = torch.autograd.grad(losses.sum(), logits)
    assert (gradient[0] == 0).all()
    (alone,) = torch.autograd.grad(F.cross_entropy(logits[1:], target[1:]), logits)
    torch.testing.assert_close(gradient[1], alone[1])


@everywhere
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_label_types_and_kinds_of_matrix_do_not_matter(loss, device, layout):
    logits, _, target = random_logits(9, 10, device=device)
    matrix = noise.symmetric(10, 0.4)
    plain = loss.forward_corrected_loss(logits, target, matrix)
    for labels in INTEGER_TYPES:
        assert torch.equal(loss.forward_corrected_loss(LAYOUTS[layout](logits), target.to(labels), matrix), plain)
    for same in (matrix.T, torch.tensor(matrix, device=device), torch.tensor(matrix, device=device).t()):  # symmetric
        assert torch.equal(loss.forward_corrected_loss(logits, target, same), plain)


@everywhere
def test_an_empty_batch_has_loss_0(loss, device):
    logits, _, target = random_logits(0, 3, device=device)
    value = loss.forward_corrected_loss(logits, target, np.eye(3))
    assert value.item() == 0
    assert torch.autograd.grad(value, logits)[0].shape == (0, 3)


@everywhere
@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"transition": np.eye(3, dtype=int)}, TypeError, "transition"),
        ({"transition": np.eye(4)}, ValueError, "transition"),
        ({"transition": np.eye(3) + np.array([-0.1, 0.1, 0])}, ValueError, "transition"),
        ({"transition": np.eye(3) * 0.9}, ValueError, "transition"),
        ({"transition": np.full((3, 3), np.nan)}, ValueError, "transition"),
        ({"reduction": "sum"}, ValueError, "reduction"),
        ({"reduction": None}, TypeError, "reduction"),
        ({"target": [0, 1]}, TypeError, "target"),
    ],
)
def test_wrong_arguments_are_named(loss, device, change, error, match):
    logits, _, target = random_logits(2, 3, device=device)
    arguments: dict[str, Any] = {"logits": logits, "target": target, "transition": np.eye(3), **change}
    with pytest.raises(error, match=match):
        loss.forward_corrected_loss(**arguments)


@everywhere
def test_wrong_tensors_are_named(loss, device):
    logits, _, target = random_logits(2, 3, device=device)
    for z, labels, error, match in (
        (logits.long(), target, TypeError, "logits"),
        (logits, target.float(), TypeError, "target"),
        (logits, target.bool(), TypeError, "target"),
        (logits, target[:1], ValueError, "target"),
        (logits[0], target, ValueError, "logits"),
    ):
        with pytest.raises(error, match=match):
            loss.forward_corrected_loss(z, labels, np.eye(3))


@everywhere
@pytest.mark.parametrize("label", [-1, -100, 3, 2**40])
def test_an_invalid_label_is_an_error_or_a_loss_that_is_nan(loss, device, label):
    logits, _, target = random_logits(4, 3, device=device)
    target[2] = label
    if device == "cpu":
        with pytest.raises(ValueError, match=rf"^target must hold labels in \[0, 3\), got {label} in row 2$"):
            loss.forward_corrected_loss(logits, target, np.eye(3))
        return
    losses = loss.forward_corrected_loss(logits, target, np.eye(3), reduction="none")
    assert losses.isnan().tolist() == [False, False, True, False]
    assert (torch.autograd.grad(losses.sum(), logits)[0][2] == 0).all()


def test_the_matrix_gets_no_gradient_and_is_not_written_to():
    logits, _, target = random_logits(4, 3)
    matrix = torch.eye(3).requires_grad_()
    jocor_fast.forward_corrected_loss(logits, target, matrix).backward()
    assert matrix.grad is None
    assert torch.equal(matrix, torch.eye(3))


def test_logits_changed_in_place_before_backward_are_an_error():
    leaf, _, target = random_logits(4, 3)
    logits = leaf * 1
    value = jocor_fast.forward_corrected_loss(logits, target, np.eye(3))
    logits.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()
