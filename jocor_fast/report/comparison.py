"""Runs side by side: which of them belong together, what tells the others apart, and their numbers in a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jocor_fast.files.names import CONFIG, FIRST_STAGE, METRICS, read_json, read_metrics
from jocor_fast.methods import METHODS
from jocor_fast.noise_kinds import Noise
from jocor_fast.report.metrics import PRECISION, TEST, VALIDATION, shown
from jocor_fast.report.summary import STD_DDOF, best_by_validation, last_mean, last_validation, mean_and_std
from jocor_fast.report.tables import TextTable, percent_with_std

# Runs that differ in these alone are repetitions, drawn as one line with its standard deviation.
REPEATED = ("seed", "noise_seed", "device")
DATA = ("dataset", "labels", "noise_matrix", "noise", "noise_rate")
# What tells lines apart, where it does; then any other setting.
TOLD_FIRST = ("method", "co_lambda", "recipe", "model", "forget_rate")
SYMBOLS = {"co_lambda": "λ", "forget_rate": "τ"}

Metrics = Sequence[Mapping[str, Any]]
BEST = "best_by_validation"
# What a run is compared by: the name in files, and the number of its lines of metrics.jsonl.
FIGURES: Mapping[str, Callable[[Metrics], float | None]] = {
    TEST: lambda metrics: last_mean(metrics)[TEST],
    VALIDATION: last_validation,
    PRECISION: lambda metrics: last_mean(metrics)[PRECISION],
    BEST: lambda metrics: (best_by_validation(metrics) or {}).get(TEST),
}
COLUMNS = ("data", "name", "runs", *(name + end for name in FIGURES for end in ("", "_std")), "ddof", "missing")


@dataclass(frozen=True)
class ComparedRun:
    """A run read back: its folder, its lines of metrics.jsonl and the settings of config.json."""

    folder: Path
    metrics: list[dict[str, Any]]
    settings: Mapping[str, Any]

    @property
    def data_title(self) -> str:
        """What it was trained on, such as "mnist, Symmetry-50%"; runs of one title share a column."""
        dataset, rate = self.settings.get("dataset"), self.settings.get("noise_rate")
        if dataset is None:
            return "own data"  # jf.train keeps no account of arrays
        source = self.settings.get("labels") or self.settings.get("noise_matrix")
        if source is not None:
            return f"{dataset}, {source}"
        if rate:
            return f"{dataset}, {Noise(self.settings['noise'], rate).title}"
        return f"{dataset}, no noise added" if self.settings.get("noise") == "clean" else str(dataset)


@dataclass(frozen=True)
class Line:
    """A row of the table of a comparison, and a line of its figure: runs that differ only in their seeds.

    Attributes:
        data, name: what they were trained on, and what tells them from the others.
        runs: the lines of metrics.jsonl of each.
        counted: how many there are, for people; "": all.
        missing: why some are missing, "" where none is.
    """

    data: str
    name: str
    runs: Sequence[Metrics]
    counted: str = ""
    missing: str = ""

    def row(self) -> dict[str, Any]:
        """Return the row by `COLUMNS`, in fractions; None where a run has no such number."""
        row: dict[str, Any] = {"data": self.data, "name": self.name, "runs": len(self.runs)}
        for name, figure in FIGURES.items():
            values = [value for value in map(figure, self.runs) if value is not None]
            row[name], row[f"{name}_std"] = mean_and_std(values if len(values) == len(self.runs) else ())
        return row | {"ddof": STD_DDOF, "missing": self.missing}


def lines_of(panels: Mapping[str, Mapping[str, Sequence[Metrics]]]) -> list[Line]:
    """Return the lines of what `curves.draw_comparison` takes."""
    return [Line(data, name, runs) for data, lines in panels.items() for name, runs in lines.items()]


def comparison_table(lines: Sequence[Line], title: str, notes: Sequence[str] = ()) -> TextTable:
    """Return the table for people, in percent, with the columns that have something to say."""
    rows = [line.row() for line in lines]
    known = [name for name in FIGURES if any(row[name] is not None for row in rows)]
    if TEST in known and VALIDATION in known:
        known.remove(VALIDATION)  # it chooses the epoch; what counts is the test accuracy there
    several = len({line.data for line in lines}) > 1
    headings = {**{name: shown(name).title for name in FIGURES}, BEST: "best by validation"}
    averaged = "Means over the last ten epochs of each run (all, of a shorter one)"
    texts = [f"{averaged}, then mean ± standard deviation (ddof {STD_DDOF}) over runs."]
    if BEST in known:
        texts.append("Best by validation: test accuracy at each run's epoch of the best validation accuracy.")
    texts += [f"{line.name}: {line.missing}." for line in lines if line.missing]
    return TextTable(
        (*["data"] * several, "", *(headings[name] for name in known), "runs"),
        [
            (
                *[line.data] * several,
                line.name,
                *(percent_with_std(row[name], row[f"{name}_std"]) for name in known),
                line.counted or str(row["runs"]),
            )
            for line, row in zip(lines, rows, strict=True)
        ],
        title=f"{title} (in %)",
        text_columns=1 + several,
        note="\n".join([*texts, *notes]),
    )


def find_runs(folder: Path) -> list[ComparedRun]:
    """Return the run in a folder, or those below it in the order of their names; none where there is none.

    The first stage of a run counts only where its own folder is given.
    """
    found = [folder]
    if not (folder / METRICS).is_file():
        found = sorted(path.parent for path in folder.rglob(METRICS) if path.parent.name != FIRST_STAGE)
    return [ComparedRun(path, read_metrics(path), _settings(read_json(path / CONFIG) or {})) for path in found]


def _settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings as they were asked for: where τ follows from the labels, it differs with each seed."""
    settings = config.get("settings", {})
    if config.get("noise_estimate") is not None:
        return {**settings, "forget_rate": "estimated"}
    followed = config.get("sources", {}).get("forget_rate") == "default"
    return {**settings, "forget_rate": "default"} if followed else settings


