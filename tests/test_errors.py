"""Errors carry what is at fault; no message names an option for the name of a folder, a file or a class."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import jocor_fast as jf
from jocor_fast import arguments, errors
from jocor_fast.cli import main
from jocor_fast.config.options import OPTIONS
from jocor_fast.engine.settings import TrainSettings


@pytest.mark.parametrize(
    ("wrong", "argument", "sentence"),
    [
        (lambda: jf.noise.symmetric(10, 2.0), "rate", "rate must lie in [0, 1), got 2.0"),
        (lambda: jf.noise.pairflip(10, "x"), "rate", "rate must be a float, got str"),  # type: ignore[arg-type]
        (lambda: jf.noise.corrupt([0], np.eye(1), seed=-1), "seed", "seed must lie in [0, 2**32), got -1"),
        (lambda: jf.noise.corrupt([0], -np.eye(1), seed=0), "transition", "transition must have entries of at least 0"),
        (lambda: jf.noise.transition_matrix("pink", 2, 0.1), "kind", "kind must be one of symmetric, "),
        (lambda: jf.schedules.keep_rate(1, forget_rate=1.0), "forget_rate", "forget_rate must lie in [0, 1), got 1.0"),
        (lambda: jf.schedules.keep_rounding("own"), "recipe", "recipe must be one of paper, published, got 'own'"),
        (lambda: TrainSettings(forget_rate=0.1, lr=0), "lr", "lr must be finite and above 0, got 0"),
        (lambda: TrainSettings(forget_rate=0.1, device="tpu"), "device", "device must be auto, cpu, cuda or cuda:N"),
        (lambda: arguments.at_least("epochs", 0, 1), "epochs", "epochs must be at least 1, got 0"),
    ],
)
def test_an_error_of_the_library_says_which_argument_and_names_no_flag(
    wrong: Callable[[], object], argument: str, sentence: str
) -> None:
    with pytest.raises(errors.ArgumentError) as refused:
        wrong()
    assert refused.value.argument == argument
    assert str(refused.value).startswith(sentence)
    assert "--" not in str(refused.value)
    assert isinstance(refused.value, (TypeError, ValueError))


@pytest.mark.parametrize(
    ("error", "is_a", "exit_code"),
    [
        (errors.DataError("x is broken"), ValueError, 1),
        (errors.RunError("x is full", "output"), RuntimeError, 1),
        (errors.FailedElsewhere("x"), errors.RunError, 1),
        (errors.ConfigError("--lr is wrong"), ValueError, 2),
        (errors.ArgumentTypeError("lr", "must be a float"), TypeError, 2),
        (errors.ArgumentValueError("lr", "must be above 0"), ValueError, 2),
    ],
)
def test_the_tree_of_errors_has_exit_codes_and_can_be_sent_between_processes(
    error: errors.JocorFastError, is_a: type[Exception], exit_code: int
) -> None:
    assert isinstance(error, is_a)
    assert isinstance(error, errors.JocorFastError)
    assert error.exit_code == exit_code
    sent = pickle.loads(pickle.dumps(error))
    assert (type(sent), str(sent), sent.argument) == (type(error), str(error), error.argument)


@pytest.mark.parametrize("name", ["labels", "output", "dataset", "loader", "seed", "model"])
def test_a_folder_that_is_called_like_an_option_is_not_taken_for_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert name in OPTIONS
    monkeypatch.chdir(tmp_path)
    for label in ("cat", "dog"):
        (tmp_path / name / label).mkdir(parents=True)
    assert main(["train", "--dataset", f"folder:{name}", "--noise-rate", "0.1"]) == 1
    said = capsys.readouterr().err
    assert f"--{name}" not in said
    assert name in said


@pytest.mark.parametrize("name", ["labels", "dataset", "noise_matrix", "pretrained"])
def test_a_file_that_is_called_like_an_option_is_not_taken_for_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / name, x_train=np.zeros((2, 3)))
    (tmp_path / f"{name}.npz").rename(tmp_path / name)
    assert main(["train", "--dataset", f"npz:{name}", "--forget-rate", "0.1"]) == 1
    assert f"--{name.replace('_', '-')}" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("train --dataset mnst", "got 'mnst' (did you mean mnist?)"),
        ("train --dataset photos", "got 'photos' (did you mean folder:photos?)"),
        ("train --method co-teaching", "got 'co-teaching' (did you mean coteaching or coteaching-plus?)"),
        ("train --model resnet81", "(did you mean resnet18 or "),
        ("train --model resnet81 --pretrained default", "(did you mean resnet18 or "),
        ("audit photos", "are audited by --dataset folder:photos --pretrained default"),
    ],
)
def test_a_name_that_is_not_known_is_answered_with_what_was_probably_meant(
    command: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torchvision")
    (tmp_path / "photos").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) in (1, 2)
    assert hint in capsys.readouterr().err
    with pytest.raises(TypeError, match=r"no such option \(did you mean epochs or "):
        jf.train(lambda: nn.Linear(2, 2), (np.eye(2), [0, 1]), forget_rate=0.1, epoch=1)


def test_an_argument_of_the_library_is_called_by_the_flag_that_was_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--noise-rate", "1.5"]) == 2
    assert "error: --noise-rate must lie in [0, 1), got 1.5\n" in capsys.readouterr().err
    assert main(["train", "--noise-rate", "0.5", "--noise-seed", "-1"]) == 2
    assert "error: --noise-seed must lie in [0, 2**32), got -1\n" in capsys.readouterr().err
