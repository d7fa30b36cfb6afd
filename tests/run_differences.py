"""Whether two runs came to the same: all their files, bit for bit, but for times and where they were made."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from engine_cases import without_timings


def differences(output: Path, whole: Path) -> list[str]:
    """What the files of a run have that those of another have not, but for times and where they were made."""
    names = [sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) for folder in (output, whole)]
    if names[0] != names[1]:
        return [f"the files are {', '.join(names[0])} and not {', '.join(names[1])}"]
    found = []
    for name in names[0]:
        if Path(name).suffix in READERS:
            mine, other = (READERS[Path(name).suffix](folder / name) for folder in (output, whole))
            if Path(name).name == "checkpoint-previous.pt":  # of another step, where one was written amid an epoch
                continue
            found += [f"{name} differs at {place}" for place in itertools.islice(_unlike(mine, other), 3)]
    return found


def _read_json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    content.pop("environment", None)
    return _without_times(content)


def _read_lines(path: Path) -> list[dict[str, Any]]:
    return without_timings([json.loads(line) for line in path.read_text().splitlines()])


def _read_checkpoint(path: Path) -> dict[str, Any]:
    return _without_times(torch.load(path, weights_only=True))


def _without_times(content: dict[str, Any]) -> dict[str, Any]:
    if content.get("last") is not None:
        content["last"] = without_timings([content["last"]])
    if "history" in content:
        content["history"] = without_timings(content["history"])
    return content


READERS = {
    ".json": _read_json,
    ".jsonl": _read_lines,
    ".pt": _read_checkpoint,
    ".txt": lambda path: sorted(path.read_text().splitlines()),
}


def _unlike(mine: Any, other: Any, place: str = "") -> Iterator[str]:
    """Where two contents differ; tensors bit for bit."""
    if isinstance(mine, torch.Tensor) and isinstance(other, torch.Tensor):
        alike = mine.dtype == other.dtype and mine.shape == other.shape
        if not alike or mine.numpy().tobytes() != other.numpy().tobytes():
            yield place
    elif isinstance(mine, dict) and isinstance(other, dict) and mine.keys() == other.keys():
        for name in mine:
            yield from _unlike(mine[name], other[name], f"{place}/{name}")
    elif isinstance(mine, (list, tuple)) and isinstance(other, (list, tuple)) and len(mine) == len(other):
        for number, pair in enumerate(zip(mine, other, strict=True)):
            yield from _unlike(*pair, f"{place}/{number}")
    elif type(mine) is not type(other) or mine != other:
        yield place
