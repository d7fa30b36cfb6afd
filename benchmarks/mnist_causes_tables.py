"""The tables of mnist_causes.py, of the runs that are finished."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any

from jocor_fast.files.names import CONFIG, read_json, read_metrics, read_summary
from jocor_fast.methods import METHODS
from jocor_fast.paper.results import PaperResult, paper_result, rerun_result
from jocor_fast.report.summary import best_epoch, last_mean, mean_and_std
from mnist_causes_runs import (
    BALANCED,
    DIFFERENCES,
    DRAWN,
    EIGHTY,
    LAMBDAS,
    NOISES,
    TABLE,
    TAKEN_APART,
    THROUGHOUT,
    Runs,
    by_class,
    collected_rows,
    corrected,
    faulty,
    of_table,
)
from published_faults import FAULTS, SECOND_SOFTMAX
from record import described, machine
from tables import NOT_RUN, csv_text, markdown_table, with_std
from training_runs import least_share_of_a_class

TABLES_BELOW = "<!-- below: python benchmarks/mnist_causes.py --collect -->"
BETA1_TITLE = "β1 .1 from epoch 80"
COLLAPSE = 0.03  # under the median accuracy of all seeds at a λ
SHOWN_EPOCHS = (10, 20, 40, 80, 120, 160, 200)  # of label precision
ASKED = ("recipe", "noise_seed", "seed", "max_batches", "beta1_after", "co_lambda")  # columns of runs.csv


class Finished:
    """The finished runs by name, of `output` or collected before: their metrics and lines of runs.csv."""

    def __init__(self, output: Path, folder: Path) -> None:
        self.runs = Runs()
        self.rows: dict[str, dict[str, Any]] = {**collected_rows(folder)}
        self.metrics = collected_metrics(folder)
        for run in self.runs.in_order():
            place = run.folder(output)
            if place is not None:
                self.metrics[run.name] = read_metrics(place)
            if place == output / run.name:
                self.rows[run.name] = _row(run.name, place, self.metrics[run.name])

    def figures(self, names: Iterable[str], of: str = "test_accuracy") -> list[float]:
        """Return the mean over the last ten epochs of each of the runs that are finished."""
        found = (last_mean(self.metrics[name])[of] for name in names if name in self.metrics)
        return [figure for figure in found if figure is not None]

    def least_share(self, name: str) -> float | None:
        """Return the smallest share of a class's labels that was selected over the last ten epochs; None: not known."""
        if name in self.rows:
            noted = self.rows[name].get("least_share_of_a_class")
            return float(noted) if noted not in (None, "") else None
        return least_share_of_a_class(self.metrics.get(name, ()))


@dataclass(frozen=True)
class Column:
    """A cell of the paper's table, as the column of a table of variants."""

    noise: str
    method: str
    title: str

    def target(self, source: Callable[..., PaperResult | None]) -> PaperResult:
        """Return the cell's figure in the paper, or in the re-run."""
        noise = NOISES[self.noise]
        figure = source("mnist", noise.kind, noise.rate, self.method)
        assert figure is not None
        return figure


def of_noises(method: str) -> list[Column]:
    return [Column(name, method, noise.title) for name, noise in NOISES.items()]


def against(figures: Sequence[float], target: PaperResult) -> str:
    """Return mean, deviation, number of runs where it is not one, and the difference from the target in points."""
    mean, std = mean_and_std(figures)
    if mean is None:
        return NOT_RUN
    number = f" ({len(figures)})" if len(figures) > 1 else ""
    return f"{with_std(mean, std)}{number}: {100 * (mean - target.mean):+.2f}"


def variants(finished: Finished, columns: Sequence[Column], rows: Sequence[tuple[str, Sequence[Sequence[str]]]]) -> str:
    """Return the table: paper and re-run, then for each variant the runs of each column."""
    paper, rerun = ([column.target(source) for column in columns] for source in (paper_result, rerun_result))
    lines = [["the paper", *(with_std(target.mean, target.std) for target in paper), ""]]
    lines.append(["re-run", *(against([ours.mean], target) for ours, target in zip(rerun, paper, strict=True)), ""])
    for title, runs in rows:
        found = [finished.figures(names) for names in runs]
        cells = [against(figures, target) for figures, target in zip(found, paper, strict=True)]
        lines.append([title, *cells, " / ".join(_farthest(found, targets) for targets in (paper, rerun))])
    header = ["", *(column.title for column in columns), "farthest from the paper / from the re-run"]
    return markdown_table(header, lines)


def _farthest(found: Sequence[Sequence[float]], targets: Sequence[PaperResult]) -> str:
    if not all(found):
        return NOT_RUN
    differences = [fmean(figures) - target.mean for figures, target in zip(found, targets, strict=True)]
    return f"{100 * max(differences, key=abs):+.2f}"


