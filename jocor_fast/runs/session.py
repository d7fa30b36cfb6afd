"""A run under way: what it has reached, its files, and how it ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from torch import Tensor, nn

from jocor_fast.engine.history import SampleStatistics
from jocor_fast.engine.plan import EpochPlan, plan_epoch
from jocor_fast.engine.processes import Processes, SharedRequest
from jocor_fast.engine.settings import TrainSettings
from jocor_fast.engine.trainer import Metrics, Trainer
from jocor_fast.errors import RunError
from jocor_fast.files.names import CHECKPOINT, CONFIG, SUMMARY, TRAINING_FILES, read_summary
from jocor_fast.machine import describe_environment
from jocor_fast.report.summary import best_by_validation, last_mean
from jocor_fast.runs.first_stage import predicted_probabilities
from jocor_fast.runs.folder import RunFolder, check_free, plain
from jocor_fast.runs.interrupt import EXIT_CODE, TerminationRequest
from jocor_fast.schedules import trained_epochs


@dataclass(frozen=True)
class EpochEvent:
    """Handed to `on_epoch` when an epoch is trained, evaluated and (with an output folder) checkpointed.

    Attributes:
        epoch: the epoch, from 1.
        epochs: how many this run trains in all (one fewer than asked for with recipe "published").
        metrics: the epoch's line of metrics.jsonl.
        first_stage: whether it is one of the first stage, which has a metrics.jsonl of its own.
    """

    epoch: int
    epochs: int
    metrics: Metrics
    first_stage: bool = False


@dataclass(frozen=True, eq=False)
class Run:
    """What a run leaves behind.

    Attributes:
        networks: the trained modules, in evaluation mode, on the run's device: two, or one for a one-network method.
        metrics: the lines of metrics.jsonl.
        summary: the content of summary.json; its "status" is "finished", "diverged", or "interrupted" after
            `stop_after`. No epoch need have been trained where it is "diverged": the first stage of F-correction may
            have.
        history: what the steps saw of each training sample; `jocor_fast.audit` finds the wrong labels by it.
    """

    networks: tuple[nn.Module, ...]
    metrics: list[Metrics]
    summary: dict[str, Any]
    history: SampleStatistics


@dataclass(kw_only=True)
class Session:
    """A run under way: what it has reached, and its files."""

    settings: TrainSettings
    trainer: Trainer
    processes: Processes
    output: str | os.PathLike[str] | None
    stop_after: int | None
    checkpoint_every: int | None
    labels_checksum: str
    files_checksum: str | None
    extra_config: Mapping[str, Any]
    extra_checkpoint: Mapping[str, Any]
    extra_summary: Mapping[str, Any]
    on_epoch: Callable[[EpochEvent], None] | None
    on_step: Callable[[int, int, int], None] | None
    first_stage: Callable[[str], Run] | None  # by a method: trains it, or takes it up where it was left
    on_stage: Callable[[str], None]
    on_wait: Callable[[float], None] | None

    def __post_init__(self) -> None:
        self.epochs = trained_epochs(self.settings.epochs, self.settings.recipe)
        self.last = self.epochs if self.stop_after is None else min(self.stop_after, self.epochs)
        self.metrics: list[Metrics] = []
        self.bad_files_written = 0
        self.folder: RunFolder | None = None  # of the first process, once it is there
        self.request = SharedRequest(self.processes)
        self.config = {
            **self.extra_config,
            "settings": {**self.settings.as_dict(), **self.extra_config.get("settings", {})},
            "sources": {**self.settings.sources(), **self.extra_config.get("sources", {})},
        }
        # What must be equal for a run to be resumed, in the plain types that checkpoints hold. How steps are launched
        # changes nothing.
        self.identity = plain(
            {
                **{name: value for name, value in self.config["settings"].items() if name != "no_graph"},
                "device": self.trainer.device.type,
                "processes": self.processes.count,
                "training labels": self.labels_checksum,
                TRAINING_FILES: self.files_checksum,
            }
        )

    def run(self, *, resume: bool) -> Run:
        """Start afresh or go on, and train to the end."""
        try:
            finished = self._opened(resume=resume)
            return self._to_the_end() if finished is None else finished
        finally:
            if self.folder is not None:
                self.folder.release()

    def _to_the_end(self) -> Run:
        with TerminationRequest(enabled=self.output is not None) as termination:
            try:
                fault = self._prepare()
                return self._train(termination) if fault is None else self._finish("diverged", fault)
            except KeyboardInterrupt:  # no safe point, but the last epoch's checkpoint is there
                self._note_the_end()
                raise
            except RuntimeError as error:
                if not self.processes.lost(error):
                    raise
                termination.ignore_from_now_on()  # torchrun ends all processes when it sees that one is gone
                self._note_the_end()
                raise RunError(self.processes.loss_in_words(error, self._how_to_go_on())) from error

    def _how_to_go_on(self) -> str:
        if self.output is None or not (Path(self.output) / CHECKPOINT).exists():
            return ""
        return f"resume goes on from the last checkpoint in {self.output}"

    def _note_the_end(self) -> None:
        """Write summary.json where the other processes cannot be waited for."""
        if self.folder is not None:
            self.folder.write_json(SUMMARY, self._summary("interrupted"))

    def _opened(self, *, resume: bool) -> Run | None:
        """Start in the folder or go on with what it holds; the run where it is finished already."""
        if self.output is None:
            return None

        def read() -> tuple[dict[str, Any] | None, dict[str, Any]]:
            assert self.output is not None
            self.folder = RunFolder(self.output)
            return self._read(self.folder) if resume else (None, {})

        checkpoint, summary = self.processes.from_first(read)
        if checkpoint is None:
            self._write(lambda folder: self._start(folder, over=resume))
        else:
            self.metrics = checkpoint["history"]
            self.trainer.load_state_dict(checkpoint["training"])
            if len(self.metrics) == self.epochs and summary.get("status") == "finished":
                return Run(self.trainer.networks, self.metrics, summary, self.trainer.history.statistics())
        self._write(lambda folder: folder.write_metrics(self.metrics))  # without lines after the checkpoint's epoch
        return None

    def _write(self, action: Callable[[RunFolder], object]) -> None:
        """Have the first process do something in the folder, if there is one; the others wait, and end if it fails."""

        def act() -> None:
            assert self.folder is not None
            action(self.folder)

        if self.output is not None:
            self.processes.from_first(act)

    def _prepare(self) -> dict[str, Any] | None:
        """Let the method get ready, by a first stage if it has one; or why the run has diverged."""
        method, stages = self.trainer.step.method, self.trainer.step.method.stages
        if len(stages) > 1:
            self.on_stage(f"first stage: {stages[0]}")
        try:
            method.prepare(self._first_stage)
        except _StageDiverged as diverged:
            return {**diverged.fault, "reason": f"in the first stage, {diverged.fault['reason']}"}
        except SystemExit:
            self._write_summary("interrupted")
            raise
        if len(stages) > 1:
            self.on_stage(f"second stage: {stages[1]}")
        return None

    def _first_stage(self, method: str, estimate: Callable[[np.ndarray], Tensor]) -> Tensor:
        assert self.first_stage is not None
        first, trainer = self.first_stage(method), self.trainer
        if "diverged" in first.summary:
            raise _StageDiverged(first.summary["diverged"])
        estimated = self.processes.from_first(
            lambda: estimate(
                predicted_probabilities(first.networks[0], trainer.source, trainer.device, trainer.own_rows)
            )
        )
        return estimated.to(trainer.device)

    def _start(self, folder: RunFolder, *, over: bool) -> None:
        if not over:
            check_free(folder.path)
        folder.clear()
        folder.write_json(CONFIG, self.config)

    def _read(self, folder: RunFolder) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """The checkpoint, if there is one, and the summary; RunError where it is of other settings."""
        checkpoint = folder.read_checkpoint()
        if checkpoint is None:
            return None, {}
        mine = self.identity
        since = {"processes": 1, TRAINING_FILES: mine[TRAINING_FILES]}  # what checkpoints from before it do not say
        stored = {**since, **checkpoint["identity"]}
        different = [
            f"{name} (then {stored.get(name)!r}, now {mine.get(name)!r})"
            for name in {**stored, **mine}
            if stored.get(name) != mine.get(name) and not (name not in stored and self._is_default(name))
        ]
        if different:
            raise RunError(f"{folder.path} holds a run of other settings: {', '.join(different)}", "resume")
        then = _shapes(checkpoint["training"]["networks"])
        now = _shapes([network.state_dict() for network in self.trainer.networks])
        for name in {**then, **now}:
            if then.get(name) != now.get(name):
                first = f"{name} (then {then.get(name, 'absent')}, now {now.get(name, 'absent')})"
                raise RunError(f"{folder.path} holds a run of other networks: {first}", "resume")
        return checkpoint, read_summary(folder.path)

    def _is_default(self, name: str) -> bool:
        """Whether a setting is as it is without being asked for: a run from before it existed can then go on."""
        return "default" in (self.settings.sources().get(name), self.config["sources"].get(name))

    def _train(self, termination: TerminationRequest) -> Run:
        for epoch in range(len(self.metrics) + 1, self.last + 1):
            plan = plan_epoch(self.settings, epoch, len(self.trainer.labels), self.processes)
            fault = self._train_epoch(plan, termination)
            if fault is not None:
                return self._finish("diverged", fault)
            line, fault = self.trainer.finish_epoch(plan)
            self._keep(line, whole=fault is None)
            if self.on_epoch is not None:
                self.on_epoch(EpochEvent(epoch, self.epochs, line))
            if fault is not None:
                return self._finish("diverged", fault)
            if epoch < self.last and self.processes.any(termination.received):
                self._leave()
        self.request.settle()
        run = self._finish("finished" if len(self.metrics) == self.epochs else "interrupted")
        if self.processes.any(termination.received):
            raise SystemExit(EXIT_CODE)
        return run

    def _train_epoch(self, plan: EpochPlan, termination: TerminationRequest) -> dict[str, Any] | None:
        """Train what is left of an epoch, with the checkpoints that fall due in it; or why the run has diverged."""
        every = self.checkpoint_every
        kept = self.trainer.steps_done  # up to where the last checkpoint holds
        asked_to_end = False

        def pauses() -> bool:
            nonlocal asked_to_end
            if self.output is None:
                return False
            asked_to_end = self.request.answered(termination.received)
            return asked_to_end or (every is not None and self.trainer.steps_done - kept >= every)

        while not self.trainer.train_epoch(plan, stop=pauses, on_step=self.on_step, on_wait=self.on_wait):
            fault = self.trainer.fault_so_far(plan)
            if fault is not None:  # the checkpoint before it stays
                return fault
            self._write_checkpoint()
            self._write_bad_files()
            if asked_to_end:
                self._leave()
            kept = self.trainer.steps_done
        return None

    def _keep(self, line: Metrics, *, whole: bool) -> None:
        """Take an epoch into the metrics and the files; one that diverged leaves the checkpoint before it in place."""
        self.metrics.append(line)
        if self.output is None:
            return
        self._write(lambda folder: folder.append_metrics(line))
        self._write_bad_files()
        if not whole:
            return
        best = best_by_validation(self.metrics)
        if best is not None and best["epoch"] == line["epoch"]:
            networks = [network.state_dict() for network in self.trainer.networks]
            self._write(lambda folder: folder.write_best({**best, "networks": networks, **self.extra_checkpoint}))
        self._write_checkpoint()

    def _write_checkpoint(self) -> None:
        checkpoint = {
            "identity": self.identity,
            "history": self.metrics,
            "training": self.trainer.state_dict(),
            **self.extra_checkpoint,
        }
        self._write(lambda folder: folder.write_checkpoint(checkpoint))

    def _write_bad_files(self) -> None:
        bad_files = self.trainer.source.bad_files
        if bad_files is not None and len(bad_files) > self.bad_files_written:
            self._write(lambda folder: folder.write_bad_files(bad_files.lines()))
            self.bad_files_written = len(bad_files)

    def _leave(self) -> NoReturn:
        self._write_summary("interrupted")
        raise SystemExit(EXIT_CODE)

    def _finish(self, status: str, fault: dict[str, Any] | None = None) -> Run:
        self._write(lambda folder: folder.write_curves(self.metrics))
        summary = self._write_summary(status, fault)  # last: what says "finished" is not done again
        return Run(self.trainer.networks, self.metrics, summary, self.trainer.history.statistics())

    def _write_summary(self, status: str, fault: dict[str, Any] | None = None) -> dict[str, Any]:
        summary = self._summary(status, fault)
        self._write(lambda folder: folder.write_json(SUMMARY, summary))
        return summary

    def _summary(self, status: str, fault: dict[str, Any] | None = None) -> dict[str, Any]:
        whole = [line for line in self.metrics if fault is None or line["epoch"] != fault["epoch"]]
        summary: dict[str, Any] = {
            "status": status,
            "last_10_mean": last_mean(self.metrics),
            "best_by_validation": best_by_validation(whole),
            "last": self.metrics[-1] if self.metrics else None,
            "nominal_noise_rate": None,
            "realised_noise_rate": self.trainer.realised_noise_rate,
            "environment": {
                **describe_environment(self.trainer.device),
                "processes": self.processes.count,
                "steps": self.trainer.how_steps_run,
            },
            **self.extra_summary,
        }
        if fault is not None:
            summary["diverged"] = fault
        return summary | self.trainer.step.method.summary()


class _StageDiverged(Exception):
    def __init__(self, fault: dict[str, Any]) -> None:
        self.fault = fault


def _shapes(networks: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor in the state_dicts of networks."""
    return {
        f"{name} of network {number}": tuple(value.shape)
        for number, weights in enumerate(networks, start=1)
        for name, value in weights.items()
        if isinstance(value, Tensor)
    }
