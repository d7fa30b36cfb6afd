"""Two of kill_and_resume.py's runs, whose log is benchmarks/results/kill_and_resume.md; and that it sees faults."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from jocor_fast.cli.program import main
from killed_run import VARIANTS, KilledRun, kill_and_resume, write_data
from observed_training import START
from run_differences import differences

VARIANT, SEED = "JoCoR, arrays", 11


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kills")


@pytest.fixture(scope="module")
def whole(runs: Path) -> Path:
    """A run that is not killed, in this process."""
    write_data(runs / "data")
    options = VARIANTS[VARIANT].options.replace("DATA", str(runs / "data")).split()
    assert main(["train", *options, "--device=cpu", f"--output={runs / 'whole'}"]) == 0
    return runs / "whole"


def killed(number: int, sent: signal.Signals, runs: Path, whole: Path) -> KilledRun:
    """One kill; the number decides its phase, and the seed is one that has it early in the run, also on a slow day."""
    run = KilledRun(number, VARIANT, sent)
    return kill_and_resume(run, np.random.default_rng(SEED), runs / "data", runs, whole, most=1)


def test_a_run_killed_about_an_evaluation_ends_as_one_that_nobody_touched(runs: Path, whole: Path) -> None:
    run = killed(2, signal.SIGKILL, runs, whole)
    assert run.faults == []
    assert [kill.code for kill in run.kills] == [-signal.SIGKILL]
    assert run.kills[0].phase > START


def test_a_run_that_answers_sigterm_goes_on_at_the_step_where_it_was_left(runs: Path, whole: Path) -> None:
    run = killed(1, signal.SIGTERM, runs, whole)
    assert run.faults == []
    assert [kill.code for kill in run.kills] == [143]
    assert run.kills[0].phase > START
    assert run.kills[0].went_on == run.kills[0].left


def test_a_run_that_came_to_something_else_is_seen(runs: Path, whole: Path) -> None:
    other = runs / "other"
    shutil.copytree(whole, other)
    assert differences(other, whole) == []

    metrics = (other / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in metrics.splitlines()]
    lines[1]["seconds"] += 1
    (other / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert differences(other, whole) == []  # a time
    lines[1]["train_loss"] *= 1 + 1e-15
    (other / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert differences(other, whole) == ["metrics.jsonl differs at /1/train_loss"]
    (other / "metrics.jsonl").write_text(metrics)

    checkpoint = torch.load(other / "checkpoint.pt", weights_only=True)
    name, weight = next(iter(checkpoint["training"]["networks"][1].items()))
    weight.view(-1)[0] = -weight.view(-1)[0] if weight.view(-1)[0] else -0.0
    torch.save(checkpoint, other / "checkpoint.pt")
    assert differences(other, whole) == [f"checkpoint.pt differs at /training/networks/1/{name}"]

    (other / "curves.png").unlink()
    assert "curves.png" in differences(other, whole)[0]
