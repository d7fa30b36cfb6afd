"""`jocor-fast reproduce digits`, with few epochs: its files, its table, and that it goes on where it stopped."""

from __future__ import annotations

import csv
import json
import signal
import sys
import time
from pathlib import Path

import pytest

from children import signalled
from jocor_fast.cli.program import main
from jocor_fast.paper.run_queue import QueuedRun, run_all

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

CELLS = Path("out", "digits-symmetric-0.5")
QUICK = ["reproduce", "digits", "--epochs", "2", "--seeds", "1", "--device", "cpu", "--output", "out"]


def rows() -> list[dict[str, str]]:
    return list(csv.DictReader(Path("out", "table.csv").read_text(encoding="utf-8").splitlines()))


def test_a_run_takes_no_modules_from_the_current_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither somebody's random.py nor the sources of this package, which are not compiled."""
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])  # of `python -m pytest`
    for module in (Path("random.py"), Path("jocor_fast", "__init__.py")):
        module.parent.mkdir(exist_ok=True)
        module.write_text("raise ImportError('not the one that is meant')\n", encoding="utf-8")
    run = QueuedRun("one", Path("run"), {"epochs": 0}, epochs=1)
    run_all([run], jobs=1, threads=1, on_change=lambda run: None, on_poll=lambda: None)
    assert run.error == "--epochs must be at least 1, got 0"


@pytest.mark.usefixtures("runs_in_this_process")
def test_it_runs_every_method_and_writes_table_and_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(QUICK) == 0
    out = capsys.readouterr().out
    assert [(row["method"], row["n"], row["ddof"], row["status"]) for row in rows()] == [
        ("standard", "1", "1", "1/1"),
        ("jocor", "1", "1", "1/1"),
    ]
    for row in rows():
        folder = CELLS / row["method"] / "seed1"
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        assert float(row["mean"]) == pytest.approx(summary["last_10_mean"]["test_accuracy"])
        assert float(row["label_precision"]) == pytest.approx(summary["last_10_mean"]["label_precision"])
        assert (row["std"], row["paper_mean"], row["difference"]) == ("", "", "")
        assert f"{100 * float(row['mean']):.2f}" in out
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))["settings"]
        assert (settings["seed"], settings["noise_seed"], settings["batch_size"], settings["epochs"]) == (1, 1, 32, 2)
        assert (folder / "train.log").read_text(encoding="utf-8").count("epoch ") >= 2
    table = Path("out", "table.md").read_text(encoding="utf-8")
    assert "| Symmetry-50% | JoCoR    |" in table
    assert "(ddof 1)" in table
    assert Path("out", "curves.png").stat().st_size > 10_000
    points = 100 * (float(rows()[1]["mean"]) - float(rows()[0]["mean"]))
    assert f"JoCoR is {abs(points):.1f} points {'above' if points >= 0 else 'below'} Standard." in out
    assert str(Path("out", "curves.png")) in out

    # Finished runs are not made again, more seeds join them, and other settings are refused.
    before = {path: path.stat().st_mtime_ns for path in CELLS.rglob("*") if path.is_file()}
    assert main([*QUICK[:-1], "out", "--methods", "standard", "--seeds", "2"]) == 0
    assert "1 run (1 of 2 is finished already), 1 at a time, in out" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert [(row["method"], row["n"], row["status"]) for row in rows()] == [
        ("standard", "2", "2/2"),
        ("jocor", "1", "1/1"),  # not asked for this time, but there
    ]
    assert float(rows()[0]["std"]) >= 0
    assert main([*QUICK, "--epochs", "3"]) == 1
    assert "holds a run with epochs 2 (now 3)" in capsys.readouterr().err


@pytest.mark.usefixtures("runs_in_this_process")
def test_a_run_that_fails_is_named_and_never_averaged(capsys: pytest.CaptureFixture[str]) -> None:
    (CELLS / "standard" / "seed1").mkdir(parents=True)
    (CELLS / "standard" / "seed1" / "checkpoint.pt").write_bytes(b"broken")
    assert main(QUICK) == 1
    out, error = capsys.readouterr()
    assert error.startswith("jocor-fast: error: 1 of 2 runs failed, first Standard, Symmetry-50%, seed 1: --output: ")
    assert "damaged" in error
    assert error.count("\n") == 1
    assert "Standard, Symmetry-50%, seed 1: failed: " in out
    assert [(row["method"], row["n"], row["mean"] != "") for row in rows()] == [
        ("standard", "0", False),
        ("jocor", "1", True),
    ]
    assert rows()[0]["status"] == "0/1 (seed 1: failed)"


@pytest.mark.parametrize(
    ("number", "code", "sentence"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "stopped by SIGTERM")],
)
def test_stopping_it_stops_its_runs(number: int, code: int, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = CELLS / "jocor" / "seed1" / "metrics.jsonl"
    with signalled(number, lambda: metrics.exists() and metrics.stat().st_size > 0):
        assert main([*QUICK, "--epochs", "100000", "--methods", "jocor"]) == code
    error = capsys.readouterr().err
    assert error == f"jocor-fast: error: {sentence}; run the same command again to continue\n"
    summary = json.loads((metrics.parent / "summary.json").read_text(encoding="utf-8"))
    assert summary["status"] == "interrupted"
    size = metrics.stat().st_size
    time.sleep(0.5)
    assert metrics.stat().st_size == size, "the run must have ended"
