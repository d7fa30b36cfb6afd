"""The API's docstrings: none is missing, each names the parameters that there are, and their examples run.

`make docs` runs this before it makes the pages.
"""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import jocor_fast as jf

INTRODUCTIONS = re.compile(r"[Aa]s (?:in|for) `\w+`|Args and errors as in")  # the parameters of another function


def members(holder: Any, names: list[str], path: str) -> Iterator[tuple[str, Any]]:
    for name in names:
        value = inspect.getattr_static(holder, name) if inspect.isclass(holder) else getattr(holder, name)
        if isinstance(value, ModuleType):
            own = [
                other for other, item in vars(value).items()
                if not other.startswith("_") and str(getattr(item, "__module__", None)).startswith(value.__name__)
            ]  # fmt: skip
            yield f"{path}.{name}", value
            yield from members(value, own, f"{path}.{name}")
        elif inspect.isclass(value) and value.__module__.startswith("jocor_fast"):
            yield f"{path}.{name}", value
            methods = [other for other, item in vars(value).items() if other[0] != "_" and inspect.isfunction(item)]
            yield from members(value, methods, f"{path}.{name}")
        elif inspect.isfunction(value):
            yield f"{path}.{name}", value


API = dict(members(jf, jf.__all__, "jf"))
CALLABLES = {name: value for name, value in API.items() if not isinstance(value, ModuleType)}
OVERRIDDEN = {"extra_repr"}  # of torch's modules: nobody calls it


def sections(text: str) -> dict[str, str]:
    """{"Args": its lines}, of a docstring in Google's form."""
    found = re.split(r"^(Args|Returns|Raises|Attributes):\n", inspect.cleandoc(text), flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


def named_parameters(text: str) -> list[str]:
    """The parameters that an Args section names, in its order; "test_inputs, test_labels: …" names two."""
    heads = re.findall(r"^ {4}(\*{0,2}\w+(?:, \w+)*):", sections(text).get("Args", ""), flags=re.MULTILINE)
    return [name.lstrip("*") for head in heads for name in head.split(", ")]


def problems(value: Any) -> list[str]:
    """What is wrong with the docstring of a function or class."""
    text = value.__doc__ or ""
    if not text.strip() or text.startswith(f"{value.__name__}("):  # the second: what NamedTuple and dataclass put there
        return ["has no docstring"]
    first = inspect.cleandoc(text).splitlines()[0]
    found = [] if re.search(r"[.:]$", first) else [f"its first line is no sentence: {first}"]
    if inspect.isclass(value) and hasattr(value, "_fields"):
        return found  # a NamedTuple's fields are described beside them
    if value.__module__ == "jocor_fast.reference":
        return found  # each is the function of its name in `jocor_fast`, and described there
    parameters = [name for name in inspect.signature(value).parameters if name != "self"]
    named = named_parameters(text)
    found += [f"describes {name}, which is no parameter" for name in named if name not in parameters]
    if not INTRODUCTIONS.search(text) and (named or len(parameters) > 2):
        found += [f"does not describe {name}" for name in parameters if name not in named]
    return found


@pytest.mark.parametrize("name", [name for name in CALLABLES if name.rpartition(".")[2] not in OVERRIDDEN])
def test_a_docstring_says_what_there_is(name: str) -> None:
    assert problems(CALLABLES[name]) == []


def test_the_api_is_all_there() -> None:
    for name in ("jf.jocor_loss", "jf.JoCoRClassifier.predict_proba", "jf.noise.corrupt", "jf.schedules.keep_rate"):
        assert name in API
    assert all(value.__doc__ for value in API.values() if isinstance(value, ModuleType))


def test_a_missing_or_broken_docstring_is_noticed() -> None:
    def without(a: int) -> None: ...

    def broken(a: int, b: int) -> None:
        """Do it.

        Args:
            a: one.
            c: of an older version.
        """

    def unfinished() -> None:
        """And then"""

    assert problems(without) == ["has no docstring"]
    assert problems(broken) == ["describes c, which is no parameter", "does not describe b"]
    assert problems(unfinished) == ["its first line is no sentence: And then"]


EXAMPLES = {name: value for name, value in CALLABLES.items() if ">>>" in (value.__doc__ or "")}


def test_what_a_reader_begins_with_has_an_example() -> None:
    begin = ["jocor_loss", "joint_loss", "select_small_loss", "num_keep", "JoCoRLoss", "JoCoRClassifier", "train"]
    begin += ["noise.symmetric", "noise.corrupt", "schedules.keep_rate", "schedules.lr_factor"]
    assert {f"jf.{name}" for name in begin} <= set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_gives_what_it_says(name: str) -> None:
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    test = doctest.DocTestParser().get_doctest(EXAMPLES[name].__doc__, {}, name, None, 0)
    output: list[str] = []
    assert runner.run(test, out=output.append).failed == 0, "".join(output)
