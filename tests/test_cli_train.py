"""`jocor-fast train`, from the command line to the files: what a run writes, prints, warns of and refuses."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from checkpoint_cases import CHECKPOINTS
from children import signalled
from cli_cases import content, train
from engine_cases import METRICS
from jocor_fast.cli.program import main

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

SUMMARY = {
    "status", "last_10_mean", "best_by_validation", "last", "nominal_noise_rate", "realised_noise_rate", "environment",
}  # fmt: skip
PROGRAM = [sys.executable, "-m", "jocor_fast"]


def test_a_run_on_digits_writes_all_its_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--noise", "symmetric", "--noise-rate", "0.5", "--val-fraction", "0.1", "--ramp-epochs", "0") == 0
    written = {path.name for path in Path("run").iterdir()}
    assert written == {"config.json", "metrics.jsonl", "summary.json", "curves.png", "best.pt", *CHECKPOINTS}
    metrics, summary = content("metrics.jsonl"), content("summary.json")
    assert [line["epoch"] for line in metrics] == [1, 2]
    for line in metrics:
        assert list(line) == METRICS
        for name in ("keep_rate", "label_precision", "test_accuracy", "val_accuracy"):
            assert 0 <= line[name] <= 1, name
        assert (line["bad_files"], line["wait_share"]) == (None, None)
    assert set(summary) == SUMMARY
    assert summary["status"] == "finished"
    assert summary["last"] == metrics[-1]
    assert summary["last_10_mean"]["epochs"] == 2
    assert summary["best_by_validation"]["epoch"] in (1, 2)
    assert summary["nominal_noise_rate"] == 0.5
    assert summary["realised_noise_rate"] == pytest.approx(0.5, abs=0.05)
    assert capsys.readouterr().err.count("warning") == 0


def test_config_json_holds_every_setting_and_its_source() -> None:
    Path("run.toml").write_text("lr = 0.01\n", encoding="utf-8")
    assert train("--noise-rate", "0.5", "--recipe", "published", "--config", "run.toml") == 0
    config = content("config.json")
    assert set(config) == {"settings", "sources"}
    assert set(config["settings"]) == set(config["sources"])
    expected = {
        "epochs": (2, "flag"),
        "lr": (0.01, "config"),
        "co_lambda": (0.1, "recipe"),
        "batch_size": (32, "preset"),
        "ramp_epochs": (10, "default"),
        "noise": ("symmetric", "default"),
        "noise_rate": (0.5, "flag"),
        "noise_seed": (0, "default"),
        "forget_rate": (0.5, "default"),
        "model": ("mlp", "default"),
        "decay_start": (0, "default"),
        "labels": (None, "default"),
    }
    for name, (value, source) in expected.items():
        assert (config["settings"][name], config["sources"][name]) == (pytest.approx(value), source), name


def test_without_a_terminal_every_epoch_is_a_line_and_percent_is_on_the_screen(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert train("--noise-rate", "0.5") == 0
    out = capsys.readouterr().out
    metrics = content("metrics.jsonl")
    lines = [line for line in out.splitlines() if line.startswith("epoch ")]
    assert len(lines) == 2
    for line, shown in zip(metrics, lines, strict=True):
        assert shown.startswith(f"epoch {line['epoch']}/2  loss {line['train_loss']:.4f}")
        assert f"test {100 * line['test_accuracy']:.2f} %" in shown
        assert f"label precision {100 * line['label_precision']:.2f} %" in shown
    assert "\x1b" not in out
    assert "nominal 50.00 %, draw 0: 52.05 % of the labels are wrong" in out
    assert "0.5 from epoch 10 on (default: the share of wrong labels to expect from the noise)" in out
    assert "λ         0.9 (default)" in out
    assert "network   2 × mlp on cpu" in out
    assert all(heading in out for heading in ("best epoch", "mean of last 2", "last epoch"))
    for name in ("curves.png", "metrics.jsonl", "summary.json"):
        assert str(Path("run", name)) in out


def write_cifar(name: str, num_classes: int) -> None:
    """A stand-in for CIFAR in the form NAME.npz: two images a class to train on, one to test on."""
    labels = np.arange(3 * num_classes) % num_classes
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 32, 32, 3), dtype=np.uint8)
    train, test = slice(0, 2 * num_classes), slice(2 * num_classes, None)
    np.savez(f"{name}.npz", x_train=images[train], y_train=labels[train], x_test=images[test], y_test=labels[test])


def test_the_source_of_co_lambda_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Case 49, on the screen."""
    write_cifar("cifar10", 10)
    common = ("--dataset", "cifar10", "--data-root", ".", "--model", "mlp", "--epochs", "1")
    assert train(*common, "--noise", "symmetric", "--noise-rate", "0.8") == 0
    assert "λ         0.65 (preset: the authors' value for cifar10)" in capsys.readouterr().out
    assert train(*common, "--co-lambda", "0.3", folder="other") == 0
    assert "λ         0.3 (flag)" in capsys.readouterr().out


