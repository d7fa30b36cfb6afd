"""How an option is declared: as a field of a dataclass, whose type says what its values are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Literal

Kind = Literal["whole", "number", "text", "choice", "switch"]
_KINDS: Mapping[str, Kind] = {"int": "whole", "float": "number", "str": "text", "bool": "switch"}


@dataclass(frozen=True)
class Option:
    """One option. Its flag is the name with dashes; in TOML and config.json it goes by the name itself.

    Attributes:
        group: heads it in the help.
        default: what holds where nothing else is said; None where that depends on the data or on other options.
        why: how a default that is None comes about, or the reason of one that is not.
        choices: the values of a choice, which may still grow; words that stand for a value of another kind.
        aliases: older names of choices.
        check: returns the plain value of what it is given with the option's name; TypeError or ValueError for another.
        before: what runs had that began before the option was there, where that is not the default.
        idle: says of a run's settings and number of processes why the option changes nothing there, if so.
    """

    group: str
    metavar: str
    help: str
    name: str = ""
    kind: Kind = "text"
    default: Any = None
    why: str = ""
    choices: Collection[str] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[str, Any], Any] | None = None
    before: Any = None
    idle: Callable[[Any, int], str | None] | None = None

    @property
    def flag(self) -> str:
        """Such as "--noise-rate"."""
        return "--" + self.name.replace("_", "-")

    @property
    def expected(self) -> str:
        """What a value has to be, for error messages."""
        if self.kind == "choice":
            return f"one of {', '.join(self.choices)}"
        kind = {"whole": "a whole number", "number": "a number", "text": "text", "switch": "true or false"}[self.kind]
        return " or ".join((kind, *self.choices))

    def parse(self, text: str) -> Any:
        """Return the value of a flag's text; ValueError if it is not of the option's kind."""
        if text in self.choices:
            return text
        if self.kind == "whole":
            return int(text)
        if self.kind == "number":
            return float(text)
        return self.typed(text)

    def typed(self, value: Any) -> Any:
        """Return a value of the right type (a float for an int where one is meant); ValueError for another."""
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if self.kind == "number" and number:
            with contextlib.suppress(OverflowError):  # a whole number beyond the largest float
                return float(value)
        if self.kind == "whole" and number and isinstance(value, int):
            return value
        if self.kind == "switch" and isinstance(value, bool):
            return value
        if self.kind == "text" and isinstance(value, str) and value and "\0" not in value:
            return value
        if isinstance(value, str) and self.aliases.get(value, value) in self.choices:
            return self.aliases.get(value, value)
        raise ValueError(f"{self.name} must be {self.expected}, got {value!r}")


def option(default: Any, group: str, metavar: str, help: str, *, choices: Collection[str] = (), **more: Any) -> Any:
    """Declare a field of a dataclass as an option; the arguments are the attributes of `Option`."""
    declared = Option(group, metavar, help, default=default, choices=choices, **more)
    return field(default=default, metadata={"option": declared})


def options_of(settings: type) -> dict[str, Option]:
    """Return the options that a dataclass declares, by name."""
    found = {}
    for declared in fields(settings):
        if "option" in declared.metadata:
            one: Option = declared.metadata["option"]
            kind = _KINDS[getattr(declared.type, "__name__", str(declared.type)).partition(" ")[0]]
            kind = "choice" if kind == "text" and one.choices else kind
            default = None if declared.default is MISSING else declared.default
            found[declared.name] = replace(one, name=declared.name, kind=kind, default=default)
    return found