def differences(finished: Finished) -> str:
    """Experiment 1."""
    columns, seeds = [], (1, 2, 3)
    for noise, method, co_lambda in TAKEN_APART:
        shown = f" λ {co_lambda or 0.95:g}" if method == "jocor" else ""
        columns.append(Column(noise, method, f"{METHODS[method].title}{shown}, {NOISES[noise].title}"))

    def runs(name: str, recipe: str) -> list[list[str]]:
        found = []
        for noise, method, co_lambda in TAKEN_APART:
            title = method if co_lambda is None else f"{method}-lambda-{co_lambda:g}"
            if name == "paper" and co_lambda is None:
                found.append([of_table(noise, method, seed, recipe) for seed in seeds])
            else:
                found.append([f"1/{noise}/{title}-{name}/seed{seed}" for seed in seeds])
        return found

    titles = {"cap": "at most 401 batches an epoch", "beta1": BETA1_TITLE, "cap-beta1": "both"}
    rows = [("by the paper's text", runs("paper", "paper"))]
    rows += [(titles[name], runs(name, "paper")) for name in DIFFERENCES]
    rows.append(("recipe `published`, the noise drawn for each seed", runs(DRAWN, "paper")))
    published = [
        [of_table(noise, method, seed, "published") for seed in seeds if co_lambda is None]
        for noise, method, co_lambda in TAKEN_APART
    ]
    return variants(finished, columns, [*rows, ("recipe `published`, one draw of the noise", published)])


def faults(finished: Finished) -> str:
    """Experiment 2."""
    titles = {
        "softmax": "the softmax taken twice",
        "division": "the mean over k rows divided by k",
        "fallback": "its fallback where none differ",
    }
    rows = [("none", [[of_table(noise, "coteaching-plus", 1)] for noise in NOISES])]
    rows += [(titles[fault], [[f"2/{noise}/{faulty((fault,))}/seed1"] for noise in NOISES]) for fault in FAULTS]
    together = faulty(FAULTS)
    rows.append(("all three", [[f"2/{noise}/{together}/seed1"] for noise in NOISES]))
    by_recipe = [[f"2/{noise}/{together}-recipe-published/seed1"] for noise in NOISES]
    rows.append(("all three, recipe `published`", by_recipe))
    return variants(finished, of_noises("coteaching-plus"), rows)


def corrections(finished: Finished) -> str:
    """Experiment 3."""
    titles = {"none": "no second softmax", "before": "softmax before T", "after": "softmax after T"}
    rows = []
    for cap, source, second in product(("", "-cap"), ("true", "estimated"), SECOND_SOFTMAX):
        names = [[f"3/{noise}/{corrected(source, second)}{cap}/seed1"] for noise in NOISES]
        if (cap, source, second) == ("", "estimated", "none"):
            names = [[of_table(noise, "f-correction", 1)] for noise in NOISES]
        title = "the true T" if source == "true" else "T estimated"
        rows.append((f"{title}, {titles[second]}{', at most 401 batches' if cap else ''}", names))
    beta1 = [[f"3/{noise}/f-correction-beta1/seed1"] for noise in NOISES]
    rows.append((f"T estimated, no second softmax, {BETA1_TITLE}", beta1))
    return variants(finished, of_noises("f-correction"), rows)


def lambdas(finished: Finished) -> str:
    """Experiment 4."""
    names = {0.95 if co_lambda is None else co_lambda: _of_lambda(co_lambda) for co_lambda in LAMBDAS}
    accuracy, precision = (
        {value: {seed: finished.figures([run], of) for seed, run in runs.items()} for value, runs in names.items()}
        for of in ("test_accuracy", "label_precision")
    )
    together = {value: [figure for figures in of.values() for figure in figures] for value, of in accuracy.items()}
    floors = {value: median(figures) - COLLAPSE if figures else 0.0 for value, figures in together.items()}
    fallen = {
        value: [seed for seed, figures in of.items() if figures and figures[0] < floors[value]]
        for value, of in accuracy.items()
    }
    target = Column(EIGHTY, "jocor", "")
    paper, rerun = target.target(paper_result), target.target(rerun_result)
    rows = [
        ["the paper, λ not told", "", "", with_std(paper.mean, paper.std)],
        ["re-run", "", against([rerun.mean], paper), ""],
    ]
    for seed in range(1, 11):
        cells = []
        for value in names:
            ours, kept = accuracy[value][seed], precision[value][seed]
            mark = " collapsed" if seed in fallen[value] else ""
            cells.append(f"{100 * ours[0]:.2f} ({100 * kept[0]:.1f}){mark}" if ours and kept else NOT_RUN)
        rows.append([f"seed {seed}", *cells])
    rows.append(["all", *(against(figures, paper) for figures in together.values())])
    text = markdown_table(["", *(f"λ {value:g} (label precision)" for value in names)], rows)
    courses = []
    for value, runs in names.items():
        held = [seed for seed, figures in accuracy[value].items() if figures and seed not in fallen[value]]
        groups = {"not collapsed": held, **{f"seed {seed}": [seed] for seed in fallen[value]}}
        for title, seeds in groups.items():
            if seeds:
                courses.append([f"λ {value:g}, {title}", *_course([finished.metrics[runs[seed]] for seed in seeds])])
    if not courses:
        return text
    header = ["label precision after epoch", *map(str, SHOWN_EPOCHS)]
    return f"{text}\nCollapsed: {100 * COLLAPSE:g} points under the median.\n\n{markdown_table(header, courses)}"


