"""The picture of the loss benches: time against shape, a line a contender."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from cases import LOSS_CONTENDERS

Row = Mapping[str, Any]
WORK = "forward + backward"


def draw_panel(axis: Axes, rows: Sequence[Row], dtype: str) -> None:
    """Forward and backward, warm, in one type: GPU time where there is one, else the time on the wall."""
    shown = [row for row in rows if (row["dtype"], row["work"], row["cache"]) == (dtype, WORK, "warm")]
    shapes = sorted({row["shape"] for row in shown}, key=logits_in)
    clock = "gpu" if any(row["gpu_us"] is not None for row in shown) else "wall"
    for name in LOSS_CONTENDERS:
        times = {row["shape"]: row[f"{clock}_us"] for row in shown if row["contender"] == name}
        known = [number for number, shape in enumerate(shapes) if times.get(shape) is not None]
        if known:
            axis.plot(known, [times[shapes[number]] for number in known], marker="o", label=name)
    axis.set_xticks(range(len(shapes)), shapes, rotation=30)
    axis.set(yscale="log", xlabel="rows x classes", ylabel=f"{clock} time, µs", title=f"{WORK}, {dtype}, warm")
    axis.grid(alpha=0.3)


def logits_in(shape: str) -> int:
    """ "128x10": the number of logits."""
    rows, classes = shape.split("x")
    return int(rows) * int(classes)


def draw_figures(rows: Sequence[Row], path: Path, caption: str) -> None:
    """Forward and backward, warm, in each type that was measured; no picture where none was."""
    types = sorted({row["dtype"] for row in rows if (row["work"], row["cache"]) == (WORK, "warm")}, reverse=True)
    if not types:
        return
    figure, axes = plt.subplots(1, len(types), figsize=(6.5 * len(types), 4), squeeze=False)
    for axis, dtype in zip(axes[0], types, strict=True):
        draw_panel(axis, rows, dtype)
        axis.legend(fontsize=7)
    finish(figure, path, caption)


def finish(figure: Any, path: Path, caption: str) -> None:
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.text(0.01, 0.01, caption, fontsize=6, wrap=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
