"""`jocor-fast train --tensorboard`: the epochs as scalars, and a sentence where the package is missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from jocor_fast.cli.program import main

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

TRAIN = ["train", "--device", "cpu", "--noise-rate", "0.5", "--output", "run", "--tensorboard"]


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """{tag: [(step, value)]}, as the page of TensorBoard would show it."""
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    accumulator = events.EventAccumulator(str(folder), purge_orphaned_data=True).Reload()
    return {
        tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]
    }


def metrics() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("run/metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def test_tensorboard_shows_the_lines_of_metrics_jsonl() -> None:
    pytest.importorskip("tensorboard")
    assert main([*TRAIN, "--epochs", "3"]) == 0
    shown, lines = scalars(Path("run/tensorboard")), metrics()
    classes = "selected_share_per_class"
    single = {name for name, value in lines[0].items() if value is not None} - {"epoch", classes}
    assert set(shown) == single | {f"{classes}/{number}" for number in range(len(lines[0][classes]))}
    for name in ("test_accuracy", "label_precision", "train_loss", "keep_rate"):
        assert shown[name] == [(line["epoch"], pytest.approx(line[name], rel=1e-6)) for line in lines]


def test_a_resumed_run_hides_the_epochs_that_it_trains_again(capsys: pytest.CaptureFixture[str]) -> None:
    """The second and third epoch are lost with their checkpoint; TensorBoard shows each epoch once, the new one."""
    pytest.importorskip("tensorboard")
    from jocor_fast.report.tensorboard import TensorBoardLog

    for epochs, value in (((1, 2, 3), 1.0), ((2, 3, 4), 2.0)):
        with TensorBoardLog(Path("run")) as board:
            for epoch in epochs:
                board.on_epoch({"epoch": epoch, "test_accuracy": value, "bad_files": None})
    assert scalars(Path("run/tensorboard")) == {"test_accuracy": [(1, 1.0), (2, 2.0), (3, 2.0), (4, 2.0)]}


def test_of_two_stages_tensorboard_shows_the_second_whose_lines_metrics_jsonl_holds() -> None:
    """The epochs of both count from 1: those of the first would stand at the same steps."""
    pytest.importorskip("tensorboard")
    assert main([*TRAIN, "--epochs", "2", "--method", "f-correction"]) == 0
    expected = [(line["epoch"], pytest.approx(line["train_loss"], rel=1e-6)) for line in metrics()]
    assert scalars(Path("run/tensorboard"))["train_loss"] == expected


def test_the_flag_is_no_part_of_what_a_run_is() -> None:
    """A run may be resumed with it or without it."""
    pytest.importorskip("tensorboard")
    assert main([*TRAIN[:-1], "--epochs", "1"]) == 0
    assert "tensorboard" not in json.loads(Path("run/config.json").read_text(encoding="utf-8"))["settings"]
    assert main([*TRAIN, "--epochs", "1", "--resume"]) == 0


def test_without_the_package_one_sentence_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert main(TRAIN) == 2
    error = capsys.readouterr().err
    assert error.startswith("jocor-fast: error: --tensorboard needs the package tensorboard (")
    assert "pip install tensorboard" in error
    assert error.count("\n") == 1
    assert not Path("run").exists()
