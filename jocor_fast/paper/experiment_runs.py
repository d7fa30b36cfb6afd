"""The runs of an experiment, from what a command line asks for to what became of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from jocor_fast.data.dataset import DataShape
from jocor_fast.errors import ConfigError, RunError
from jocor_fast.machine import usable_cores
from jocor_fast.methods import METHODS
from jocor_fast.paper.experiments import Cell
from jocor_fast.paper.reproduction import CellResult, Figure, read_cell, seeds_at_hand
from jocor_fast.paper.run_queue import QueuedRun, check_earlier_run, make_runs
from jocor_fast.report.screen import counted, listed, say
from jocor_fast.schedules import trained_epochs

if TYPE_CHECKING:
    import torch

MOST_SEEDS = 1000  # two hundred times the paper's; every run is listed before the first one starts


@dataclass(frozen=True)
class ExperimentRuns:
    """What a command line asks for.

    Attributes:
        title, notes: what is compared, and what a reader must know.
        chosen: the cells to run.
        cells: all that the table shows.
        seeds: those to run.
        output: the folder of the runs.
        threads: CPU threads of each run.
        figure: what a run stands for in the table.
        shape: of the data, where the data set's entry does not say it.
    """

    title: str
    notes: Sequence[str]
    chosen: Sequence[Cell]
    cells: Sequence[Cell]
    seeds: range
    output: Path
    threads: int
    figure: Figure = field(default_factory=Figure)
    shape: DataShape | None = None

    def read(self, runs: Sequence[QueuedRun]) -> list[CellResult]:
        """Return every cell of the table, from the files of its runs; of `runs` it is known which have failed.

        The seeds of a cell are those to run, and whatever else is there already.
        """
        failed, results = {run.folder for run in runs if run.error is not None}, []
        for cell in self.cells:
            asked = set(self.seeds) if cell in self.chosen else set[int]()
            seeds = sorted(asked.union(seeds_at_hand(self.output, cell))) or self.seeds
            results.append(read_cell(self.output, cell, seeds, self.figure, failed))
        return results

    def make(
        self,
        *,
        jobs: int,
        dry_run: bool,
        console: Console,
        load: Callable[[], None],
        write: Callable[[Sequence[CellResult]], None],
        report: Callable[[Sequence[CellResult]], None],
        run_figure: Callable[[QueuedRun], str] | None = None,
    ) -> None:
        """Make the runs that are missing and report all of them; of a dry run, print the plan.

        Args:
            jobs: how many at a time.
            dry_run: whether to print the plan instead.
            console: where it is shown.
            load: called once before the first run: what is absent or unknown is said at once, and no two runs download
                the same.
            write: writes the tables, whenever a run has ended.
            report: the same at the end, and whatever else is made of the results.
            run_figure: as for `make_runs`.

        Raises:
            ConfigError, RunError: before the first run, where a setting is wrong or another run is in the way; after
                the report, where runs have failed.
        """
        runs = [_queued(cell, seed, self.output) for seed in self.seeds for cell in self.chosen]
        for cell in self.cells:
            for seed in seeds_at_hand(self.output, cell):
                check_earlier_run(self.output / cell.run_folder(seed), cell.config(seed))
        left = [run for run in runs if not run.is_finished]
        together = listed(dict.fromkeys(cell.title for cell in self.chosen), "and")
        seeds = f"seeds 1 to {len(self.seeds)}" if len(self.seeds) > 1 else "seed 1"
        for line in (f"{self.title}: {together}, {seeds}", *self.notes):
            say(console, line)
        if dry_run:
            from jocor_fast.paper.plan import print_plan

            print_plan(
                self.chosen,
                self.seeds,
                self.output,
                runs,
                jobs=jobs,
                threads=self.threads,
                console=console,
                shape=self.shape,
            )
            return
        if left:
            jobs = min(len(left), jobs)
            done = len(runs) - len(left)
            finished = f" ({done} of {len(runs)} {'is' if done == 1 else 'are'} finished already)" if done else ""
            say(console, f"{counted(len(left), 'run')}{finished}, {jobs} at a time, in {self.output}")
            load()
            make_runs(
                left,
                runs,
                jobs=jobs,
                threads=self.threads,
                console=console,
                figure=run_figure,
                on_end=lambda: write(self.read(left)),
            )
        else:
            say(console, f"all {len(runs)} runs are finished already")
        report(self.read(left))
        failed = [run for run in left if run.error is not None]
        if failed:
            raise RunError(f"{len(failed)} of {len(left)} runs failed, first {failed[0].name}: {failed[0].error}")


def parse_methods(text: str, known: Iterable[str] = METHODS) -> tuple[str, ...]:
    """Return the methods that --methods names, each once; "all" names those that are known."""
    if text.strip() == "all":
        return tuple(known)
    chosen = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in chosen:
        if name not in known:
            raise ConfigError(f"--methods must name some of {', '.join(known)}, got {name!r}")
    return chosen


def default_jobs(device: torch.device, *, threads: int, gigabytes: float, gpu_runs: int) -> int:
    """Return as many runs as the CPU has cores and memory for; on a GPU those that share one, with a core each."""
    cores = usable_cores()
    if device.type == "cuda":
        return min(cores, gpu_runs)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return max(1, min(cores // threads, int(memory / gigabytes)))


def _queued(cell: Cell, seed: int, output: Path) -> QueuedRun:
    training = cell.config(seed).training
    epochs = len(METHODS[cell.method].stages) * trained_epochs(training.epochs, training.recipe)
    name = f"{cell.title}, {cell.noise.title}, seed {seed}"
    run = QueuedRun(name, output / cell.run_folder(seed), cell.run_settings(seed), epochs)
    run.epochs_done = epochs if run.is_finished else run.epochs_on_disk()
    return run
