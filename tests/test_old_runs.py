"""Folders of runs that an older version wrote: resumed, audited, predicted from and plotted as by that version.

Commit 740aa58 wrote `runs_of_740aa58`, with the options below: a JoCoR run and the first stage of an F-correction run,
stopped by SIGTERM within their third epoch; a finished Co-teaching run; and a run of `jf.train`, interrupted within its
third epoch. `expected` holds what 740aa58 went on to make of each. To keep it small, checkpoint-previous.pt and
curves.png were removed.
"""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import jocor_fast as jf
from jocor_fast.cli import main

DATA = "--dataset npz:data.npz --ramp-epochs 2 --batch-size 12 --device cpu"
OPTIONS = {
    "jocor": f"{DATA} --noise-rate 0.3 --epochs 10 --lr 0.01 --recipe published",
    "f-correction": f"{DATA} --noise pairflip --noise-rate 0.3 --epochs 6 --lr 0.01 --method f-correction",
    "coteaching": (
        f"{DATA} --labels labels.csv --forget-rate 0.25 --epochs 12 --method coteaching --optimizer sgd --lr 0.1 "
        "--val-fraction 0.25"
    ),
}
TIMES = ("seconds", "eval_seconds", "samples_per_second", "wait_share")
# Another CPU, or another torch, may round differently.
RELATIVE, ABSOLUTE = 1e-4, 1e-5


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the runs, and the current folder."""
    copy = tmp_path / "runs"
    shutil.copytree(Path(__file__).with_name("runs_of_740aa58"), copy)
    monkeypatch.chdir(copy)
    return copy


def run_command(*arguments: str) -> None:
    assert main(arguments) == 0


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_csv(path: Path, key: str) -> dict[str, dict[str, Any]]:
    """The rows by one of their columns, numbers as such."""

    def value(text: str) -> float | str:
        try:
            return float(text)
        except ValueError:
            return text

    with path.open(newline="") as file:
        return {row[key]: {name: value(text) for name, text in row.items()} for row in csv.DictReader(file)}


def assert_alike(found: Any, expected: Any, place: str) -> None:
    """All that is expected is found, numbers up to rounding; what newer versions add is ignored."""
    if isinstance(expected, dict):
        assert expected.keys() <= found.keys(), place
        for name in expected.keys() - set(TIMES):
            assert_alike(found[name], expected[name], f"{place}: {name}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), place
        for number, pair in enumerate(zip(found, expected, strict=True)):
            assert_alike(*pair, f"{place}: {number}")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=RELATIVE, abs=ABSOLUTE), place
    else:
        assert found == expected, place


def assert_same_weights(networks: list[dict[str, Any]], name: str) -> None:
    expected = torch.load(Path("expected", name, "weights.pt"), weights_only=True)
    torch.testing.assert_close(networks, expected, rtol=RELATIVE, atol=ABSOLUTE)


def assert_audited_and_predicted_alike(name: str, checkpoint: str) -> None:
    run_command("audit", name, "--output", "audit")
    run_command("predict", checkpoint, "data.npz:x_test", "--probabilities", "--device=cpu", "--output=predicted.csv")
    expected = Path("expected", name)
    assert_alike(
        json.loads(Path("audit", "audit.json").read_text()), json.loads((expected / "audit.json").read_text()), ""
    )
    for path, key in ((Path("audit", "suspicious.csv"), "id"), (Path("predicted.csv"), "index")):
        assert_alike(read_csv(path, key), read_csv(expected / path.name, key), path.name)


@pytest.mark.parametrize("name", ["jocor", "f-correction"])
def test_a_run_stopped_within_an_epoch_is_resumed_to_the_same_end(name: str) -> None:
    stopped = Path(name, "first-stage") if name == "f-correction" else Path(name)
    before = read_json_lines(stopped / "metrics.jsonl")
    assert len(before) == 2
    run_command("train", *OPTIONS[name].split(), "--resume", "--output", name)
    assert read_json_lines(stopped / "metrics.jsonl")[:2] == before, "it was started afresh"
    assert_alike(
        read_json_lines(Path(name, "metrics.jsonl")), read_json_lines(Path("expected", name, "metrics.jsonl")), ""
    )
    assert json.loads(Path(name, "summary.json").read_text())["status"] == "finished"
    assert_same_weights(torch.load(Path(name, "checkpoint.pt"), weights_only=True)["training"]["networks"], name)
    assert_audited_and_predicted_alike(name, name)


def test_a_finished_run_is_left_as_it_is_audited_and_predicted_from() -> None:
    before = {path: path.read_bytes() for path in Path("coteaching").iterdir()}
    run_command("train", *OPTIONS["coteaching"].split(), "--resume", "--output", "coteaching")
    assert {path: path.read_bytes() for path in Path("coteaching").iterdir()} == before
    assert_audited_and_predicted_alike("coteaching", "coteaching/best.pt")


def test_a_run_of_jf_train_is_resumed_to_the_same_end() -> None:
    data = np.load("data.npz")
    labels = np.array([int(row["label"]) for row in read_csv(Path("labels.csv"), "id").values()])
    before = read_json_lines(Path("from-python", "metrics.jsonl"))
    run = jf.train(
        lambda: nn.Linear(4, 3),
        (data["x_train"], labels),
        clean_labels=data["y_train"],
        test_data=(data["x_test"], data["y_test"]),
        forget_rate=0.2,
        epochs=4,
        ramp_epochs=1,
        batch_size=12,
        lr=0.05,
        device="cpu",
        output="from-python",
        resume=True,
    )
    assert run.metrics[:2] == before, "it was started afresh"
    assert_alike(run.metrics, read_json_lines(Path("expected", "from-python", "metrics.jsonl")), "")
    assert_same_weights([network.state_dict() for network in run.networks], "from-python")
    assert np.array_equal(jf.audit("from-python").given, labels)


def test_runs_are_plotted(capsys: pytest.CaptureFixture[str]) -> None:
    run_command("plot", "jocor", "coteaching", "f-correction", "from-python", "--output", "plots")
    assert "no noise matrix of npz" not in capsys.readouterr().out
    for name in ("comparison.png", "noise-matrix.png"):
        assert Path("plots", name).read_bytes().startswith(b"\x89PNG")
