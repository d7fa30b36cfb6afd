"""The command line itself: help, versions, wrong use, exit codes. Training by it: test_cli_train, test_cli_labels."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import signal
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import jocor_fast as jf
from children import python
from jocor_fast.cli.program import COMMANDS, build_parser, main
from jocor_fast.config.options import OPTIONS
from jocor_fast.errors import ConfigError, RunError
from jocor_fast.report.screen import warn


@pytest.fixture(autouse=True)
def wrong_files(in_an_empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of these names are there: bad.toml (an unknown key), q.npy (no transition matrix), labels.npy (too few)."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("JOCOR_FAST_DATA", raising=False)
    Path("bad.toml").write_text("epoch = 3\n", encoding="utf-8")
    Path("fixed.toml").write_text("co_lambda = 0.5\n", encoding="utf-8")
    np.save("q.npy", np.ones((10, 10)))
    np.save("labels.npy", np.zeros(5, dtype=np.int64))


*_FIRST, _LAST = COMMANDS
EVERY_COMMAND = f"{', '.join(_FIRST)} or {_LAST}"

# Command line, exit code, and what its one sentence says.
WRONG_USE = [
    ("", 2, f"a command is needed: {EVERY_COMMAND}; "),
    ("trian", 2, "there is no command 'trian'; did you mean train?"),
    ("fly", 2, f"there is no command 'fly'; try {EVERY_COMMAND}"),
    ("--train", 2, "jocor-fast has no option --train"),
    ("train digits", 2, "jocor-fast train does not know what to do with 'digits'"),
    ("train --epoch 5", 2, "jocor-fast train has no option --epoch; did you mean --epochs?"),
    ("train --noise-r=0.5", 2, "jocor-fast train has no option --noise-r"),
    ("train --epochs 1 --res", 2, "jocor-fast train has no option --res"),
    ("train --epochs", 2, "--epochs needs a value"),
    ("train --resume=yes", 2, "--resume: ignored explicit argument 'yes'"),
    ("train --dataset mnits", 2, "--dataset must be one of digits, "),
    ("train --dataset=", 2, "--dataset needs a value, got ''"),
    ("train --dataset npz:no.npz", 1, "no.npz does not exist"),
    ("train --labels no.npy --forget-rate .5", 1, "no.npy does not exist"),
    ("train --labels labels.npy --forget-rate .5", 1, "labels.npy holds 5 labels, the data set has 1437 samples"),
    ("train --labels labels.txt --forget-rate .5", 2, "--labels must be given as FILE.npy, "),
    ("train --labels labels.npy --noise symmetric", 2, "--labels and --noise exclude each other"),
    ("train --labels labels.npy --noise clean", 2, "--labels and --noise exclude each other"),
    ("train --labels labels.npy --noise-rate .5", 2, "--labels and --noise-rate exclude each other"),
    ("train --labels labels.npy --noise-seed 1", 2, "--labels and --noise-seed exclude each other"),
    ("train --labels labels.npy --noise-matrix q.npy", 2, "--labels and --noise-matrix exclude each other"),
    ("train --clean-labels labels.npy", 2, "--clean-labels needs --labels"),
    ("train --noise symmetrical --noise-rate .5", 2, "--noise must be one of symmetric, "),
    ("train --noise symmetric", 2, "--noise symmetric needs --noise-rate"),
    ("train --noise clean --noise-rate .5", 2, "--noise-rate must be 0 for clean labels, got 0.5"),
    (
        "train --noise asymmetric --noise-rate .4",
        2,
        "--noise must be symmetric, pairflip or a matrix",
    ),
    ("train --noise-rate 1", 2, "--noise-rate must lie in [0, 1), got 1.0"),
    ("train --noise-rate -0.1", 2, "--noise-rate must lie in [0, 1), got -0.1"),
    ("train --noise-rate nan", 2, "--noise-rate must lie in [0, 1), got nan"),
    ("train --noise-rate half", 2, "--noise-rate must be a number, got 'half'"),
    ("train --noise-rate .5 --noise-seed -1", 2, "--noise-seed must lie in [0, 2**32), got -1"),
    ("train --noise-rate .5 --noise-seed 4294967296", 2, "--noise-seed must lie in [0, 2**32)"),
    ("train --noise-rate .5 --noise-matrix q.npy", 2, "--noise-matrix and --noise-rate exclude each other"),
    ("train --noise pairflip --noise-matrix q.npy", 2, "--noise-matrix and --noise exclude each other"),
    ("train --noise-matrix no.npy", 1, "no.npy does not exist"),
    ("train --noise-matrix q.npy", 1, "the matrix in q.npy must have rows that sum to 1"),
    ("train --method jocorr", 2, "--method must be one of "),
    ("train --co-lambda 1.1", 2, "--co-lambda must lie in [0, 1], got 1.1"),
    ("train --co-lambda nan", 2, "--co-lambda must lie in [0, 1], got nan"),
    ("train --forget-rate 1", 2, "--forget-rate must lie in [0, 1), got 1.0"),
    ("train --ramp-epochs -1", 2, "--ramp-epochs must be at least 0, got -1"),
    ("train --recipe book", 2, "--recipe must be one of paper, published, got 'book'"),
    ("train --recipe published --epochs 1", 2, "--epochs must be at least 2"),
    ("train --model resnet17", 2, "--model must be mlp, cnn or a torchvision classifier"),
    ("train --epochs 0", 2, "--epochs must be at least 1, got 0"),
    ("train --epochs 2.5", 2, "--epochs must be a whole number, got '2.5'"),
    ("train --batch-size 0", 2, "--batch-size must be at least 1, got 0"),
    ("train --lr 0", 2, "--lr must be finite and above 0, got 0.0"),
    ("train --lr -1e-3", 2, "--lr must be finite and above 0, got -0.001"),
    ("train --lr inf", 2, "--lr must be finite and above 0, got inf"),
    ("train --decay-start -1", 2, "--decay-start must be at least 0, got -1"),
    ("train --optimizer lamb", 2, "--optimizer must be one of adam, sgd, got 'lamb'"),
    ("train --weight-decay -1", 2, "--weight-decay must be finite and at least 0, got -1.0"),
    ("train --augment flip", 2, "--augment must be one of none, crop-flip, got 'flip'"),
    ("train --seed -1", 2, "--seed must be at least 0, got -1"),
    ("train --val-fraction 1", 2, "--val-fraction must lie in [0, 1), got 1"),
    ("train --val-fraction nan", 2, "--val-fraction must lie in [0, 1), got nan"),
    ("train --val-fraction 0.00001", 2, "--val-fraction 1e-05 of 1437 samples leaves nothing to validate on"),
    ("train --val-fraction 0.99999", 2, "--val-fraction 0.99999 of 1437 samples leaves nothing to train on"),
    (
        "train --val-fraction .1 --val-labels true",
        2,
        "--val-labels must be one of clean, noisy, small-loss, got 'true'",
    ),
    ("train --val-labels clean", 2, "--val-labels needs --val-fraction"),
    ("train --device gpu", 2, "--device must be auto, cpu, cuda or cuda:N, got 'gpu'"),
    ("train --device cuda:99", 2, "--device must be "),
    ("train --precision float8", 2, "--precision must be one of float32, "),
    ("train --output q.npy", 1, "--output: q.npy cannot be written"),
    ("train --config no.toml", 2, "--config no.toml cannot be read: No such file or directory"),
    ("train --config bad.toml", 2, "--config bad.toml has an unknown key: epoch (did you mean epochs?)"),
    ("reproduce", 2, "reproduce takes the name of an experiment, one of digits, mnist, "),
    ("reproduce digit", 2, "reproduce takes the name of an experiment, one of digits, mnist, "),
    ("reproduce digits --methods jocor,magic", 2, "--methods must name some of standard, standard-plus"),
    ("reproduce digits --seeds 0", 2, "--seeds must be a whole number from 1 to 1,000, got '0'"),
    ("reproduce digits --seeds all", 2, "--seeds must be a whole number from 1 to 1,000, got 'all'"),
    ("reproduce digits --epochs 0", 2, "--epochs must be a whole number from 1 to 1,000,000,000, got '0'"),
    ("reproduce digits --jobs -1", 2, "--jobs must be a whole number from 1 to 1,000,000,000, got '-1'"),
    ("reproduce digits --dry-run --seeds 1001", 2, "--seeds must be a whole number from 1 to 1,000, got '1001'"),
    ("reproduce digits --device tpu", 2, "--device must be auto, cpu, cuda or cuda:N, got 'tpu'"),
    ("reproduce digits --device cuda:99", 2, "--device must be "),
    ("predict run images --device tpu", 2, "--device must be auto, cpu, cuda or cuda:N, got 'tpu'"),
    ("predict run images --device cuda:99", 2, "--device must be "),
    ("reproduce digits --lr 1", 2, "jocor-fast reproduce has no option --lr"),
    ("plot", 2, "plot takes the folders of runs, got none"),
    ("plot nowhere", 1, "RUN: nowhere holds no run, nor does any folder in it (no metrics.jsonl)"),
    ("search-lambda --grid 0.5,1.5", 2, "--grid must be numbers in [0, 1], such as 0.05,0.35,0.95, got '0.5,1.5'"),
    ("search-lambda --grid nan", 2, "--grid must be numbers in [0, 1], such as 0.05,0.35,0.95, got 'nan'"),
    ("search-lambda --grid a", 2, "--grid must be numbers in [0, 1], such as 0.05,0.35,0.95, got 'a'"),
    ("search-lambda --jobs 0", 2, "--jobs must be a whole number from 1 to 1,000,000,000, got '0'"),
    ("search-lambda --co-lambda 1", 2, "jocor-fast search-lambda has no option --co-lambda"),
    ("search-lambda --gce-q 0.5", 2, "jocor-fast search-lambda has no option --gce-q"),
    ("search-lambda --config fixed.toml", 2, "--co-lambda is nothing to give to search-lambda, which sets it itself"),
    ("search-lambda --val-fraction 0", 2, "--val-fraction must be above 0: λ is chosen by what is held out"),
    ("search-lambda --noise-rate 2", 2, "--noise-rate must lie in [0, 1), got 2.0"),
    ("train --stop-after 0", 2, "--stop-after must be at least 1, got 0"),
    ("info please", 2, "jocor-fast info does not know what to do with 'please'"),
]


@pytest.mark.parametrize(("line", "code", "sentence"), WRONG_USE, ids=[line or "nothing" for line, *_ in WRONG_USE])
def test_wrong_use_ends_in_one_sentence(
    line: str, code: int, sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(line.split()) == code
    error = capsys.readouterr().err
    assert error.startswith(f"jocor-fast: error: {sentence}")
    assert error.count("\n") == 1
    assert "Traceback" not in error
    assert not list(tmp_path.glob("runs/*/metrics.jsonl")), "nothing may have been trained"


@pytest.mark.parametrize("digits", [10, 5000], ids=["absurd", "more digits than Python reads"])
@pytest.mark.parametrize(
    "line",
    ["reproduce digits --dry-run --jobs", "audit run --images", "prepare --dataset folder:. --output x --quality"],
)
def test_an_absurd_count_is_refused_with_those_that_are_not(
    line: str, digits: int, capsys: pytest.CaptureFixture[str]
) -> None:
    *words, flag = line.split()
    assert main([*words, flag, "9" * digits]) == 2
    assert re.fullmatch(
        rf"jocor-fast: error: {flag} must be a whole number from \d to [\d,]+, got '9+'\n", capsys.readouterr().err
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_takes_an_empty_value(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As of a shell's variable that is not set: an empty path would be the current folder."""
    (commands,) = (action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    for action in (action for action in commands.choices[name]._actions if action.nargs != 0):
        assert main([name, *action.option_strings, ""]) == 2
        named = (*action.option_strings, action.metavar)[0]
        assert capsys.readouterr().err == f"jocor-fast: error: {named} needs a value, got ''\n"


def test_a_data_set_that_is_absent_says_where_to_put_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Case 50, through the command line: exit code 1, one sentence with the folder and where to get the files."""
    monkeypatch.setenv("JOCOR_FAST_DATA", str(tmp_path / "data"))
    assert main(["train", "--dataset", "cifar10"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("jocor-fast: error: ")
    assert error.count("\n") == 1
    assert str(tmp_path / "data" / "cifar10") in error
    assert "https://" in error


def test_data_root_comes_before_the_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JOCOR_FAST_DATA", str(tmp_path / "environment"))
    assert main(["train", "--dataset", "cifar10", "--data-root", str(tmp_path / "flag")]) == 1
    error = capsys.readouterr().err
    assert str(tmp_path / "flag" / "cifar10") in error
    assert "environment" not in error


@pytest.mark.parametrize("line", [["--help"], *([name, "--help"] for name in COMMANDS)], ids=" ".join)
def test_help_fits_the_terminal(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(line)
    text = capsys.readouterr().out
    assert left.value.code == 0
    assert text.startswith("usage: jocor-fast")
    assert max(map(len, text.splitlines())) <= 80


def test_help_of_train_names_every_option_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = capsys.readouterr().out
    entries = dict(re.findall(r"^  (--[\w-]+)(.*?)(?=^  --|^\S|\Z)", text, flags=re.MULTILINE | re.DOTALL))
    assert set(entries) == {option.flag for option in OPTIONS.values()} | {"--config"}
    required = {"--labels", "--clean-labels", "--noise-rate", "--noise-matrix"}
    without_default = {flag for flag, entry in entries.items() if "(default:" not in entry}
    assert without_default == required | {
        "--resume",
        "--strict",
        "--tensorboard",
        "--no-test",
        "--labels-are-clean",
        "--config",
    }
    assert "(default: 200;" in " ".join(entries["--epochs"].split())


def test_every_choice_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for option in OPTIONS.values():
        assert all(choice in text for choice in option.choices), option.name


def test_version_by_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"jocor-fast {jf.__version__}\n"


def test_the_package_is_a_command() -> None:
    wrong = python("-m", "jocor_fast", "nothing")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == f"jocor-fast: error: there is no command 'nothing'; try {EVERY_COMMAND}\n"


@pytest.mark.parametrize(
    ("interrupted", "code", "said"),
    [("rich", -signal.SIGINT, "interrupted before it began"), ("torch", 130, "interrupted; run it again")],
)
def test_ctrl_c_while_the_package_is_imported_says_so_without_a_traceback(
    interrupted: str, code: int, said: str
) -> None:
    """An import of the command itself, and one of what it does."""
    Path(f"{interrupted}.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n", encoding="utf-8")
    child = python("-m", "jocor_fast", "info")
    assert (child.returncode, child.stdout, child.stderr) == (code, "", f"jocor-fast: error: {said}\n")


def test_sigterm_ends_a_command_that_does_not_answer_it_itself_in_a_sentence() -> None:
    """As `features`, or `train` while it reads its data."""
    code = (
        "import os, signal, sys\nfrom jocor_fast.cli import features, main\n"
        "features.run = lambda arguments, console: os.kill(os.getpid(), signal.SIGTERM)\n"
        "code = main(['features'])\nassert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL\nsys.exit(code)"
    )
    child = python("-c", code)
    said = "jocor-fast: error: stopped by SIGTERM; use --resume to continue\n"
    assert (child.returncode, child.stdout, child.stderr) == (143, "", said)


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_prints_how_long_it_has_worked(
    command: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("jocor_fast.report.screen.SILENCE_SECONDS", 0.02)
    monkeypatch.setattr(COMMANDS[command], "run", lambda arguments, console: time.sleep(0.2) or 0)
    assert main([command]) == 0
    out, error = capfd.readouterr()
    assert f"{command}: 0 s so far\n" in (error if command == "predict" else out)  # whose output is CSV
    assert (out if command == "predict" else error) == ""


@pytest.mark.parametrize("terminal", [False, True], ids=["a pipe", "a terminal"])
def test_in_a_notebook_no_bar_is_drawn_over_and_over(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What its `!` runs has FORCE_COLOR and, unless it is piped, a terminal; all that is drawn is kept."""
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm-color", "JPY_PARENT_PID": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    monkeypatch.setattr("jocor_fast.cli.train.run", lambda _, console: print(console.is_interactive) or 0)
    assert main(["train"]) == 0
    assert capsys.readouterr().out == "False\n"
    monkeypatch.delenv("JPY_PARENT_PID")
    assert main(["train"]) == 0
    assert capsys.readouterr().out == f"{terminal}\n"


def test_without_any_output_the_command_does_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's streams are None where the shell has closed them (>&-)."""
    monkeypatch.setattr("jocor_fast.cli.train.run", lambda _, console: console.print("done") or 0)
    for arguments in (["train"], ["--version"]):
        monkeypatch.setattr(sys, "stdout", None)
        monkeypatch.setattr(sys, "stderr", None)
        with pytest.raises(SystemExit) if arguments == ["--version"] else contextlib.nullcontext():
            assert main(arguments) == 0
        for stream in (sys.stdout, sys.stderr):
            stream.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("arguments", [["train", "--help"], ["--version"]])
def test_help_that_cannot_be_written_is_an_error(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(arguments) == 1
    assert capsys.readouterr().err == "jocor-fast: error: No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_output_whose_encoding_lacks_a_character_has_its_number(monkeypatch: pytest.MonkeyPatch, errors: str) -> None:
    """The second is Python's choice for LC_ALL=C without its UTF-8 mode."""

    def run(arguments: object, console: object) -> int:
        print("τ")
        return 0

    monkeypatch.setattr("jocor_fast.cli.train.run", run)
    screen = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors=errors)
    monkeypatch.setattr(sys, "stdout", screen)
    assert main(["train"]) == 0
    screen.flush()
    assert screen.buffer.getvalue() == b"\\u03c4\n"  # type: ignore[attr-defined]


def test_complaints_that_cannot_be_written_end_no_run_and_change_no_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(arguments: object, console: object) -> int:
        warn("mind the gap")
        raise outcomes.pop()

    outcomes = [RunError("the gap"), ConfigError("wrong use")]
    monkeypatch.setattr("jocor_fast.cli.train.run", run)
    with contextlib.suppress(OSError), open("/dev/full", "w", encoding="utf-8", buffering=1) as full:
        monkeypatch.setattr(sys, "stderr", full)
        codes = [main(["train"]), main(["train"])]
    assert codes == [2, 1]


def test_a_warning_of_the_library_is_one_line_and_others_look_as_ever(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(arguments: object, console: object) -> int:
        package = Path(jf.__file__).parent
        for message, file in (
            ("mind the  gap:\n  it is wide", package / "engine" / "step.py"),
            ("not ours", "theirs.py"),
        ):
            warnings.warn_explicit(message, UserWarning, str(file), 1)
        return 0

    monkeypatch.setattr("jocor_fast.cli.train.run", run)
    shown: list[tuple[object, ...]] = []
    monkeypatch.setattr(warnings, "showwarning", lambda *warning: shown.append(warning))
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert main(["train"]) == 0
    assert capsys.readouterr().err == "jocor-fast: warning: mind the  gap: it is wide\n"
    ((message, category, file, *_),) = shown
    assert (str(message), category, file) == ("not ours", UserWarning, "theirs.py")


@pytest.mark.parametrize(
    ("command", "name", "value"),
    [
        ("predict run --network 1 a.npz:x", "paths", ["run", "a.npz:x"]),
        ("predict --network 1 run a.npz:x", "paths", ["run", "a.npz:x"]),
        ("predict run a.npz:x --network 1", "paths", ["run", "a.npz:x"]),
        ("plot a --output p b", "runs", ["a", "b"]),
        ("plot --output p a b", "runs", ["a", "b"]),
        ("audit --apply a", "runs", ["a"]),
        ("audit --images 3 a", "runs", ["a"]),
        ("reproduce --epochs 3 digits --seeds 1", "experiment", "digits"),
    ],
)
def test_case_54_options_may_stand_between_positional_arguments(command: str, name: str, value: object) -> None:
    parsed = build_parser().parse_args(command.split())
    assert getattr(parsed, name) == value


def test_what_is_unknown_is_still_named(capsys: pytest.CaptureFixture[str]) -> None:
    for command, said in (
        ("plot a --bogus 3 b", "jocor-fast plot has no option --bogus"),
        ("train stray --lr 1", "jocor-fast train does not know what to do with 'stray'"),
        ("reproduce digits mnist", "jocor-fast reproduce does not know what to do with 'mnist'"),
    ):
        assert main(command.split()) == 2
        assert said in capsys.readouterr().err
