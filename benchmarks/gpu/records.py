"""What a part writes while it runs: a JSON line for what it has planned, and one for each thing that is done.

A part may be ended at any moment; what it had done by then is in the file, and the rest of the plan is left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

VARIABLE = "JOCOR_FAST_RECORDS"  # names the file
Item = dict[str, Any]


def plan(names: Iterable[str]) -> None:
    """The names of everything that this part is to do."""
    _append({"plan": list(names)})


def done(name: str, **fields: Any) -> None:
    """One thing is done, well or badly, with what came of it."""
    _append({"item": name, **fields})


def _append(line: dict[str, Any]) -> None:
    with Path(os.environ[VARIABLE]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")


def read(path: Path) -> tuple[list[Item], list[str]]:
    """The items that are done, and the names of those that were planned and are not. A last, torn line is left out."""
    planned: list[str] = []
    items: list[Item] = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if "plan" in line:
            planned += line["plan"]
        else:
            items.append(line)
    finished = {item["item"] for item in items}
    return items, [name for name in planned if name not in finished]
