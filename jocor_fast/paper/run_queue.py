"""Training runs as processes of their own, several at once.

A run is what `jocor-fast train …` does: it can be repeated by hand, what it prints is kept in its folder, and
whatever ends it (a crash, a full memory) leaves the others alone. Its progress is read from its metrics.jsonl.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.console import Console

from jocor_fast._deferred import DeferredModule
from jocor_fast.config.options import AUTO, OPTIONS
from jocor_fast.config.resolve import Config
from jocor_fast.config.stored_run import FOLDER, PATHS, names_the_same
from jocor_fast.errors import RunError
from jocor_fast.files.names import CONFIG, FIRST_STAGE, LOG_NAME, read_error, read_json, read_metrics, read_summary
from jocor_fast.report.screen import Heartbeat, say
from jocor_fast.report.tables import duration, percent

if TYPE_CHECKING:
    from rich import progress
else:
    progress = DeferredModule("rich.progress")

POLL_SECONDS = 0.25
STOP_SECONDS = 20.0  # what a run gets to write its checkpoint after SIGTERM


@dataclass
class QueuedRun:
    """One run: its settings (option names of `train`), its folder, and what became of it.

    Attributes:
        name: for the screen, such as "JoCoR, seed 1".
        epochs: how many it trains, in both stages of a method that has two; epochs_done: how many are on disk.
        error: one sentence, once it has failed.
    """

    name: str
    folder: Path
    settings: Mapping[str, Any]
    epochs: int
    epochs_done: int = 0
    error: str | None = None
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _log_start: int = field(default=0, repr=False)  # where the output of earlier attempts ends

    def command(self) -> list[str]:
        """Return the command line that makes this run; it continues where an earlier one stopped."""
        return [sys.executable, "-c", _start(), *self.arguments()]

    def arguments(self) -> list[str]:
        """Return what stands after `jocor-fast` in it."""
        return ["train", *flags_of(self.settings), "--output", str(self.folder), "--resume"]

    def start(self, threads: int) -> None:
        """Start the run as a process with so many threads."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / LOG_NAME).open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Threads that spin while they wait would take the cores from the other runs.
                env={"OMP_WAIT_POLICY": "PASSIVE", **os.environ, "OMP_NUM_THREADS": str(threads)},
                start_new_session=True,  # Ctrl-C reaches this process alone, which then stops its runs in order
            )

    def poll(self) -> bool:
        """Read the progress; True once the run has ended."""
        assert self._process is not None
        code = self._process.poll()
        self.epochs_done = self.epochs_on_disk()
        if code is None:
            return False
        if code != 0:
            self.error = self._reason(code)
        return True

    def epochs_on_disk(self) -> int:
        """Return how many epochs its files hold, those of a first stage among them."""
        return len(read_metrics(self.folder)) + len(read_metrics(self.folder / FIRST_STAGE))

    @property
    def is_finished(self) -> bool:
        """Whether its summary says so."""
        return read_summary(self.folder).get("status") == "finished"

    def request_stop(self) -> None:
        """Ask the run to write its checkpoint and end."""
        assert self._process is not None
        self._process.terminate()  # does nothing where it has ended already

    def wait_for_stop(self) -> None:
        """Wait until it has; kill it if it does not."""
        assert self._process is not None
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _reason(self, code: int) -> str:
        """Return the sentence that the run ended with, else its exit code and where its output lies."""
        ended = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return read_error(self.folder, self._log_start) or f"it {ended}; its output is in {self.folder / LOG_NAME}"


def _start() -> str:
    """Return the program of a run: this command again, with modules from where this process has them.

    `-m` would look for them in the current folder first, where there may be a random.py, or the sources of this package
    without its compiled part.
    """
    path = f"import sys; sys.argv[0], sys.path[:] = 'jocor-fast', {list(map(str, sys.path))!a}"
    return f"{path}; from jocor_fast.cli import main; sys.exit(main())"


def check_earlier_run(folder: Path, config: Config) -> None:
    """Raise RunError if the output folder holds a run with other settings than those that are asked for.

    Where it was computed does not matter to a finished run, and an unfinished one refuses another device by itself.
    """
    stored = read_json(folder / CONFIG) or {}
    earlier, sources = stored.get("settings", {}), stored.get("sources", {})

    def same(name: str, value: Any) -> bool:
        then = earlier[name]
        if value is None:  # to be decided by the data, as it was then if it was not given
            return then is None or sources.get(name) not in ("flag", "config")
        if value == AUTO:
            return name != "forget_rate" or stored.get("noise_estimate") is not None or then == 0.0
        return bool(then == value) or (name in PATHS and names_the_same(name, then, stored.get(FOLDER), value))

    now = {name: config.value(name) for name in OPTIONS if name in earlier and name != "device"}
    changed = [name for name, value in now.items() if not same(name, value)]
    if changed:
        texts = {name: "its default" if now[name] is None else now[name] for name in changed}
        differences = ", ".join(f"{name} {earlier[name]} (now {text})" for name, text in texts.items())
        raise RunError(f"{folder} holds a run with {differences}; choose another --output, or the same settings")


