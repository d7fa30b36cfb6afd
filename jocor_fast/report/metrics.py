"""What people are shown of a line of metrics.jsonl: the title and the format of each number, once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from jocor_fast.report.tables import NOT_AVAILABLE, percent


@dataclass(frozen=True)
class ShownMetric:
    """A number that is shown: its title, and whether it is a fraction, shown as percent."""

    title: str
    fraction: bool = False

    @property
    def axis_label(self) -> str:
        """The title with the unit."""
        return f"{self.title} (%)" if self.fraction else self.title

    def text(self, value: float | None) -> str:
        """Return "95.12 %", "0.4312" or "n/a"."""
        if value is None:
            return NOT_AVAILABLE
        return f"{percent(value)} %" if self.fraction else f"{value:.4f}"


LOSS, TEST, PRECISION, VALIDATION = "train_loss", "test_accuracy", "label_precision", "val_accuracy"
FORGET_RATE = "forget_rate"  # where it is adaptive
SHOWN: Mapping[str, ShownMetric] = {
    TEST: ShownMetric("test accuracy", fraction=True),
    PRECISION: ShownMetric("label precision", fraction=True),
    VALIDATION: ShownMetric("validation accuracy", fraction=True),
    LOSS: ShownMetric("training loss"),
    FORGET_RATE: ShownMetric("forget rate, estimated", fraction=True),
}
# In every line too, and shown elsewhere or not at all.
_OTHERS = {
    *("epoch", "lr", "keep_rate", "test_accuracy_1", "test_accuracy_2", "test_accuracy_ensemble", "nonfinite_rows"),
    *("bad_files", "wait_share", "seconds", "eval_seconds", "samples_per_second", "selected_share_per_class"),
}


def shown(name: str) -> ShownMetric:
    """Return how a metric is shown; one that is not of this version, under its name."""
    return SHOWN.get(name) or ShownMetric(name.replace("_", " "))


def added_metrics(lines: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of the numbers in the lines that are none of this version's own."""
    numbers = (name for line in lines for name, value in line.items() if isinstance(value, (int, float)))
    return [name for name in dict.fromkeys(numbers) if name not in SHOWN and name not in _OTHERS]
