"""τ that follows the run, `forget_rate="adaptive"`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import jocor_fast as jf
from cli_cases import content, train
from jocor_fast.engine import forget_rate
from jocor_fast.engine.forget_rate import AdaptiveForgetRate, wrong_share
from jocor_fast.engine.history import SampleHistory
from jocor_fast.engine.processes import ALONE
from jocor_fast.engine.settings import TrainSettings
from jocor_fast.methods import StepLoss
from jocor_fast.noise.estimate import rate_and_rows_of_surest

pytestmark = pytest.mark.usefixtures("curves_at_once", "in_an_empty_folder")

CLASSES = 4


def groups(count: int, *, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples of four classes that hardly overlap, and their true labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return torch.randn(count, 8, generator=generator) + 4 * torch.eye(CLASSES, 8)[labels], labels


def run(noise: np.ndarray, **changes: Any) -> tuple[list[dict[str, Any]], float]:
    """The metrics of a run with this noise, and the share of its labels that are wrong."""
    inputs, labels = groups(1200, seed=0)
    noisy = torch.from_numpy(jf.noise.corrupt(labels, noise, seed=1))
    values: dict[str, Any] = {
        "forget_rate": "adaptive",
        "epochs": 8,
        "ramp_epochs": 5,
        "batch_size": 16,
        "device": "cpu",
    }
    done = jf.train(
        lambda: nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, CLASSES)),
        (inputs, noisy),
        clean_labels=labels,
        **{**values, **changes},
    )
    return done.metrics, float((noisy != labels).double().mean())


@pytest.mark.parametrize(
    ("method", "noise"),
    [
        ("jocor", jf.noise.symmetric(CLASSES, 0.4)),
        ("standard-plus", jf.noise.pairflip(CLASSES, 0.25)),
        ("jocor", np.eye(CLASSES)),
    ],
    ids=["symmetric", "pairflip", "clean"],
)
def test_the_dropped_share_comes_to_that_of_the_wrong_labels(method: str, noise: np.ndarray) -> None:
    metrics, wrong = run(noise, method=method)
    course = [line["forget_rate"] for line in metrics]
    assert course[0] == 0.0
    assert course[-1] == pytest.approx(wrong, abs=0.06 if wrong else 0.01)
    for line in metrics:  # what is reported is what was done
        expected = jf.schedules.keep_rate(line["epoch"], forget_rate=line["forget_rate"], ramp_epochs=5)
        assert line["keep_rate"] == expected


def test_the_rate_stays_once_the_ramp_is_over() -> None:
    metrics, _ = run(jf.noise.symmetric(CLASSES, 0.4), ramp_epochs=2, epochs=5)
    course = [line["forget_rate"] for line in metrics]
    assert len(set(course[:3])) == 3
    assert course[2:] == [course[2]] * 3


@pytest.mark.parametrize(("ramp_epochs", "estimates"), [(3, [0.9, 0.5, 0.1]), (0, [0.9]), (1, [0.9])])
def test_the_rate_is_the_median_of_the_later_half_of_what_the_epochs_of_the_ramp_told(
    ramp_epochs: int, estimates: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter([0.9, 0.5, 0.1, 0.0, 0.0])
    monkeypatch.setattr(forget_rate, "wrong_share", lambda *_: next(found))
    rate = AdaptiveForgetRate(ramp_epochs)
    history: Any = None
    values = []
    for epoch in range(1, 7):
        rate.follow(epoch, history, CLASSES, ALONE)
        values.append(rate.value)
    assert rate.estimates == estimates
    medians = [0.0] + [float(np.median(estimates[count // 2 : count])) for count in range(1, len(estimates) + 1)]
    assert values == (medians + [medians[-1]] * 6)[:6]


def test_some_of_a_batch_is_left_whatever_is_estimated() -> None:
    rate = AdaptiveForgetRate(10)
    rate.estimates = [1.0]
    assert rate.value == 0.95


def test_the_share_is_counted_among_the_surest_of_each_prediction() -> None:
    """Half of the predictions of class 1 err, those that the networks are less sure of; a fifth of class 0 is noise."""
    predicted = np.array([0] * 10 + [1] * 10)
    labels = np.array([0] * 8 + [1] * 2 + [1] * 5 + [0] * 5)
    certainty = np.array([0.9] * 10 + [0.9] * 5 + [0.5] * 5)
    rate, transition = rate_and_rows_of_surest(labels, predicted, certainty, 2, share=0.5)
    assert transition[1].tolist() == [0.0, 1.0]
    all_rate, _ = rate_and_rows_of_surest(labels, predicted, certainty, 2, share=1.0)
    assert rate < all_rate


def test_a_history_tells_the_share_by_samples_of_which_the_networks_predict_the_same() -> None:
    """Two networks are surest of what they agree on; of the labels of those one in four is wrong."""
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 1, 0, 0, 1])  # the last two: the networks differ; the one before: not seen
    history = SampleHistory(labels, 2, certainties=True)
    taken = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1, 0], [0, 0, 0, 0, 1, 1, 1, 1, 0, 1]])
    logits = 4.0 * torch.nn.functional.one_hot(taken, 2)
    logits[:, 8:] *= 3  # surer than of any other
    samples = torch.arange(10)
    mask = torch.ones(10, dtype=torch.bool)
    outcome = StepLoss(torch.tensor(0.0), (mask,), torch.tensor(0), torch.zeros(10), logits=tuple(logits))
    history.record(samples, labels, [outcome])
    assert history.certainty is not None
    expected = [torch.sigmoid(torch.tensor(4.0)).item()] * 8 + [torch.sigmoid(torch.tensor(12.0)).item()] * 2
    assert history.certainty.tolist() == pytest.approx(expected)
    assert torch.equal(history.state_dict()["certainty"], history.certainty)
    sure = rate_and_rows_of_surest(labels.numpy(), taken[0].numpy(), np.array([1.0] * 8 + [0.0] * 2), 2)[0]
    assert wrong_share(history, 2) == sure
    assert "certainty" not in SampleHistory(labels, 2).state_dict()


@pytest.mark.parametrize("rate", ["auto", "adaptiv", ""])
def test_another_word_for_the_rate_is_named(rate: str) -> None:
    with pytest.raises(ValueError, match=r"^forget_rate must be a number in \[0, 1\) or 'adaptive', got '"):
        TrainSettings(forget_rate=rate)


def test_a_run_that_ends_before_its_ramp_says_so() -> None:
    with pytest.warns(
        UserWarning, match=r"the ramp of 10 epochs is longer than the run of 2: at most 20 % of the forget"
    ):
        run(np.eye(CLASSES), epochs=2, ramp_epochs=10)


def test_the_command_trains_and_shows_the_course(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--noise-rate", "0.4", "--epochs", "3", "--ramp-epochs", "1")
    assert train(*flags, "--forget-rate", "adaptive") == 0
    shown = capsys.readouterr().out
    assert "estimated in training, from epoch 1 on (flag)" in shown
    first, _, last = content("metrics.jsonl")
    assert first["forget_rate"] == 0.0
    assert f"τ {100 * last['forget_rate']:.2f} %" in shown
    assert last["keep_rate"] == 1 - last["forget_rate"]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            ("--forget-rate", "0.2", "--forget-rate", "adaptive"),
            "--forget-rate must be given once, got 0.2 and adaptive",
        ),
        (("--forget-rate", "adaptiv"), "--forget-rate must be a number or auto or adaptive, got 'adaptiv'"),
        (
            ("--forget-rate", "adaptive", "--val-fraction", "0.1", "--val-labels", "small-loss"),
            "--val-labels small-loss needs a number for --forget-rate",
        ),
    ],
)
def test_wrong_use_ends_in_a_sentence(
    flags: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(*flags) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())


def test_a_method_that_does_not_select_says_that_the_rate_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--forget-rate", "adaptive", "--method", "standard", "--epochs", "1") == 0
    told = " ".join(capsys.readouterr().err.split())
    assert "--forget-rate changes nothing: standard does not select by loss" in told
    assert content("metrics.jsonl")[0]["forget_rate"] is None


def test_the_classifier_takes_it() -> None:
    inputs, labels = groups(600, seed=0)
    noisy = jf.noise.corrupt(labels, jf.noise.symmetric(CLASSES, 0.3), seed=1)
    classifier = jf.JoCoRClassifier("adaptive", epochs=12, random_state=0).fit(inputs.numpy(), noisy)
    assert classifier.metrics_[-1]["forget_rate"] == pytest.approx((noisy != labels.numpy()).mean(), abs=0.05)
