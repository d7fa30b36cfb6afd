"""What Co-teaching and Decoupling accept and refuse, and that the sentence names the argument."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import jocor_fast
from loss_cases import everywhere, random_logits

NAN = float("nan")


@everywhere
def test_rates_and_numbers_are_read_from_tensors(loss, device):
    z1, z2, target = random_logits(40, 5, device=device)
    for disagreement in (False, True):
        for name, value, dtype in (("forget_rate", 0.3, torch.float64), ("num_keep", 9, torch.int64)):
            number = loss.coteaching_loss(z1, z2, target, disagreement=disagreement, **{name: value})
            scalar = torch.tensor(value, dtype=dtype, device=device)
            assert all(
                map(
                    torch.equal,
                    loss.coteaching_loss(z1, z2, target, disagreement=disagreement, **{name: scalar}),
                    number,
                )
            )


@everywhere
def test_a_numpy_bool_is_a_bool(loss, device):
    """As `epoch >= warm_up` is, where the epoch is NumPy's."""
    z1, z2, target = random_logits(6, 3, device=device)
    for disagreement in (False, True):
        out = loss.coteaching_loss(z1, z2, target, num_keep=1, disagreement=disagreement)
        same = loss.coteaching_loss(z1, z2, target, num_keep=1, disagreement=np.bool_(disagreement))
        assert torch.equal(out.loss, same.loss)


@everywhere
@pytest.mark.parametrize(
    ("settings", "error", "match"),
    [
        ({}, TypeError, "exactly one"),
        ({"forget_rate": 0.1, "num_keep": 1}, TypeError, "exactly one"),
        ({"forget_rate": torch.tensor(0.1), "num_keep": 1}, TypeError, "exactly one"),
        ({"forget_rate": 1.0}, ValueError, "forget_rate"),
        ({"forget_rate": NAN}, ValueError, "forget_rate"),
        ({"forget_rate": torch.tensor(0.1)}, TypeError, "forget_rate"),
        ({"forget_rate": torch.tensor([0.1], dtype=torch.float64)}, ValueError, "forget_rate"),
        ({"num_keep": 0}, ValueError, "num_keep"),
        ({"num_keep": 2, "disagreement": 1}, TypeError, "disagreement"),
        ({"num_keep": 2, "rounding": "up"}, ValueError, "rounding"),
        ({"num_keep": 2, "ignore_index": True}, TypeError, "ignore_index"),
    ],
)
def test_wrong_settings_are_named(loss, device, settings, error, match):
    z1, z2, target = random_logits(6, 3, device=device)
    with pytest.raises(error, match=match):
        loss.coteaching_loss(z1, z2, target, **settings)


@pytest.mark.parametrize("loss", [jocor_fast, jocor_fast.reference], ids=["compiled", "reference"])
def test_a_rate_out_of_range_in_a_tensor_on_the_cpu_is_an_error(loss):
    z1, z2, target = random_logits(6, 3)
    for rate in (1.0, -0.1, NAN):
        with pytest.raises(ValueError, match="forget_rate"):
            loss.coteaching_loss(z1, z2, target, forget_rate=torch.tensor(rate, dtype=torch.float64))


@everywhere
@pytest.mark.parametrize("name", ["coteaching_loss", "decoupling_loss"])
def test_wrong_tensors_are_named(loss, device, name):
    z1, z2, target = random_logits(6, 3, device=device)
    compute = getattr(loss, name)
    settings = {"num_keep": 2} if name == "coteaching_loss" else {}
    for arguments, error, match in (
        ((z1, z2, target.float()), TypeError, "target"),
        ((z1, z2.double(), target), TypeError, "logits2"),
        ((z1, z2, target[:-1]), ValueError, "target"),
        ((z1, z2[:, :2], target), ValueError, "logits2"),
        ((z1.tolist(), z2, target), TypeError, "logits1"),
    ):
        with pytest.raises(error, match=match):
            compute(*arguments, **settings)


@everywhere
@pytest.mark.parametrize("label", [-1, 3, 2**40])
@pytest.mark.parametrize("name", ["coteaching_loss", "decoupling_loss"])
def test_an_invalid_label_is_an_error_or_a_row_that_is_never_chosen(loss, device, name, label):
    z1, z2, target = random_logits(6, 3, device=device)
    target[4] = label
    compute = getattr(loss, name)
    settings = {"num_keep": 6} if name == "coteaching_loss" else {}
    if device == "cpu":
        with pytest.raises(ValueError, match=rf"got {label} in row 4$"):
            compute(z1, z2, target, **settings)
        return
    out = compute(z1, z2, target, **settings)
    assert not out[3 if name == "coteaching_loss" else 1][4]
    assert out.loss.isfinite()
