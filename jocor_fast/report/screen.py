"""What commands print: lines as they are; progress as a bar on a terminal, as lines elsewhere; a run's last table."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import Console
from rich.text import Text

from jocor_fast._deferred import DeferredModule
from jocor_fast.report.metrics import FORGET_RATE, LOSS, PRECISION, TEST, VALIDATION, added_metrics, shown
from jocor_fast.report.summary import best_epoch
from jocor_fast.report.tables import NOT_AVAILABLE, TextTable, duration

if TYPE_CHECKING:
    from rich import progress
else:
    progress = DeferredModule("rich.progress")

REFRESH_SECONDS = 0.1  # a step can take a third of a millisecond: drawing each would cost more than the step
NARROW, WIDE = 60, 80  # terminal widths under which the bar and most figures, or the loss, are left out
VERY_WIDE = 110  # from here on there is room for both the speed of a run on files and the loss
SPEED_SECONDS = 2.0  # that the speed shown is measured over
SILENCE_SECONDS = 15.0  # between lines where nothing can be redrawn


def say(console: Console, text: str) -> None:
    """Print a line as it is: it is not wrapped, and no part of it is read as markup or as an emoji's name."""
    Heartbeat.last_line = time.monotonic()
    console.print(Text(visible(text)), soft_wrap=True)


class Heartbeat:
    """Prints a line whenever nothing was printed for a while, where no bar can be redrawn: a context manager.

    The lines come from a thread, since a phase may do nothing else for minutes. Of nested heartbeats the innermost
    prints.
    """

    last_line: ClassVar[float] = 0.0
    _entered: ClassVar[list[Heartbeat]] = []

    def __init__(self, console: Console, text: Callable[[], str]) -> None:
        self._console, self._text = console, text  # the text is made when it is printed
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Heartbeat:
        if not self._entered:
            Heartbeat.last_line = time.monotonic()
        self._entered.append(self)
        if not self._console.is_interactive:
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        if not self._console.is_interactive:
            self._thread.join()
        self._entered.remove(self)

    def _beat(self) -> None:
        with contextlib.suppress(OSError):  # a closed pipe: the command finds it closed when it next prints
            while not self._over.wait(SILENCE_SECONDS / 10):
                if self._entered[-1] is self and time.monotonic() - self.last_line >= SILENCE_SECONDS:
                    say(self._console, self._text())


@contextlib.contextmanager
def phase(console: Console, what: str, unit: str = "") -> Iterator[Callable[[int, int], None]]:
    """Show how far a phase has come: a bar on a terminal, a line now and then elsewhere.

    Args:
        what: the phase, as "resizing".
        unit: what is counted, as "files".

    Yields:
        What to call with (how many are done, how many there are).
    """
    started, counts = time.monotonic(), (0, 0)

    def text() -> str:
        (done, total), seconds = counts, time.monotonic() - started
        parts = [f"{done:,} of {total:,} {unit}"] if total else []
        parts.append(f"{duration(seconds)} so far")
        parts += [f"about {duration((total - done) / done * seconds)} left"] if 0 < done < total else []
        return f"{what}: {', '.join(parts)}"

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(compact=True),
        progress.TextColumn("left"),
    )
    bar = progress.Progress(*columns, console=console, transient=True, disable=not console.is_interactive)
    with bar, Heartbeat(console, text):
        task = bar.add_task(what, total=None)

        def update(done: int, total: int) -> None:
            nonlocal counts
            counts = done, total
            bar.update(task, completed=done, total=total)

        yield update


def warn(sentence: str) -> None:
    """Print a warning."""
    complain("warning", sentence)


def complain(kind: str, sentence: str) -> None:
    """Print an error or a warning to the standard error stream, in one line. That it cannot be written ends no run."""
    with contextlib.suppress(OSError):  # a full disk, a closed pipe
        print(f"jocor-fast: {kind}: {in_one_line(sentence)}", file=sys.stderr)


def in_one_line(sentence: str) -> str:
    """The sentence without line breaks, as `visible`."""
    return visible(re.sub(r"\s*\n\s*", " ", sentence.strip()))


