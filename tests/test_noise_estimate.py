"""Estimates of the noise before a run: of made-up predictions, of the digits, and as `--forget-rate auto`."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import jocor_fast as jf
from children import PATIENCE
from jocor_fast.cli.program import main
from jocor_fast.config.resolve import resolve
from jocor_fast.config.task import build_task
from jocor_fast.diagnosis.cross_fit import CrossFit, cross_fit, default_epochs
from jocor_fast.diagnosis.noise_estimate import (
    NoiseEstimate,
    _is_too_high,
    counted,
    from_predictions,
    from_predictions_and_truth,
)
from jocor_fast.engine.plan import EpochPlan
from jocor_fast.engine.state import TrainingState
from jocor_fast.errors import ConfigError

pytestmark = pytest.mark.usefixtures("curves_at_once")

PAIRS = np.eye(5)
PAIRS[1, 1], PAIRS[1, 2] = 0.6, 0.4
PAIRS[3, 3], PAIRS[3, 0] = 0.6, 0.4
MATRICES = [np.eye(5), jf.noise.symmetric(5, 0.2), jf.noise.symmetric(5, 0.5), PAIRS]


def made_up(transition: np.ndarray, samples: int = 20000) -> tuple[CrossFit, np.ndarray, np.ndarray, np.ndarray]:
    """Networks that take a tenth for the next class, the less surely the harder; labels, truth, validation truth."""
    generator = np.random.default_rng(0)

    def predicted(true: np.ndarray) -> np.ndarray:
        hardness = generator.random(len(true))
        taken = np.where(hardness > 0.9, (true + 1) % 5, true)
        probability = np.full((len(true), 5), 0.01)
        probability[np.arange(len(true)), taken] = 0.96 - 0.5 * hardness
        return probability / probability.sum(1, keepdims=True)

    true = generator.choice(5, p=[0.4, 0.2, 0.2, 0.1, 0.1], size=samples)
    val = generator.choice(5, size=2000)
    labels = jf.noise.corrupt(true, transition, seed=1)
    fit = CrossFit(generator.random(samples) < 0.5, predicted(true), np.stack([predicted(val), predicted(val)]))
    return fit, labels, true, val


def assert_good(found: NoiseEstimate, transition: np.ndarray, realised: float) -> None:
    assert found.rate == pytest.approx(realised, abs=0.015)
    assert abs(found.rate - realised) <= found.uncertainty + 0.004
    assert found.uncertainty < 0.03
    np.testing.assert_allclose(found.transition, transition, atol=0.06)
    np.testing.assert_allclose(found.transition.sum(axis=1), 1)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("transition", MATRICES)
def test_rate_and_matrix_are_found_though_a_tenth_of_the_predictions_is_wrong(transition: np.ndarray) -> None:
    fit, labels, true, val = made_up(transition)
    realised = float((labels != true).mean())
    assert_good(from_predictions(fit, labels), transition, realised)
    assert_good(from_predictions_and_truth(fit, labels, val), transition, realised)


def test_networks_that_cannot_tell_the_classes_are_warned_of() -> None:
    """They err on the harder half of the samples, and on some of those that they are surest of; no label is wrong."""
    generator = np.random.default_rng(0)
    true, hardness = generator.integers(5, size=4000), generator.random(4000)
    taken = np.where(generator.random(4000) < hardness, generator.integers(5, size=4000), true)
    probability = np.full((4000, 5), 0.05)
    probability[np.arange(4000), taken] = 0.8 - 0.5 * hardness
    fit = CrossFit(generator.random(4000) < 0.5, probability, None)
    with pytest.warns(
        UserWarning, match=r"too high: the two networks agree with 60\.\d % of .* with 86\.\d % of those"
    ):
        assert from_predictions(fit, true).rate > 0.1


@pytest.mark.parametrize(
    ("rate", "uncertainty", "of_surest_of_all", "agreement", "expected"),
    [
        (0.14, 0.17, 0.12, 0.73, False),  # of few samples: nothing is certain
        (0.38, 0.07, 0.42, 0.71, False),  # MNIST with 40 % noise: surer samples say no less
        (0.24, 0.01, 0.18, 0.74, True),  # frozen features, in truth 0.16
        (0.24, 0.01, 0.18, 0.95, False),
        (0.68, 0.12, 0.66, 0.72, True),  # pixels, in truth none
    ],
)
def test_an_estimate_that_falls_as_the_samples_become_surer_is_warned_of(
    rate: float, uncertainty: float, of_surest_of_all: float, agreement: float, expected: bool
) -> None:
    assert _is_too_high(rate, uncertainty, of_surest_of_all, agreement) is expected


def test_counting_needs_no_network() -> None:
    _, labels, true, _ = made_up(PAIRS)
    found = counted(labels, true, 5)
    assert_good(found, PAIRS, float((labels != true).mean()))
    assert found.rate == (labels != true).mean()
    two_errors = 2 * np.sqrt(found.rate * (1 - found.rate) / len(labels))
    assert found.uncertainty == pytest.approx(two_errors)
    assert counted(true[:100], true[:100], 7).transition.tolist() == np.eye(7).tolist()
    assert 0 < counted(true[:100], true[:100], 7).uncertainty < 0.05  # none of 100 wrong does not mean none of all


def test_samples_that_could_not_be_read_are_left_out() -> None:
    fit, labels, true, val = made_up(PAIRS)
    fit.probability[:500] = np.nan
    assert fit.val_probability is not None
    fit.val_probability[:, :50] = np.nan
    realised = float((labels != true).mean())
    assert_good(from_predictions(fit, labels), PAIRS, realised)
    assert_good(from_predictions_and_truth(fit, labels, val), PAIRS, realised)


def test_an_estimate_comes_back_from_its_file() -> None:
    fit, labels, _, _ = made_up(PAIRS)
    found = from_predictions(fit, labels)
    again = NoiseEstimate.of_dict(json.loads(json.dumps(found.as_dict())))
    assert (again.rate, again.uncertainty, again.method) == (found.rate, found.uncertainty, found.method)
    assert (again.transition == found.transition).all()
    assert str(found).startswith(f"{100 * found.rate:.1f} ± ")
    large = NoiseEstimate(0.1, 0.01, np.eye(2000), "by a method")
    assert len(json.dumps(large.as_dict())) < 1000  # it is kept in config.json
    assert str(NoiseEstimate.of_dict(large.as_dict())) == str(large)


def test_no_network_sees_the_half_that_it_predicts() -> None:
    config = resolve({"noise_rate": "0.4", "device": "cpu"})
    task = build_task(config)
    before = cross_fit(config.training, task.build_network, task.train, 10, epochs=2, val=task.test)
    assert before.val_probability is not None
    assert before.val_probability.shape == (2, 360, 10)
    np.testing.assert_allclose(before.probability.sum(1), 1, rtol=1e-5)
    assert abs(int(before.half.sum()) - 718) <= 1
    task.train.labels[before.half] = 0  # labels of the second half: its own predictions do not change
    after = cross_fit(config.training, task.build_network, task.train, 10, epochs=2)
    assert (after.probability[before.half] == before.probability[before.half]).all()
    assert (after.probability[~before.half] != before.probability[~before.half]).any()


def test_a_warm_up_keeps_its_full_rate_whatever_the_plan_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []

    def noted(state: TrainingState, plan: EpochPlan) -> Any:
        rates.append(plan.lr)
        return begin_epoch(state, plan)

    begin_epoch = TrainingState.begin_epoch
    monkeypatch.setattr(TrainingState, "begin_epoch", noted)
    config = resolve({"noise_rate": "0.4", "device": "cpu", "batch_size": "512", "lr_plan": "clothing1m"})
    task = build_task(config)
    cross_fit(config.training, task.build_network, task.train, 10, epochs=3)
    assert rates == [config.training.lr] * 6


def test_a_warm_up_is_five_epochs_or_a_thousand_steps_but_never_more_than_fifty_epochs() -> None:
    assert default_epochs(60000, 128) == 5
    assert default_epochs(1437, 32) == 46
    assert default_epochs(10, 32) == 50


def test_the_command_writes_what_it_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = tmp_path / "found"
    assert main(["estimate-noise", "--noise-rate=0.4", "--epochs=12", "--device=cpu", f"--output={found}"]) == 0
    estimate = json.loads((found / "noise-estimate.json").read_text())
    assert estimate["rate"] == pytest.approx(0.417, abs=0.06)
    assert f"{100 * estimate['rate']:.2f} ± {100 * estimate['uncertainty']:.2f} %" in capsys.readouterr().out
    matrix = np.load(found / "transition.npy")
    np.testing.assert_array_equal(matrix, estimate["transition"])
    assert (found / "noise-matrix.png").stat().st_size > 5000
    assert (
        main(["train", f"--noise-matrix={found / 'transition.npy'}", "--epochs=1", f"--output={tmp_path / 'r'}"]) == 0
    )
    held_out = ["--val-fraction=0.2", "--val-labels=clean"]
    assert main(["estimate-noise", "--noise-rate=0.4", *held_out, f"--output={found}"]) == 0
    assert "counted on 287 held-out samples" in json.loads((found / "noise-estimate.json").read_text())["method"]


def test_forget_rate_auto_trains_with_the_estimate_and_keeps_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jocor_fast.diagnosis.noise_estimate.default_epochs", lambda *_: 12)
    labels = tmp_path / "labels.npy"
    np.save(labels, build_task(resolve({"noise_rate": "0.4"})).given_labels)
    run = tmp_path / "run"
    command = ["train", f"--labels={labels}", "--forget-rate=auto", "--epochs=2", "--device=cpu", f"--output={run}"]
    assert main([*command, "--stop-after=1"]) == 0
    config = json.loads((run / "config.json").read_text())
    estimate = config["noise_estimate"]
    assert config["settings"]["forget_rate"] == estimate["rate"] == pytest.approx(0.417, abs=0.06)
    assert config["sources"]["forget_rate"] == "flag"
    assert f"estimated {100 * estimate['rate']:.1f} ± {100 * estimate['uncertainty']:.1f} %" in capsys.readouterr().out
    monkeypatch.setattr("jocor_fast.diagnosis.noise_estimate.estimate_noise", None)  # going on makes no estimate
    assert main([*command, "--resume"]) == 0
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("by_sigterm", [False, True])
def test_a_warm_up_that_is_stopped_says_that_there_is_nothing_to_resume(
    by_sigterm: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        if not by_sigterm:
            raise KeyboardInterrupt
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(PATIENCE)

    code, how = (143, "stopped by SIGTERM") if by_sigterm else (130, "interrupted")

    monkeypatch.setattr("jocor_fast.diagnosis.noise_estimate.estimate_noise", interrupted)
    command = ["train", "--noise-rate=0.3", "--forget-rate=auto", "--device=cpu", f"--output={tmp_path / 'run'}"]
    for again, said in ((False, "there is nothing to resume yet, run it again"), (True, "use --resume to continue")):
        if again:  # where a run was begun, it can be resumed whatever is under way now
            (tmp_path / "run").mkdir()
            (tmp_path / "run" / "checkpoint.pt").touch()
        assert main([*command, *["--resume"] * again]) == code
        assert capsys.readouterr().err == f"jocor-fast: error: {how}; {said}\n"


def test_a_warm_up_that_diverges_ends_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "--noise-rate=0.3", "--forget-rate=auto", "--lr=1e30", "--batch-size=256", "--device=cpu"]
    assert main([*command, "--epochs=1", f"--output={tmp_path / 'run'}"]) == 1
    error = capsys.readouterr().err
    assert "error: the warm-up that estimates the noise diverged in epoch " in error
    assert error.endswith("a smaller learning rate may help\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--model=nosuch"], "--model must be mlp, cnn or a torchvision classifier such as resnet18, got 'nosuch'"),
        (["--device=cuda:99"], "--device must be cpu where torch sees no GPU, got 'cuda:99'"),
        (["--augment=crop-flip"], "--augment must be none for inputs that are no images"),
        (["--dataset=npz:one.npz"], "to estimate the noise takes two samples at least"),
    ],
)
@pytest.mark.parametrize("command", [["estimate-noise"], ["train", "--forget-rate=auto"]])
def test_what_does_not_go_with_a_warm_up_is_named(
    command: list[str],
    flags: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("torchvision")
    monkeypatch.chdir(tmp_path)
    np.savez("some.npz", x_train=np.zeros((9, 4), np.uint8), y_train=np.arange(9) % 3)
    np.savez("one.npz", x_train=np.zeros((1, 4), np.uint8), y_train=np.zeros(1, int))
    assert main([*command, "--dataset=npz:some.npz", "--epochs=1", "--output=run", *flags]) == 2
    assert capsys.readouterr().err.startswith(f"jocor-fast: error: {sentence}")
    assert not Path("run").exists()


def test_a_warm_up_that_runs_out_of_memory_says_what_needs_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def begin_epoch(*arguments: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. See documentation")

    monkeypatch.setattr(TrainingState, "begin_epoch", begin_epoch)
    assert main(["estimate-noise", "--noise-rate=0.3", "--device=cpu", f"--output={tmp_path / 'run'}"]) == 1
    assert capsys.readouterr().err.endswith("error: out of memory on cpu: a smaller --batch-size needs less\n")


def test_auto_is_nothing_for_who_does_not_select_and_no_number_for_small_loss() -> None:
    config = resolve({"noise_rate": "0.4", "forget_rate": "auto", "method": "standard"})
    build_task(config)
    assert config.forget_rate == 0.0
    with pytest.raises(ConfigError, match=r"^--val-labels small-loss needs a number for --forget-rate: jocor-fast est"):
        build_task(resolve({"forget_rate": "auto", "val_fraction": "0.1", "val_labels": "small-loss"}))
    with pytest.raises(ConfigError, match=r"^--forget-rate must be a number or auto or adaptive, got 'much'"):
        resolve({"forget_rate": "much"})
