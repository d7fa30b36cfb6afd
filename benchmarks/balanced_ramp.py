"""JoCoR with and without `--balanced-ramp`, on drawn noise and on labels that people gave: results/balanced-ramp.

The settings of `jocor-fast reproduce mnist`, `fashion-mnist` and `cifar10n`; at symmetric 80 % also with
`--forget-rate adaptive`. MNIST's runs without it are those committed in results/reproduce-mnist. Runs that are finished
are not repeated; the table is of those in the folder.

    python benchmarks/balanced_ramp.py [--seeds 3] [--data mnist fashion-mnist cifar10n] [--jobs 2]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console

from jocor_fast.files.names import read_metrics, read_summary
from jocor_fast.paper.experiments import EXPERIMENTS, Cell
from jocor_fast.paper.plan import expected_forget_rate
from jocor_fast.paper.run_queue import QueuedRun, make_runs
from jocor_fast.report.summary import last_mean, mean_and_std
from record import RESULTS, described
from tables import csv_text, markdown_table, with_std
from training_runs import least_share_of_a_class

DATA = {
    "mnist": ("symmetric-0.2", "symmetric-0.5", "symmetric-0.8", "asymmetric-0.4"),
    "fashion-mnist": ("symmetric-0.2", "symmetric-0.5", "symmetric-0.8", "pairflip-0.45"),
    "cifar10n": ("aggregate", "random1", "worst"),
}
FOLDER, TABLE = RESULTS / "balanced-ramp", RESULTS / "reproduce-mnist"
HEADER = ("", "τ", "all classes together", "`--balanced-ramp`", "difference, of each seed")


@dataclass(frozen=True)
class Compared:
    """A line of the table: the cell of an experiment, with its τ or one that follows the run."""

    cell: Cell
    adaptive: bool

    @property
    def name(self) -> str:
        return f"{self.cell.dataset}-{self.cell.noise.name}"

    @property
    def tau(self) -> str:
        return "adaptive" if self.adaptive else f"{expected_forget_rate(self.cell.config(1)):.3g}"

    def run(self, balanced: bool, seed: int, work: Path) -> QueuedRun:
        """Return a run, in its folder below `work`, or among MNIST's committed ones where it is finished there."""
        settings = {**self.cell.run_settings(seed), "device": "cpu"}
        changes: dict[str, Any] = {"forget_rate": "adaptive"} if self.adaptive else {}
        changes |= {"balanced_ramp": True} if balanced else {}
        title = "jocor" + "-adaptive" * self.adaptive + "-balanced-ramp" * balanced
        folder = work / self.name / title / f"seed{seed}"
        if not changes and read_summary(TABLE / self.cell.run_folder(seed)).get("status") == "finished":
            folder = TABLE / self.cell.run_folder(seed)
        run = QueuedRun(f"{self.name}, {title}, seed {seed}", folder, {**settings, **changes}, epochs=0)
        run.epochs, run.epochs_done = self.cell.config(seed).training.epochs, run.epochs_on_disk()
        return run


def compared(data: Sequence[str]) -> Iterator[Compared]:
    for name in data:
        experiment = EXPERIMENTS[name]
        noises = {noise.name: noise for noise in experiment.noises}
        for noise in DATA[name]:
            (cell,) = experiment.cells(["jocor"], [noises[noise]])
            yield Compared(cell, adaptive=False)
            if noise == "symmetric-0.8":
                yield Compared(cell, adaptive=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="seeds 1 to N")
    parser.add_argument("--data", nargs="+", default=list(DATA), choices=list(DATA), help="train on these")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, each with one thread")
    parser.add_argument("--work", type=Path, default=Path("runs/balanced-ramp"), help="folder of the runs")
    arguments = parser.parse_args()
    seeds = range(1, arguments.seeds + 1)
    chosen = [
        line.run(balanced, seed, arguments.work)
        for seed, line, balanced in product(seeds, compared(arguments.data), (True, False))
    ]
    left = [run for run in chosen if not run.is_finished]
    make_runs(left, chosen, jobs=arguments.jobs, threads=1, console=Console())
    write([row for line in compared(list(DATA)) for row in found(line, seeds, arguments.work)])
    if failed := [run for run in left if run.error is not None]:
        raise SystemExit(f"{failed[0].name} failed: {failed[0].error}")


def found(line: Compared, seeds: Sequence[int], work: Path) -> Iterator[dict[str, Any]]:
    """Yield the figures of those of a line's runs that are finished."""
    for balanced, seed in product((False, True), seeds):
        run = line.run(balanced, seed, work)
        if run.is_finished:
            metrics = read_metrics(run.folder)
            means = {**last_mean(metrics), "least_share_of_a_class": least_share_of_a_class(metrics)}
            figures = {of: None if mean is None else round(mean, 5) for of, mean in means.items()}
            yield {"data": line.name, "tau": line.tau, "balanced_ramp": balanced, "seed": seed, **figures}


def write(rows: Sequence[dict[str, Any]]) -> None:
    """Write the runs of the folder, and their table."""
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "runs.csv").write_text(csv_text(rows, ["the means over the last ten epochs"]), encoding="utf-8")
    lines = []
    for name, tau in dict.fromkeys((row["data"], row["tau"]) for row in rows):
        sides = [
            {
                row["seed"]: row
                for row in rows
                if (row["data"], row["tau"], row["balanced_ramp"]) == (name, tau, balanced)
            }
            for balanced in (False, True)
        ]
        both = sorted(sides[0].keys() & sides[1].keys())
        gains = [sides[1][seed]["test_accuracy"] - sides[0][seed]["test_accuracy"] for seed in both]
        shown = ", ".join(f"{100 * gain:+.2f}" for gain in gains)
        lines.append([name, tau, *(_figures([side[seed] for seed in both]) for side in sides), shown])
    foot = f"{described('threads')}, one thread a run; MNIST's runs without it are those of results/reproduce-mnist"
    text = (
        "JoCoR's test accuracy in %, the mean of the last ten epochs; in parentheses the smallest share of a class's\n"
        f"labels that one of the seeds selected over them, in %.\n\n{markdown_table(HEADER, lines)}\n{foot}\n"
    )
    (FOLDER / "balanced-ramp.md").write_text(text, encoding="utf-8")
    print(text)


def _figures(runs: Sequence[dict[str, Any]]) -> str:
    shares = [run["least_share_of_a_class"] for run in runs if run["least_share_of_a_class"] is not None]
    shown = with_std(*mean_and_std(run["test_accuracy"] for run in runs))
    return shown + (f" ({100 * min(shares):.1f})" if shares else "")


if __name__ == "__main__":
    main()
