"""The command line as torchrun starts it: by the environment of each process."""

from __future__ import annotations

from pathlib import Path

import pytest

from jocor_fast.cli.program import main

SECOND_OF_TWO = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.fixture
def second_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECOND_OF_TWO.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("second_of_two")
def test_wrong_use_is_said_by_the_first_process_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["train", "--lr", "-1"]) == 2
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("RANK", "0")
    assert main(["train", "--lr", "-1"]) == 2
    assert "--lr must be finite and above 0" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["info"], ["reproduce", "digits"], ["audit", "run"]])
def test_other_commands_say_that_they_run_in_one_process(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**SECOND_OF_TWO, "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert main(command) == 2
    assert f"{command[0]} runs in one process: torchrun is for `jocor-fast train`" in capsys.readouterr().err


def test_a_run_under_torchrun_of_one_process_is_a_run_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**SECOND_OF_TWO, "RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    assert main(["train", "--epochs", "1", "--device", "cpu", "--output", str(tmp_path)]) == 0
    assert '"processes": 1' in (tmp_path / "summary.json").read_text()


def test_a_scope_that_one_process_has_no_use_for_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "--epochs", "1", "--device", "cpu", "--output", str(tmp_path)]
    assert main([*command, "--selection-scope", "global", "--batch-scope", "process"]) == 0
    said = "--selection-scope and --batch-scope change nothing: there is one process"
    assert said in capsys.readouterr().err