def _of_lambda(co_lambda: float | None) -> dict[int, str]:
    if co_lambda is None:
        return {seed: of_table(EIGHTY, "jocor", seed) for seed in range(1, 11)}
    return {seed: f"4/{EIGHTY}/jocor-lambda-{co_lambda:g}/seed{seed}" for seed in range(1, 11)}


def _course(runs: Sequence[Sequence[Mapping[str, Any]]]) -> list[str]:
    by_epoch = [{line["epoch"]: line["label_precision"] for line in metrics} for metrics in runs]
    found = ([course[epoch] for course in by_epoch if course.get(epoch) is not None] for epoch in SHOWN_EPOCHS)
    return [f"{100 * fmean(precisions):.1f}" if precisions else NOT_RUN for precisions in found]


def classes(finished: Finished) -> str:
    """Experiment 6."""
    rows = []
    for recipe, method, seed in BALANCED:
        names = [of_table(EIGHTY, method, seed, recipe)]
        options = ["balanced_ramp", *["selection_per_class"] * ((recipe, method, seed) in THROUGHOUT)]
        names += [f"6/{EIGHTY}/{by_class(method, recipe, option)}/seed{seed}" for option in options]
        cells = [_with_least_share(finished, name) for name in names]
        rows.append([f"{_trained_by(method, recipe)}, seed {seed}", *cells, *[""] * (3 - len(cells))])
    for recipe, method in dict.fromkeys((recipe, method) for recipe, method, _ in BALANCED):
        seeds = [seed for *run, seed in BALANCED if run == [recipe, method]]
        kept = f"6/{EIGHTY}/{by_class(method, recipe, 'balanced_ramp')}"
        found = [[of_table(EIGHTY, method, seed, recipe) for seed in seeds], [f"{kept}/seed{seed}" for seed in seeds]]
        paper = Column(EIGHTY, method, "").target(paper_result)
        cells = [against(finished.figures(names), paper) for names in found]
        rows.append([f"{_trained_by(method, recipe)}, all of these", *cells, ""])
    header = ["", "all classes together", "`--balanced-ramp`", "`--selection-per-class`"]
    return f"{LEAST_SHARE}\n{markdown_table(header, rows)}"


def _trained_by(method: str, recipe: str) -> str:
    return f"{METHODS[method].title}, {'the paper' if recipe == 'paper' else f'recipe `{recipe}`'}"


def _with_least_share(finished: Finished, name: str) -> str:
    figures, share = finished.figures([name]), finished.least_share(name)
    if not figures:
        return NOT_RUN
    return f"{100 * figures[0]:.2f}" + ("" if share is None else f" ({100 * share:.1f})")


def whole_table(finished: Finished) -> str:
    """Experiment 5."""
    rows = []
    for noise, method in product(NOISES, TABLE.methods):
        column = Column(noise, method, "")
        paper, rerun = column.target(paper_result), column.target(rerun_result)
        row = [f"{NOISES[noise].title}, {METHODS[method].title}", with_std(paper.mean, paper.std)]
        row.append(with_std(rerun.mean, None))
        for recipe in ("paper", "published"):
            ours = finished.figures(of_table(noise, method, seed, recipe) for seed in range(1, 6))
            row.append(against(ours, paper))
            met = [
                name for name, target in (("paper", paper), ("re-run", rerun)) if ours and target.met_by(fmean(ours))
            ]
            row.append(" and ".join(met) or ("neither" if ours else ""))
        rows.append(row)
    return markdown_table(
        ["", "the paper", "re-run", "by the paper's text", "meets", "recipe `published`", "meets"], rows
    )


