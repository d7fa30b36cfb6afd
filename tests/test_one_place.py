"""What is added in one place works everywhere: jf.train, the command line, its help, comparisons and the files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jocor_fast as jf
from jocor_fast.cli import main
from jocor_fast.engine.metrics import METRICS, Epoch, Metric
from jocor_fast.methods import METHODS, Keep, Method, StepLoss, register
from jocor_fast.schedules import LR_PLANS

pytestmark = pytest.mark.usefixtures("one_thread", "curves_at_once")

RUN = ("train", "--noise-rate=0.2", "--epochs=3", "--device=cpu", "--seed=1")


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def a_run(**changes: Any) -> Any:
    labels = torch.arange(60) % 3
    inputs = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)) + 3 * labels[:, None]
    return jf.train(
        lambda: nn.Linear(4, 3), (inputs, labels), forget_rate=0.2, epochs=3, ramp_epochs=1, batch_size=20, **changes
    )


@pytest.fixture
def toy_method() -> Iterator[str]:
    @register("toy")
    class Toy(Method):
        """Plain cross-entropy of two networks."""

        title = "Toy"
        selects = False

        def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
            rows = torch.stack([nn.functional.cross_entropy(z, labels, reduction="none") for z in logits]).sum(0)
            return StepLoss(rows.mean(), (torch.ones_like(labels).bool(),), torch.zeros(()).long(), rows.detach())

    yield "toy"
    del METHODS["toy"]


def test_a_method_is_one_class(toy_method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(a_run(method=toy_method).networks) == 2
    assert main([*RUN, "--method=toy", f"--output={tmp_path / 'toy'}"]) == 0
    assert main([*RUN, f"--output={tmp_path / 'jocor'}"]) == 0
    assert "method    Toy, recipe paper, seed 1" in capsys.readouterr().out
    assert main(["plot", str(tmp_path), f"--output={tmp_path}"]) == 0
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert "jocor, toy" in " ".join(capsys.readouterr().out.split())
    summary = json.loads((tmp_path / "toy" / "summary.json").read_text())
    assert (summary["status"], lines(tmp_path / "toy")[-1]["keep_rate"]) == ("finished", 1.0)
    assert main([*RUN, "--method=toy", "--resume", f"--output={tmp_path / 'toy'}"]) == 0
    assert main([*RUN, "--method=toys", f"--output={tmp_path / 'other'}"]) == 2
    assert "jocor, toy, got 'toys'" in capsys.readouterr().err


@pytest.fixture
def toy_schedule() -> Iterator[str]:
    LR_PLANS["halving"] = lambda epoch, *, epochs: 0.5 ** (epoch - 1)
    yield "halving"
    del LR_PLANS["halving"]


def test_a_schedule_is_one_function(toy_schedule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = [*RUN, f"--lr-plan={toy_schedule}", f"--output={tmp_path / 'run'}"]
    assert main([*run, "--decay-start=2"]) == 0
    out, error = capsys.readouterr()
    assert "learning rate 0.001, 0.0005, 0.00025 in turn (flag)" in out
    assert "--decay-start changes nothing: --lr-plan halving says when the learning rate falls" in error
    assert [line["lr"] for line in lines(tmp_path / "run")] == [0.001, 0.0005, 0.00025]
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert "linear, clothing1m, halving" in " ".join(capsys.readouterr().out.split())


@pytest.fixture
def toy_metric() -> Iterator[str]:
    def highest_loss(epoch: Epoch) -> Tensor:
        return epoch.log.losses.max()

    METRICS["toy_share"] = Metric(lambda _, numbers: 1 / (1 + max(map(max, numbers))), highest_loss)
    yield "toy_share"
    del METRICS["toy_share"]


def test_a_metric_is_one_entry(toy_metric: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert all(0 < line[toy_metric] < 1 for line in a_run().metrics)
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"
    assert main([*RUN, "--tensorboard", f"--output={run}"]) == 0
    shares = [line[toy_metric] for line in lines(run)]
    table = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip().startswith("toy share")]
    assert [row[-1] for row in table] == [f"{shares[-1]:.4f}"]
    board = EventAccumulator(str(run / "tensorboard"))
    board.Reload()
    assert [event.value for event in board.Scalars(toy_metric)] == pytest.approx(shares)