def visible(text: str) -> str:
    """The text with control characters written out: a class may be called by what clears a terminal or ends a line."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda match: f"\\x{ord(match[0]):02x}", text)


def say_subjects(console: Console, texts: Mapping[str, str], width: int = 9) -> None:
    """Print a line a subject, the texts below each other."""
    for subject, text in texts.items():
        say(console, f"{subject:<{width}} {text}")


def listed(names: Iterable[str], word: str) -> str:
    """ "train, plot or info"."""
    *others, last = names
    return f"{', '.join(others)} {word} {last}" if others else last


def counted(number: int, noun: str) -> str:
    """ "1 epoch", "2 epochs"."""
    return f"{number} {noun}{'s' * (number != 1)}"


class TrainingProgress:
    """Shows a run of `epochs` epochs on a console: a context manager whose `on_step` and `on_epoch` the engine calls.

    On a terminal that can redraw a line it is one bar with the latest figures and the time left; elsewhere (a file, a
    pipe, TERM=dumb) every epoch prints one line, and a long one more. Where `on_wait` is called too, as by a run on
    files, its speed is shown: samples a second, and what share of the time is spent waiting for them.
    """

    def __init__(self, console: Console, epochs: int, batch_size: int = 1) -> None:
        """A bar for `epochs` epochs of steps of `batch_size` samples."""
        self.console = console
        self.batch_size = batch_size
        self._metrics: Mapping[str, Any] | None = None  # of the latest epoch that is over
        self._speed: _Speed | None = None
        self.epochs = epochs
        self.epochs_shown = 0
        self._drawn = 0.0
        self._place = (1, 0, 0)  # the epoch, its steps that are done, its steps
        self._heartbeat = Heartbeat(console, self._text)
        columns, self._redraws = _columns(console.width), console.is_interactive
        self._bar = progress.Progress(*columns, console=console, transient=True, expand=True, disable=not self._redraws)
        self._task = self._bar.add_task("", total=epochs, epoch=0, figures="")

    def __enter__(self) -> TrainingProgress:
        self._heartbeat.__enter__()
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()
        self._heartbeat.__exit__()

    def _text(self) -> str:
        epoch, done, steps = self._place
        return f"epoch {epoch}/{self.epochs}" + (f": {done:,} of {steps:,} steps" if steps else "")

    def on_stage(self, stage: str) -> None:
        """Begin a stage of a run that has several: the epochs count from 1 again."""
        self._bar.reset(self._task, description=f"{stage.partition(':')[0]} ", epoch=0, figures="")
        if not self._redraws:
            say(self.console, stage)

    def on_step(self, epoch: int, done: int, steps: int) -> None:
        """Move the bar within an epoch."""
        self._place = epoch, done, steps
        now = time.monotonic()
        if now - self._drawn >= REFRESH_SECONDS:
            self._drawn = now
            self._bar.update(self._task, completed=epoch - 1 + done / steps, epoch=epoch)
            if self._speed is not None and self._speed.step((epoch - 1) * steps + done, now):
                self._draw_figures()

    def on_wait(self, seconds: float) -> None:
        """Learn for how long a step waited for its samples."""
        if self._speed is None:
            self._speed = _Speed(time.monotonic())
        self._speed.waited += seconds

    def on_epoch(self, metrics: Mapping[str, Any]) -> None:
        """Show a finished epoch's line of metrics."""
        self.epochs_shown += 1
        self._metrics = metrics
        self._bar.update(self._task, completed=metrics["epoch"], epoch=metrics["epoch"])
        self._draw_figures()
        if not self._redraws:
            say(self.console, epoch_line(metrics, self.epochs))

    def _draw_figures(self) -> None:
        speed = "" if self._speed is None else self._speed.text(self.batch_size)
        self._bar.update(self._task, figures=_figures(self._metrics, speed, self.console.width))


class _Speed:
    """How fast the steps of a run are, over the last few seconds."""

    def __init__(self, now: float) -> None:
        self.waited = 0.0  # since `_started`
        self._started = now
        self._first: int | None = None  # the step at that time
        self._shown: tuple[float, float] | None = None  # steps a second, share of waiting

    def step(self, done: int, now: float) -> bool:
        """Count steps up to `done`, of all epochs. Whether there is a new figure."""
        if self._first is None:
            self._first = done
        seconds = now - self._started
        if seconds < SPEED_SECONDS or done == self._first:
            return False
        self._shown = (done - self._first) / seconds, min(1.0, self.waited / seconds)
        self._first, self._started, self.waited = done, now, 0.0
        return True

    def text(self, batch_size: int) -> str:
        """ "2,512/s, 3 % waiting"."""
        if self._shown is None:
            return ""
        steps, waiting = self._shown
        return f"{steps * batch_size:,.0f}/s, {100 * waiting:.0f} % waiting"


