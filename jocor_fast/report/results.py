"""The figures that are quoted from the lines of metrics.jsonl."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
