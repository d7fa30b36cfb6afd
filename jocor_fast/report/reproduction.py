"""The results of `jocor-fast reproduce`, from the folders of its runs: a row a cell, and the figure of all of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..experiments import METHOD_TITLES, Cell
from .results import STD_DDOF, best_epoch, mean_and_std, read_json, read_metrics
from .tables import TextTable, percent, percent_with_std

CSV_COLUMNS = (
    "dataset", "noise", "rate", "method", "n", "mean", "std", "ddof", "label_precision", "best",
    "paper_mean", "paper_std", "difference", "status",
)  # fmt: skip


@dataclass(frozen=True)
class CellResult:
    """A cell of the table and the runs that were finished for it.

    Attributes:
        planned: the seeds that belong to the cell.
        metrics, summaries: of the finished runs, by seed.
        unfinished: why the others are missing, by seed ("not run", "diverged", "failed", "interrupted").
    """

    cell: Cell
    planned: tuple[int, ...]
    metrics: Mapping[int, list[dict[str, Any]]]
    summaries: Mapping[int, dict[str, Any]]
    unfinished: Mapping[int, str]

    @property
    def status(self) -> str:
        """ "3/3", or "2/3 (seed 2: diverged)", or "not run"."""
        if not self.summaries and set(self.unfinished.values()) == {"not run"}:
            return "not run"
        missing = ", ".join(f"seed {seed}: {why}" for seed, why in self.unfinished.items())
        return f"{len(self.summaries)}/{len(self.planned)}" + (f" ({missing})" if missing else "")

    def csv_row(self) -> dict[str, Any]:
        """The row of table.csv, in fractions; the paper's figures are left out where the paper has none."""
        mean, std = mean_and_std(self._last_ten("test_accuracy"))
        precision, _ = mean_and_std(self._last_ten("label_precision"))
        best, _ = mean_and_std(
            line["test_accuracy"] for line in map(best_epoch, self.metrics.values()) if line is not None
        )
        return {
            "dataset": self.cell.dataset,
            "noise": self.cell.noise.kind,
            "rate": self.cell.noise.rate,
            "method": self.cell.method,
            "n": len(self.summaries),
            "mean": mean,
            "std": std,
            "ddof": STD_DDOF,
            "label_precision": precision,
            "best": best,
            "status": self.status,
        }

    def _last_ten(self, name: str) -> list[float]:
        values = (summary["last_10_mean"][name] for summary in self.summaries.values())
        return [value for value in values if value is not None]


def read_cell(output: Path, cell: Cell, seeds: Sequence[int], failed: Collection[Path] = ()) -> CellResult:
    """Collect a cell's runs from OUTPUT/<cell>/seed<N>; `failed` are the folders of runs that ended with an error."""
    metrics: dict[int, list[dict[str, Any]]] = {}
    summaries: dict[int, dict[str, Any]] = {}
    unfinished: dict[int, str] = {}
    for seed in seeds:
        folder = output / cell.run_folder(seed)
        summary = read_json(folder / "summary.json")
        if summary is not None and summary["status"] == "finished":
            metrics[seed], summaries[seed] = read_metrics(folder), summary
        elif summary is not None and summary["status"] == "diverged":
            unfinished[seed] = "diverged"
        elif folder in failed:
            unfinished[seed] = "failed"
        else:
            unfinished[seed] = "interrupted" if (folder / "metrics.jsonl").exists() else "not run"
    return CellResult(cell, tuple(seeds), metrics, summaries, unfinished)


def results_table(results: Sequence[CellResult], title: str) -> TextTable:
    """The table for people, in percent."""
    rows: list[tuple[str, ...]] = []
    for result in results:
        row = result.csv_row()
        figures = (percent_with_std(row["mean"], row["std"]), percent(row["label_precision"]), percent(row["best"]))
        rows.append((result.cell.noise.title, METHOD_TITLES[result.cell.method], *figures, result.status))
    return TextTable(
        ("noise", "method", "test accuracy", "label precision", "best epoch", "runs"),
        rows,
        title=f"{title} (in %)",
        text_columns=2,
        note=(
            f"Means over the last ten epochs of each run, then mean ± standard deviation (ddof {STD_DDOF}) over runs. "
            "Best epoch: chosen by the test labels, so not a result to report."
        ),
    )


def draw_results(results: Sequence[CellResult], path: Path, title: str) -> None:
    """Test accuracy and label precision against epochs: a column a noise type, a line a method."""
    from .curves import draw_comparison  # matplotlib takes half a second to import, and --help has no use for it

    panels: dict[str, dict[str, list[list[dict[str, Any]]]]] = {}
    for result in results:
        methods = panels.setdefault(result.cell.noise.title, {})
        if result.metrics:
            methods[METHOD_TITLES[result.cell.method]] = list(result.metrics.values())
    draw_comparison(panels, path, title)
