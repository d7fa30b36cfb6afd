"""The errors of the package: what is at fault, and the exit code of a command that meets it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar


class JocorFastError(Exception):
    """What every error of this package's own is.

    Attributes:
        problem: the sentence without the name of the argument.
        argument: the library's name of what is at fault; None where the sentence says it all. The command line puts the
            flag's name, or the key's of its configuration file, in its place.
        exit_code: of the command.
    """

    exit_code: ClassVar[int] = 1
    joint: ClassVar[str] = ": "

    def __init__(self, problem: str, argument: str | None = None) -> None:
        """Make the sentence, which begins with the argument's name where one is given."""
        self.problem, self.argument = problem, argument

    def __str__(self) -> str:
        return self.problem if self.argument is None else self.called(self.argument)

    def called(self, name: str) -> str:
        """Return the sentence with another name for the argument."""
        return f"{name}{self.joint}{self.problem}"


class DataError(JocorFastError, ValueError):
    """A data set or a file of labels or arrays is absent, broken or of another kind."""


class RunError(JocorFastError, RuntimeError):
    """A run cannot start or continue: its folder, its checkpoint or its settings are at fault."""


class FailedElsewhere(RunError):
    """Another process of the run has failed and reports it; this one ends for that reason."""


class ConfigError(JocorFastError, ValueError):
    """A flag or a configuration file is wrong; the message names it."""

    exit_code = 2


class ArgumentError(JocorFastError):
    """An argument is wrong: "name must …, got …"."""

    exit_code = 2
    joint = " "

    def __init__(self, argument: str, problem: str) -> None:
        """Make the sentence from the argument's name and what it must be."""
        super().__init__(problem, argument)


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument is of a wrong type."""


class ArgumentValueError(ArgumentError, ValueError):
    """An argument has a wrong value, shape or device."""


@contextlib.contextmanager
def called(names: Mapping[str, str]) -> Iterator[None]:
    """Give arguments the names by which the user set them: {library's name: flag}.

    A wrong argument becomes a ConfigError; errors about what is not in `names` pass as they are.
    """
    try:
        yield
    except JocorFastError as error:
        if error.argument is None or error.argument not in names:
            raise
        kind = ConfigError if isinstance(error, ArgumentError) else type(error)
        raise kind(error.called(names[error.argument])) from error


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean …?)" with the known names that are nearest to a wrong one; "" where none is near."""
    import difflib

    close = difflib.get_close_matches(name, list(known), n=3)
    return f" (did you mean {' or '.join(close)}?)" if close else ""