def test_the_published_variant_on_cifar100_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    """With the published pairs all 100 classes are noisy, so that the published τ of half the rate is too low."""
    write_cifar("cifar100", 100)
    common = ("--dataset", "cifar100", "--data-root", ".", "--model", "mlp", "--recipe", "published")
    noise = ("--noise", "asymmetric-published", "--noise-rate", "0.4", "--forget-rate", "0.2")
    assert train(*common, *noise, "--epochs", "10") == 0
    out, error = capsys.readouterr()
    assert "--forget-rate 0.2 is less than the share of wrong labels" in error
    assert "falling after epoch 5 (recipe: where the published code starts on cifar100)" in out
    assert train("--epochs", "1", "--output", "short") == 0
    assert "falling from the first epoch on (" in capsys.readouterr().out
    assert len(content("metrics.jsonl")) == 9
    assert content("config.json")["sources"]["decay_start"] == "recipe"


@pytest.mark.parametrize("arguments", [["--noise", "clean"], ["--noise", "pairflip", "--noise-rate", "0"], []])
def test_clean_labels_run_and_everything_is_kept(arguments: list[str]) -> None:
    """Case 27."""
    assert train(*arguments) == 0
    assert content("config.json")["settings"]["forget_rate"] == 0
    for line in content("metrics.jsonl"):
        assert (line["keep_rate"], line["label_precision"]) == (1, 1)
    assert content("summary.json")["realised_noise_rate"] == 0


