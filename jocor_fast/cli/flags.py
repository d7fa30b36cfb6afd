"""Options as flags of a command, and values of flags that are no option of `train`."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from jocor_fast.config.options import OPTIONS, Option
from jocor_fast.config.resolve import read_config_file
from jocor_fast.engine.settings import device_name
from jocor_fast.errors import ConfigError, called
from jocor_fast.machine import resolve_device

if TYPE_CHECKING:
    import torch

MOST_COUNT = 1_000_000_000  # more than anybody has a use for


def declare(parser: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    """Declare options as flags, in their groups, and --config; what is not given is no attribute of the result."""
    groups: dict[str, Any] = {}
    for option in options:
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        declare_within(groups[option.group], (option,))
    list(groups.values())[-1].add_argument(
        "--config", metavar="FILE.toml", help="read options from a file; flags override it"
    )


def declare_within(group: argparse._ActionsContainer, options: Iterable[Option]) -> None:
    """Declare options as flags of one group; what is not given is no attribute of the result."""
    for option in options:
        _add(group, option, argparse.SUPPRESS)


def declare_alone(parser: argparse._ActionsContainer, name: str) -> None:
    """Declare one option of `train` for a command that has few of them; its default is that of `train`."""
    _add(parser, OPTIONS[name], OPTIONS[name].default)


def options_in_file(file: str | None, *, set_here: Collection[str], command: str) -> dict[str, Any]:
    """Return the options of `train` in a file; a ConfigError where one is none that the user gives to this command."""
    found = {} if file is None else read_config_file(file)
    for name in set_here:
        if name in found:
            raise ConfigError(f"{OPTIONS[name].flag} is nothing to give to {command}, which sets it itself")
    return found


def parse_count(flag: str, text: str | None, default: int, *, least: int = 1, most: int = MOST_COUNT) -> int:
    """The whole number that a flag's text is; a ConfigError that says which are accepted where it is none of them."""
    if text is None:
        return default
    try:
        count = int(text)
    except ValueError:  # no number, or one of more digits than Python reads
        count = least - 1
    if not least <= count <= most:
        raise ConfigError(f"{flag} must be a whole number from {least} to {most:,}, got {text!r}")
    return count


def parse_device(text: str) -> torch.device:
    """The device that --device names; a ConfigError where it is none, or is not there."""
    with called({"device": "--device"}):
        return resolve_device(device_name(text))


def _add(parser: argparse._ActionsContainer, option: Option, default: Any) -> None:
    kind: dict[str, Any] = {"action": "store_true"} if option.kind == "switch" else {"metavar": option.metavar}
    if option.kind == "number" and option.choices:
        kind["action"] = _Once
    parser.add_argument(option.flag, dest=option.name, default=default, help=_help(option), **kind)


class _Once(argparse.Action):
    """Refuses a second value, for an option that takes a number or a word: it does not guess which is meant."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: Any = None) -> None:
        if getattr(namespace, self.dest, self.default) != self.default:
            parser.error(f"{option_string} must be given once, got {getattr(namespace, self.dest)} and {values}")
        setattr(namespace, self.dest, values)


def _help(option: Option) -> str:
    text = f"{option.help}: {', '.join(option.choices)}" if option.kind == "choice" else option.help
    shown = [option.why] if option.why else []
    if option.default is not None and option.kind != "switch":
        shown.insert(0, f"{option.default:g}" if option.kind == "number" else str(option.default))
    return (f"{text} (default: {'; '.join(shown)})" if shown else text).replace("%", "%%")
