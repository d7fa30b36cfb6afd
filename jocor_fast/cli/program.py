"""`jocor-fast`: what it takes, and how whatever happens becomes an exit code and at most one sentence.

Exit codes: 0; 1 the run failed; 2 wrong use; 130 after Ctrl-C; 143 after SIGTERM.
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import difflib
import io
import os
import re
import shutil
import signal
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn

from rich.console import Console

from jocor_fast import __version__
from jocor_fast._command import answer_interrupts
from jocor_fast.cli import (
    audit,
    compare,
    estimate_noise,
    features,
    info,
    plot,
    predict,
    prepare,
    reproduce,
    search_lambda,
    train,
)
from jocor_fast.errors import ConfigError, FailedElsewhere, JocorFastError
from jocor_fast.machine import is_main_process, launched_together
from jocor_fast.report.screen import Heartbeat, complain, listed, warn
from jocor_fast.report.tables import duration

PROGRAM = "jocor-fast"
COMMANDS: dict[str, ModuleType] = {
    "train": train,
    "compare": compare,
    "reproduce": reproduce,
    "search-lambda": search_lambda,
    "estimate-noise": estimate_noise,
    "features": features,
    "audit": audit,
    "predict": predict,
    "prepare": prepare,
    "plot": plot,
    "info": info,
}
FAILED, WRONG_USE, INTERRUPTED, TERMINATED = 1, 2, 130, 143
HELP_WIDTH = 100
SHELLS = ("bash", "zsh", "tcsh")
_COMMAND_LINES = "\n".join(f"  {name:<14} {module.SUMMARY}" for name, module in COMMANDS.items())
DESCRIPTION = f"""\
Train on data with wrong labels, and find out which ones are wrong. Two networks
learn together (JoCoR); each batch keeps the samples with the smallest joint
loss and drops the rest.

commands (each has its own --help)
{_COMMAND_LINES}

first steps
  {PROGRAM} audit --dataset folder:DIR --model resnet18 --pretrained default
             wrong labels of images that lie in a folder for each class
  {PROGRAM} reproduce digits
             JoCoR against plain training, half of the labels wrong
  {PROGRAM} train --noise-rate 0.5
             one such run
  {PROGRAM} train --dataset npz:FILE --labels labels.csv --forget-rate 0.3
             your own data and labels, about 30 % of them wrong

documentation
  the folder docs of the source; `make docs` there makes a site of it"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (default: the process's own) and return its exit code."""
    answer_interrupts()
    _write_any_character()
    try:
        parsed = _parsed(sys.argv[1:] if arguments is None else list(arguments))
    except ConfigError as error:
        return _fail(str(error), WRONG_USE)
    except OSError as error:  # what --help and the like print cannot be written
        _drop_output()
        return _fail(error.strerror or str(error), FAILED)
    command = COMMANDS[parsed.command]
    if launched_together() > 1 and command is not train:
        return _fail(f"{parsed.command} runs in one process: torchrun is for `{PROGRAM} train`", WRONG_USE)
    try:
        # What predict prints may be read by another program: its progress goes to the other stream.
        to_stderr = command is predict
        console = _Console(highlight=False, markup=False, stderr=to_stderr, force_interactive=_redraws(to_stderr))
        started = time.monotonic()
        beat = Heartbeat(console, lambda: f"{parsed.command}: {duration(time.monotonic() - started)} so far")
        with _own_warnings_in_one_line(), _sigterm_as_exit(), beat:
            code: int = command.run(parsed, console)
        return code
    except FailedElsewhere as error:
        return error.exit_code
    except JocorFastError as error:
        return _fail(str(error), error.exit_code)
    except SystemExit as stop:  # which may bring a text as well, as below
        if stop.args[:1] != (TERMINATED,):
            raise
        return _fail(f"stopped by SIGTERM; {(*stop.args, command.HOW_TO_GO_ON)[1]}", TERMINATED)
    except KeyboardInterrupt as interrupt:  # whose text says how to continue where the command knows better
        return _fail(f"interrupted; {str(interrupt) or command.HOW_TO_GO_ON}", INTERRUPTED)
    except ImportError as error:  # of torch, or of the compiled part
        return _fail(" ".join(str(error).split()), FAILED)
    except BrokenPipeError:
        _drop_output()
        return _fail(f"output pipe closed, run stopped; {command.HOW_TO_GO_ON}", FAILED)
    except OSError as error:
        try:
            sys.stdout.flush()
        except OSError:  # it is our own output that cannot be written
            _drop_output()
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}", FAILED)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands. Values stay text: they are checked in one place for flags and for files."""
    parser = _Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} COMMAND [OPTIONS]",
        description=DESCRIPTION,
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    parser.add_argument(
        "--print-completion",
        action=_PrintCompletion,
        metavar="SHELL",
        help=f"print the completion script for {', '.join(SHELLS)}",
    )
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", help=argparse.SUPPRESS, parser_class=_CommandParser
    )
    for name, module in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=module.SUMMARY,
            usage=f"{PROGRAM} {name} {module.USAGE}",
            description=module.DESCRIPTION,
            formatter_class=_HelpFormatter,
            allow_abbrev=False,
        )
        command.register("type", None, _given)  # what values are read by, as none of them is of another type
        module.add_arguments(command)
    return parser


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Options in one column, what they mean in another, no wider than is good to read."""

    def __init__(self, prog: str) -> None:
        width = min(shutil.get_terminal_size().columns, HELP_WIDTH) - 2
        super().__init__(prog, max_help_position=26, width=max(width, 40))

    def _split_lines(self, text: str, width: int) -> list[str]:
        """Wrap at blanks only: a value such as f-correction stays whole, to be copied."""
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, without the usage lines."""

    def error(self, message: str) -> NoReturn:
        choice = re.match(r"argument COMMAND: invalid choice: '(.*?)'", message)
        if choice:
            raise ConfigError(_unknown_command(choice[1]))
        message = re.sub(r"^argument (\S+?)(?:/\S+)?: ", r"\1: ", message)
        raise ConfigError(message.replace(": expected one argument", " needs a value"))

    def _print_message(self, message: str, file: Any = None) -> None:
        """Without argparse's silence about output that cannot be written."""
        if message:
            (file or sys.stderr).write(message)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """What has been printed is written before Python itself would have to, which complains in its own words."""
        sys.stdout.flush()
        super().exit(status, message)


