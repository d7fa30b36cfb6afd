"""Noise matrices as heat maps: what each class is labelled, in percent."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jocor_fast.noise.estimate import pair_counts
from jocor_fast.report.curves import as_drawn, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANEL_INCHES = 4.6
NUMBERED_CLASSES = 12  # with more, a number in each field cannot be read
NAMED_CLASSES = 30
LONGEST_NAME = 24  # letters


def realised_matrix(clean: np.ndarray, noisy: np.ndarray, num_classes: int) -> np.ndarray:
    """Return Q[i, j], the share of class i that is labelled j: float64 [C, C]; 0 for a class without samples.

    Args:
        clean: int64 [N], the true class numbers.
        noisy: int64 [N], the labels given.
        num_classes: C.
    """
    counts = pair_counts(clean, noisy, num_classes)
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)


def draw_noise_matrices(
    matrices: Mapping[str, np.ndarray], path: str | os.PathLike[str], classes: Sequence[str] | None = None
) -> None:
    """Draw matrices side by side, all on one scale from 0 to 100 %.

    Args:
        matrices: {title: Q [C, C]}, the true class by row.
        path: the image to write; its ending gives the format.
        classes: names of the classes; None: their numbers.
    """
    figure = new_figure(PANEL_INCHES * len(matrices) + 0.8, PANEL_INCHES)
    panels = figure.subplots(1, len(matrices), squeeze=False)[0]
    for axis, (title, matrix) in zip(panels, matrices.items(), strict=True):
        image = axis.imshow(100 * matrix, cmap="Blues", vmin=0, vmax=100)
        axis.set_title(as_drawn(title), fontsize="medium")
        axis.set_xlabel("given label")
        axis.set_ylabel("true class")
        if len(matrix) <= NAMED_CLASSES:
            _name_classes(axis, len(matrix), classes)
        if len(matrix) <= NUMBERED_CLASSES:
            _write_numbers(axis, 100 * matrix)
    figure.colorbar(image, ax=list(panels), label="%", shrink=0.8)
    save_figure(figure, Path(path))


def _name_classes(axis: Axes, count: int, classes: Sequence[str] | None) -> None:
    whole = map(str, range(count)) if classes is None else classes
    # A longer name would leave no room for the matrix.
    names = [as_drawn(name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…") for name in whole]
    axis.set_xticks(range(count), names, rotation=0 if max(map(len, names)) <= 2 else 90, fontsize="small")
    axis.set_yticks(range(count), names, fontsize="small")


def _write_numbers(axis: Axes, percents: np.ndarray) -> None:
    for (row, column), value in np.ndenumerate(percents):
        if value >= 0.5:
            color = "white" if value > 60 else "black"
            axis.text(column, row, f"{value:.0f}", ha="center", va="center", color=color, fontsize="small")
