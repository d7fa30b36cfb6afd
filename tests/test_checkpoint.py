"""The checkpoint as a file: it runs no code, damage is noticed, and neither a full disk nor NaN costs the last one."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoint_cases import (
    CHECKPOINTS,
    Killed,
    assert_same,
    contents,
    killed_after,
    limited_files,
    train,
    whole,
)
from engine_cases import blobs, fit, held_out, settings, small_mlp, small_tanh
from jocor_fast.errors import RunError
from jocor_fast.runs.fit import EpochEvent

pytestmark = pytest.mark.usefixtures("curves_at_once")


def test_a_checkpoint_loads_without_running_code(tmp_path: Path) -> None:
    train("paired", tmp_path, epochs=2)
    for name in (*CHECKPOINTS, "best.pt"):
        assert isinstance(torch.load(tmp_path / name, weights_only=True), dict)
    last, previous = (torch.load(tmp_path / name, weights_only=True) for name in CHECKPOINTS)
    assert (len(last["history"]), len(previous["history"])) == (2, 1)
    network = small_mlp()
    network.load_state_dict(last["training"]["networks"][0])
    assert not list(tmp_path.glob("*.partial"))


def flip_a_weight(path: Path) -> None:
    """A byte in the middle, amid the weights: torch.load takes no notice of it."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "a flipped byte": flip_a_weight,
    "missing": lambda path: path.unlink(),
    "something else": lambda path: path.write_text("{}"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_falls_back_to_the_previous(damage: Callable[[Path], Any], tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train("paired", tmp_path, on_epoch=killed_after(3))
    damage(tmp_path / "checkpoint.pt")
    there = (tmp_path / "checkpoint.pt").exists()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(Killed):
            train("paired", tmp_path, resume=True, on_epoch=killed_after(3))
    assert (tmp_path / "checkpoint-damaged.pt").exists() == there
    said = [
        str(warning.message)
        for warning in caught
        if "damaged: resuming from checkpoint-previous.pt" in str(warning.message)
    ]
    assert len(said) == there
    histories = [len(torch.load(tmp_path / name, weights_only=True)["history"]) for name in CHECKPOINTS]
    assert histories == [3, 2]  # the damaged one did not become the previous one
    assert_same(train("paired", tmp_path, resume=True), whole("paired"), tmp_path)


def test_two_damaged_checkpoints_end_in_a_sentence_and_stay(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train("paired", tmp_path, on_epoch=killed_after(3))
    for name in CHECKPOINTS:
        (tmp_path / name).write_bytes(b"PK")
    before = contents(tmp_path)
    with pytest.raises(
        RunError, match=r"no whole checkpoint to resume from, damaged: checkpoint.pt .* and checkpoint-pre"
    ):
        train("paired", tmp_path, resume=True)
    assert contents(tmp_path) == before


def test_a_checkpoint_that_cannot_be_read_is_not_taken_for_damaged(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train("paired", tmp_path, on_epoch=killed_after(3))
    (tmp_path / "checkpoint.pt").rename(tmp_path / "kept")
    (tmp_path / "checkpoint.pt").mkdir()
    with pytest.raises(RunError, match=r"output: .*checkpoint.pt cannot be read \(Is a directory\)"):
        train("paired", tmp_path, resume=True)


def test_a_folder_that_cannot_be_made_or_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError, match=r"output: .*file/run cannot be written \(Not a directory\)"):
        train("paired", tmp_path / "file" / "run")
    (tmp_path / "run" / "config.json.partial").mkdir(parents=True)
    with pytest.raises(RunError, match=r"output: .*config.json cannot be written \(Is a directory\)"):
        train("paired", tmp_path / "run")


def test_a_full_disk_ends_in_a_sentence_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    def on_epoch(event: EpochEvent) -> None:
        if event.epoch == 3:
            limit(4096)  # the next checkpoint fails

    said = r"checkpoint\.pt cannot be written \(File too large\); the existing file is kept"
    with limited_files() as limit, pytest.raises(RunError, match=said):
        fit(settings(), small_mlp, blobs(70), test=held_out(21), output=tmp_path, on_epoch=on_epoch)
    assert not list(tmp_path.glob("*.partial"))
    last = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert len(last["history"]) == 3
    untouched = fit(settings(), small_mlp, blobs(70), test=held_out(21))
    resumed = fit(settings(), small_mlp, blobs(70), test=held_out(21), output=tmp_path, resume=True)
    assert_same(resumed, untouched, tmp_path)


def test_a_checkpoint_is_not_replaced_by_one_of_broken_networks(tmp_path: Path) -> None:
    networks = small_tanh(), small_tanh()

    def on_step(epoch: int, step: int, steps: int) -> None:
        if (epoch, step) == (2, 4):
            with torch.no_grad():
                next(networks[1].parameters()).fill_(float("nan"))

    run = fit(
        settings(epochs=3, batch_size=8), networks, blobs(70), output=tmp_path, checkpoint_every=3, on_step=on_step
    )
    assert run.summary["status"] == "diverged"
    assert run.summary["diverged"]["epoch"] == 2
    assert run.summary["diverged"]["batch"] == 5
    training = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["training"]
    assert training["log"]["step"] == 3
    assert all(value.isfinite().all() for network in training["networks"] for value in network.values())


@pytest.mark.parametrize("steps", [0, -1])
def test_checkpoints_every_so_many_steps_need_a_step(steps: int) -> None:
    with pytest.raises(ValueError, match=f"checkpoint_every must be at least 1, got {steps}"):
        fit(settings(), small_mlp, blobs(70), checkpoint_every=steps)
