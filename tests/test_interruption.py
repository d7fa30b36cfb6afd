"""SIGTERM, SIGKILL and Ctrl-C: what a run leaves behind, its exit code, and that it goes on from there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from checkpoint_cases import KINDS, Killed, assert_same, killed_after, metrics_in, terminated_at, train, whole
from children import IMPORTED, PATIENCE
from engine_cases import blobs, fit, held_out, settings, small_mlp, without_timings
from jocor_fast.runs.fit import Run

pytestmark = pytest.mark.usefixtures("one_thread", "curves_at_once")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", [1, 3, 4], ids=["first step", "third step", "last step"])
def test_sigterm_leaves_a_checkpoint_within_the_step_and_exits_143(kind: str, step: int, tmp_path: Path) -> None:
    steps: list[tuple[int, ...]] = []
    kill = terminated_at(3, step)

    def on_step(*at: int) -> None:
        steps.append(at)
        kill(*at)

    with pytest.raises(SystemExit) as exit_:
        train(kind, tmp_path, on_step=on_step)
    assert exit_.value.code == 143
    assert steps[-1] == (3, step, 4)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    assert len(metrics_in(tmp_path)) == (2 if step < 4 else 3)
    assert summary["last"] == metrics_in(tmp_path)[-1]

    later: list[tuple[int, ...]] = []
    resumed = train(kind, tmp_path, resume=True, on_step=lambda *at: later.append(at))
    assert later[0] == ((3, step + 1, 4) if step < 4 else (4, 1, 4))
    assert_same(resumed, whole(kind), tmp_path)


def test_sigterm_before_the_first_epoch_is_over_can_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        train("paired", tmp_path, on_step=terminated_at(1, 2))
    assert json.loads((tmp_path / "summary.json").read_text())["last"] is None
    assert_same(train("paired", tmp_path, resume=True), whole("paired"), tmp_path)


def test_sigterm_in_the_last_epoch_finishes_the_run_and_exits_143(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as exit_:
        train("paired", tmp_path, on_step=terminated_at(6, 4))
    assert exit_.value.code == 143
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "finished"
    assert (tmp_path / "curves.png").exists()


def test_the_handler_is_put_back_however_a_run_ends(tmp_path: Path) -> None:
    received: list[int] = []
    previous = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        with pytest.raises(SystemExit):
            train("paired", tmp_path, on_step=terminated_at(1, 2))
        assert received == []
        os.kill(os.getpid(), signal.SIGTERM)
        assert received == [signal.SIGTERM]
        with pytest.raises(Killed):
            train("paired", tmp_path, resume=True, on_epoch=killed_after(2))
        train("paired", None, epochs=1, on_step=terminated_at(1, 1))  # no files: none of the run's business
        assert received == [signal.SIGTERM] * 2
    finally:
        signal.signal(signal.SIGTERM, previous)


def test_a_run_in_another_thread_leaves_signals_alone(tmp_path: Path) -> None:
    results: list[Run] = []
    thread = threading.Thread(target=lambda: results.append(train("paired", tmp_path, epochs=2)))
    thread.start()
    thread.join()
    assert results[0].summary["status"] == "finished"


def test_ctrl_c_says_interrupted_and_can_be_resumed(tmp_path: Path) -> None:
    def on_step(*at: int) -> None:
        if at[:2] == (3, 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train("paired", tmp_path, on_step=on_step)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["status"], summary["last"]["epoch"]) == ("interrupted", 2)
    assert_same(train("paired", tmp_path, resume=True), whole("paired"), tmp_path)


SCRIPT = """
import sys, time, torch
from engine_cases import blobs, held_out, settings, small_mlp
from engine_cases import fit
torch.set_num_threads(1)

def on_step(epoch, step, steps):
    time.sleep(0.01)

def on_epoch(event):
    print(event.epoch, flush=True)

data = {{'test': held_out(21), 'output': {output!r}}}
fit(settings(epochs=30), small_mlp, blobs(70), **data, on_epoch=on_epoch, on_step=on_step)
"""


def process(output: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT.format(output=str(output))]
    environment = {**os.environ, "PYTHONPATH": IMPORTED}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_that_a_signal_ends_is_resumed_by_another(number: signal.Signals, tmp_path: Path) -> None:
    untouched = fit(settings(epochs=30), small_mlp, blobs(70), test=held_out(21))
    child = process(tmp_path)
    assert child.stdout is not None
    for _ in range(3):
        assert child.stdout.readline(), child.communicate()[1]
    child.send_signal(number)
    _, errors = child.communicate(timeout=PATIENCE)
    assert child.returncode == (143 if number == signal.SIGTERM else -signal.SIGKILL), errors
    assert (tmp_path / "summary.json").exists() == (number == signal.SIGTERM)
    assert 3 <= len(metrics_in(tmp_path)) < 30

    fit(settings(epochs=30), small_mlp, blobs(70), test=held_out(21), output=tmp_path, resume=True)
    assert without_timings(metrics_in(tmp_path)) == without_timings(untouched.metrics)
