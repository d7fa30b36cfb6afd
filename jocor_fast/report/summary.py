"""The figures that are quoted of a run, from its lines of metrics.jsonl, and of several runs together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

AVERAGED_EPOCHS = 10  # the paper: "the average over the last ten epochs"
STD_DDOF = 1  # the sample standard deviation: five runs stand for the runs one might have made


def last_mean(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the means of test accuracy and label precision over the last ten epochs, or all where there are fewer.

    Returns:
        {test_accuracy, label_precision, epochs: how many are averaged}; None where an epoch has no accuracy, or
        none has a precision. (One in which nothing was trained on, as by Decoupling where no predictions differ, has
        none.)
    """
    last = metrics[-AVERAGED_EPOCHS:]
    accuracies = [line["test_accuracy"] for line in last]
    precisions = [line["label_precision"] for line in last if line["label_precision"] is not None]
    return {
        "test_accuracy": fmean(accuracies) if accuracies and None not in accuracies else None,
        "label_precision": fmean(precisions) if precisions else None,
        "epochs": len(last),
    }


def last_validation(metrics: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the mean validation accuracy over the same epochs; None where one has none."""
    last = metrics[-AVERAGED_EPOCHS:]
    accuracies = [line["val_accuracy"] for line in last if line.get("val_accuracy") is not None]
    return fmean(accuracies) if last and len(accuracies) == len(last) else None


def best_by_validation(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """{epoch, val_accuracy, test_accuracy} of the first epoch with the highest validation accuracy, or None."""
    scored = [line for line in metrics if line.get("val_accuracy") is not None]
    if not scored:
        return None
    best = max(scored, key=lambda line: line["val_accuracy"])  # the first of equals
    return {name: best[name] for name in ("epoch", "val_accuracy", "test_accuracy")}


def best_epoch(metrics: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the line with the highest test accuracy (the first of several), None where there are no test labels.

    It looks at test labels: it is shown with a result and never is one.
    """
    tested = [line for line in metrics if line.get("test_accuracy") is not None]
    return max(tested, key=lambda line: line["test_accuracy"], default=None)


def mean_and_std(values: Iterable[float]) -> tuple[float | None, float | None]:
    """Return mean and sample standard deviation (ddof 1); (None, None) of nothing, (value, None) of one value."""
    numbers = list(values)
    if not numbers:
        return None, None
    return fmean(numbers), stdev(numbers) if len(numbers) > STD_DDOF else None
