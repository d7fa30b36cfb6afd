"""Test accuracy and label precision against epochs, as in the paper's figures.

Drawn with matplotlib's object interface on the Agg canvas: no display is needed, and a caller's pyplot is left alone.
It is imported where something is drawn: that takes half a second, for which importing this package has no use.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jocor_fast.files.whole_file import write_bytes
from jocor_fast.report.metrics import FORGET_RATE, LOSS, PRECISION, TEST, VALIDATION, added_metrics, shown
from jocor_fast.report.summary import mean_and_std

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Metrics = Sequence[Mapping[str, Any]]

ROWS = (TEST, PRECISION)  # of the paper's figures; the loss is drawn for runs of which neither is known
PANEL_INCHES = (4.2, 2.8)
MARKER_EPOCHS = 3  # a line through so few points is hard to see without markers


def draw_curves(metrics: Metrics, path: str | os.PathLike[str]) -> None:
    """Draw one run: test accuracy (and validation accuracy where there is one) above, label precision below.

    A run of one epoch becomes a dot. What no epoch has is omitted; where that is all, the training loss is drawn.
    An adaptive forget rate, and metrics that are none of this version's own, have a row each.

    Args:
        metrics: a dict an epoch: epoch, test_accuracy, label_precision, val_accuracy (fractions, or None).
        path: the image to write; its ending gives the format.
    """
    validated = _has([metrics], VALIDATION)
    rows = _rows([metrics])
    if validated:
        rows = [TEST, *(field for field in rows if field not in (TEST, LOSS))]
    figure, axes = _panels(rows, columns=1)
    for axis, field in zip(axes[:, 0], rows, strict=True):
        both = validated and field == TEST
        _draw_line(axis, [metrics], field, name="test" if both else "", color="C0")
        if both:
            _draw_line(axis, [metrics], VALIDATION, name="validation", color="C1", style="--")
            axis.legend(fontsize="small")
        _finish(axis, "accuracy (%)" if both else shown(field).axis_label)
    save_figure(figure, path)


def draw_comparison(
    panels: Mapping[str, Mapping[str, Sequence[Metrics]]], path: str | os.PathLike[str], title: str = ""
) -> None:
    """Draw methods against each other: a column a noise type, a line a method, shaded by ± one standard deviation.

    The rows are those of `draw_curves`; where a column has no value of a row that others have, it says "n/a".

    Args:
        panels: {column title: {method: [metrics of each run]}}; where runs differ in length, an epoch is averaged over
            those that reached it.
        path: the image to write; its ending gives the format.
    """
    rows = _rows([run for methods in panels.values() for runs in methods.values() for run in runs])
    figure, axes = _panels(rows, columns=max(len(panels), 1))
    names = list(dict.fromkeys(method for methods in panels.values() for method in methods))
    for column, (heading, methods) in enumerate(panels.items()):
        for axis, field in zip(axes[:, column], rows, strict=True):
            for method, runs in methods.items():
                _draw_line(axis, runs, field, name=as_drawn(method), color=f"C{names.index(method)}")
            _finish(axis, shown(field).axis_label if column == 0 else "")
        axes[0, column].set_title(as_drawn(heading), fontsize="medium")
    lines = {line.get_label(): line for axis in axes.flat for line in axis.lines}
    if lines:  # one legend for all panels, below them: within a panel it would hide curves
        figure.legend(
            lines.values(), lines.keys(), loc="outside lower center", ncols=3 * axes.shape[1], fontsize="small"
        )
    save_figure(figure, path, title)


def as_drawn(text: str) -> str:
    """Return a foreign name for a figure: a dollar in it begins no formula, and what cannot be drawn is a "?"."""
    return "".join(letter if letter.isprintable() else "?" for letter in text).replace("$", r"\$")


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of so many inches, on the Agg canvas."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: str | os.PathLike[str], title: str = "") -> None:
    """Write the picture; its path's ending gives the format."""
    target, picture = Path(path), io.BytesIO()
    if title:
        figure.suptitle(title, fontsize="medium")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # a script that the font lacks is drawn as boxes
        figure.savefig(picture, dpi=120, format=target.suffix.removeprefix("."))
    write_bytes(target, picture.getvalue())


def _rows(runs: Sequence[Metrics]) -> list[str]:
    """Return the metrics to draw of these runs."""
    rows = [field for field in ROWS if _has(runs, field)] or ([LOSS] if _has(runs, LOSS) else list(ROWS))
    rows += [FORGET_RATE] * _has(runs, FORGET_RATE)
    return rows + added_metrics(line for metrics in runs for line in metrics)


def _has(runs: Sequence[Metrics], field: str) -> bool:
    return any(line.get(field) is not None for metrics in runs for line in metrics)


def _panels(rows: Sequence[str], columns: int) -> tuple[Figure, np.ndarray]:
    figure = new_figure(PANEL_INCHES[0] * columns + 0.6, PANEL_INCHES[1] * len(rows))
    axes = figure.subplots(len(rows), columns, sharex=True, squeeze=False)
    for axis in axes[-1]:
        axis.set_xlabel("epoch")
    return figure, axes


def _draw_line(axis: Axes, runs: Sequence[Metrics], field: str, *, name: str, color: str, style: str = "-") -> None:
    """Draw the mean over the runs that have a value at an epoch, shaded by ± one standard deviation of several."""
    import numpy as np

    by_epoch: dict[int, list[float]] = {}
    scale = 100.0 if shown(field).fraction else 1.0
    for metrics in runs:
        for line in metrics:
            if line.get(field) is not None:
                by_epoch.setdefault(int(line["epoch"]), []).append(scale * float(line[field]))
    if not by_epoch:
        return
    epochs = sorted(by_epoch)
    statistics = [mean_and_std(by_epoch[epoch]) for epoch in epochs]
    means = np.array([mean for mean, _ in statistics], dtype=float)
    stds = np.array([std or 0.0 for _, std in statistics], dtype=float)
    marker = "o" if len(epochs) < MARKER_EPOCHS else ""
    axis.plot(epochs, means, style, color=color, label=name, marker=marker, markersize=4, linewidth=1.4)
    if stds.any():
        bounds = np.array([means - stds, means + stds])
        if shown(field).fraction or field == LOSS:  # no run has less than 0 or more than all
            bounds = np.clip(bounds, 0.0, 100.0 if shown(field).fraction else np.inf)
        axis.fill_between(epochs, *bounds, color=color, alpha=0.25, linewidth=0)


def _finish(axis: Axes, label: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_ylabel(label)
    axis.grid(alpha=0.3)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))  # a run of one epoch has one tick
    if not axis.lines:
        axis.text(0.5, 0.5, "n/a", transform=axis.transAxes, ha="center", va="center", color="gray")
        axis.set_yticks([])
