"""`jocor-fast compare`: which runs it makes of the options of `train`, their table, and what it refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jocor_fast.cli.program import main
from jocor_fast.diagnosis.noise_estimate import NoiseEstimate
from jocor_fast.paper import plan
from jocor_fast.report.comparison import COLUMNS

pytestmark = pytest.mark.usefixtures("runs_in_this_process", "curves_at_once", "named_blobs")

BLOBS = ["compare", "--dataset", "npz:blobs.npz", "--epochs", "2", "--device", "cpu"]
NOISY = [*BLOBS, "--noise-rate", "0.4", "--output", "out"]
CELLS = Path("out", "blobs-symmetric-0.4")


def rows() -> dict[str, dict[str, str]]:
    """table.csv by method."""
    lines = csv.DictReader(Path("out", "table.csv").read_text(encoding="utf-8").splitlines())
    return {row["name"]: row for row in lines}


def stored(folder: Path, name: str = "config.json") -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
    return content.get("settings", content)


def value_of(line: list[str], flag: str) -> str | None:
    return line[line.index(flag) + 1] if flag in line else None


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    error = capsys.readouterr().err
    assert error.startswith("jocor-fast: error: ")
    assert error.count("\n") == 1
    return error.removeprefix("jocor-fast: error: ").rstrip("\n")


def test_methods_of_a_seed_share_its_noise_and_their_table_has_every_figure(
    runs_in_this_process: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*NOISY, "--methods", "standard,jocor", "--seeds", "2", "--val-fraction", "0.2"]) == 0
    out = capsys.readouterr().out
    found = [
        tuple(value_of(line, flag) for flag in ("--method", "--seed", "--noise-seed")) for line in runs_in_this_process
    ]
    assert sorted(found) == [(name, seed, seed) for name in ("jocor", "standard") for seed in ("1", "2")]
    assert list(rows()["JoCoR"]) == list(COLUMNS)
    for method, title in (("standard", "Standard"), ("jocor", "JoCoR")):
        summaries = [stored(CELLS / method / f"seed{seed}", "summary.json") for seed in (1, 2)]
        last = [summary["last_10_mean"] for summary in summaries]
        best = [summary["best_by_validation"]["test_accuracy"] for summary in summaries]
        row = rows()[title]
        assert (row["runs"], row["missing"]) == ("2", "")
        assert float(row["test_accuracy"]) == pytest.approx(np.mean([one["test_accuracy"] for one in last]))
        assert float(row["test_accuracy_std"]) == pytest.approx(np.std([one["test_accuracy"] for one in last], ddof=1))
        assert float(row["label_precision"]) == pytest.approx(np.mean([one["label_precision"] for one in last]))
        assert float(row["best_by_validation"]) == pytest.approx(np.mean(best))
        assert f"{100 * float(row['test_accuracy']):.2f} ± {100 * float(row['test_accuracy_std']):.2f}" in out
    assert "npz:blobs.npz, Symmetry-40%: Standard and JoCoR, seeds 1 to 2" in out
    table = Path("out", "table.md").read_text(encoding="utf-8")
    assert "best by validation" in table
    assert "Validated on 40 samples held out, by their noisy labels." in table
    assert Path("out", "curves.png").stat().st_size > 5_000


def test_a_comparison_goes_on_where_it_stopped_and_takes_further_methods_and_seeds(
    runs_in_this_process: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*NOISY, "--methods", "jocor", "--seeds", "1"]) == 0
    assert main([*NOISY, "--methods", "standard,jocor", "--seeds", "1"]) == 0
    assert [value_of(line, "--method") for line in runs_in_this_process] == ["jocor", "standard"]
    assert main([*NOISY, "--methods", "jocor", "--seeds", "2"]) == 0
    assert len(runs_in_this_process) == 3
    assert {title: row["runs"] for title, row in rows().items()} == {"JoCoR": "2", "Standard": "1"}
    capsys.readouterr()
    for other, sentence in (
        (["--epochs", "3"], "holds a run with epochs 2 (now 3)"),
        (["--forget-rate", "0.1"], "holds a run with forget_rate 0.4 (now 0.1)"),
    ):
        assert main([*NOISY, "--methods", "jocor", "--seeds", "1", *other]) == 1
        assert sentence in error_of(capsys)


def test_a_setting_that_is_no_longer_given_is_another_setting(capsys: pytest.CaptureFixture[str]) -> None:
    once = [*NOISY, "--methods", "jocor", "--seeds", "1"]
    assert main([*once, "--forget-rate", "0.1"]) == 0
    capsys.readouterr()
    assert main(once) == 1
    assert "holds a run with forget_rate 0.1 (now its default)" in error_of(capsys)
    assert main([*once, "--forget-rate", "auto"]) == 1
    assert "holds a run with forget_rate 0.1 (now auto)" in error_of(capsys)


def test_the_share_of_wrong_labels_is_estimated_once_for_all_runs(
    runs_in_this_process: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    estimates = []

    def estimate(*arguments: object, **options: object) -> NoiseEstimate:
        estimates.append(arguments)
        return NoiseEstimate(0.3, 0.1, np.eye(4), "by a guess")

    monkeypatch.setattr("jocor_fast.diagnosis.noise_estimate.estimate_noise", estimate)
    command = [*NOISY, "--methods", "standard,jocor,coteaching", "--forget-rate", "auto"]
    assert main([*command, "--seeds", "1", "--dry-run"]) == 0
    assert estimates == []
    assert main([*command, "--seeds", "2"]) == 0
    assert main([*command, "--seeds", "3"]) == 0
    assert len(estimates) == 1
    found = [(value_of(line, "--method"), value_of(line, "--forget-rate")) for line in runs_in_this_process]
    assert sorted(found, key=str) == [("coteaching", "0.3")] * 3 + [("jocor", "0.3")] * 3 + [("standard", None)] * 3
    assert "τ of all runs: estimated 30.0 ± 10.0 %, by a guess\n" in capsys.readouterr().out


def test_an_option_reaches_the_methods_that_have_it_and_no_others(runs_in_this_process: list[list[str]]) -> None:
    Path("all.toml").write_text("co_lambda = 0.5\nselection_per_class = true\nno_graph = false\n", encoding="utf-8")
    assert main([*NOISY, "--methods", "standard,coteaching,jocor", "--seeds", "1", "--config", "all.toml"]) == 0
    found = {value_of(line, "--method"): line for line in runs_in_this_process}
    assert [value_of(found[method], "--co-lambda") for method in ("standard", "coteaching", "jocor")] == [
        None,
        None,
        "0.5",
    ]
    assert ["--selection-per-class" in found[method] for method in ("standard", "coteaching")] == [False, True]
    assert stored(CELLS / "coteaching" / "seed1")["selection_per_class"] is True
    assert not any("--no-graph" in line for line in found.values())


def test_labels_from_a_file_are_those_of_every_run(runs_in_this_process: list[list[str]]) -> None:
    labels = np.load("blobs.npz")["y_train"]
    np.save("given.npy", np.where(np.arange(200) % 4 == 0, "ant", labels))
    command = [*BLOBS, "--labels", "given.npy", "--forget-rate", "0.25", "--output", "out", "--seeds", "1"]
    assert main(command) == 0
    assert [value_of(line, "--forget-rate") for line in runs_in_this_process] == [None, "0.25"]
    assert not any("--noise" in flag for line in runs_in_this_process for flag in line)
    assert Path("out", "blobs-given.npy", "jocor", "seed1", "summary.json").exists()
    table = Path("out", "table.md").read_text(encoding="utf-8")
    assert "label precision" not in table, "the truth is unknown"
    assert rows()["JoCoR"]["label_precision"] == ""


def test_one_draw_of_a_matrix_can_be_that_of_all_seeds(runs_in_this_process: list[list[str]]) -> None:
    np.save("half.npy", 0.4 * np.eye(4) + 0.15)
    drawn = [*BLOBS, "--noise-matrix", "half.npy", "--methods", "standard", "--seeds", "2"]
    assert main([*drawn, "--output", "out"]) == 0
    assert main([*drawn, "--noise-seed", "7", "--output", "other"]) == 0
    assert [value_of(line, "--noise-seed") for line in runs_in_this_process] == ["1", "2", "7", "7"]


def test_without_test_data_methods_are_compared_by_validation(capsys: pytest.CaptureFixture[str]) -> None:
    untested = [*NOISY, "--no-test", "--methods", "standard", "--seeds", "1"]
    assert main(untested) == 2
    assert error_of(capsys) == (
        "--val-fraction must be above 0: without test data, methods are compared by the labels that are held out"
    )
    assert main([*untested, "--val-fraction", "0.2"]) == 0
    lines = (CELLS / "standard" / "seed1" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    accuracies = [json.loads(line)["val_accuracy"] for line in lines]
    assert float(rows()["Standard"]["val_accuracy"]) == pytest.approx(np.mean(accuracies))
    out = capsys.readouterr().out
    assert f"Standard, Symmetry-40%, seed 1: validation accuracy {100 * np.mean(accuracies):.2f} %" in out
    assert "test accuracy" not in out


def test_a_run_that_fails_does_not_cost_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    broken = CELLS / "standard" / "seed1"
    broken.mkdir(parents=True)
    (broken / "checkpoint.pt").write_bytes(b"broken")
    assert main([*NOISY, "--seeds", "1"]) == 1
    assert "1 of 2 runs failed, first Standard, Symmetry-40%, seed 1: " in error_of(capsys)
    assert {title: row["runs"] for title, row in rows().items()} == {"Standard": "0", "JoCoR": "1"}
    assert rows()["Standard"]["missing"] == "seed 1: failed"


def test_a_dry_run_plans_on_the_shape_of_the_data_and_writes_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MEASURED_SECONDS", 0.001)
    before = sorted(Path().rglob("*"))
    assert main([*NOISY, "--methods", "jocor,f-correction", "--seeds", "2", "--jobs", "2", "--dry-run"]) == 0
    assert sorted(Path().rglob("*")) == before
    out = capsys.readouterr().out
    cells = [line.split() for line in out.splitlines() if line.lstrip().startswith("Symmetry")]
    assert [cell[:6] for cell in cells] == [
        ["Symmetry-40%", "JoCoR", "0.9", "0.4", "0/2", "4"],
        ["Symmetry-40%", "F-correction", "n/a", "n/a", "0/2", "8"],
    ]
    commands = [line.strip() for line in out.splitlines() if line.strip().startswith("jocor-fast train ")]
    assert commands[0] == (
        "jocor-fast train --dataset npz:blobs.npz --noise symmetric --noise-rate 0.4 --noise-seed 1 --method jocor "
        "--seed 1 --epochs 2 --device cpu --output out/blobs-symmetric-0.4/jocor/seed1 --resume"
    )
    assert "4 of 4 runs left, 2 at a time with 1 thread each: about " in out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--methods jocor,magic", "--methods must name some of standard, "),
        ("--seeds 0", "--seeds must be a whole number from 1 to 1,000, got '0'"),
        ("--jobs x", "--jobs must be a whole number from 1 to 1,000,000,000, got 'x'"),
        ("--method jocor", "jocor-fast compare has no option --method; did you mean --methods?"),
        ("--seed 3", "jocor-fast compare has no option --seed; did you mean --seeds?"),
        ("--resume", "jocor-fast compare has no option --resume"),
        ("--config seed.toml", "--seed is nothing to give to compare, which sets it itself"),
        ("--epochs many", "--epochs must be a whole number, got 'many'"),
        (
            "--labels given.npy",
            "--labels and --noise-rate exclude each other: labels from a file are noisy as they are",
        ),
        ("--methods f-correction --label-smoothing 0.1", "--label-smoothing must be left out: the loss of method "),
        ("--methods standard --co-lambda 0.5", "--co-lambda changes nothing: standard has no λ"),
        ("--dataset digits --image-size 32", "--image-size is for image files, and digits lies in memory"),
    ],
)
def test_what_is_unknown_or_senseless_ends_in_one_sentence_before_any_run(
    options: str, sentence: str, runs_in_this_process: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("seed.toml").write_text("seed = 3\n", encoding="utf-8")
    assert main([*NOISY, *options.split(" ")]) == 2
    assert error_of(capsys).startswith(sentence)
    assert runs_in_this_process == []


def test_your_own_labels_need_a_forget_rate_or_an_estimate(
    runs_in_this_process: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez("own.npz", **np.load("blobs.npz"))
    own = ["compare", "--dataset", "npz:own.npz", "--labels", "own.npz:y_train", "--epochs", "1", "--device", "cpu"]
    assert main([*own, "--methods", "standard,jocor"]) == 2
    assert "--forget-rate is required" in error_of(capsys)
    assert runs_in_this_process == []
