"""The results of `jocor-fast reproduce`, from the folders of its runs: a row a cell, and the figure of all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jocor_fast.files.names import METRICS, read_error, read_metrics, read_summary
from jocor_fast.files.whole_file import write_text
from jocor_fast.paper.experiments import Cell, Experiment
from jocor_fast.paper.results import PaperResult, paper_result, rerun_result
from jocor_fast.report.curves import draw_comparison
from jocor_fast.report.metrics import PRECISION, TEST, VALIDATION, shown
from jocor_fast.report.summary import STD_DDOF, best_epoch, last_mean, mean_and_std
from jocor_fast.report.tables import TextTable, csv_text, percent, percent_with_std

CSV_COLUMNS = (
    "dataset", "noise", "rate", "method", "n", "mean", "std", "ddof", "label_precision", "best",
    "paper_mean", "paper_std", "difference", "rerun_mean", "status",
)  # fmt: skip
BEST_EPOCH = "best epoch"


@dataclass(frozen=True)
class Figure:
    """Which number a run stands for.

    Attributes:
        report: "last": the mean over the last epochs; "best": the epoch with the best validation accuracy.
        averaged_epochs: how many last epochs, 10 or 1.
    """

    report: str = "last"
    averaged_epochs: int = 10

    @property
    def text(self) -> str:
        """What the note under the table says of a run's figure."""
        if self.report == "best":
            return "test accuracies at each run's epoch of the best validation accuracy"
        return "means over the last ten epochs of each run" if self.averaged_epochs > 1 else "each run's last epoch"

    def of(self, name: str, metrics: Sequence[Mapping[str, Any]]) -> float | None:
        """Return a field of metrics.jsonl as the figure of a finished run; None where it has none."""
        if self.report == "best":
            validated = [line for line in metrics if line[VALIDATION] is not None]
            source = max(validated, key=lambda line: line[VALIDATION], default={})
        else:
            source = last_mean(metrics) if self.averaged_epochs > 1 else metrics[-1]
        value: float | None = source.get(name)
        return value


@dataclass(frozen=True)
class CellResult:
    """A cell of the table and the runs that were finished for it.

    Attributes:
        figure: what a run stands for.
        planned: the seeds that belong to the cell.
        metrics: the lines of metrics.jsonl of the finished runs, by seed.
        missing: why the others are, by seed ("not run", "diverged", "failed", "interrupted", "unfinished").
    """

    cell: Cell
    figure: Figure
    planned: tuple[int, ...]
    metrics: Mapping[int, list[dict[str, Any]]]
    missing: Mapping[int, str]

    @property
    def status(self) -> str:
        """ "3/3", or "2/3 (seed 2: diverged)", or "not run"."""
        return self.counted + (f" ({self.why_missing})" if self.why_missing else "")

    @property
    def counted(self) -> str:
        """ "2/3", or "not run"."""
        begun = self.metrics or set(self.missing.values()) != {"not run"}
        return f"{len(self.metrics)}/{len(self.planned)}" if begun else "not run"

    @property
    def why_missing(self) -> str:
        """ "seed 2: diverged", or "" where all are there, or none has been begun."""
        if self.counted == "not run":
            return ""
        return ", ".join(f"seed {seed}: {why}" for seed, why in self.missing.items())

    @property
    def paper(self) -> PaperResult | None:
        """The paper's figure for the cell; it has none for a λ of our own choice."""
        return self._published(paper_result)

    @property
    def rerun(self) -> PaperResult | None:
        """The independent re-run's figure for the cell."""
        return self._published(rerun_result)

    def _published(self, result: Callable[..., PaperResult | None]) -> PaperResult | None:
        cell = self.cell
        if cell.compared_lambda not in (None, cell.preset_lambda):
            return None
        return result(cell.dataset, cell.noise.kind, cell.noise.rate, cell.method, report=self.figure.report)

    def csv_row(self) -> dict[str, Any]:
        """Return the row of table.csv, in fractions; None is what does not apply."""
        mean, std = mean_and_std(self._figures(TEST))
        precisions = self._figures(PRECISION)
        whole = len(precisions) == len(self.metrics)  # a run that trained on nothing in its last epochs has none
        best = [line[TEST] for line in map(best_epoch, self.metrics.values()) if line is not None]
        paper, rerun = self.paper, self.rerun
        return {
            "dataset": self.cell.dataset,
            "noise": self.cell.noise.kind,
            "rate": self.cell.noise.rate,
            "method": self.cell.name,
            "n": len(self.metrics),
            "mean": mean,
            "std": std,
            "ddof": STD_DDOF,
            "label_precision": mean_and_std(precisions if whole else ())[0],
            "best": mean_and_std(best)[0],
            "rerun_mean": rerun.mean if rerun else None,
            "paper_mean": paper.mean if paper else None,
            "paper_std": paper.std if paper else None,
            "difference": mean - paper.mean if paper and mean is not None else None,
            "status": self.status,
        }

    def _figures(self, name: str) -> list[float]:
        values = (self.figure.of(name, metrics) for metrics in self.metrics.values())
        return [value for value in values if value is not None]

    def texts(self, *, brief: bool) -> dict[str, str]:
        """Return every column that a row for people may have."""
        row, paper, rerun = self.csv_row(), self.paper, self.rerun

        def verdict(on: PaperResult | None) -> str:
            if on is None or row["mean"] is None or not self.cell.is_as_long_as_the_papers:
                return ""
            return "met" if on.met_by(row["mean"]) else "missed"

        return {
            "noise": self.cell.noise.title,
            "method": self.cell.title,
            shown(TEST).title: percent_with_std(row["mean"], row["std"]),
            shown(PRECISION).title: percent(row["label_precision"]),
            BEST_EPOCH: percent(row["best"]),
            "re-run": f"{percent(rerun.mean)} {verdict(rerun)}".rstrip() if rerun else "",
            "paper": percent_with_std(paper.mean, None if brief else paper.std) if paper else "",
            "difference": "" if row["difference"] is None else f"{100 * row['difference']:+.2f}",
            "target": verdict(paper),
            "runs": self.counted if brief else self.status,
        }