def test_standard_trains_one_network(named_blobs: np.ndarray, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--dataset", "npz:blobs.npz", "--noise-rate", "0.25", "--method", "standard")
    assert train(*arguments, "--co-lambda", "0.5") == 0
    for line in content("metrics.jsonl"):
        assert (line["test_accuracy_2"], line["test_accuracy_ensemble"]) == (None, None)
        assert (line["keep_rate"], line["test_accuracy"]) == (1, line["test_accuracy_1"])
    assert "--co-lambda changes nothing: standard has no λ" in capsys.readouterr().err


def test_a_forget_rate_under_the_share_of_wrong_labels_is_warned_of(
    named_blobs: np.ndarray, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ("--dataset", "npz:blobs.npz", "--noise-rate", "0.5", "--batch-size", "8")
    assert train(*common, "--forget-rate", "0.2") == 0
    assert "jocor-fast: warning: --forget-rate 0.2 is less than the share of wrong labels" in capsys.readouterr().err
    assert train(*common, "--forget-rate", "0.5", folder="other") == 0
    assert "--forget-rate" not in capsys.readouterr().err


def test_a_ramp_of_few_steps_is_warned_of(named_blobs: np.ndarray, capsys: pytest.CaptureFixture[str]) -> None:
    common = ("--dataset", "npz:blobs.npz", "--noise-rate", "0.5", "--epochs", "10")
    assert train(*common) == 0
    assert "the ramp of 10 epochs is only 10 steps long" in capsys.readouterr().err
    assert train(*common, "--batch-size", "8", folder="other") == 0
    assert "ramp" not in capsys.readouterr().err


def test_a_ramp_that_the_run_never_climbs_is_warned_of_and_no_longer_one_is_advised(
    named_blobs: np.ndarray, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train("--dataset", "npz:blobs.npz", "--noise-rate", "0.5") == 0
    warning = (
        "jocor-fast: warning: the ramp of 10 epochs is longer than the run of 2: at most 10 % of a batch are left out, "
        "not the forget rate's 50 %; more epochs or a shorter ramp come to it\n"
    )
    assert capsys.readouterr().err == warning


def test_a_folder_that_holds_a_run_is_left_alone(named_blobs: np.ndarray, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--dataset", "npz:blobs.npz", "--noise-rate", "0.25")
    assert train(*arguments) == 0
    before = {path.name: path.read_bytes() for path in Path("run").iterdir()}
    capsys.readouterr()

    assert train(*arguments) == 1
    error = capsys.readouterr().err
    assert "error: --output: run holds a run already; --resume continues it, or give another folder" in error

    assert train(*arguments, "--resume") == 0
    assert "this run is finished already, nothing was changed" in capsys.readouterr().out

    assert train(*arguments, "--resume", "--batch-size", "8") == 1
    assert "batch_size (then 128, now 8)" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in Path("run").iterdir()} == before


def test_a_folder_that_holds_a_run_is_refused_before_anything_is_estimated(
    named_blobs: np.ndarray, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train("--dataset", "npz:blobs.npz", "--noise-rate", "0.25") == 0
    monkeypatch.setattr("jocor_fast.diagnosis.noise_estimate.estimate_noise", lambda *_, **__: pytest.fail("estimated"))
    assert train("--dataset", "npz:blobs.npz", "--noise-rate", "0.25", "--forget-rate", "auto") == 1
    assert "--output: run holds a run already" in capsys.readouterr().err


def test_an_output_that_is_a_file_is_refused_before_anything_is_estimated(
    named_blobs: np.ndarray, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("file").touch()
    data = ("--dataset", "npz:blobs.npz", "--noise-rate", "0.25")
    monkeypatch.setattr("jocor_fast.diagnosis.noise_estimate.estimate_noise", lambda *_, **__: pytest.fail("estimated"))
    assert train(*data, "--forget-rate", "auto", folder="file/run") == 1
    assert "--output: file/run cannot be written (Not a directory)" in capsys.readouterr().err
    assert main(["estimate-noise", *data, "--output", "file"]) == 1
    assert capsys.readouterr().err.endswith("file: Not a directory\n")


def test_resume_without_a_run_starts_one(named_blobs: np.ndarray) -> None:
    assert train("--dataset", "npz:blobs.npz", "--labels-are-clean", "--resume") == 0
    assert len(content("metrics.jsonl")) == 2


LONG = ["train", "--dataset=npz:blobs.npz", "--labels-are-clean", "--batch-size=8", "--epochs=30", "--output=run"]


def assert_it_was_interrupted_and_goes_on() -> None:
    assert content("summary.json")["status"] == "interrupted"
    assert 2 <= len(content("metrics.jsonl")) < 30
    assert main([*LONG, "--resume"]) == 0
    assert content("summary.json")["status"] == "finished"
    assert [line["epoch"] for line in content("metrics.jsonl")] == list(range(1, 31))


def test_a_run_that_sigterm_stops_says_how_to_go_on_and_does(
    named_blobs: np.ndarray, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = Path("run", "metrics.jsonl")
    with signalled(signal.SIGTERM, lambda: metrics.exists() and metrics.read_text().count("\n") >= 2):
        assert main(LONG) == 143
    assert capsys.readouterr().err == "jocor-fast: error: stopped by SIGTERM; use --resume to continue\n"
    assert_it_was_interrupted_and_goes_on()


def test_a_run_that_ctrl_c_stops_says_how_to_go_on_and_does(named_blobs: np.ndarray) -> None:
    """In a process of its own, in which the package once answered Ctrl-C otherwise, while it was imported."""
    with subprocess.Popen([*PROGRAM, *LONG], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any(line.startswith("epoch  2/30") for line in process.stdout)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate()
    assert (process.returncode, error) == (130, "jocor-fast: error: interrupted; use --resume to continue\n")
    assert_it_was_interrupted_and_goes_on()


def test_a_reader_that_leaves_ends_the_run_in_a_sentence(named_blobs: np.ndarray) -> None:
    command = [
        *PROGRAM,
        "train",
        "--dataset",
        "npz:blobs.npz",
        "--labels-are-clean",
        "--epochs",
        "2000",
        "--output",
        "run",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        error = process.stderr.read()
    assert process.returncode == 1
    assert error.startswith("jocor-fast: error: output pipe closed, run stopped")
    assert error.count("\n") == 1


def test_memory_that_runs_out_is_a_sentence(
    named_blobs: np.ndarray, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fit(*arguments: object, **options: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. See documentation")

    monkeypatch.setattr("jocor_fast.runs.fit.fit", fit)
    assert train("--dataset", "npz:blobs.npz", "--labels-are-clean", "--device", "auto") == 1
    sentence = r"error: out of memory on (cpu|cuda:\d): a smaller --batch-size needs less\n$"
    assert re.search(sentence, capsys.readouterr().err)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    Path("locked").mkdir(mode=0o500)
    assert train(folder="locked/run") == 1
    assert "jocor-fast: error: --output: locked/run cannot be written (Permission denied" in capsys.readouterr().err