class _CommandParser(_Parser):
    """Lets options stand between positional arguments."""

    _intermixing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self._intermixing:  # as argparse's method does of itself
            return super().parse_known_args(args, namespace)
        self._intermixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._intermixing = False


def _given(text: str) -> str:
    """The value of an option or argument. None may be empty, as of a shell's variable that is not set."""
    if not text:
        raise argparse.ArgumentTypeError("expected one argument, got ''")
    return text


class _PrintCompletion(argparse.Action):
    """Prints the script that completes commands, options and their values in a shell, and ends."""

    def __call__(self, parser: argparse.ArgumentParser, *rest: Any) -> NoReturn:
        shell = rest[1]
        if shell not in SHELLS:
            raise ConfigError(f"--print-completion must be one of {', '.join(SHELLS)}, got {shell!r}")
        from jocor_fast.cli.completion import completion_script

        print(completion_script(parser, shell))
        parser.exit()


def _redraws(stderr: bool) -> bool | None:
    """Return False where a bar would be kept each time that it is drawn: in a pipe, in a notebook; None: rich decides.

    A notebook's `!` gives its commands a terminal, or FORCE_COLOR, by which rich takes a pipe for one.
    """
    stream = sys.stderr if stderr else sys.stdout
    in_notebook = "JPY_PARENT_PID" in os.environ or "matplotlib_inline" in os.environ.get("MPLBACKEND", "")
    return None if stream.isatty() and not in_notebook else False


class _Console(Console):
    """A console that lets the command line deal with a closed pipe; rich would leave without a word."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


@contextlib.contextmanager
def _own_warnings_in_one_line() -> Iterator[None]:
    """What the library warns of is a sentence like an error's; others' warnings look as ever.

    Pillow's name the file, and each place in its code warns once: thousands of images can have the same fault.
    """
    package = Path(__file__).parents[1]
    places: set[tuple[str, int]] = set()

    def show(message: Warning | str, category: type[Warning], filename: str, lineno: int, *rest: Any) -> None:
        from jocor_fast.data.images.image_file import warning_of_pillow

        if not is_main_process():
            return
        if package in Path(filename).parents:
            warn(str(message))
        elif (sentence := warning_of_pillow(str(message), filename)) is not None:
            if (filename, lineno) not in places:
                warn(sentence)
            places.add((filename, lineno))
        else:
            others(message, category, filename, lineno, *rest)

    with warnings.catch_warnings():
        others, warnings.showwarning = warnings.showwarning, show  # type: ignore[assignment]
        yield


@contextlib.contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    """End a command by SystemExit on SIGTERM, where nothing else answers it, such as a run that first saves."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(TERMINATED)

    caught = (
        threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if caught:
        signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        if caught:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _parsed(arguments: list[str]) -> argparse.Namespace:
    parser = build_parser()
    parsed, unknown = parser.parse_known_args(_with_negative_values(arguments))
    if unknown:
        raise ConfigError(_unknown_argument(unknown[0], parsed.command, parser))
    if parsed.command is None:
        raise ConfigError(f"a command is needed: {listed(COMMANDS, 'or')}; {PROGRAM} --help says what they do")
    return parsed


def _with_negative_values(arguments: list[str]) -> list[str]:
    """Join "--lr", "-1e-3" into one argument: argparse would take the second for an option."""
    joined: list[str] = []
    for argument in arguments:
        if re.match(r"-[\d.]", argument) and joined and re.fullmatch(r"--[\w-]+", joined[-1]):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


def _unknown_command(name: str) -> str:
    meant = difflib.get_close_matches(name, COMMANDS, n=1)
    return f"there is no command {name!r}; " + (
        f"did you mean {meant[0]}?" if meant else f"try {listed(COMMANDS, 'or')}"
    )


def _unknown_argument(argument: str, command: str | None, parser: argparse.ArgumentParser) -> str:
    name = argument.split("=", 1)[0]
    where = f"{PROGRAM} {command}" if command else PROGRAM
    if not name.startswith("-"):
        return f"{where} does not know what to do with {argument!r}"
    commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    known = (commands.choices[command] if command else parser)._option_string_actions
    meant = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    return f"{where} has no option {name}" + (f"; did you mean {meant[0]}?" if meant else "")


def _write_any_character() -> None:
    """Escape what the output's encoding has no form for: τ in ASCII, the name of a file that is not UTF-8.

    Where there is no output (`>&-`), what is written goes nowhere, and not into the file that is opened next.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and (
        sys.stdout.errors == "strict" or codecs.lookup(sys.stdout.encoding).name != "utf-8"  # as for LC_ALL=C
    ):
        sys.stdout.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Discard further output: Python would report the closed pipe again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(sentence: str, code: int) -> int:
    if (
        code == FAILED or is_main_process()
    ):  # of several processes each says what befell it, and the first what befell all
        complain("error", sentence)
    return code
