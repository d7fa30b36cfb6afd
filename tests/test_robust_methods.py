"""What the methods with a robust loss do over the epochs: GCE's pruning, the β and the sieve of CORES²."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import jocor_fast as jf
from engine_cases import CLASSES, blobs, fit, parameters, same_bits, settings, small_mlp
from jocor_fast.engine.plan import unfinished_schedule
from jocor_fast.methods import METHODS, Keep


class Seen:
    """A history in which the labels had these probabilities."""

    labels: Tensor

    def __init__(self, probabilities: Tensor) -> None:
        self._probabilities = probabilities[None]

    def probabilities(self) -> Tensor:
        return self._probabilities


def method_of(name: str, **changes: Any) -> Any:
    return METHODS[name].of(settings(method=name, method_options=changes).as_dict())


def random_batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(12, CLASSES, generator=generator, requires_grad=True)
    return z, torch.randint(CLASSES, (12,), generator=generator)


def test_gce_prunes_by_its_calendar_what_the_truncation_says() -> None:
    z, y = random_batch()
    method = method_of("gce", gce_prune_from=3, gce_prune_every=2)
    method.start(torch.zeros(30, dtype=torch.int64), CLASSES)
    probabilities = torch.linspace(0, 1, 30)
    probabilities[4] = torch.nan  # never seen
    samples = torch.arange(30)[::2][:12]
    for epoch, pruned_by in ((1, None), (2, None), (3, 3), (4, 3), (5, 5)):
        method.begin_epoch(Keep(12, 0.0, epoch), Seen(probabilities if epoch < 5 else 1 - probabilities))
        out = method.loss((z,), y, Keep(12, 0.0, epoch, samples=samples))
        seen = probabilities[samples] if pruned_by == 3 else 1 - probabilities[samples]
        kept = torch.ones(12, dtype=torch.bool) if pruned_by is None else ~(seen <= 0.5)
        assert torch.equal(out.selected[0], kept)
        rows = jf.gce_loss(z, y, q=0.7, reduction="none")
        torch.testing.assert_close(out.per_sample, rows.detach())  # of pruned rows too
        torch.testing.assert_close(out.loss, rows[kept].mean())
        (gradient,) = torch.autograd.grad(out.loss, z)
        assert (gradient[~kept] == 0).all()


def test_a_row_that_is_not_finite_is_left_out_of_a_pruned_step_and_counted() -> None:
    z, y = random_batch()
    broken = z.detach().clone()
    broken[2, 0] = torch.nan
    broken.requires_grad_()
    method = method_of("gce", gce_prune_from=1)
    method.start(torch.zeros(12, dtype=torch.int64), CLASSES)
    out = method.loss((broken,), y, Keep(12, 0.0, 1, samples=torch.arange(12)))
    assert out.num_nonfinite == 1
    assert out.selected[0].sum() == 11
    assert torch.autograd.grad(out.loss, broken)[0].isfinite().all()


def test_the_beta_of_cores_rises_and_its_sieve_comes_later() -> None:
    method = method_of("cores")
    phases = [method.phase(epoch) for epoch in (1, 10, 11, 25, 30, 31, 40, 41, 200)]
    betas = [0, 0, 2 / 30, 1, 2 * 20 / 30, 2 * 21 / 30, 2, 2, 2]
    assert [beta for beta, _ in phases] == pytest.approx(betas)
    assert [sieve for _, sieve in phases] == [False] * 5 + [True] * 4
    z, y = random_batch()
    before, after = (method.loss((z,), y, Keep(12, 0.0, epoch)) for epoch in (30, 31))
    assert before.selected[0].all()
    expected = jf.cores_loss(z, y, beta=1.4)
    assert torch.equal(after.selected[0], expected.selected)
    torch.testing.assert_close(after.per_sample, expected.per_sample)
    assert 0 < int(after.selected[0].sum()) < 12


def test_cores_gains_nothing_by_logits_that_only_grow() -> None:
    """The paper's loss falls without end with them; and so the accuracy did, from 95 % to 10 on MNIST."""
    z, y = random_batch()
    method, found = method_of("cores", cores_sieve_after=500), []
    for factor in (1e3, 1e6):
        large = (factor * z.detach()).requires_grad_()
        out = method.loss((large,), y, Keep(12, 0.0, 200))
        (gradient,) = torch.autograd.grad(out.loss, large)
        right = large.argmax(1) == y
        assert right.any()
        assert gradient[right].abs().max() < 1e-6
        found.append(out.per_sample[right])
    torch.testing.assert_close(*found, rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("method", "options", "expected"),
    [
        ("gce", {}, "GCE prunes first in epoch 40"),
        ("gce", {"gce_prune_from": 20}, None),
        ("gce", {"gce_truncation": 0.0}, None),
        ("cores", {}, "CORES² has its sieve after epoch 30"),
        ("cores", {"cores_sieve_after": 20}, "CORES² has its sieve after epoch 20"),
        ("cores", {"cores_sieve_after": 19}, None),
        ("elr", {}, None),
    ],
)
def test_a_run_that_ends_before_pruning_or_sieve_is_warned_of(
    method: str, options: dict[str, float], expected: str | None
) -> None:
    sentence = unfinished_schedule(settings(method=method, epochs=20, method_options=options))
    if expected is None:
        assert sentence is None
    else:
        assert sentence is not None
        assert sentence.startswith(f"the run ends with epoch 20, and {expected}: ")


def test_such_a_run_warns() -> None:
    data = torch.randn(40, 4), torch.arange(40) % 3
    with pytest.warns(UserWarning, match="the run ends with epoch 1, and GCE prunes first in epoch 40"):
        jf.train(lambda: torch.nn.Linear(4, 3), data, method="gce", forget_rate=0.0, epochs=1)


def test_the_keep_rate_is_what_the_method_kept_and_a_resumed_run_prunes_alike(tmp_path: Path) -> None:
    data = blobs(96)  # of whose labels a third are wrong
    changes = {"method": "gce", "epochs": 6, "lr": 0.03, "batch_size": 16}
    changes["method_options"] = {"gce_prune_from": 3, "gce_prune_every": 2}
    whole = fit(settings(**changes), small_mlp, data, output=tmp_path / "whole")
    rates = [line["keep_rate"] for line in whole.metrics]
    assert rates[:2] == [1.0, 1.0]
    assert all(0 < rate < 1 for rate in rates[2:])
    assert rates[2] == rates[3]

    class Stopped(Exception):
        pass

    def stop(event: Any) -> None:
        if event.epoch == 4:
            raise Stopped

    with pytest.raises(Stopped):
        fit(settings(**changes), small_mlp, data, output=tmp_path / "run", on_epoch=stop)
    resumed = fit(settings(**changes), small_mlp, data, output=tmp_path / "run", resume=True)
    assert same_bits(parameters(resumed.networks), parameters(whole.networks))


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("gce_q", 0.0, r"^gce_q must lie in \(0, 1\]"),
        ("gce_truncation", 1.5, "^gce_truncation must lie in"),
        ("gce_prune_every", 0, "^gce_prune_every must be at least 1"),
    ],
)
def test_wrong_options_are_named(name: str, value: float, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        settings(method="gce", method_options={name: value})
