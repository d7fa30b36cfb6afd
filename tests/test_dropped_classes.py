"""The warning of classes that a run's selection has dropped."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jocor_fast as jf
from engine_cases import small_mlp
from jocor_fast.cli import main
from jocor_fast.runs.dropped_classes import dropped_classes

COUNT = 240
SETTINGS: dict[str, Any] = {
    "forget_rate": 0.4, "ramp_epochs": 4, "epochs": 12, "batch_size": 24, "lr": 0.01, "seed": 1, "device": "cpu",
}  # fmt: skip


def one_class_is_noise() -> tuple[np.ndarray, np.ndarray]:
    """Samples around four centres, a class each; of three classes every tenth label is the fourth, at random."""
    random = np.random.default_rng(0)
    labels = np.arange(COUNT) % 3
    inputs = 3 * np.eye(6)[labels] + 0.3 * random.standard_normal((COUNT, 6))
    labels[random.permutation(COUNT)[: COUNT // 10]] = 3
    return inputs.astype(np.float32), labels


def warnings_of(caplog: pytest.LogCaptureFixture, **changes: Any) -> list[str]:
    with caplog.at_level(logging.WARNING, logger="jocor_fast"):
        jf.train(small_mlp, one_class_is_noise(), **{**SETTINGS, **changes})
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("method", ["jocor", "coteaching", "joint-only"])
def test_a_class_that_is_dropped_is_warned_of_once(method: str, caplog: pytest.LogCaptureFixture) -> None:
    (sentence,) = warnings_of(caplog, method=method)
    assert sentence.startswith("of the samples labelled 3 hardly any was selected in the last 3 epochs, ")
    assert sentence.endswith(
        "what keeps the same share of each class: balanced_ramp=True while the ramp lasts, selection_per_class=True "
        "throughout"
    )


@pytest.mark.parametrize(("epochs", "warned"), [(5, False), (6, True)])
def test_a_class_is_dropped_when_it_has_been_for_three_epochs_from_the_end_of_the_ramp_on(
    epochs: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert bool(warnings_of(caplog, epochs=epochs)) == warned


def test_a_run_in_parts_warns_as_one_in_whole(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    inputs, labels = one_class_is_noise()
    np.savez(tmp_path / "data.npz", x_train=inputs, y_train=labels)
    data = ["train", "--dataset", f"npz:{tmp_path / 'data.npz'}", "--output", str(tmp_path / "run"), "--no-test"]
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]
    warned = []
    for epoch in (2, 4, 6):
        assert main([*data, *flags, f"--stop-after={epoch}", "--resume"]) == 0
        warned.append("hardly any" in capfd.readouterr().err)
    assert warned == [False, False, True]


def test_after_a_balanced_ramp_the_other_remedy_alone_is_named(caplog: pytest.LogCaptureFixture) -> None:
    (sentence,) = warnings_of(caplog, balanced_ramp=True, epochs=30)
    assert sentence.endswith("what keeps the same share of each class: selection_per_class=True throughout")


@pytest.mark.parametrize("changes", [{"selection_per_class": True}, {"method": "standard", "forget_rate": 0.0}])
def test_no_class_is_dropped_without_a_selection_of_all_together(
    changes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert warnings_of(caplog, **changes) == []


def test_the_command_warns_by_the_name_of_the_class(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    inputs, labels = one_class_is_noise()
    names = np.array(["ant", "bee", "cat", "dog"])
    np.savez(tmp_path / "data.npz", x_train=inputs, y_train=names[labels])
    data = ["train", "--dataset", f"npz:{tmp_path / 'data.npz'}", "--output", str(tmp_path / "run"), "--no-test"]
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]
    assert main([*data, *flags]) == 0
    warned = [line for line in capfd.readouterr().err.splitlines() if "hardly any" in line]
    assert len(warned) == 1
    assert warned[0].startswith("jocor-fast: warning: of the samples labelled dog hardly any")
    assert "class: --balanced-ramp while the ramp lasts, --selection-per-class throughout" in warned[0]


@pytest.mark.parametrize(
    ("shares", "dropped"),
    [
        ([0.2, 0.0, 0.21], [1]),
        ([0.2, 0.003, None, 0.0, 0.2], [3]),
        ([0.2, 0.05, 0.2], []),
        ([0.0, 0.0], []),
        ([None, None], []),
        ([], []),
    ],
)
def test_classes_selected_hardly_ever_are_found(shares: list[float | None], dropped: list[int]) -> None:
    assert dropped_classes({"selected_share_per_class": shares}) == dropped
