"""Training with a selection per class, class weights and label smoothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import jocor_fast as jf
from cli_cases import content, train
from jocor_fast.engine.history import SampleHistory, SampleStatistics
from jocor_fast.engine.settings import TrainSettings
from jocor_fast.methods import METHODS, Keep

pytestmark = pytest.mark.usefixtures("curves_at_once")

COUNTS = (400, 200, 60, 8)
SELECTING = [name for name, method in METHODS.items() if method.selects]


def rare() -> tuple[torch.Tensor, torch.Tensor]:
    """Four classes, which overlap, of 400 samples to 8."""
    labels = torch.arange(4).repeat_interleave(torch.tensor(COUNTS))
    generator = torch.Generator().manual_seed(0)
    return torch.randn(len(labels), 6, generator=generator) + 2.5 * torch.eye(4, 6)[labels], labels


def shares_kept(**changes: Any) -> list[float]:
    """What is kept of each class, on average after the ramp."""
    run = jf.train(
        lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)),
        rare(),
        **{"forget_rate": 0.3, "epochs": 8, "ramp_epochs": 2, "batch_size": 32, "device": "cpu", **changes},
    )
    return np.mean([line["selected_share_per_class"] for line in run.metrics[2:]], axis=0).tolist()


@pytest.mark.parametrize("method", SELECTING)
def test_each_class_keeps_its_share_also_one_of_which_few_batches_have_a_sample(method: str) -> None:
    kept = shares_kept(method=method, selection_per_class=True)
    expected = np.average(kept, weights=COUNTS)  # Co-teaching+ keeps few rows once predictions agree
    assert min(kept) > 0.5 * expected
    assert method == "coteaching-plus" or expected == pytest.approx(0.7, abs=0.04)  # TAkS leaves a part of a batch out


def test_without_it_a_rare_class_is_left_out_as_a_whole() -> None:
    assert shares_kept()[-1] < 0.1


@pytest.mark.parametrize("rate", [0.5, 0.8])
def test_a_class_keeps_its_share_at_high_rates_too(rate: float) -> None:
    assert min(shares_kept(selection_per_class=True, forget_rate=rate)) > 0.5 * (1 - rate)


def test_while_the_ramp_lasts_each_class_keeps_its_share_where_that_is_asked_for() -> None:
    kept = shares_kept(balanced_ramp=True, ramp_epochs=4, epochs=4)
    assert min(kept) > 0.65
    assert shares_kept(balanced_ramp=True, ramp_epochs=4, epochs=4, selection_per_class=True) == kept
    assert shares_kept(balanced_ramp=True, ramp_epochs=0) == shares_kept(ramp_epochs=0)


def test_after_a_balanced_ramp_all_classes_are_ranked_together() -> None:
    kept = shares_kept(balanced_ramp=True, epochs=20)
    assert kept[-1] < 0.8 * kept[0]


def test_a_method_without_ramp_has_none_to_balance(named_blobs: np.ndarray, capsys: pytest.CaptureFixture[str]) -> None:
    blobs = ["--dataset=npz:blobs.npz", "--noise-rate=0.2", "--batch-size=20"]
    assert train(*blobs, "--method=taks", "--balanced-ramp") == 0
    assert "--balanced-ramp changes nothing: taks drops τ from the first epoch on" in capsys.readouterr().err
    assert shares_kept(method="taks", balanced_ramp=True) == shares_kept(method="taks")


def test_samples_are_ranked_among_those_of_their_class_by_their_moving_means() -> None:
    labels = torch.tensor([1, 0, 1, 0, 1, 2])
    history = SampleHistory(labels, 2, ranked=True)
    ranks = history.ranks
    assert ranks is not None
    history.table[:, :3] = torch.tensor([1.0, 1.0, 0.5])  # times seen and selected, and the weights of the means
    history.table[:, 3] = torch.tensor([3.0, 9.0, 1.0, 8.0, 2.0, 7.0])
    history.rank()
    torch.testing.assert_close(ranks, torch.tensor([2 / 3, 0.5, 0.0, 0.0, 1 / 3, 0.0]))
    assert history.ranks is ranks  # a captured step reads it in its place
    assert torch.equal(history.state_dict()["ranks"], ranks)
    assert SampleStatistics.of(history.state_dict()).loss.tolist() == [6.0, 18.0, 2.0, 16.0, 4.0, 14.0]
    assert SampleHistory(labels, 2).ranks_of(labels) is None


@pytest.mark.parametrize("weights", ["balanced", [1.0, 0.0, 2.0, 3.0], torch.tensor([1.0, 0, 2, 3]).numpy()])
def test_the_loss_of_a_step_is_torchs_with_the_same_weights_and_smoothing(weights: Any) -> None:
    inputs, labels = rare()
    network = nn.Linear(6, 4)
    numbers = len(labels) / (4 * torch.tensor(COUNTS)) if isinstance(weights, str) else torch.tensor([1.0, 0, 2, 3])
    expected = functional.cross_entropy(network(inputs), labels, weight=numbers, label_smoothing=0.1).item()
    run = jf.train(
        network,
        (inputs, labels),
        method="standard",
        forget_rate=0,
        epochs=1,
        batch_size=len(labels),
        class_weights=weights,
        label_smoothing=0.1,
        device="cpu",
    )
    assert run.metrics[0]["train_loss"] == pytest.approx(expected, rel=1e-5)


def test_every_method_heeds_the_terms_or_refuses_them() -> None:
    refusing = [name for name, method in METHODS.items() if not method.takes_terms]
    assert "f-correction" in refusing
    assert not {"standard", "standard-plus", "decoupling", "coteaching", "joint-only", "jocor"} & set(refusing)
    for name in refusing:
        with pytest.raises(ValueError, match=f"label_smoothing must be left out: the loss of method '{name}' has none"):
            TrainSettings(method=name, forget_rate=0.2, label_smoothing=0.1)
    logits = tuple(torch.randn(16, 4, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    labels = torch.arange(16) % 4
    for name, method in METHODS.items():
        if method.takes_terms:
            made = method.of(TrainSettings(method=name, forget_rate=0.2).as_dict())
            some = logits[: method.num_networks]
            plain = Keep(12, 0.25, epoch=5)
            terms = jf.composed_losses.Terms(torch.arange(4.0), 0.1, labels)
            outcome, without = (made.loss(some, labels, keep) for keep in (plain._replace(terms=terms), plain))
            assert outcome.loss != without.loss, name
            assert outcome.per_sample.shape == without.per_sample.shape
            assert len(outcome.selected) == len(without.selected) == method.num_choices


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        ("even", TypeError, "class_weights must be 'balanced' or a number for each class, got 'even'"),
        ([1, "a"], TypeError, "class_weights must be a float, got str"),
        ([1.0, -1.0], ValueError, "class_weights must be finite and at least 0, got -1.0"),
        ([1.0, 2.0], ValueError, "class_weights must be a number for each of the 4 classes, got 2"),
    ],
)
def test_what_is_wrong_with_class_weights(weights: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        shares_kept(class_weights=weights)


def test_the_command_has_the_same_options(named_blobs: np.ndarray, capsys: pytest.CaptureFixture[str]) -> None:
    blobs = ["--dataset=npz:blobs.npz", "--noise-rate=0.2", "--batch-size=20"]
    np.save("weights.npy", np.array([1.0, 2.0, 0.5, 1.0]))
    options = ["--label-smoothing=0.1", "--selection-per-class"]
    assert train(*blobs, *options, "--class-weights=weights.npy") == 0
    settings = content("config.json")["settings"]
    names = ("class_weights", "label_smoothing", "selection_per_class")
    assert [settings[name] for name in names] == ["weights.npy", 0.1, True]
    said = "loss      class weights weights.npy, label smoothing 0.1, selection per class\n"
    assert said in capsys.readouterr().out
    assert train(*blobs, *options, "--class-weights=weights.npy", "--resume") == 0
    assert train(*blobs, *options, "--class-weights=balanced", "--resume") == 1
    assert "class_weights (then 'weights.npy', now 'balanced')" in capsys.readouterr().err
    np.save("weights.npy", np.array([1.0, 2.0]))
    assert train(*blobs, "--class-weights=weights.npy", folder="other") == 2
    assert "--class-weights must hold a number for each of the 4 classes, got float64 (2,)" in capsys.readouterr().err
    assert train(*blobs, "--class-weights=weights.txt", folder="other") == 2
    assert "--class-weights must be given as balanced, FILE.npy, FILE.npz:KEY or FILE.pt:KEY" in capsys.readouterr().err
    assert train(*blobs, "--method=f-correction", "--class-weights=balanced", folder="other") == 2
    assert "--class-weights must be left out: the loss of method 'f-correction' has none" in capsys.readouterr().err
    assert train(*blobs, "--method=standard", "--selection-per-class", folder="standard") == 0
    assert "--selection-per-class changes nothing: standard does not select by loss" in capsys.readouterr().err
    Path("weights.npy").unlink()  # a run is audited without what it was trained with
    assert jf.audit("run").given.shape == (200,)
