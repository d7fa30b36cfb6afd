"""What a search for λ has found: its table, its files and its figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jocor_fast.files.names import number_in_name
from jocor_fast.paper.successive_halving import SCORED_EPOCHS
from jocor_fast.report.curves import new_figure, save_figure
from jocor_fast.report.tables import TextTable, percent

CSV_COLUMNS = ("co_lambda", "epoch", "val_accuracy", "kept")


@dataclass(frozen=True)
class SearchResult:
    """The rungs that a search has come to.

    Attributes:
        grid: every λ, ascending.
        validation: what was validated on, for people.
        scores: {epoch of the rung: {λ: mean validation accuracy, None where the run failed}}.
        kept: {epoch of the rung: the λ that went on}; at the last rung the one that is chosen.
    """

    grid: Sequence[float]
    validation: str
    scores: Mapping[int, Mapping[float, float | None]]
    kept: Mapping[int, Sequence[float]]

    @property
    def chosen(self) -> float:
        """The λ that is left."""
        return list(self.kept.values())[-1][0]

    def csv_rows(self) -> list[dict[str, Any]]:
        """A row for every λ at every rung that it came to; accuracy in fractions."""
        return [
            {
                "co_lambda": co_lambda,
                "epoch": rung,
                "val_accuracy": value,
                "kept": str(co_lambda in self.kept[rung]).lower(),
            }
            for rung, scores in self.scores.items()
            for co_lambda, value in scores.items()
        ]

    def as_dict(self) -> dict[str, Any]:
        """What search.json holds."""
        rung = list(self.scores)[-1]
        return {
            "co_lambda": self.chosen,
            "val_accuracy": self.scores[rung][self.chosen],
            "epoch": rung,
            "averaged_epochs": SCORED_EPOCHS,
            "validation": self.validation,
            "grid": list(self.grid),
            "rungs": list(self.scores),
        }

    def table(self) -> TextTable:
        """A row a λ, a column a rung, in percent."""
        rows = [
            (
                number_in_name(co_lambda),
                *(percent(scores[co_lambda]) if co_lambda in scores else "" for scores in self.scores.values()),
                "chosen" if co_lambda == self.chosen else "",
            )
            for co_lambda in self.grid
        ]
        return TextTable(
            ("λ", *(f"epoch {rung}" for rung in self.scores), ""),
            rows,
            title="Validation accuracy (in %)",
            note=(
                f"On {self.validation}; means over the last {SCORED_EPOCHS} epochs up to each. The better half goes on."
            ),
        )


def draw_search(result: SearchResult, curves: Mapping[float, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Draw validation accuracy against epochs, a line a λ, and against λ, a line a rung.

    `curves` are {λ: lines of metrics.jsonl}.
    """
    from matplotlib import colormaps
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(9.0, 3.6)
    left, right = figure.subplots(1, 2, sharey=True)
    colors = colormaps["viridis"]
    for co_lambda, metrics in sorted(curves.items()):
        chosen = co_lambda == result.chosen
        left.plot(
            [line["epoch"] for line in metrics],
            [100 * line["val_accuracy"] for line in metrics],
            color=colors(co_lambda),
            label=f"λ {number_in_name(co_lambda)}",
            linewidth=2.2 if chosen else 1.2,
        )
    for rung, scores in result.scores.items():
        points = {co_lambda: 100 * value for co_lambda, value in scores.items() if value is not None}
        right.plot(list(points), list(points.values()), "o-", markersize=4, label=f"epoch {rung}")
    right.axvline(result.chosen, color="gray", linestyle=":", label=f"λ {number_in_name(result.chosen)} is chosen")
    left.set_xlabel("epoch")
    left.set_ylabel("validation accuracy (%)")
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.set_xlabel("λ")
    for axis in (left, right):
        axis.grid(alpha=0.3)
        axis.legend(fontsize="x-small", ncols=1 + len(axis.lines) // 8)
    save_figure(figure, path)
