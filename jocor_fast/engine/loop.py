"""The training loop: epochs, steps and evaluations from top to bottom (paper, algorithm 1, for method "jocor")."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from time import perf_counter

import torch

from jocor_fast.data.samples import Batch
from jocor_fast.engine.epoch_log import EpochLog
from jocor_fast.engine.evaluate import count_correct
from jocor_fast.engine.metrics import Epoch, Fault, Metrics, epoch_metrics, fault_so_far
from jocor_fast.engine.plan import EpochPlan
from jocor_fast.engine.state import TrainingState
from jocor_fast.schedules import trained_epochs


@dataclass(frozen=True)
class EpochEvent:
    """Handed to `on_epoch` when an epoch is trained and evaluated."""

    epoch: int  # from 1
    epochs: int  # that this run trains in all (one fewer than asked for with recipe "published")
    metrics: Metrics  # the line of metrics.jsonl
    fault: Fault | None = None  # why the run has diverged, if it has
    first_stage: bool = False  # which has a metrics.jsonl of its own
    lines: Sequence[Metrics] = ()  # of metrics.jsonl up to this one, those before the run was resumed among them


class Observer:
    """Watches a run. This one does nothing; a subclass defines what it needs, which must not touch the device."""

    def on_stage(self, stage: str) -> None:
        """Learn what a stage is before it begins, of a method that has several."""

    def on_threads(self, sentence: str) -> None:
        """Learn with how many threads the steps are made from here on."""

    def on_step(self, epoch: int, log: EpochLog) -> None:
        """Learn that a step is done (on a GPU: several that were launched together)."""

    def on_epoch(self, event: EpochEvent) -> None:
        """Learn what an epoch gave."""

    def pause_due(self, log: EpochLog) -> bool:
        """Return, before every step, whether to pause the run."""
        return False

    def on_pause(self) -> None:
        """Save what there is between two steps, or raise to end the run there."""


def train(state: TrainingState, epochs: Iterable[int], observer: Observer) -> Fault | None:
    """Train epochs, the first of which may be under way; return why the run has diverged, if it has."""
    settings = state.settings
    for epoch in epochs:
        plan = state.plan_epoch(epoch)
        log, rates = state.begin_epoch(plan)
        batches = state.source.batches(log.order[log.step * plan.own_rows :], plan.own_rows, epoch)
        with closing(batches):
            started = perf_counter()
            while log.step < plan.steps:
                if observer.pause_due(log):
                    log.seconds += _seconds_since(started, state.device)
                    fault = fault_so_far(plan, log, state)
                    if fault is not None:  # the checkpoint before it stays
                        return fault
                    observer.on_pause()
                    started = perf_counter()
                if state.captured is not None:
                    state.captured.launch(log)
                else:
                    samples, stored = _next(batches, state, log)
                    labels = state.labels.index_select(0, samples)
                    outcome = state.threads(stored, labels, rates, state.history.ranks_of(samples), samples)
                    log.record(outcome)
                    state.history.note(samples, labels, outcome)
                observer.on_step(epoch, log)
        state.history.record_noted()
        log.seconds += _seconds_since(started, state.device)
        line, fault = evaluate_epoch(state, plan, log)
        state.threads.rest()
        observer.on_epoch(EpochEvent(epoch, trained_epochs(settings.epochs, settings.recipe), line, fault))
        if fault is not None:
            return fault
    return None


def _next(batches: Iterator[Batch], state: TrainingState, log: EpochLog) -> Batch:
    """The batch of the step to come; of files, the log learns how long it took and which samples came."""
    if not state.source.reads_files:
        return next(batches)
    asked = perf_counter()
    batch = next(batches)
    log.waited += perf_counter() - asked
    log.replace(batch.samples)
    return batch


def _seconds_since(started: float, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # once an epoch, to time the device's work
    return perf_counter() - started


def evaluate_epoch(state: TrainingState, plan: EpochPlan, log: EpochLog) -> tuple[Metrics, Fault | None]:
    """Return what an epoch whose steps are done gave, of all processes together."""
    ended = perf_counter()
    state.end_epoch()
    with state.step.autocast():
        test, val = (
            count_correct(state.step.group, state.networks, data, state.processes) for data in (state.test, state.val)
        )
    return epoch_metrics(Epoch(plan, log, state, test, val, state.bad_file_count(), ended))
