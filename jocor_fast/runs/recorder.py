"""What a run leaves behind: its files, written while it trains, and how it ends."""

from __future__ import annotations

import contextlib
import copy
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from torch import Tensor, nn

from jocor_fast import arguments
from jocor_fast.data.samples import InputFiles, Samples
from jocor_fast.engine.epoch_log import EpochLog
from jocor_fast.engine.history import SampleStatistics
from jocor_fast.engine.loop import EpochEvent, Observer
from jocor_fast.engine.metrics import Fault, Metrics
from jocor_fast.engine.optimizer import DEFERRED
from jocor_fast.engine.processes import SharedRequest
from jocor_fast.engine.settings import options_before
from jocor_fast.engine.state import TrainingState
from jocor_fast.errors import RunError
from jocor_fast.files.names import BEST, CHECKPOINT, CONFIG, SUMMARY, TRAINING_FILES, read_summary
from jocor_fast.machine import describe_environment
from jocor_fast.report.summary import best_by_validation, last_mean
from jocor_fast.runs.folder import RunFolder, check_free, plain, read_weights
from jocor_fast.runs.interrupt import EXIT_CODE, TerminationRequest
from jocor_fast.schedules import trained_epochs


@dataclass(frozen=True, eq=False)
class Run:
    """What a run leaves behind.

    Attributes:
        networks: the trained modules, in evaluation mode, on the run's device: two, or one for a one-network method.
        metrics: the lines of metrics.jsonl.
        summary: the content of summary.json; its "status" is "finished", "diverged", or "interrupted" after
            `Recording.stop_after`. No epoch need have been trained where it is "diverged": the first stage of
            F-correction may have.
        history: what the steps saw of each training sample; `jocor_fast.audit` finds the wrong labels by it.
        settings: {name: value}, "settings" of config.json.
    """

    networks: tuple[nn.Module, ...]
    metrics: list[Metrics]
    summary: dict[str, Any]
    history: SampleStatistics
    settings: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What is kept of a run, and where.

    Attributes:
        folder: for its files; None writes none.
        resume: continue from the checkpoint in `folder`; without one, start afresh; after a finished run, change
            nothing.
        stop_after: stop after this epoch, if the run has more, for `resume` to continue. The schedules are those of
            all epochs.
        checkpoint_every: steps between checkpoints within an epoch (there is one after each epoch in any case).
        config: joins config.json. Its "settings" {name: value} join the engine's, and like them must be the same when
            the run is resumed; its "sources" say where each came from.
        network_input: what `config.predictor` has to know; kept in checkpoint.pt and best.pt.
        noise_rates: the nominal and the realised one, where more is known than the labels tell.
        first_stage: whether it is that of another run.
        best: whether to hand back the networks of the best epoch by validation accuracy, not of the last one.
    """

    folder: str | os.PathLike[str] | None = None
    resume: bool = False
    stop_after: int | None = None
    checkpoint_every: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    network_input: Mapping[str, Any] | None = None
    noise_rates: tuple[float | None, float | None] | None = None
    first_stage: bool = False
    best: bool = False

    def __post_init__(self) -> None:
        for name in ("stop_after", "checkpoint_every"):
            if getattr(self, name) is not None:
                arguments.at_least(name, getattr(self, name), 1)
        if self.resume and self.folder is None:
            raise ValueError("resume needs the output folder of the run to go on with, got output=None")


class Recorder(Observer):
    """Keeps the metrics and the files of a run, answers SIGTERM, and passes on what other observers are to learn.

    Of several processes all call every method; the first one reads and writes the files.
    """

    def __init__(
        self, recording: Recording, state: TrainingState, train: Samples, observers: Sequence[Observer]
    ) -> None:
        self.recording = recording
        self.state = state
        self.observers = observers
        self.metrics: list[Metrics] = []
        self.epochs = trained_epochs(state.settings.epochs, state.settings.recipe)
        self.last = self.epochs if recording.stop_after is None else min(recording.stop_after, self.epochs)
        self._folder: RunFolder | None = None  # of the first process, once it is there
        self._termination = TerminationRequest(enabled=recording.folder is not None)
        self._request = SharedRequest(state.processes)
        self._stop_requested = False
        self._saved_step = 0  # of the epoch under way, up to where the last checkpoint holds
        self._bad_files_written = 0
        self._best: list[dict[str, Any]] = []  # weights to hand back of a run without a folder
        extra, settings = recording.config, state.settings
        self._config = {
            **extra,
            "settings": {**settings.as_dict(), **extra.get("settings", {})},
            "sources": {**settings.sources(), **extra.get("sources", {})},
        }
        # What must be equal for a run to be resumed, in the plain types that checkpoints hold. How steps are launched
        # changes nothing.
        self._identity = plain(
            {
                **{name: value for name, value in self._config["settings"].items() if name != "no_graph"},
                "device": state.device.type,
                "processes": state.processes.count,
                "training labels": checksum(train.labels),
                TRAINING_FILES: train.inputs.checksum if isinstance(train.inputs, InputFiles) else None,
            }
        )

    @contextlib.contextmanager
    def recording_run(self) -> Iterator[Run | None]:
        """Open the folder and restore its checkpoint; within, SIGTERM is answered. Yields a run that is finished."""
        try:
            finished = self._opened()
            with self._termination:
                try:
                    yield finished
                except KeyboardInterrupt:  # no safe point, but the last epoch's checkpoint is there
                    self._note_the_end()
                    raise
                except RuntimeError as error:
                    if not self.state.processes.lost(error):
                        raise
                    self._termination.ignore_from_now_on()  # torchrun ends all processes when it sees that one is gone
                    self._note_the_end()
                    raise RunError(self.state.processes.loss_in_words(error, self._how_to_resume())) from error
        finally:
            if self._folder is not None:
                self._folder.release()

    @property
    def epochs_left(self) -> range:
        """The epochs to train, from the one that is under way."""
        return range(len(self.metrics) + 1, self.last + 1)

    def on_stage(self, stage: str) -> None:
        for observer in self.observers:
            observer.on_stage(stage)

    def on_threads(self, sentence: str) -> None:
        for observer in self.observers:
            observer.on_threads(sentence)

    def on_step(self, epoch: int, log: EpochLog) -> None:
        for observer in self.observers:
            observer.on_step(epoch, log)

    def pause_due(self, log: EpochLog) -> bool:
        if self.recording.folder is None:
            return False
        every = self.recording.checkpoint_every
        self._stop_requested = self._request.answered(self._termination.received)
        return self._stop_requested or (every is not None and log.step - self._saved_step >= every)

    def on_pause(self) -> None:
        self._write_checkpoint()
        self._write_bad_files()
        if self._stop_requested:
            self._stop()

    def on_epoch(self, event: EpochEvent) -> None:
        """Write the epoch's files; one that diverged leaves the checkpoint before it in place."""
        self.metrics.append(event.metrics)
        self._write(lambda folder: folder.append_metrics(event.metrics))
        if self.recording.folder is not None:
            self._write_bad_files()
        if event.fault is None:
            self._keep_best(event.epoch)
            if self.recording.folder is not None:
                self._write_checkpoint()
        for observer in self.observers:
            observer.on_epoch(replace(event, first_stage=self.recording.first_stage, lines=self.metrics))
        if event.fault is None and event.epoch < self.last and self.state.processes.any(self._termination.received):
            self._stop()

    def finish(self, fault: Fault | None) -> Run:
        """Write how the run has ended: finished, stopped before its last epoch, or diverged.

        Raises:
            SystemExit: SIGTERM has come since the last epoch.
        """
        status = "diverged" if fault is not None else "finished" if len(self.metrics) == self.epochs else "interrupted"
        if fault is None:
            self._request.settle()
            self._load_best()
        self._write(lambda folder: folder.write_curves(self.metrics))
        summary = self.write_summary(status, fault)  # last: what says "finished" is not done again
        if fault is None and self.state.processes.any(self._termination.received):
            raise SystemExit(EXIT_CODE)
        return self._run(summary)

    def write_summary(self, status: str, fault: Fault | None = None) -> dict[str, Any]:
        """Write summary.json and return its content."""
        summary = self._summary(status, fault)
        self._write(lambda folder: folder.write_json(SUMMARY, summary))
        return summary

    def _opened(self) -> Run | None:
        """Start in the folder or continue what it holds; return the run where it is finished already."""
        recording, state = self.recording, self.state
        if recording.folder is None:
            return None
        path = recording.folder

        def read() -> tuple[dict[str, Any] | None, dict[str, Any]]:
            self._folder = RunFolder(path)
            return self._read(self._folder) if recording.resume else (None, {})

        checkpoint, summary = state.processes.from_first(read)
        if checkpoint is None:
            self._write(self._start)
        else:
            self.metrics = checkpoint["history"]
            state.load_state_dict(checkpoint["training"])
            self._saved_step = 0 if state.log is None else state.log.step
            if len(self.metrics) == self.epochs and summary.get("status") == "finished":
                self._load_best()
                return self._run(summary)
        self._write(lambda folder: folder.write_metrics(self.metrics))  # without lines after the checkpoint's epoch
        return None

    def _start(self, folder: RunFolder) -> None:
        if not self.recording.resume:
            check_free(folder.path)
        folder.clear()
        folder.write_json(CONFIG, self._config)

    def _read(self, folder: RunFolder) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """The checkpoint, if there is one, and the summary; RunError where it is of other settings."""
        checkpoint = folder.read_checkpoint()
        if checkpoint is None:
            return None, {}
        mine = self._identity
        since = {  # what checkpoints from before it do not say
            "processes": 1,
            TRAINING_FILES: mine[TRAINING_FILES],
            **options_before(self.state.settings.method),
        }
        stored = {**since, **checkpoint["identity"]}
        different = [
            f"{name} (then {stored.get(name)!r}, now {mine.get(name)!r})"
            for name in {**stored, **mine}
            if stored.get(name) != mine.get(name) and not (name not in stored and self._is_default(name))
        ]
        if different:
            raise RunError(f"{folder.path} holds a run of other settings: {', '.join(different)}", "resume")
        then = _shapes(checkpoint["training"]["networks"])
        now = _shapes([network.state_dict() for network in self.state.networks])
        for name in {**then, **now}:
            if then.get(name) != now.get(name):
                first = f"{name} (then {then.get(name, 'absent')}, now {now.get(name, 'absent')})"
                raise RunError(f"{folder.path} holds a run of other networks: {first}", "resume")
        lacking = self.state.step.method.state.keys() - checkpoint["training"].get("method", {}).keys()
        if lacking:
            what = f"{', '.join(sorted(lacking))} of method {self.state.settings.method}"
            raise RunError(f"{folder.path} cannot be resumed: its checkpoint is older than {what}", "resume")
        if DEFERRED in checkpoint["training"]["optimizer"] and DEFERRED not in self.state.step.optimizer.state_dict():
            why = "its steps skip what is 0 in the inputs, and jocor_fast has no kernels for that here"
            raise RunError(f"{folder.path} cannot be resumed: {why} (`jocor-fast info` says why)", "resume")
        return checkpoint, read_summary(folder.path)

    def _is_default(self, name: str) -> bool:
        """Whether a setting is as it is without being asked for: a run from before it existed can be resumed."""
        return "default" in (self.state.settings.sources().get(name), self._config["sources"].get(name))

    def _write(self, action: Callable[[RunFolder], object]) -> None:
        """Have the first process do something in the folder, if there is one; the others wait, and end if it fails."""

        def act() -> None:
            assert self._folder is not None
            action(self._folder)

        if self.recording.folder is not None:
            self.state.processes.from_first(act)

    def _write_checkpoint(self) -> None:
        checkpoint = {
            "identity": self._identity,
            "history": self.metrics,
            "training": self.state.state_dict(),
            **self._network_input(),
        }
        self._write(lambda folder: folder.write_checkpoint(checkpoint))
        self._saved_step = 0 if self.state.log is None else self.state.log.step

    def _write_bad_files(self) -> None:
        bad_files = self.state.source.bad_files
        if bad_files is not None and len(bad_files) > self._bad_files_written:
            self._write(lambda folder: folder.write_bad_files(bad_files.lines()))
            self._bad_files_written = len(bad_files)

    def _network_input(self) -> dict[str, Any]:
        return {} if self.recording.network_input is None else {"input": self.recording.network_input}

    def _stop(self) -> NoReturn:
        self.write_summary("interrupted")
        raise SystemExit(EXIT_CODE)

    def _note_the_end(self) -> None:
        """Write summary.json where the other processes cannot be waited for."""
        if self._folder is not None:
            self._folder.write_json(SUMMARY, self._summary("interrupted"))

    def _how_to_resume(self) -> str:
        folder = self.recording.folder
        if folder is None or not (Path(folder) / CHECKPOINT).exists():
            return ""
        return f"resume continues from the last checkpoint in {folder}"

    def _run(self, summary: dict[str, Any]) -> Run:
        history = self.state.history.statistics()
        return Run(self.state.networks, self.metrics, summary, history, plain(self._config["settings"]))

    def _keep_best(self, epoch: int) -> None:
        """Keep the networks of an epoch that is the best so far by validation accuracy."""
        best = best_by_validation(self.metrics)
        if best is None or best["epoch"] != epoch:
            return
        weights = [network.state_dict() for network in self.state.networks]
        if self.recording.folder is not None:
            self._write(lambda folder: folder.write_best({**best, "networks": weights, **self._network_input()}))
        elif self.recording.best:
            self._best = copy.deepcopy(weights)

    def _load_best(self) -> None:
        """Hand back the networks of the best epoch, if asked to; of several processes the first does."""
        if not self.recording.best or best_by_validation(self.metrics) is None:
            return
        weights = self._best
        if self._folder is not None:
            weights = read_weights(self._folder.path / BEST)[1]
        for network, best in zip(self.state.networks, weights, strict=bool(weights)):
            network.load_state_dict(best)

    def _summary(self, status: str, fault: Fault | None = None) -> dict[str, Any]:
        state = self.state
        whole = [line for line in self.metrics if fault is None or line["epoch"] != fault.epoch]
        nominal, realised = self.recording.noise_rates or (None, state.realised_noise_rate)
        return {
            "status": status,
            "last_10_mean": last_mean(self.metrics),
            "best_by_validation": best_by_validation(whole),
            "last": self.metrics[-1] if self.metrics else None,
            "nominal_noise_rate": nominal,
            "realised_noise_rate": realised,
            "environment": {
                **describe_environment(state.device),
                "processes": state.processes.count,
                "steps": state.how_steps_run,
                "step_threads": state.threads.chosen,
            },
            **({} if fault is None else {"diverged": asdict(fault)}),
            **state.step.method.summary(),
        }


def checksum(labels: Tensor) -> str:
    """Return a text that tells labels from others."""
    return f"{len(labels)} with checksum {zlib.crc32(labels.cpu().numpy().tobytes()):08x}"


def _shapes(networks: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor in the state_dicts of networks."""
    return {
        f"{name} of network {number}": tuple(value.shape)
        for number, weights in enumerate(networks, start=1)
        for name, value in weights.items()
        if isinstance(value, Tensor)
    }
