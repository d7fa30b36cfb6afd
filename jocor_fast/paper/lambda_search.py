"""The search for λ by successive halving: many candidates are trained a little, the better half of them longer.

A candidate is a run with the schedules of its full length; it pauses at each rung and continues from there if it is
kept. (Jamieson and Talwalkar, 2016. The paper says which λ it searched and by which accuracy, not how; how is ours.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from jocor_fast.files.names import number_in_name
from jocor_fast.report.curves import new_figure, save_figure
from jocor_fast.report.tables import TextTable, percent

GRID = tuple(round(0.05 * step, 2) for step in range(1, 20))  # the paper's
CSV_COLUMNS = ("co_lambda", "epoch", "val_accuracy", "kept")
# An accuracy is the mean over so many epochs: on some thousand samples that of one epoch strays further than
# neighbouring λ differ.
SCORED_EPOCHS = 5


def rungs(epochs: int, *, ramp_epochs: int, candidates: int) -> list[int]:
    """Return the epochs at which candidates are compared, the last being the end of the runs.

    Each is twice the one before. The first comes when selection has been in full force for as long as it took to get
    there, at twice the ramp: before, a large λ, which learns more slowly, is behind those that it overtakes (on MNIST
    with half of the labels wrong, three epochs after the ramp, the best λ was third of four). There are no more than it
    takes to get from all candidates to one.
    """
    found = [epochs]
    halvings = math.ceil(math.log2(candidates))
    while len(found) <= halvings and (earlier := math.ceil(found[0] / 2)) >= 2 * ramp_epochs and earlier < found[0]:
        found.insert(0, earlier)
    return found


def score(metrics: Sequence[Mapping[str, Any]], rung: int) -> float | None:
    """Return the mean validation accuracy over the last epochs up to a rung; None where the run did not get there.

    Later epochs are not looked at: a search that is run again decides as it did before.
    """
    if len(metrics) < rung:
        return None
    values = [line["val_accuracy"] for line in metrics[max(0, rung - SCORED_EPOCHS) : rung]]
    return None if None in values else fmean(values)


def ranked(scores: Mapping[float, float | None]) -> list[float]:
    """Return the candidates that have a score, the best first; of equals the larger (in the paper larger is better)."""
    scored = {candidate: value for candidate, value in scores.items() if value is not None}
    return sorted(scored, key=lambda candidate: (scored[candidate], candidate), reverse=True)


def kept(scores: Mapping[float, float | None]) -> list[float]:
    """Return the better half, rounded up, of a rung's candidates, ascending; fewer where most have failed."""
    return sorted(ranked(scores)[: math.ceil(len(scores) / 2)])


@dataclass(frozen=True)
class SearchResult:
    """The rungs that a search has come to.

    Attributes:
        grid: every λ, ascending.
        validation: what was validated on, for people.
        scores: {epoch of the rung: {λ: mean validation accuracy, None where the run failed}}.
        kept: {epoch of the rung: the λ that are trained on}; at the last rung the one that is chosen.
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
        """Return a row for every λ at every rung that it came to; accuracies are fractions."""
        return [
            dict(zip(CSV_COLUMNS, (co_lambda, rung, value, str(co_lambda in self.kept[rung]).lower()), strict=True))
            for rung, scores in self.scores.items()
            for co_lambda, value in scores.items()
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return what search.json holds."""
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
        """Return the table for people: a row a λ, a column a rung, in percent."""
        rows = [
            (
                number_in_name(co_lambda),
                *(percent(scores[co_lambda]) if co_lambda in scores else "" for scores in self.scores.values()),
                "chosen" if co_lambda == self.chosen else "",
            )
            for co_lambda in self.grid
        ]
        means = f"means over the last {SCORED_EPOCHS} epochs up to each"
        note = f"On {self.validation}; {means}. The better half is trained further."
        columns = ("λ", *(f"epoch {rung}" for rung in self.scores), "")
        return TextTable(columns, rows, title="Validation accuracy (in %)", note=note)


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
