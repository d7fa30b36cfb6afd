"""`jocor-fast train` on labels of one's own: files, names, a noise matrix, and what it says where no truth is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cli_cases import content, train
from jocor_fast.cli.program import main

pytestmark = pytest.mark.usefixtures("in_an_empty_folder", "curves_at_once")


def noisy_names(classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Names of which every fourth is wrong, and the true ones."""
    names = np.array(["ant", "bee", "cat", "dog"])
    return names[np.where(np.arange(len(classes)) % 4 == 0, (classes + 1) % 4, classes)], names[classes]


def test_a_table_of_class_names_is_printed_and_stored(
    named_blobs: np.ndarray, capsys: pytest.CaptureFixture[str]
) -> None:
    """Case 29."""
    assert train("--dataset", "npz:blobs.npz", "--labels-are-clean") == 0
    assert content("config.json")["label_table"] == ["ant", "bee", "cat", "dog"]
    assert "0 = ant, 1 = bee, 2 = cat, 3 = dog" in capsys.readouterr().out


def test_labels_from_a_csv_with_the_truth(named_blobs: np.ndarray) -> None:
    noisy, clean = noisy_names(named_blobs)
    rows = [f"{number},{noisy[number]},{clean[number]}" for number in reversed(range(200))]
    Path("labels.csv").write_text("\n".join(["id,label,clean", *rows]), encoding="utf-8")
    assert train("--dataset", "npz:blobs.npz", "--labels", "labels.csv", "--batch-size", "16") == 0
    settings, summary = content("config.json")["settings"], content("summary.json")
    assert settings["forget_rate"] == pytest.approx(0.25)
    assert (settings["noise"], settings["noise_rate"], settings["noise_seed"]) == (None, None, None)
    assert (summary["nominal_noise_rate"], summary["realised_noise_rate"]) == (None, pytest.approx(0.25))
    assert all(0.5 < line["label_precision"] <= 1 for line in content("metrics.jsonl"))


def test_labels_without_the_truth_need_a_forget_rate_and_leave_precision_unknown(
    named_blobs: np.ndarray, capsys: pytest.CaptureFixture[str]
) -> None:
    """Case 36."""
    noisy, _ = noisy_names(named_blobs)
    np.savez("labels.npz", noisy=noisy)
    arguments = ("--dataset", "npz:blobs.npz", "--labels", "labels.npz:noisy")
    assert train(*arguments) == 2
    assert "--forget-rate is required with --labels where the clean labels are unknown" in capsys.readouterr().err
    assert train(*arguments, "--forget-rate", "0.25") == 0
    out = capsys.readouterr().out
    assert all(line["label_precision"] is None for line in content("metrics.jsonl"))
    assert content("summary.json")["realised_noise_rate"] is None
    assert content("summary.json")["last_10_mean"]["label_precision"] is None
    assert "label precision" not in out, "it is unknown, which is no error"
    assert "the share of wrong labels is unknown" in out
    assert train(*arguments, "--method", "standard", folder="standard") == 0


def test_clean_labels_from_another_file_must_be_in_the_order_of_the_data(
    named_blobs: np.ndarray, capsys: pytest.CaptureFixture[str]
) -> None:
    noisy, clean = noisy_names(named_blobs)
    np.savez("labels.npz", noisy=noisy, clean=clean, shuffled=clean[::-1])
    arguments = ("--dataset", "npz:blobs.npz", "--labels", "labels.npz:noisy", "--clean-labels")
    assert train(*arguments, "labels.npz:shuffled") == 1
    assert "seem to be in another order" in capsys.readouterr().err
    assert not Path("run").exists()
    assert train(*arguments, "labels.npz:clean") == 0
    assert content("summary.json")["realised_noise_rate"] == pytest.approx(0.25)


def test_validation_on_clean_labels_needs_them(named_blobs: np.ndarray, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("labels.npz", noisy=noisy_names(named_blobs)[0])
    arguments = ("--dataset", "npz:blobs.npz", "--labels", "labels.npz:noisy", "--forget-rate", "0.25")
    assert train(*arguments, "--val-fraction", "0.2", "--val-labels", "clean") == 2
    assert "--val-labels clean needs --clean-labels" in capsys.readouterr().err
    assert train(*arguments, "--val-fraction", "0.2") == 0
    assert content("metrics.jsonl")[0]["val_accuracy"] is not None


def test_a_noise_matrix_from_a_file(named_blobs: np.ndarray, capsys: pytest.CaptureFixture[str]) -> None:
    np.save("q.npy", np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0.2, 0.8], [0, 0, 0.8, 0.2]]))
    assert train("--dataset", "npz:blobs.npz", "--noise-matrix", "q.npy") == 0
    expected = 0.8 * np.isin(named_blobs, (2, 3)).mean()
    assert content("config.json")["settings"]["forget_rate"] == pytest.approx(expected)
    assert content("summary.json")["nominal_noise_rate"] is None
    assert "matrix from q.npy, draw 0: " in capsys.readouterr().out


def test_a_run_without_test_data_and_true_labels_says_so_and_what_to_do_next(
    named_blobs: np.ndarray, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save("given.npy", np.array(["ant", "bee", "cat", "dog"])[named_blobs])
    assert train("--dataset=npz:blobs.npz", "--labels=given.npy", "--forget-rate=.2", "--no-test", folder="a run") == 0
    out = capsys.readouterr().out
    assert "measured  no accuracy, without test data and true labels (--val-fraction 0.1 would hold labels out)" in out
    assert "next      jocor-fast audit 'a run'\n" in out
    assert "last epoch" not in out


def test_one_class_in_the_data_is_told_and_cannot_be_made_noisy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "one.npz"
    np.savez(archive, x_train=np.zeros((64, 4, 4), np.uint8), y_train=np.zeros(64, np.int64))
    command = ["train", f"--dataset=npz:{archive}", "--epochs=1", f"--output={tmp_path / 'run'}", "--device=cpu"]
    assert main([*command, "--noise-rate=0.2"]) == 2
    error = capsys.readouterr().err
    assert f"error: --noise-rate must be 0 for npz:{archive}, whose labels are all of one class" in error
    np.save(tmp_path / "ten.npy", np.eye(10))
    assert main([*command, f"--noise-matrix={tmp_path / 'ten.npy'}"]) == 1
    assert "ten.npy must have shape [1, 1], a row and a column a class" in capsys.readouterr().err
    assert main([*command, "--labels-are-clean"]) == 0
    captured = capsys.readouterr()
    assert "has one class only: there is nothing to learn" in captured.err
    assert "samples, 1 class\n" in captured.out