def read_cell(
    output: Path, cell: Cell, seeds: Sequence[int], figure: Figure = Figure(), failed: Collection[Path] = ()
) -> CellResult:
    """Collect a cell's runs from OUTPUT/<cell>/seed<N>.

    Args:
        output: OUTPUT.
        cell: whose runs.
        seeds: those that belong to the cell, with or without a folder.
        figure: what a run stands for.
        failed: the folders of runs that have just ended with an error.
    """
    metrics: dict[int, list[dict[str, Any]]] = {}
    missing: dict[int, str] = {}
    for seed in seeds:
        folder = output / cell.run_folder(seed)
        status = read_summary(folder).get("status")
        if status == "finished":
            metrics[seed] = read_metrics(folder)
        elif status != "diverged" and folder in failed:
            missing[seed] = "failed"
        elif status is not None:
            missing[seed] = status
        elif read_error(folder) is not None:
            missing[seed] = "failed"
        else:
            missing[seed] = "unfinished" if (folder / METRICS).exists() else "not run"
    return CellResult(cell, figure, tuple(seeds), metrics, missing)


def seeds_at_hand(output: Path, cell: Cell) -> list[int]:
    """Return the seeds of a cell that have a folder, in order."""
    folders = (output / cell.run_folder(0)).parent.glob("seed*")
    names = (folder.name.removeprefix("seed") for folder in folders)
    return sorted(int(name) for name in names if name.isdecimal())


def results_table(
    results: Sequence[CellResult], title: str, notes: Sequence[str] = (), *, brief: bool = False
) -> TextTable:
    """Return the table for people, in percent; whether the paper's figures are met where the paper has any.

    `brief`: only as much as fits a terminal of 80 columns, and what is missing below it.
    """
    compared = any(result.paper for result in results)
    columns = ["noise", "method", shown(TEST).title, shown(PRECISION).title]
    columns += [] if compared and brief else [BEST_EPOCH]
    columns += ["re-run"] if any(result.rerun for result in results) and not brief else []
    columns += (["paper", "target"] if brief else ["paper", "difference", "target"]) if compared else []
    columns.append("runs")
    note = (
        f"Test accuracy and label precision: {results[0].figure.text}, "
        f"then mean ± standard deviation (ddof {STD_DDOF}) over runs."
    )
    if BEST_EPOCH in columns:
        note += " Best epoch: chosen by the test labels, so not a result to report."
    if compared and all(result.cell.is_as_long_as_the_papers for result in results):
        note += (
            " Target: the paper's figure is met from max(1.0, 2 · its standard deviation) points below it; the paper's "
            "are over five runs."
            + (
                " The re-run is that of the authors of TAkS, met from one point below it."
                if "re-run" in columns
                else ""
            )
        )
    elif compared:
        note += " Target: none, for these runs have other numbers of epochs than the paper's."
    if brief:
        missing = [result for result in results if result.why_missing]
        notes = [f"{result.cell.title}, {result.cell.noise.title}: {result.why_missing}" for result in missing]
    texts = [result.texts(brief=brief) for result in results]
    return TextTable(
        tuple(name.removeprefix("test ").removeprefix("label ") if brief else name for name in columns),
        [tuple(row[name] for name in columns) for row in texts],
        title=f"{title} (in %)",
        text_columns=2,
        note=("\n" if brief else "\n\n").join([note, *notes]),
    )


def write_tables(results: Sequence[CellResult], experiment: Experiment, folder: Path) -> None:
    """Write table.md and table.csv."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "table.md", results_table(results, experiment.title, experiment.notes).markdown())
    write_text(folder / "table.csv", csv_text(CSV_COLUMNS, [result.csv_row() for result in results]))


def draw_results(results: Sequence[CellResult], path: Path, title: str) -> None:
    """Draw test accuracy and label precision against epochs: a column a noise type, a line a method."""
    panels: dict[str, dict[str, list[list[dict[str, Any]]]]] = {}
    for result in results:
        methods = panels.setdefault(result.cell.noise.title, {})
        if result.metrics:
            methods[result.cell.title] = list(result.metrics.values())
    draw_comparison(panels, path, title)