EXPERIMENTS: tuple[tuple[str, Callable[[Finished], str]], ...] = (
    ("1. The two differences of recipe `published`, one at a time (seeds 1 to 3)", differences),
    ("2. The faults of Co-teaching+'s published code, one at a time (seed 1)", faults),
    ("3. F-correction: T, a second softmax, the cap on batches (seed 1)", corrections),
    ("4. JoCoR at symmetric 80 %: ten seeds, three λ", lambdas),
    ("5. The table by both recipes", whole_table),
    ("6. Symmetric 80 %: a class that is dropped, and what keeps it", classes),
)
INTRODUCTION = f"""# Why cells of MNIST's table miss the paper's figures

{TABLES_BELOW}
"""


LEAST_SHARE = """\
In parentheses the smallest share of a class's labels that was selected over the last ten epochs, in %, of which about
20 are kept in all; it was not recorded of the oldest runs.
"""
LEGEND = """\
Test accuracy in %, the mean over the last ten of 200 epochs; of several seeds mean ± standard deviation, their number,
and after the colon the difference from the paper in points. *Re-run*: that of the authors of TAkS. A figure is met from
one point, or two of the paper's standard deviations, below it. Made by `python benchmarks/mnist_causes.py`: each run's
settings are in [runs.csv](runs.csv), the epochs of all runs that are not in
[reproduce-mnist](../reproduce-mnist/README.md) in [epochs.csv.gz](epochs.csv.gz).
"""


def collect(output: Path, folder: Path) -> Path:
    """Write README.md, runs.csv and epochs.csv.gz into a folder, and return it.

    Runs that the folder has already keep their lines where `output` has not made them anew, and README.md what stands
    above the mark of its tables.
    """
    finished = Finished(output, folder)
    folder.mkdir(parents=True, exist_ok=True)
    readme = folder / "README.md"
    above = readme.read_text(encoding="utf-8") if readme.exists() else INTRODUCTION
    text = above.partition(TABLES_BELOW)[0] + TABLES_BELOW + "\n\n"
    text += LEGEND
    for title, table in EXPERIMENTS:
        text += f"\n## {title}\n\n{table(finished)}"
    processors = ", ".join(sorted({row["processor"] for row in finished.rows.values()}))
    foot = f"processors (each run's in runs.csv) {processors}, {described('threads', 'processor', 'cores')}"
    readme.write_text(f"{text}\n{foot}, one thread a run\n", encoding="utf-8")
    names = [run.name for run in finished.runs.in_order() if run.name in finished.rows]
    (folder / "runs.csv").write_text(csv_text([finished.rows[name] for name in names], []), encoding="utf-8")
    (folder / "epochs.csv.gz").write_bytes(gzip.compress(_epochs(finished, names).encode(), mtime=0))
    return folder


def collected_metrics(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the epochs of the runs of a folder's epochs.csv.gz by name."""
    file = folder / "epochs.csv.gz"
    found: dict[str, list[dict[str, Any]]] = {}
    if file.exists():
        with gzip.open(file, "rt", encoding="utf-8", newline="") as lines:
            for row in csv.DictReader(lines):
                shares = {
                    name: float(row[name]) if row[name] else None for name in ("test_accuracy", "label_precision")
                }
                found.setdefault(row["run"], []).append({"epoch": int(row["epoch"]), **shares})
    return found


def _row(name: str, folder: Path, metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    settings = (read_json(folder / CONFIG) or {})["settings"]
    summary, last, best = read_summary(folder), last_mean(metrics), best_epoch(metrics)
    transition = summary.get("transition")
    diagonal = [row[index] for index, row in enumerate(transition)] if transition else []
    return {
        "run": name,
        "epochs": len(metrics),
        "test_accuracy": _rounded(last["test_accuracy"]),
        "label_precision": _rounded(last["label_precision"]),
        "best_epoch": best["epoch"] if best else None,
        "best_test_accuracy": _rounded(best["test_accuracy"]) if best else None,
        "realised_noise_rate": _rounded(summary.get("realised_noise_rate")),
        "least_share_of_a_class": _rounded(least_share_of_a_class(metrics)),
        "mean_of_diagonal_of_t": _rounded(fmean(diagonal)) if diagonal else None,
        **{name: settings.get(name) for name in ASKED},
        "processor": machine()["processor"],
    }


def _epochs(finished: Finished, names: Iterable[str]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("run", "epoch", "test_accuracy", "label_precision"))
    for name in names:
        for line in finished.metrics[name]:
            figures = (_rounded(line["test_accuracy"]), _rounded(line["label_precision"]))
            writer.writerow((name, line["epoch"], *("" if figure is None else figure for figure in figures)))
    return text.getvalue()


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 5)
