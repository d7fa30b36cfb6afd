"""Labels of a user's own data are what was given: no figure takes them for the truth unless the user says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch import nn

import jocor_fast as jf
from jocor_fast.cli import main
from jocor_fast.config.resolve import resolve
from jocor_fast.config.task import Task, build_task

QUICK = ["--epochs=2", "--batch-size=32", "--ramp-epochs=0", "--device=cpu"]


@pytest.fixture
def wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """own.npz: 200 samples of four classes, a quarter of the training labels wrong; clean.npy: the true ones."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    clean = np.arange(200) % 4
    inputs = (generator.normal(size=(200, 6)) + 3 * np.eye(6)[clean]).astype(np.float32)
    given = clean.copy()
    given[::4] = (given[::4] + 1) % 4
    np.savez("own.npz", x_train=inputs, y_train=given, x_test=inputs[:40], y_test=clean[:40])
    np.save("clean.npy", clean)
    return given != clean


def train(*options: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A run on own.npz: its last epoch and its summary."""
    assert main(["train", "--dataset=npz:own.npz", *QUICK, "--output=run", *options]) == 0
    last = json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])
    return last, json.loads(Path("run/summary.json").read_text())


def test_case_51_without_a_word_about_the_truth_nothing_is_said_of_it(
    wrong: np.ndarray, capsys: pytest.CaptureFixture[str]
) -> None:
    last, summary = train("--forget-rate=0.25")
    assert last["label_precision"] is None
    assert (summary["nominal_noise_rate"], summary["realised_noise_rate"]) == (None, None)
    assert summary["last_10_mean"]["label_precision"] is None
    said = capsys.readouterr().out
    assert "the share of wrong labels is unknown" in said
    assert "100.00" not in said.partition("label precision")[2]


def test_case_51_a_forget_rate_is_required(wrong: np.ndarray, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("train", "search-lambda"):
        assert main([command, "--dataset=npz:own.npz", "--epochs=2", "--output=run"]) == 2
        error = capsys.readouterr().err
        assert error.startswith("jocor-fast: error: --forget-rate is required for npz:own.npz where the clean labels")
        assert error.count("\n") == 1
    assert main(["train", "--dataset=npz:own.npz", *QUICK, "--method=standard", "--output=run"]) == 0


def test_case_51_labels_that_are_called_clean_are_the_truth(wrong: np.ndarray) -> None:
    last, summary = train("--labels-are-clean")
    assert last["label_precision"] == 1.0
    assert (summary["nominal_noise_rate"], summary["realised_noise_rate"]) == (0.0, 0.0)
    assert json.loads(Path("run/config.json").read_text())["settings"]["forget_rate"] == 0.0


def test_nothing_is_estimated_of_labels_that_are_called_clean(
    wrong: np.ndarray, capsys: pytest.CaptureFixture[str]
) -> None:
    last, _ = train("--labels-are-clean", "--forget-rate=auto")
    output = capsys.readouterr().out
    assert last["keep_rate"] == last["label_precision"] == 1
    assert "estimated" not in output
    assert "no label is wrong, by --labels-are-clean" in output


def test_wrong_labels_that_clean_ones_tell_are_said(wrong: np.ndarray, capsys: pytest.CaptureFixture[str]) -> None:
    train("--clean-labels=clean.npy")
    assert "none added, labels as npz:own.npz has them: 25.00 % of the labels are wrong" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.parametrize(
    ("options", "realised"),
    [
        (["--clean-labels=clean.npy"], 0.25),
        (["--labels=own.npz:y_train", "--clean-labels=clean.npy"], 0.25),
        (["--labels=clean.npy", "--labels-are-clean"], 0.25),  # odd, but what it says: the data set's own are right
        (["--noise=pairflip", "--noise-rate=0.4"], 0.4),
    ],
)
def test_the_truth_is_known_where_it_is_given_or_noise_is_drawn(
    wrong: np.ndarray, options: list[str], realised: float
) -> None:
    last, summary = train(*options)
    assert last["label_precision"] is not None
    assert summary["realised_noise_rate"] == pytest.approx(realised, abs=0.1)


def test_clean_labels_in_another_order_are_refused_though_the_given_ones_may_be_wrong(
    wrong: np.ndarray, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save("shuffled.npy", np.random.default_rng(1).permutation(np.load("clean.npy")))
    assert main(["train", "--dataset=npz:own.npz", "--clean-labels=shuffled.npy", "--output=run"]) == 1
    assert "as many as by chance: they seem to be in another order" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--dataset=npz:own.npz --clean-labels=clean.npy --noise-rate=.1", "--clean-labels and --noise-rate exclude"),
        ("--dataset=npz:own.npz --clean-labels=clean.npy --labels-are-clean", "--labels-are-clean exclude each other"),
        ("--dataset=digits --clean-labels=clean.npy", "--clean-labels needs --labels"),
        ("--dataset=clothing1m --labels-are-clean", "--labels-are-clean cannot hold for clothing1m"),
    ],
)
def test_what_contradicts_itself_about_the_truth_is_refused(
    wrong: np.ndarray, options: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *options.split(), "--output=run"]) == 2
    assert said in capsys.readouterr().err


def test_other_commands_take_nothing_for_the_truth_either(
    wrong: np.ndarray, capsys: pytest.CaptureFixture[str]
) -> None:
    train("--forget-rate=0.25")
    assert main(["plot", "run", "--output=figures"]) == 0
    assert "its true labels are unknown" in " ".join(capsys.readouterr().out.split())
    held_out = ["--val-fraction=0.2", "--val-labels=clean"]
    assert main(["estimate-noise", "--dataset=npz:own.npz", *held_out, "--output=noise"]) == 2
    assert "--val-labels clean needs --clean-labels, --labels-are-clean, or a clean column" in capsys.readouterr().err
    assert main(["estimate-noise", "--dataset=npz:own.npz", "--clean-labels=clean.npy", *held_out]) == 0
    assert "counted on 40 held-out samples with true labels" in " ".join(capsys.readouterr().out.split())


def test_a_run_of_labels_that_are_clean_is_read_back_as_one(wrong: np.ndarray, tmp_path: Path) -> None:
    train("--labels-are-clean")
    assert main(["audit", "run"]) == 0


def task(**flags: str | bool) -> Task:
    return build_task(resolve(flags))


def test_folders_are_labelled_by_their_owner(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(6):
            Image.new("RGB", (16, 16)).save(tmp_path / "photos" / name / f"{number}.png")
    own: dict[str, str] = {"dataset": f"folder:{tmp_path / 'photos'}", "image_size": "16"}
    assert task(**own, forget_rate="0.1").true_labels is None
    assert task(**own, labels_are_clean=True).realised_noise_rate == 0.0
    assert task(**own, noise_rate="0.5").true_labels is not None


def test_the_benchmarks_are_clean_by_themselves() -> None:
    assert task(dataset="digits").realised_noise_rate == 0.0


def test_arrays_of_jf_train_are_what_was_given() -> None:
    inputs = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    run = jf.train(
        lambda: nn.Linear(3, 2), (inputs, np.arange(40) % 2), forget_rate=0.2, epochs=2,
        batch_size=20, ramp_epochs=0, device="cpu",
    )  # fmt: skip
    assert run.metrics[-1]["label_precision"] is None
    assert run.summary["realised_noise_rate"] is None


def test_a_rate_of_clean_noise_is_refused(wrong: np.ndarray, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--noise=clean", "--noise-rate=0.3", "--forget-rate=0.1")
    assert main(["train", "--dataset=npz:own.npz", *QUICK, *options]) == 2
    assert "--noise-rate must be 0 for clean labels, got 0.3" in capsys.readouterr().err
