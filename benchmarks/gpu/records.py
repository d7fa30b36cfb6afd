"""What a part is, and what it writes while it runs: a JSON line with its plan, and one for each item as it ends.

A part can be killed at any moment: what it has done by then is in the file, and the rest of its plan was skipped.
"""

from __future__ import annotations

import contextlib
import json
import os
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VARIABLE = "JOCOR_FAST_RECORDS"  # names the file
Item = dict[str, Any]
Work = Callable[[], Item]


@dataclass(frozen=True)
class Part:
    name: str
    budget: float  # seconds
    what: str
    arguments: tuple[str, ...]  # of Python


@dataclass(frozen=True)
class Outcome:
    part: Part
    status: str  # "done", "failed" or "ended at its budget"
    seconds: float
    budget: float  # with what the parts before did not use
    items: list[Item] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)  # of its plan
    output: str = ""  # the end of what it printed


def work_through(items: Mapping[str, Work]) -> int:
    """Do all items, also after one that fails, and return the exit status of the part.

    An item returns its figures. It failed if it raises, or returns ok=False.
    """
    plan(items)
    status = 0
    for name, work in items.items():
        print(name, flush=True)
        try:
            fields = work()
        except Exception as error:  # such as a contender that torch cannot compile: it must not cost the others
            traceback.print_exc()
            fields = {"error": f"{type(error).__name__}: {error}"[:500]}
        done(name, **fields)
        status |= failed(fields)
    return status


def failed(item: Item) -> bool:
    return "error" in item or item.get("ok") is False or item.get("outcome") == "failed"


def plan(names: Iterable[str]) -> None:
    _append({"plan": list(names)})


def done(name: str, **fields: Any) -> None:
    _append({"item": name, **fields})


def _append(line: Item) -> None:
    with Path(os.environ[VARIABLE]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")


def read(path: Path) -> tuple[list[Item], list[str]]:
    """Return the items that are done and the names of those that were skipped; ignore a torn last line."""
    lines: list[Item] = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        with contextlib.suppress(ValueError):
            lines.append(json.loads(text))
    items = [line for line in lines if "item" in line]
    planned = dict.fromkeys(name for line in lines for name in line.get("plan", ()))
    return items, [name for name in planned if name not in {item["item"] for item in items}]
