"""The training itself: steps, epochs, their evaluation, and everything that a checkpoint must hold of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from jocor_fast.data.samples import Batch, EvalData, InputSource, ResidentInputs, TrainData
from jocor_fast.engine import augment
from jocor_fast.engine.epoch_log import EpochLog, EpochNumbers, read_at_once, shares, summed
from jocor_fast.engine.evaluate import Accuracy, EvaluationSet, count_correct
from jocor_fast.engine.graph import CapturedSteps
from jocor_fast.engine.history import SampleHistory
from jocor_fast.engine.networks import check_single_rows, probe_classes, start_training
from jocor_fast.engine.plan import DeviceRates, EpochPlan, whole_batch
from jocor_fast.engine.processes import ALONE, Processes
from jocor_fast.engine.settings import TrainSettings
from jocor_fast.engine.step import TrainingStep

Metrics = dict[str, Any]
UNSOUND = "a parameter or running statistic is not finite"


class Trainer:
    """Networks, optimiser, data and generators of one run, trained an epoch at a time.

    A run calls `train_epoch` and, when that says the epoch is complete, `finish_epoch`. Between any two steps
    `state_dict` is all that is needed to go on, bitwise on the CPU. torch's own generators belong to the run
    (`environment.seeded_generators`).

    Several processes have the same order of samples, of which each trains on its share, and the same networks. What
    else they have (metrics, the samples' history, bad files) they exchange when an epoch is over or a checkpoint due:
    `finish_epoch` and `state_dict` are for all of them to call.
    """

    def __init__(
        self,
        settings: TrainSettings,
        networks: Sequence[nn.Module],
        train: TrainData,
        test: EvalData | None,
        val: EvalData | None,
        device: torch.device,
        processes: Processes = ALONE,
    ) -> None:
        self.settings = settings
        self.device = device
        self.processes = processes
        self.networks = tuple(networks)
        self.own_rows = whole_batch(settings, len(train.labels), processes) // processes.count
        self.source: InputSource = train.open(device, self.own_rows)
        self.labels = train.labels.to(device)
        self.clean = None if train.clean_labels is None else (train.labels == train.clean_labels).to(device)
        self.test = None if test is None else EvaluationSet(test, device, self.own_rows, processes)
        self.val = None if val is None else EvaluationSet(val, device, self.own_rows, processes)
        self.classes = self._check(train, test, val)
        start_training(self.networks)
        if self.own_rows == 1:
            why = f"batch size {settings.batch_size}, training samples {len(train.labels)}, processes {processes.count}"
            check_single_rows(self.networks, self.source.first(1), why)
        self.generator = torch.Generator(device).manual_seed(settings.seed)
        self.step = TrainingStep(settings, self.networks, self.source, device, self.generator, processes)
        self.history = SampleHistory(self.labels, len(self.networks))
        self.log: EpochLog | None = None  # of the epoch under way
        self._kept_log: EpochLog | None = None  # of the epoch before, whose tensors serve the next
        # On a GPU the rates lie on the device however the steps are launched, so that all of them round alike.
        self.rates = DeviceRates(device) if device.type == "cuda" else None
        self.captured: CapturedSteps | None = None
        alone_on_gpu = device.type == "cuda" and processes.count == 1
        if alone_on_gpu and not settings.no_graph and isinstance(self.source, ResidentInputs):
            self.captured = CapturedSteps(self.step, self.source, self.labels, self.history)

    def _check(self, train: TrainData, test: EvalData | None, val: EvalData | None) -> int:
        """ValueError where the data do not go with the networks or the settings; found here, not after an epoch.

        Returns:
            C, how many classes the networks tell apart.
        """
        if self.settings.augment == "crop-flip" and not self.source.reads_files:
            augment.check_images(self.source.first())
        classes = probe_classes(self.networks, self.source.first(), "training inputs")
        for name, data in (("test inputs", self.test), ("validation inputs", self.val)):
            if data is not None:
                probe_classes(self.networks, data.source.first(), name)
        for name, labels in (
            ("training labels", train.labels),
            ("clean labels", train.clean_labels),
            ("test labels", None if test is None else test.labels),
            ("validation labels", None if val is None else val.labels),
        ):
            if labels is not None and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
                raise ValueError(
                    f"{name} must lie in 0 … {classes - 1}, as the networks have {classes} outputs, "
                    f"got {int(labels.min())} … {int(labels.max())}"
                )
        return classes

    @property
    def steps_done(self) -> int:
        """Steps of the epoch under way; 0 between two epochs."""
        return 0 if self.log is None else self.log.step

    @property
    def realised_noise_rate(self) -> float | None:
        """Share of wrong labels among those trained on; None where the truth is unknown."""
        return None if self.clean is None else 1.0 - int(self.clean.sum()) / len(self.clean)

    @property
    def how_steps_run(self) -> str:
        """For summary.json: whether CUDA graphs are replayed, and why not."""
        if self.captured is None:
            return "launched by the host"
        reason = self.captured.why_eager
        return "CUDA graphs" if reason is None else f"launched by the host: {reason}"

    def train_epoch(
        self,
        plan: EpochPlan,
        *,
        stop: Callable[[], bool],
        on_step: Callable[[int, int, int], None] | None = None,
        on_wait: Callable[[float], None] | None = None,
    ) -> bool:
        """Train what is left of an epoch.

        Args:
            plan: the epoch's schedules.
            stop: asked before every step whether to leave off.
            on_step: told after every step, or several that were launched together, (epoch, steps done, steps in all).
            on_wait: of a run on files, told before every step for how many seconds the host waited for its batch.

        Returns:
            Whether the epoch is complete. If not, `state_dict` holds the part that is.
        """
        log = self.log = self.log or self._start_log(plan)
        started = time.perf_counter()
        if self.captured is not None:
            self.captured.train(log, plan, stop=stop, on_step=on_step)
        else:
            self._train_step_by_step(log, plan, stop, on_step, on_wait)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # once an epoch, so that the time is the device's
        log.seconds += time.perf_counter() - started
        return log.step == plan.steps

    def _train_step_by_step(
        self,
        log: EpochLog,
        plan: EpochPlan,
        stop: Callable[[], bool],
        on_step: Callable[[int, int, int], None] | None,
        on_wait: Callable[[float], None] | None,
    ) -> None:
        rates = plan.rates if self.rates is None else self.rates.load(plan)
        batches = self.source.batches(log.order[log.step * plan.own_rows :], plan.own_rows, plan.epoch)
        while log.step < plan.steps and not stop():
            samples, stored = self._next(batches, log, on_wait)
            labels = self.labels.index_select(0, samples)
            outcome = self.step(stored, labels, rates)
            log.record(outcome)
            self.history.note(samples, labels, outcome)
            if on_step is not None:
                on_step(plan.epoch, log.step, plan.steps)
        self.history.record_noted()

    def _next(self, batches: Iterator[Batch], log: EpochLog, on_wait: Callable[[float], None] | None) -> Batch:
        """The batch of the step to come; of files, the log learns how long it took and which samples came."""
        if not self.source.reads_files:
            return next(batches)
        asked = time.perf_counter()
        batch = next(batches)
        waited = time.perf_counter() - asked
        log.waited += waited
        if on_wait is not None:
            on_wait(waited)
        log.replace(batch.samples)
        return batch

    def _start_log(self, plan: EpochPlan) -> EpochLog:
        """Draw the order of an epoch, in whole batches: what is left over is left out, another part each time.

        All processes draw the same one, and each takes every W-th row of each batch.
        """
        order = torch.randperm(len(self.source), generator=self.generator, device=self.device)
        order = self.processes.share_of(order[: plan.steps * plan.batch_size])
        log, self._kept_log = self._kept_log, None
        if log is None:
            return EpochLog(order.clone(), plan.steps, self.step.method.num_choices)
        log.restart(order)
        return log

    def finish_epoch(self, plan: EpochPlan) -> tuple[Metrics, dict[str, Any] | None]:
        """Evaluate, and bring the epoch's numbers to the host, in one transfer, those of all processes together.

        Returns:
            The epoch's line of metrics.jsonl; and {epoch, batch, reason} where the run has diverged, else None.
        """
        log, self.log = self.log, None
        assert log is not None
        self._kept_log = log
        started = time.perf_counter()
        self._share_steps(log)
        with self.step.autocast():
            on_device = [
                count_correct(self.step.group, self.networks, data, self.processes) for data in (self.test, self.val)
            ]
        parts = [log.totals(self.clean), log.class_counts(self.labels, self.classes), self._unsound(), *on_device]
        totals, counts, unsound, *correct = read_at_once(parts, self.processes)
        numbers = EpochNumbers.of(totals)
        test, val = (Accuracy.of(summed(counted)) for counted in correct)
        bad_files = self.source.bad_files
        if bad_files is not None:
            bad_files.merge(self.processes.objects(bad_files.reasons))  # what was met in the evaluation too
        line = {
            "epoch": plan.epoch,
            "lr": plan.lr,
            "keep_rate": plan.keep_rate,
            "train_loss": numbers.train_loss,
            "label_precision": numbers.label_precision,
            "test_accuracy_1": test.first,
            "test_accuracy_2": test.second,
            "test_accuracy": test.mean,
            "test_accuracy_ensemble": test.ensemble,
            "val_accuracy": val.mean,
            "nonfinite_rows": int(numbers.nonfinite),
            "bad_files": None if bad_files is None else len(bad_files),
            "wait_share": log.waited / log.seconds if self.source.reads_files else None,
            "seconds": log.seconds,
            "eval_seconds": time.perf_counter() - started,
            "samples_per_second": len(log.order) * self.processes.count / log.seconds,
            "selected_share_per_class": shares(summed(counts)),
        }
        reasons = [UNSOUND] * bool(any(summed(unsound)))
        reasons += ["no step had a finite loss"] * numbers.without_loss
        if not reasons:
            return line, None
        return line, {"epoch": plan.epoch, "batch": numbers.first_broken_batch, "reason": " and ".join(reasons)}

    def fault_so_far(self, plan: EpochPlan) -> dict[str, Any] | None:
        """What `finish_epoch` would say if the epoch under way ended here, of the networks alone; waits for them."""
        assert self.log is not None
        totals, unsound = read_at_once([self.log.totals(None), self._unsound()], self.processes)
        if not any(summed(unsound)):
            return None
        return {"epoch": plan.epoch, "batch": EpochNumbers.of(totals).first_broken_batch, "reason": UNSOUND}

    def _share_steps(self, log: EpochLog) -> None:
        """Let every process have what each has of the steps of the epoch so far."""
        if self.processes.count > 1:
            self.processes.copy_first(buffer for network in self.networks for buffer in network.buffers())
            self.history.share(log.order[: log.step * log.rows_a_step], self.processes)

    def _unsound(self) -> Tensor:
        """Whether a parameter is not finite, or a buffer NaN (an infinite one can be a mask); 0-d, on the device."""
        states = [~parameter.detach().isfinite().all() for parameter in self.step.group.parameters]
        buffers = [buffer for network in self.networks for buffer in network.buffers() if buffer.is_floating_point()]
        return torch.stack(states + [buffer.isnan().any() for buffer in buffers]).any()

    def state_dict(self) -> dict[str, Any]:
        """Networks, optimiser, generators and the epoch under way: tensors and plain values only.

        Where there are several processes, that of the first holds what is all of theirs, and under "others" what each
        of the others has for itself.
        """
        if self.log is not None:
            self._share_steps(self.log)
        bad_files = self.source.bad_files
        if bad_files is not None:
            bad_files.merge(self.processes.objects(bad_files.reasons))
        own = self._own_state()
        return {
            "networks": [network.state_dict() for network in self.networks],
            "optimizer": self.step.optimizer.state_dict(),
            "loss_scale": None if self.step.loss_scale is None else self.step.loss_scale.state_dict(),
            "history": self.history.state_dict(),
            "bad_files": None if self.source.bad_files is None else dict(self.source.bad_files.reasons),
            **own,
            "others": self.processes.objects(_on_cpu(own))[1:] if self.processes.count > 1 else [],
        }

    def _own_state(self) -> dict[str, Any]:
        """What this process has for itself; the order of the batches is the same in all."""
        cuda = self.device.type == "cuda"
        return {
            "generators": {
                "batches": self.generator.get_state(),
                "torch": torch.get_rng_state(),
                "cuda": torch.cuda.get_rng_state(self.device) if cuda else None,
            },
            "log": None if self.log is None else self.log.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict` of a run with the same settings."""
        for network, weights in zip(self.networks, state["networks"], strict=True):
            network.load_state_dict(weights)
        self.step.optimizer.load_state_dict(state["optimizer"])
        if self.step.loss_scale is not None:
            self.step.loss_scale.load_state_dict(state["loss_scale"])
        own = state if self.processes.first else state["others"][self.processes.rank - 1]
        generators = own["generators"]
        self.generator.set_state(generators["batches"])
        torch.set_rng_state(generators["torch"])
        if generators["cuda"] is not None:
            torch.cuda.set_rng_state(generators["cuda"], self.device)
        if "history" in state:  # a checkpoint from before there was one: what follows is its history
            self.history.load_state_dict(state["history"])
        self.log = None if own["log"] is None else EpochLog.from_state_dict(own["log"], self.device)
        if self.source.bad_files is not None:
            self.source.bad_files.restore(state["bad_files"])

    def release(self) -> None:
        """Hand the networks back: ordinary modules, in evaluation mode, without gradients."""
        self.step.group.release()
        for network in self.networks:
            network.eval()


def _on_cpu(state: dict[str, Any]) -> dict[str, Any]:
    """The state with its tensors on the host, where another process can read them."""
    return {
        name: _on_cpu(value) if isinstance(value, dict) else value.cpu() if isinstance(value, Tensor) else value
        for name, value in state.items()
    }