def flags_of(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as `train` takes them: a switch that is on stands alone, one that is off is omitted."""
    flags: list[str] = []
    for name, value in settings.items():
        if OPTIONS[name].kind != "switch":
            flags += OPTIONS[name].flag, str(value)
        elif value:
            flags.append(OPTIONS[name].flag)
    return flags


def run_all(
    runs: Sequence[QueuedRun],
    *,
    jobs: int,
    threads: int,
    on_change: Callable[[QueuedRun], None],
    on_poll: Callable[[], None],
) -> None:
    """Make the runs in their order, `jobs` at a time with `threads` threads each; failures are noted in the runs.

    on_change is called when a run starts and when it ends, on_poll about four times a second. Whatever ends this call
    early (Ctrl-C, SIGTERM, an error) first stops the runs under way, which leave checkpoints.
    """
    waiting, running = list(runs), list[QueuedRun]()
    with _termination_as_exit():
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    run = waiting.pop(0)
                    run.start(threads)
                    running.append(run)
                    on_change(run)
                for run in [run for run in running if run.poll()]:
                    running.remove(run)
                    on_change(run)
                on_poll()
                if running:
                    time.sleep(POLL_SECONDS)
        finally:
            for run in running:
                run.request_stop()
            for run in running:
                run.wait_for_stop()


def make_runs(
    left: Sequence[QueuedRun],
    runs: Sequence[QueuedRun],
    *,
    jobs: int,
    threads: int,
    console: Console,
    figure: Callable[[QueuedRun], str] | None = None,
    on_end: Callable[[], None] = lambda: None,
) -> None:
    """Make runs, and show how far they and those that are finished already have come.

    Args:
        left: the runs to make.
        runs: these and the others.
        jobs: how many at a time.
        threads: of each.
        console: where it is shown.
        figure: what is printed of a run that has ended; None: its test accuracy.
        on_end: called when one has.
    """

    def done() -> int:
        return sum(run.epochs_done for run in runs)

    def text() -> str:
        gained, seconds = done() - at_start, time.monotonic() - started
        rest = f", about {duration((total - done()) / gained * seconds)} left" if gained else ""
        return f"{100 * done() / total:.0f} % of all epochs{rest}"

    def on_change(run: QueuedRun) -> None:
        if run.name not in lines:
            lines[run.name] = bars.add_task(f"  {run.name}", total=run.epochs, completed=run.epochs_done)
            return
        bars.remove_task(lines.pop(run.name))
        ended = (figure or _test_accuracy)(run) if run.error is None else f"failed: {run.error}"
        say(console, f"{run.name}: {ended}")
        on_end()

    def on_poll() -> None:
        bars.update(whole, completed=done())
        for run in runs:
            if run.name in lines:
                bars.update(lines[run.name], completed=run.epochs_done)

    started, at_start, total = time.monotonic(), done(), sum(run.epochs for run in runs)
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TextColumn("epoch {task.completed:.0f}/{task.total:.0f}"),
        progress.TimeRemainingColumn(compact=True),
        progress.TextColumn("left"),
    )
    bars = progress.Progress(*columns, console=console, transient=True, disable=not console.is_interactive)
    whole, lines = bars.add_task("all runs", total=total, completed=at_start), dict[str, progress.TaskID]()
    with bars, Heartbeat(console, text):
        run_all(left, jobs=jobs, threads=threads, on_change=on_change, on_poll=on_poll)


def _test_accuracy(run: QueuedRun) -> str:
    accuracy = read_summary(run.folder)["last_10_mean"]["test_accuracy"]
    return f"test accuracy {percent(accuracy)} % over its last epochs"


@contextmanager
def _termination_as_exit() -> Iterator[None]:
    """End the block on SIGTERM or SIGHUP (but for nohup) by SystemExit(128 + signal), which stops its runs."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    endings = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]  # one on Windows
    caught = [number for number in endings if signal.getsignal(number) != signal.SIG_IGN]
    previous = {number: signal.signal(number, leave) for number in caught}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