def grouped(runs: Sequence[ComparedRun]) -> dict[str, dict[str, list[list[dict[str, Any]]]]]:
    """Return what `curves.draw_comparison` takes: {data: {what tells the runs apart: [metrics of each repetition]}}."""
    panels: dict[str, dict[str, list[list[dict[str, Any]]]]] = {}
    for title in dict.fromkeys(run.data_title for run in runs):
        members = [run for run in runs if run.data_title == title]
        for run, name in zip(members, _line_names(members), strict=True):
            panels.setdefault(title, {}).setdefault(name, []).append(run.metrics)
    return panels


def _line_names(runs: Sequence[ComparedRun]) -> list[str]:
    """Return the settings that tell each run from the others, as few as do: "JoCoR", "JoCoR, λ 0.9", "lr 0.01"."""
    left_out = (*REPEATED, *DATA)
    others = dict.fromkeys(name for run in runs for name in run.settings if name not in (*left_out, *TOLD_FIRST))
    texts: list[list[str]] = [[] for _ in runs]
    kinds = [tuple(str(run.settings.get(name)) for name in (*TOLD_FIRST, *others)) for run in runs]
    for name in (*TOLD_FIRST, *others):
        if len(set(map(tuple, texts))) == len(set(kinds)):
            break
        values = [_text(name, run.settings.get(name)) for run in runs]
        longer = [[*text, value] for text, value in zip(texts, values, strict=True)]
        if len(set(map(tuple, longer))) > len(set(map(tuple, texts))):
            texts = longer
    methods = [_text("method", run.settings.get("method")) for run in runs]
    return [", ".join(text) if text else method for text, method in zip(texts, methods, strict=True)]


def _text(name: str, value: Any) -> str:
    if name == "method":
        return METHODS[value].title if value in METHODS else str(value)
    shown = f"{value:.4g}" if isinstance(value, float) and math.isfinite(value) else str(value)
    return shown if name == "recipe" else f"{SYMBOLS.get(name, name.replace('_', ' '))} {shown}"
