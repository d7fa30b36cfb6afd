"""A run's files read back, and the figures that are quoted from them.

The files themselves are written by the engine; their formats are the README's "Files of a run".
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..engine.folder import METRICS, SUMMARY

LOG_NAME = "train.log"  # what a run that `jocor-fast reproduce` started has printed
ERROR_PREFIX = "jocor-fast: error: "
STD_DDOF = 1  # the sample standard deviation: five runs stand for the runs one might have made


def mean_and_std(values: Iterable[float]) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation (ddof 1); (None, None) of nothing, (value, None) of one value."""
    numbers = [float(value) for value in values]
    if not numbers:
        return None, None
    mean = math.fsum(numbers) / len(numbers)
    if len(numbers) <= STD_DDOF:
        return mean, None
    return mean, math.sqrt(math.fsum((number - mean) ** 2 for number in numbers) / (len(numbers) - STD_DDOF))


def best_epoch(metrics: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The line with the highest test accuracy (the first of several), None where there are no test labels.

    It looks at test labels, so it is shown beside a result and never is one.
    """
    tested = [line for line in metrics if line.get("test_accuracy") is not None]
    return max(tested, key=lambda line: line["test_accuracy"], default=None)


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of RUN/metrics.jsonl up to one that is not whole; no file: no lines.

    The last may be still under way, or was cut by a full disk or a crash, which can leave zeros in its place.
    """
    try:
        text = (run / METRICS).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    lines: list[dict[str, Any]] = []
    for line in text[: text.rfind("\n") + 1].splitlines():
        try:
            content = json.loads(line)
        except ValueError:
            break
        if not isinstance(content, dict):
            break
        lines.append(content)
    return lines


def read_summary(run: Path) -> dict[str, Any]:
    """RUN/summary.json; empty where there is none, or it is not whole."""
    return read_json(run / SUMMARY) or {}


def read_error(run: Path, start: int = 0) -> str | None:
    """The sentence in RUN/train.log, from byte `start` on, that the run ended with; None where there is none."""
    try:
        text = (run / LOG_NAME).read_bytes()[start:].decode(errors="replace")
    except FileNotFoundError:
        return None
    errors = [line for line in text.splitlines() if line.startswith(ERROR_PREFIX)]
    return errors[-1].removeprefix(ERROR_PREFIX) if errors else None


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file such as summary.json or config.json; None where there is no such file or it is not whole."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return value if isinstance(value, dict) else None
