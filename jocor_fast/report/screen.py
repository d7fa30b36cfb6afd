"""What a training run shows: a progress bar on a terminal, a line an epoch elsewhere, and a table at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from .results import best_epoch
from .tables import NOT_AVAILABLE, TextTable, percent

REFRESH_SECONDS = 0.1  # a step can take a third of a millisecond: drawing each would cost more than the step
NARROW, WIDE = 60, 80  # terminal widths under which the bar and most figures, or the loss, are left out


class TrainingProgress:
    """Shows a run of `epochs` epochs on a console: a context manager whose `on_step` and `on_epoch` the engine calls.

    On a terminal that can redraw a line it is one bar with the latest figures and the time left; elsewhere (a file, a
    pipe, TERM=dumb) every epoch prints one line.
    """

    def __init__(self, console: Console, epochs: int) -> None:
        self.console = console
        self.epochs = epochs
        self.epochs_shown = 0
        self._drawn = 0.0
        self._bar: Progress | None = None
        if console.is_interactive:
            self._bar = Progress(*_columns(console.width), console=console, transient=True, expand=True)
            self._task = self._bar.add_task("", total=epochs, epoch=0, figures="")

    def __enter__(self) -> TrainingProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    @property
    def wants_steps(self) -> bool:
        """Whether `on_step` draws anything."""
        return self._bar is not None

    def on_stage(self, stage: str) -> None:
        """Begin a stage of a run that has several: the epochs count from 1 again."""
        if self._bar is None:
            self.console.print(Text(stage), soft_wrap=True)
            self.console.file.flush()
        else:
            self._bar.reset(self._task, description=f"{stage.partition(':')[0]} ", epoch=0, figures="")

    def on_step(self, epoch: int, done: int, steps: int) -> None:
        """Move the bar within an epoch."""
        now = time.monotonic()
        if self._bar is not None and now - self._drawn >= REFRESH_SECONDS:
            self._drawn = now
            self._bar.update(self._task, completed=epoch - 1 + done / steps, epoch=epoch)

    def on_epoch(self, metrics: Mapping[str, Any]) -> None:
        """Show a finished epoch's line of metrics."""
        epoch = metrics["epoch"]
        self.epochs_shown += 1
        if self._bar is None:
            self.console.print(Text(epoch_line(metrics, self.epochs)), soft_wrap=True)
            self.console.file.flush()
        else:
            self._bar.update(self._task, completed=epoch, epoch=epoch, figures=_figures(metrics, self.console.width))


def epoch_line(metrics: Mapping[str, Any], epochs: int) -> str:
    """ "epoch  12/200  loss 0.4312  test 95.12 %  label precision 93.40 %  kept 50 %  0.7 s"."""
    parts = [
        f"epoch {metrics['epoch']:>{len(str(epochs))}}/{epochs}",
        f"loss {_loss(metrics['train_loss'])}",
        f"test {_percent_sign(metrics['test_accuracy'])}",
        f"label precision {_percent_sign(metrics['label_precision'])}",
        f"kept {100 * metrics['keep_rate']:.0f} %",
        f"{metrics['seconds'] + metrics['eval_seconds']:.1f} s",
    ]
    if metrics.get("val_accuracy") is not None:
        parts.insert(3, f"validation {_percent_sign(metrics['val_accuracy'])}")
    if metrics.get("nonfinite_rows"):
        parts.append(f"{metrics['nonfinite_rows']} rows with a non-finite loss")
    return "  ".join(parts)


def final_table(metrics: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> TextTable:
    """Best epoch, mean of the last ten and last epoch side by side: test accuracy and label precision in percent.

    Where there is a validation set, the epoch that it chose stands beside them.
    """
    last, mean, best = metrics[-1], summary["last_10_mean"], best_epoch(metrics)
    averaged = {**mean, "epoch": f"{last['epoch'] - mean['epochs'] + 1} to {last['epoch']}"}
    columns = {"best epoch": best or {}, f"mean of last {mean['epochs']}": averaged, "last epoch": last}
    rows = {"test accuracy": "test_accuracy", "label precision": "label_precision"}
    chosen = summary["best_by_validation"]
    if chosen is not None:
        columns["by validation"] = next((line for line in metrics if line["epoch"] == chosen["epoch"]), chosen)
        rows["validation"] = "val_accuracy"
    return TextTable(
        ("", *columns),
        [
            ("epoch", *(str(values.get("epoch", NOT_AVAILABLE)) for values in columns.values())),
            *(
                (heading, *(_percent_sign(values.get(name)) for values in columns.values()))
                for heading, name in rows.items()
            ),
        ],
        note="Best epoch: chosen by the test labels, so not a result to report." if best else "",
    )


def _columns(width: int) -> list[ProgressColumn]:
    columns: list[ProgressColumn] = [TextColumn("{task.description}epoch {task.fields[epoch]}/{task.total:.0f}")]
    if width >= NARROW:
        columns.append(BarColumn(bar_width=None))
    return [*columns, TextColumn("{task.fields[figures]}"), TimeRemainingColumn(compact=True), TextColumn("left")]


def _figures(metrics: Mapping[str, Any], width: int) -> str:
    test = f"test {_percent_sign(metrics['test_accuracy'])}"
    if width < NARROW:
        return test
    figures = f"{test}  precision {_percent_sign(metrics['label_precision'])}"
    return figures if width < WIDE else f"loss {_loss(metrics['train_loss'])}  {figures}"


def _percent_sign(fraction: float | None) -> str:
    return NOT_AVAILABLE if fraction is None else f"{percent(fraction)} %"


def _loss(loss: float | None) -> str:
    return NOT_AVAILABLE if loss is None else f"{loss:.4f}"
