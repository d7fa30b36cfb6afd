"""Completion of `jocor-fast` in shells, made by shtab from the parser that reads the command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import shtab

from jocor_fast.config.options import OPTIONS
from jocor_fast.data.catalogue import DATASETS
from jocor_fast.paper.experiments import EXPERIMENTS


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script for a shell, to be put where that shell looks for such.

    The parser takes every value as text, to check it in one place; which values there are is added here, where nothing
    is parsed any more.

    Args:
        parser: of all commands; it is changed.
        shell: "bash", "zsh" or "tcsh".
    """
    for action in _actions(parser):
        if isinstance(action, argparse._SubParsersAction):
            action.help = "command"  # shtab leaves out what the help leaves out, here because it has a list of its own
            continue
        option = OPTIONS.get(action.dest)
        if action.dest == "experiment":
            action.choices = tuple(EXPERIMENTS)
        elif action.dest == "dataset":
            action.choices = tuple(DATASETS)
        elif option is not None and option.choices:
            action.choices = tuple(option.choices)
        elif action.metavar in ("DIR", "RUN"):
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif isinstance(action.metavar, str) and action.metavar.startswith("FILE"):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    script: str = shtab.complete(parser, shell=shell)
    return script


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
