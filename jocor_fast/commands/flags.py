"""Options as flags of a command, and values of flags that are no option of `train`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from ..config import ConfigError
from ..data.arrays import user_path
from ..engine.environment import resolve_device
from ..engine.settings import device_name
from ..options import OPTIONS, Option


def declare(parser: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    """Declare options as flags, in their groups, and --config; what is not given is no attribute of the result."""
    groups: dict[str, Any] = {}
    for option in options:
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        _add(groups[option.group], option, argparse.SUPPRESS)
    list(groups.values())[-1].add_argument(
        "--config", metavar="FILE.toml", help="read options from a file; flags override it"
    )


def declare_alone(parser: argparse._ActionsContainer, name: str) -> None:
    """Declare one option of `train` for a command that has few of them; its default is that of `train`."""
    _add(parser, OPTIONS[name], OPTIONS[name].default)


def parse_count(flag: str, text: str | None, default: int) -> int:
    """The whole number ≥ 1 that a flag's text is; a ConfigError that names the flag where it is none."""
    try:
        count = default if text is None else int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise ConfigError(f"{flag} must be a whole number of at least 1, got {text!r}")
    return count


def parse_output(text: str) -> Path:
    """Where --output says; a ConfigError where that is nowhere, as by a shell's variable that is not set."""
    if not text:
        raise ConfigError("--output must be a path, got ''")
    return user_path(text)


def parse_device(text: str) -> torch.device:
    """The device that --device names; a ConfigError where it is none, or is not there."""
    try:
        return resolve_device(device_name(text))
    except ValueError as error:
        raise ConfigError(f"--{error}") from error


def _add(parser: argparse._ActionsContainer, option: Option, default: Any) -> None:
    kind: dict[str, Any] = {"action": "store_true"} if option.kind == "switch" else {"metavar": option.metavar}
    parser.add_argument(option.flag, dest=option.name, default=default, help=_help(option), **kind)


def _help(option: Option) -> str:
    text = f"{option.help}: {', '.join(option.choices)}" if option.kind == "choice" else option.help
    shown = [option.why] if option.why else []
    if option.default is not None and option.kind != "switch":
        shown.insert(0, f"{option.default:g}" if option.kind == "number" else str(option.default))
    return (f"{text} (default: {'; '.join(shown)})" if shown else text).replace("%", "%%")