def epoch_line(metrics: Mapping[str, Any], epochs: int) -> str:
    """ "epoch  12/200  loss 0.4312  test 95.12 %  label precision 93.40 %  kept 50 %  0.7 s", less what is unknown."""
    parts = [f"epoch {metrics['epoch']:>{len(str(epochs))}}/{epochs}", _titled("loss", metrics, LOSS)]
    for title, name in (("test", TEST), ("validation", VALIDATION), ("label precision", PRECISION)):
        if metrics.get(name) is not None:
            parts.append(_titled(title, metrics, name))
    parts.append(f"kept {100 * metrics['keep_rate']:.0f} %")
    if metrics.get(FORGET_RATE) is not None:
        parts.append(f"τ {shown(FORGET_RATE).text(metrics[FORGET_RATE])}")
    parts += [_titled(shown(name).title, metrics, name) for name in added_metrics([metrics])]
    parts.append(f"{metrics['seconds'] + metrics['eval_seconds']:.1f} s")
    if metrics.get("wait_share") is not None:
        parts.append(f"{metrics['samples_per_second']:,.0f}/s, {100 * metrics['wait_share']:.0f} % waiting")
    if metrics.get("bad_files"):
        parts.append(counted(metrics["bad_files"], "bad file"))
    if metrics.get("nonfinite_rows"):
        parts.append(f"{counted(metrics['nonfinite_rows'], 'row')} with a non-finite loss")
    return "  ".join(parts)


def _titled(title: str, metrics: Mapping[str, Any], name: str) -> str:
    return f"{title} {shown(name).text(metrics[name])}"


def final_table(metrics: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> TextTable:
    """Best epoch, mean of the last ten and last epoch side by side: test accuracy and label precision in percent.

    Where there is a validation set, the epoch that it chose follows them. What is known of no epoch has no row.
    """
    last, mean, best = metrics[-1], summary["last_10_mean"], best_epoch(metrics)
    averaged = {**mean, "epoch": f"{last['epoch'] - mean['epochs'] + 1} to {last['epoch']}"}
    columns = {"best epoch": best or {}, f"mean of last {mean['epochs']}": averaged, "last epoch": last}
    rows = {shown(name).title: name for name in (TEST, PRECISION, *added_metrics(metrics))}
    chosen = summary["best_by_validation"]
    if chosen is not None:
        columns["by validation"] = next((line for line in metrics if line["epoch"] == chosen["epoch"]), chosen)
        rows["validation"] = VALIDATION
    known = {
        heading: name
        for heading, name in rows.items()
        if any(values.get(name) is not None for values in columns.values())
    }
    return TextTable(
        ("", *columns),
        [
            ("epoch", *(str(values.get("epoch", NOT_AVAILABLE)) for values in columns.values())),
            *(
                (heading, *(shown(name).text(values.get(name)) for values in columns.values()))
                for heading, name in known.items()
            ),
        ],
        note="Best epoch: chosen by the test labels, so not a result to report." if best else "",
    )


def _columns(width: int) -> list[progress.ProgressColumn]:
    text = progress.TextColumn
    columns: list[progress.ProgressColumn] = [text("{task.description}epoch {task.fields[epoch]}/{task.total:.0f}")]
    if width >= NARROW:
        columns.append(progress.BarColumn(bar_width=None))
    return [*columns, text("{task.fields[figures]}"), progress.TimeRemainingColumn(compact=True), text("left")]


def _figures(metrics: Mapping[str, Any] | None, speed: str, width: int) -> str:
    """Return what stands after the bar: nothing wraps, so on a narrow terminal the speed replaces the loss."""
    if metrics is None:
        return speed if width >= NARROW else ""
    loss = _titled("loss", metrics, LOSS)
    figures = [
        _titled(title, metrics, name)
        for title, name in (("test", TEST), ("precision", PRECISION))
        if metrics.get(name) is not None
    ]
    if width < WIDE and figures:
        return "  ".join(figures[: 1 if width < NARROW else 2])
    first = f"{loss}  {speed}" if speed and width >= VERY_WIDE else speed or loss
    return "  ".join((first, *figures))
