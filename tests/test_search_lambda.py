"""The search for λ: where it compares, what it keeps, that it goes on where it stopped, and what it never looks at."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from engine_cases import blobs, fit, held_out, parameters, same_bits, settings, small_mlp, without_timings
from jocor_fast.cli.program import main
from jocor_fast.data.samples import Samples
from jocor_fast.files.names import read_metrics
from jocor_fast.paper.lambda_search import SCORED_EPOCHS, kept, ranked, rungs, score
from jocor_fast.paper.run_queue import QueuedRun
from jocor_fast.runs.fit import Run

# --- which epochs, which λ --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epochs", "ramp_epochs", "candidates", "expected"),
    [
        (200, 10, 19, [25, 50, 100, 200]),
        (50, 10, 4, [25, 50]),
        (50, 0, 4, [13, 25, 50]),  # two halvings are enough for four
        (50, 12, 4, [25, 50]),
        (50, 13, 4, [50]),
        (20, 3, 1, [20]),
        (1, 0, 8, [1]),
    ],
)
def test_rungs_double_begin_at_twice_the_ramp_and_are_no_more_than_it_takes(
    epochs: int, ramp_epochs: int, candidates: int, expected: list[int]
) -> None:
    assert rungs(epochs, ramp_epochs=ramp_epochs, candidates=candidates) == expected


def test_a_score_is_the_mean_of_the_last_epochs_up_to_the_rung_and_nothing_later() -> None:
    metrics = [{"val_accuracy": float(epoch)} for epoch in range(1, 21)]
    assert score(metrics, 10) == pytest.approx(np.mean(range(10 - SCORED_EPOCHS + 1, 11)))
    assert score(metrics, 2) == 1.5
    assert score(metrics, 21) is None
    assert score([{"val_accuracy": None}], 1) is None


def test_the_better_half_is_kept_rounded_up_and_of_equals_the_larger() -> None:
    assert kept({0.1: 0.3, 0.5: 0.9, 0.9: 0.8}) == [0.5, 0.9]
    assert kept({0.1: 0.5, 0.5: 0.5, 0.7: 0.5, 0.9: 0.5}) == [0.7, 0.9]
    assert kept({0.1: None, 0.5: None, 0.7: 0.2, 0.9: None}) == [0.7]
    assert ranked({0.1: 0.5, 0.5: 0.9, 0.9: None}) == [0.5, 0.1]


# --- what a run of the search needs of the engine ---------------------------------------------------------------------


def test_a_run_that_pauses_and_goes_on_is_the_run_that_does_not(tmp_path: Path) -> None:
    def train(output: Path, **options: Any) -> Run:
        return fit(settings(epochs=6), small_mlp, blobs(70), val=held_out(45), output=output, **options)

    whole = train(tmp_path / "whole")
    paused = train(tmp_path / "paused", stop_after=2)
    assert (paused.summary["status"], len(paused.metrics)) == ("interrupted", 2)
    again = train(tmp_path / "paused", stop_after=2, resume=True)
    assert (again.summary["status"], again.metrics) == ("interrupted", paused.metrics)
    assert len(train(tmp_path / "paused", stop_after=5, resume=True).metrics) == 5
    resumed = train(tmp_path / "paused", stop_after=99, resume=True)
    assert resumed.summary["status"] == "finished"
    assert without_timings(resumed.metrics) == without_timings(whole.metrics)
    assert same_bits(parameters(resumed.networks), parameters(whole.networks))
    for wrong, error in ((0, ValueError), (1.5, TypeError)):
        with pytest.raises(error, match="stop_after must be"):
            train(tmp_path / "wrong", stop_after=wrong)


class Given(nn.Module):
    """Its logits are its inputs, moved by a parameter, all alike."""

    def __init__(self, columns: slice) -> None:
        super().__init__()
        self.columns = columns
        self.shift = nn.Parameter(torch.full((1,), float(columns.start)))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs[:, self.columns] + self.shift


@pytest.mark.parametrize("keep_rate", [1.0, 0.75, 0.5, 0.25])
def test_accuracy_is_taken_over_the_samples_of_the_smallest_cross_entropy(keep_rate: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(40, 6, generator=generator), torch.randint(3, (40,), generator=generator)
    pair = (Given(slice(0, 3)), Given(slice(3, 6)))
    val = Samples(logits, labels, keep_rate=keep_rate)
    line = fit(settings(epochs=1, lr=1e-30), pair, blobs_of_six(), val=val, test=Samples(logits, labels)).metrics[0]
    losses = sum(nn.functional.cross_entropy(z.double(), labels, reduction="none") for z in logits.split(3, 1))
    part = np.argsort(losses.numpy(), kind="stable")[: round(40 * keep_rate)]
    right = [(z.argmax(1) == labels).numpy() for z in logits.split(3, 1)]
    assert line["val_accuracy"] == pytest.approx(np.mean([network[part].mean() for network in right]))
    assert line["test_accuracy"] == pytest.approx(np.mean([network.mean() for network in right]))


def blobs_of_six() -> Any:
    data = blobs(16)
    return type(data)(data.inputs.float(), data.labels % 3)


def test_a_keep_rate_that_is_none_is_named() -> None:
    for wrong in (0.0, 1.1, math.nan):
        with pytest.raises(ValueError, match=r"keep_rate must lie in \(0, 1\], got"):
            Samples(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64), keep_rate=wrong)


# --- the command ------------------------------------------------------------------------------------------------------

SEARCH = ["search-lambda", "--dataset", "npz:blobs.npz", "--noise-rate", "0.4", "--epochs", "4", "--ramp-epochs", "1"]
SEARCH += ["--batch-size", "16", "--device", "cpu", "--jobs", "1"]
GRID = ["--grid", "0.1,0.5,0.9"]
TWO, ONE = ["--grid", "0.1,0.9"], ["--grid", "0.5", "--epochs", "2"]  # where fewer runs show the same


def write_blobs(**changes: np.ndarray) -> None:
    """blobs.npz: 160 samples to train on, 40 to test on."""
    generator = np.random.default_rng(0)
    classes = generator.integers(0, 4, 200)
    inputs = (40 * classes[:, None] + generator.integers(0, 60, (200, 6))).astype(np.uint8)
    arrays = {"x_train": inputs[:160], "y_train": classes[:160], "x_test": inputs[160:], "y_test": classes[160:]}
    np.savez("blobs.npz", **{**arrays, **changes})


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs_in_this_process: list[list[str]]) -> list[list[str]]:
    """In an empty folder with blobs.npz. Returns the command line of each run."""
    monkeypatch.chdir(tmp_path)
    write_blobs()
    return runs_in_this_process


def search(*arguments: str, output: str = "out") -> int:
    return main([*SEARCH, *GRID, "--output", output, *arguments])


def rows(output: str = "out") -> list[dict[str, str]]:
    return list(csv.DictReader(Path(output, "table.csv").read_text(encoding="utf-8").splitlines()))


def test_a_search_halves_chooses_and_says_how_to_go_on(
    started: list[list[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    assert search() == 0
    out = capfd.readouterr().out
    table = rows()
    assert [(row["co_lambda"], row["epoch"]) for row in table[:3]] == [("0.1", "2"), ("0.5", "2"), ("0.9", "2")]
    at_two = {float(row["co_lambda"]): float(row["val_accuracy"]) for row in table[:3]}
    assert [float(row["co_lambda"]) for row in table[3:]] == kept(at_two)
    found = json.loads(Path("out/search.json").read_text(encoding="utf-8"))
    at_four = {float(row["co_lambda"]): float(row["val_accuracy"]) for row in table[3:]}
    assert found["co_lambda"] == ranked(at_four)[0]
    assert (found["rungs"], found["epoch"], found["grid"]) == ([2, 4], 4, [0.1, 0.5, 0.9])
    assert found["val_accuracy"] == at_four[found["co_lambda"]]
    lengths = {path.parent.name: len(read_metrics(path.parent)) for path in Path("out").glob("*/metrics.jsonl")}
    assert lengths == {f"lambda-{value:g}": 4 if value in at_four else 2 for value in at_two}
    assert len(started) == 5
    assert "16 samples held out, of them the 60.00 % with the smallest loss, by their noisy labels" in out
    assert "rung 1 of 2: 3 λ to epoch 2" in out
    command = "train --dataset npz:blobs.npz --noise-rate 0.4 --ramp-epochs 1 --epochs 4 --batch-size 16 --device cpu"
    assert f"  jocor-fast {command} --co-lambda {found['co_lambda']:g}\n" in out
    assert f"| {found['co_lambda']:g} |" in Path("out/table.md").read_text(encoding="utf-8")
    assert Path("out/search.png").stat().st_size > 10_000


def test_two_lambdas_that_are_alike_to_six_digits_are_two_runs(
    started: list[list[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    assert search("--grid", "0.1234567,0.1234568", "--epochs", "2") == 0
    assert {path.name for path in Path("out").glob("lambda-*")} == {"lambda-0.1234567", "lambda-0.1234568"}
    assert [line[line.index("--co-lambda") + 1] for line in started] == ["0.1234567", "0.1234568"]
    table = Path("out/table.md").read_text(encoding="utf-8")
    assert all(f"| {co_lambda} |" in table for co_lambda in ("0.1234567", "0.1234568"))


def test_no_run_of_a_search_has_test_data_and_test_labels_change_nothing(started: list[list[str]]) -> None:
    assert search(*TWO) == 0
    assert started
    assert all("--no-test" in line for line in started)
    for folder in Path("out").glob("lambda-*"):
        for line in read_metrics(folder):
            assert {value for name, value in line.items() if name.startswith("test_")} == {None}
    generator = np.random.default_rng(1)
    write_blobs(y_test=generator.integers(0, 4, 40), x_test=generator.integers(0, 256, (40, 6), dtype=np.uint8))
    assert search(*TWO, output="other") == 0
    assert rows("other") == rows()
    assert Path("other/search.json").read_text() == Path("out/search.json").read_text()


def test_a_search_goes_on_where_it_stopped_and_refuses_other_settings(
    started: list[list[str]], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = QueuedRun.start

    def interrupted(run: QueuedRun, threads: int) -> None:
        if len(started) == 1:
            raise KeyboardInterrupt
        start(run, threads)

    with monkeypatch.context() as patch:
        patch.setattr(QueuedRun, "start", interrupted)
        assert search(*TWO) == 130
    assert "run the same command again to continue" in capfd.readouterr().err
    assert not Path("out/search.json").exists()
    assert search(*TWO) == 0
    assert len(started) == 3, "the run of before is not made again"
    before = rows()
    assert search(*TWO) == 0
    assert (rows(), len(started)) == (before, 3)
    assert search(*TWO, "--lr", "0.01") == 1
    assert "holds a run with lr 0.001 (now 0.01); choose another --output" in capfd.readouterr().err


def test_a_run_that_fails_is_out_and_the_search_goes_on(
    started: list[list[str]], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = QueuedRun.start

    def failing(run: QueuedRun, threads: int) -> None:
        start(run, threads)
        if run.settings["co_lambda"] in broken:
            run._process.code = 1  # type: ignore[union-attr]

    monkeypatch.setattr(QueuedRun, "start", failing)
    broken = {0.9}
    assert search(*TWO) == 0
    assert [(row["val_accuracy"] == "", row["kept"]) for row in rows()[:2]] == [(False, "true"), (True, "false")]
    broken = {0.1, 0.9}
    assert search(*TWO, output="none") == 1
    assert "no run came to epoch 2, first λ 0.1: it ended with exit code 1" in capfd.readouterr().err


def test_a_data_set_with_a_validation_set_of_its_own_is_validated_on_it(
    started: list[list[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    with np.load("blobs.npz") as arrays:
        images = np.repeat(arrays["x_train"], 11, axis=1)[:, :64].reshape(-1, 8, 8)
        labels = arrays["y_train"][:, None]
    parts = {"train": slice(0, 100), "val": slice(100, 130), "test": slice(130, 160)}
    medical = {f"{name}_images": images[part] for name, part in parts.items()}
    np.savez("blobs.npz", **medical, **{f"{name}_labels": labels[part] for name, part in parts.items()})
    assert search(*ONE) == 0
    assert "on        the 30 validation samples of npz:blobs.npz" in capfd.readouterr().out
    assert not any("--val-fraction" in line for line in started)


def test_clean_and_noisy_validation_labels_can_be_asked_for(
    started: list[list[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    for kind in ("clean", "noisy"):
        assert search("--val-labels", kind, "--val-fraction", "0.2", *ONE, output=kind) == 0
        assert f"32 samples held out, by their {kind} labels" in capfd.readouterr().out
    assert rows("clean") != rows("noisy")
