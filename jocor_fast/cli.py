"""`jocor-fast`: what it takes, and how whatever happens becomes an exit code and at most one sentence.

Exit codes: 0; 1 the run failed; 2 wrong use; 130 after Ctrl-C; 143 after SIGTERM.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from rich.console import Console

from . import __version__
from .commands import reproduce, train
from .config import ConfigError, closest_option
from .data import DataError
from .engine.errors import RunError

PROGRAM = "jocor-fast"
FAILED, WRONG_USE, INTERRUPTED = 1, 2, 130
HELP_WIDTH = 100
DESCRIPTION = """\
Train on data with wrong labels. Two networks learn together (JoCoR): in every batch they keep the
samples whose labels they can agree with, and leave the rest out.

first steps
  jocor-fast reproduce digits                     half of the labels wrong: JoCoR against plain training
  jocor-fast train --noise-rate 0.5               one such run, its files in runs/
  jocor-fast train --dataset npz:FILE --labels labels.csv --forget-rate 0.3
                                                  your own data and labels"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (default: the process's own) and return its exit code."""
    try:
        return _dispatch(sys.argv[1:] if arguments is None else list(arguments))
    except ConfigError as error:
        return _fail(str(error), WRONG_USE)
    except (DataError, RunError) as error:
        return _fail(str(error), FAILED)
    except KeyboardInterrupt:
        return _fail("interrupted; resume with --resume", INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has gone; Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _fail("nobody reads the output any more; resume with --resume", FAILED)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}", FAILED)


def _dispatch(arguments: list[str]) -> int:
    parser = build_parser()
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:
        raise ConfigError(_unknown_argument(unknown[0], parsed.command))
    # highlight=False: numbers in sentences are no syntax
    run: Callable[[argparse.Namespace, Console], int] = parsed.run
    return run(parsed, Console(highlight=False))


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands. Values stay text: they are checked in one place for flags and for files."""
    parser = _Parser(prog=PROGRAM, description=DESCRIPTION, formatter_class=_HelpFormatter, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, module, summary in (
        ("train", train, "train on a data set, with noise added or labels from a file"),
        ("reproduce", reproduce, "run an experiment: several methods and seeds, with a table and a figure"),
    ):
        command = commands.add_parser(
            name, help=summary, description=module.DESCRIPTION, formatter_class=_HelpFormatter, allow_abbrev=False
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    parser.set_defaults(run=_no_command)
    return parser


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Options in one column, what they mean in another, no wider than is good to read."""

    def __init__(self, prog: str) -> None:
        width = min(shutil.get_terminal_size().columns, HELP_WIDTH) - 2
        super().__init__(prog, max_help_position=26, width=max(width, 40))


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, without the usage lines."""

    def error(self, message: str) -> NoReturn:
        choice = re.match(r"argument COMMAND: invalid choice: '(.*?)'", message)
        if choice:
            raise ConfigError(_unknown_command(choice[1]))
        message = re.sub(r"^argument (\S+?)(?:/\S+)?: ", r"\1: ", message)
        raise ConfigError(message.replace(": expected one argument", " needs a value"))


COMMANDS = ("train", "reproduce")


def _no_command(parsed: argparse.Namespace, console: Console) -> int:
    raise ConfigError(f"a command is needed, one of {', '.join(COMMANDS)}; {PROGRAM} --help says what they do")


def _unknown_command(name: str) -> str:
    meant = difflib.get_close_matches(name, COMMANDS, n=1)
    return f"there is no command {name!r}" + (
        f"; did you mean {meant[0]}?" if meant else f", only {', '.join(COMMANDS)}"
    )


def _unknown_argument(argument: str, command: str | None) -> str:
    name = argument.split("=", 1)[0]
    where = f"{PROGRAM} {command}" if command else PROGRAM
    if not name.startswith("-"):
        return f"{where} does not know what to do with {argument!r}"
    meant = closest_option(name.lstrip("-")) if command == "train" else None
    return f"{where} has no option {name}" + (f"; did you mean --{meant.replace('_', '-')}?" if meant else "")


def _fail(sentence: str, code: int) -> int:
    print(f"{PROGRAM}: error: {' '.join(sentence.split())}", file=sys.stderr)
    return code
