"""SIGTERM, SIGKILL and Ctrl-C: what a run leaves behind, its exit code, and that it goes on from there."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest

from checkpoint_cases import KINDS, Killed, assert_same, killed_after, metrics_in, terminated_at, train, whole
from jocor_fast.runs.fit import Run

pytestmark = pytest.mark.usefixtures("curves_at_once")


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
