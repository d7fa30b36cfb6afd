"""Numbers that are not finite: rows of them are left out and counted, and a run that is broken by them has diverged."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from engine_cases import CLASSES, blobs, fit, held_out, parameters, settings, strict_json
from jocor_fast.data.samples import Samples


class Exploding(nn.Module):
    """A linear model: from some call on the logits in `rows` are NaN, and their gradients are too, or 0."""

    def __init__(self, calls: int, rows: slice, *, gradients: bool = False) -> None:
        super().__init__()
        self.linear, self.calls, self.rows, self.gradients = nn.Linear(6, CLASSES), calls, rows, gradients

    def forward(self, inputs: Tensor) -> Tensor:
        logits = self.linear(inputs)
        if self.training and torch.is_grad_enabled():
            self.calls -= 1
            if self.calls < 0:
                factor = torch.ones(len(logits), 1)
                factor[self.rows] = torch.nan
                logits = logits * factor if self.gradients else torch.where(factor.isnan(), factor, logits)
        return logits


def test_rows_that_are_not_finite_are_counted_and_leave_jocor_unharmed(tmp_path: Path) -> None:
    networks = (Exploding(6, slice(0, 3)), nn.Linear(6, CLASSES))
    result = fit(settings(epochs=3), networks, blobs(64), output=tmp_path)
    assert [line["nonfinite_rows"] for line in result.metrics] == [0, 2 * 3, 4 * 3]
    assert result.summary["status"] == "finished"
    assert all(value.isfinite().all() for value in parameters(result.networks))
    assert all(line["train_loss"] is not None for line in result.metrics)


def test_a_run_whose_parameters_are_not_finite_has_diverged(tmp_path: Path) -> None:
    """A row that is multiplied by NaN on its way spreads over all weights; the checkpoint before it is kept."""
    events: list[int] = []
    result = fit(
        settings(method="standard", epochs=5),
        Exploding(6, slice(0, 1), gradients=True),
        blobs(64),
        test=held_out(9),
        output=tmp_path,
        on_epoch=lambda event: events.append(event.epoch),
    )
    assert result.summary["status"] == "diverged"
    reason = "a parameter or running statistic is not finite"
    assert result.summary["diverged"] == {"epoch": 2, "batch": 3, "reason": reason}
    assert result.metrics[1]["nonfinite_rows"] == 1 + 16  # that row, and then every row of the next batch
    assert events == [1, 2]
    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        strict_json(line)
    assert strict_json((tmp_path / "summary.json").read_text()) == result.summary
    checkpoint = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert len(checkpoint["history"]) == 1
    assert all(value.isfinite().all() for value in checkpoint["training"]["networks"][0].values())


def test_a_run_without_a_finite_loss_for_an_epoch_has_diverged() -> None:
    networks = (Exploding(4, slice(None)), nn.Linear(6, CLASSES))
    result = fit(settings(epochs=5), networks, blobs(64))
    assert [line["epoch"] for line in result.metrics] == [1, 2]
    assert result.summary["diverged"] == {"epoch": 2, "batch": 1, "reason": "no step had a finite loss"}
    assert (result.metrics[1]["train_loss"], result.metrics[1]["label_precision"]) == (None, None)


def test_the_epoch_in_which_a_run_diverged_is_not_the_best_whatever_its_accuracy(tmp_path: Path) -> None:
    """No best.pt is written of it: NaN logits are answered by class 0, which all of these samples are of."""
    val = Samples(torch.zeros(9, 6), torch.zeros(9, dtype=torch.int64))
    network = Exploding(6, slice(0, 1), gradients=True)
    with torch.no_grad():
        network.linear.bias[0] = -9.0
    result = fit(settings(method="standard", epochs=5), network, blobs(64), val=val, output=tmp_path)
    assert [line["val_accuracy"] for line in result.metrics] == [0.0, 1.0]
    assert result.summary["best_by_validation"] == {"epoch": 1, "val_accuracy": 0.0, "test_accuracy": None}
    assert torch.load(tmp_path / "best.pt", weights_only=True)["epoch"] == 1


class Statistic(nn.Linear):
    """A layer with a statistic that plays no part in its output."""

    def __init__(self, value: float) -> None:
        super().__init__(6, CLASSES)
        self.register_buffer("statistic", torch.full((2,), value))


def test_a_statistic_that_is_not_a_number_has_diverged_and_an_infinite_mask_has_not() -> None:
    broken = fit(settings(epochs=1), lambda: Statistic(torch.nan), blobs(64)).summary
    assert broken["diverged"] == {"epoch": 1, "batch": None, "reason": "a parameter or running statistic is not finite"}
    assert fit(settings(epochs=1), lambda: Statistic(-torch.inf), blobs(64)).summary["status"] == "finished"
