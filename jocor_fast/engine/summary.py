"""What summary.json says of the epochs of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

AVERAGED_EPOCHS = 10  # the paper: "the average over the last ten epochs"


def last_mean(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The means of test accuracy and label precision over the last ten epochs, or all where there are fewer.

    Args:
        metrics: the lines of metrics.jsonl.

    Returns:
        {test_accuracy, label_precision, epochs: how many are averaged}; None where an epoch has no accuracy, or
        none has a precision. (One in which nothing was trained on, as by Decoupling where nobody disagrees, has none.)
    """
    last = metrics[-AVERAGED_EPOCHS:]
    accuracies = [line["test_accuracy"] for line in last]
    precisions = [line["label_precision"] for line in last if line["label_precision"] is not None]
    return {
        "test_accuracy": fmean(accuracies) if accuracies and None not in accuracies else None,
        "label_precision": fmean(precisions) if precisions else None,
        "epochs": len(last),
    }


def best_by_validation(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """{epoch, val_accuracy, test_accuracy} of the first epoch with the highest validation accuracy, or None."""
    scored = [line for line in metrics if line["val_accuracy"] is not None]
    if not scored:
        return None
    best = max(scored, key=lambda line: line["val_accuracy"])  # the first of equals
    return {name: best[name] for name in ("epoch", "val_accuracy", "test_accuracy")}
