"""What a training run works on: networks, optimiser, data, generators, and what a checkpoint holds of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from jocor_fast.data.samples import InputSource, ResidentInputs, Samples, SparseInputs
from jocor_fast.engine import augment
from jocor_fast.engine.epoch_log import EpochLog
from jocor_fast.engine.evaluate import EvaluationSet, predicted_probabilities
from jocor_fast.engine.forget_rate import AdaptiveForgetRate
from jocor_fast.engine.graph import CapturedSteps
from jocor_fast.engine.history import SampleHistory, share_rows
from jocor_fast.engine.networks import check_single_rows, probe_classes, start_training
from jocor_fast.engine.optimizer import DEFERRED, may_defer
from jocor_fast.engine.plan import DeviceRates, EpochPlan, StepRates, plan_epoch, whole_batch
from jocor_fast.engine.processes import ALONE, Processes
from jocor_fast.engine.settings import ADAPTIVE, BALANCED, TrainSettings
from jocor_fast.engine.sparse_perceptrons import sparse_where_it_pays
from jocor_fast.engine.step import TrainingStep, is_plain
from jocor_fast.engine.threads import StepThreads
from jocor_fast.errors import ArgumentValueError
from jocor_fast.methods import METHODS, Method


class TrainingState:
    """All that `engine.loop.train` works on. Between any two steps `state_dict` is all that is needed to continue.

    A run that continues has the same bits on the CPU. torch's own generators belong to the run
    (`machine.seeded_generators`).

    Several processes have the same order of samples, of which each trains on its share, and the same networks. What
    else they have (metrics, the samples' history, bad files) they exchange when an epoch is over or a checkpoint due:
    `share_steps`, `bad_file_count` and `state_dict` are for all of them to call.
    """

    def __init__(
        self,
        settings: TrainSettings,
        networks: Sequence[nn.Module],
        train: Samples,
        test: Samples | None,
        val: Samples | None,
        device: torch.device,
        processes: Processes = ALONE,
    ) -> None:
        self.settings = settings
        self.device = device
        self.processes = processes
        self.networks = tuple(networks)
        self.own_rows = whole_batch(settings, len(train.labels), processes) // processes.count
        self.source: InputSource = train.open(device, self.own_rows, training=True)
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
        method = METHODS[settings.method].of(settings.as_dict())
        method.start(self.labels, self.classes)
        self._dense_sources: list[InputSource] = []  # where sparse ones took their places
        if is_plain(settings, method, processes) and may_defer(settings) and settings.augment == "none":
            self._skip_zeros()
        self._make_step(method)
        adaptive = settings.forget_rate == ADAPTIVE and method.selects
        self.forget_rate = AdaptiveForgetRate(settings.ramp_epochs) if adaptive else None
        self.history = SampleHistory(self.labels, len(self.networks), ranked=self.step.per_class, certainties=adaptive)
        self.log: EpochLog | None = None  # of the epoch under way
        self._kept_log: EpochLog | None = None  # of the epoch before, whose tensors serve the next
        # On a GPU the rates lie on the device however the steps are launched: all of them round alike. A user's
        # optimiser takes them from the host.
        rates_on_device = device.type == "cuda" and not callable(settings.optimizer)
        self.rates = DeviceRates(device) if rates_on_device else None
        self.captured: CapturedSteps | None = None
        alone_on_gpu = rates_on_device and processes.count == 1
        if alone_on_gpu and not settings.no_graph and isinstance(self.source, ResidentInputs):
            self.captured = CapturedSteps(self.step, self.source, self.labels, self.history)

    def _with_sources(self) -> list[TrainingState | EvaluationSet]:
        return [self, *(data for data in (self.test, self.val) if data is not None)]

    def _skip_zeros(self) -> None:
        """Have the inputs read as sparse rows where that pays for those to train on."""
        held = self._with_sources()
        dense = [holder.source for holder in held]
        self.source = sparse_where_it_pays(self.source, self.networks)
        if self.source is not dense[0]:
            self._dense_sources = dense
            for data in held[1:]:
                data.source = sparse_where_it_pays(data.source, self.networks)

    def _read_zeros(self) -> None:
        """Take `_skip_zeros` back."""
        for holder, source in zip(self._with_sources(), self._dense_sources, strict=True):
            holder.source = source
        self._dense_sources = []
        on_choice = self.threads.on_choice
        self.step.group.release()
        self._make_step(self.step.method)
        self.threads.on_choice = on_choice

    def _make_step(self, method: Method) -> None:
        class_weights = self._class_weights()  # which may be wrong, and the step changes the networks
        self.step = TrainingStep(
            self.settings, method, self.networks, self.source, self.device, self.generator, self.processes
        )
        self.step.class_weights = class_weights
        self.threads = StepThreads(self.step, self.networks)

    def _check(self, train: Samples, test: Samples | None, val: Samples | None) -> int:
        """Return C, the number of the networks' outputs.

        Raises:
            ValueError: the data do not go with the networks or the settings, which is found before the first epoch.
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

    def _class_weights(self) -> Tensor | None:
        """Return the weights of the classes, float32 [C]; a class without samples has none where they are balanced."""
        weights = self.settings.class_weights
        if weights is None:
            return None
        if weights == BALANCED:
            numbers = torch.bincount(self.labels, minlength=self.classes).double()
            return torch.where(numbers > 0, len(self.labels) / (self.classes * numbers), 0.0).float()
        if len(weights) != self.classes:
            raise ArgumentValueError(
                "class_weights", f"must be a number for each of the {self.classes} classes, got {len(weights)}"
            )
        return torch.tensor(weights, dtype=torch.float32, device=self.device)

    @property
    def realised_noise_rate(self) -> float | None:
        """Share of wrong labels among those trained on; None where the truth is unknown."""
        return None if self.clean is None else 1.0 - int(self.clean.sum()) / len(self.clean)

    @property
    def how_steps_run(self) -> str:
        """For summary.json: whether CUDA graphs are replayed, and why not."""
        if self.captured is None:
            how = "launched by the host"
            if isinstance(self.source, SparseInputs) and self.source.made:
                how += f", the first layer reads the {100 * self.source.filled:.3g} % of the inputs that are not 0"
            elif isinstance(self.source, SparseInputs):
                how += (
                    ", the first layer reads sparse rows" if self.step.reads_sparse_rows else ", sparse rows made dense"
                )
            return how
        reason = self.captured.why_eager
        return "CUDA graphs" if reason is None else f"launched by the host: {reason}"

    def plan_epoch(self, epoch: int) -> EpochPlan:
        """Read every schedule for an epoch, which may be under way; τ may follow what the run has seen before it."""
        estimated = None
        if self.forget_rate is not None:
            if self.log is None:
                self.forget_rate.follow(epoch, self.history, self.classes, self.processes)
            estimated = self.forget_rate.value
        return plan_epoch(self.settings, epoch, len(self.labels), self.processes, estimated=estimated)

    def begin_epoch(self, plan: EpochPlan) -> tuple[EpochLog, StepRates]:
        """Return the log of the epoch, which may be under way, and what its steps read of the plan."""
        self.step.per_class = self.step.is_per_class(plan.epoch)
        if self.log is None:
            self.log = self._new_log(plan)
            if self.step.per_class:
                self.history.rank()
            self.step.method.begin_epoch(plan.rates.keep, self.history)
        if self.captured is not None:
            self.captured.begin(self.log, plan)
        return self.log, plan.rates if self.rates is None else self.rates.load(plan)

    def _new_log(self, plan: EpochPlan) -> EpochLog:
        """Draw the order of an epoch, in whole batches: what is left over is left out, another part each time.

        All processes draw the same one, and each takes every W-th row of each batch.
        """
        order = torch.randperm(len(self.source), generator=self.generator, device=self.device)
        if self.step.method.chooses_samples:
            chosen_first = self._chosen(plan)[order].int().argsort(descending=True, stable=True)
            order = order[chosen_first[: plan.samples]]
        order = self.processes.share_of(order[: plan.steps * plan.batch_size])
        log, self._kept_log = self._kept_log, None
        if log is None:
            return EpochLog(order.clone(), plan.steps, self.step.method.num_choices)
        log.restart(order)
        return log

    def _chosen(self, plan: EpochPlan) -> Tensor:
        """Return which samples the epoch trains on, bool [N], in every process the same."""

        def probabilities() -> Tensor:
            with self.step.autocast():
                found = predicted_probabilities(self.networks[0], self.source, self.device, self.own_rows)
            return torch.from_numpy(found).to(self.device)

        groups = self.labels if self.step.per_class else None
        chosen = self.step.method.choose(plan.epoch, plan.samples, probabilities, self.labels, self.generator, groups)
        return self.processes.from_first(lambda: chosen).to(self.device)

    def end_epoch(self) -> None:
        """Close the log of the epoch, and let every process have what each has of its steps."""
        self.share_steps()
        self.step.optimizer.catch_up()
        self._kept_log, self.log = self.log, None

    def share_steps(self) -> None:
        """Let every process have what each has of the steps of the epoch so far."""
        if self.processes.count > 1 and self.log is not None:
            self.processes.copy_first(buffer for network in self.networks for buffer in network.buffers())
            trained = self.log.order[: self.log.step * self.log.rows_a_step]
            self.history.share(trained, self.processes)
            for tensor in self.step.method.state.values():
                if tensor.dim() and len(tensor) == len(self.labels):
                    share_rows(tensor, trained, self.processes)

    def bad_file_count(self) -> int | None:
        """Return how many bad files all processes have met so far; None where the run reads none."""
        bad_files = self.source.bad_files
        if bad_files is None:
            return None
        bad_files.merge(self.processes.objects(bad_files.reasons))
        return len(bad_files)

    def unsound(self) -> Tensor:
        """Return whether a parameter is not finite, or a buffer NaN (an infinite one can be a mask); 0-d."""
        # The extremes are NaN where one number is, and take no memory; isfinite() takes twice that of the parameter.
        parameters = [parameter.detach() for parameter in self.step.group.parameters if parameter.numel()]
        states = [~torch.stack(torch.aminmax(parameter)).isfinite().all() for parameter in parameters]
        buffers = [buffer for network in self.networks for buffer in network.buffers() if buffer.is_floating_point()]
        return torch.stack(states + [buffer.isnan().any() for buffer in buffers]).any()

    def state_dict(self) -> dict[str, Any]:
        """Return networks, optimiser, generators and the epoch under way: tensors and plain values only.

        Where there are several processes, that of the first holds what is all of theirs, and under "others" what each
        of the others has for itself.
        """
        self.share_steps()
        self.step.optimizer.catch_up()
        self.bad_file_count()
        bad_files, scale, own = self.source.bad_files, self.step.loss_scale, self._own_state()
        return {
            "networks": [network.state_dict() for network in self.networks],
            "optimizer": self.step.optimizer.state_dict(),
            "loss_scale": None if scale is None else scale.state_dict(),
            "history": self.history.state_dict(),
            **({} if self.forget_rate is None else {"forget_rates": list(self.forget_rate.estimates)}),
            "method": {name: tensor.detach() for name, tensor in self.step.method.state.items()},
            "bad_files": None if bad_files is None else dict(bad_files.reasons),
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
        """Continue from a `state_dict` of a run with the same settings."""
        if self._dense_sources and DEFERRED not in state["optimizer"]:  # of a run from before zeros were skipped
            self._read_zeros()
        self._dense_sources = []
        for network, weights in zip(self.networks, state["networks"], strict=True):
            network.load_state_dict(weights)
        self.step.optimizer.load_state_dict(state["optimizer"])
        if self.step.loss_scale is not None:
            self.step.loss_scale.load_state_dict(state["loss_scale"])
        with torch.no_grad():
            for name, tensor in self.step.method.state.items():
                tensor.copy_(state["method"][name])
        own = state if self.processes.first else state["others"][self.processes.rank - 1]
        generators = own["generators"]
        self.generator.set_state(generators["batches"])
        torch.set_rng_state(generators["torch"])
        if generators["cuda"] is not None:
            torch.cuda.set_rng_state(generators["cuda"], self.device)
        if "history" in state:  # a checkpoint from before there was one: what follows is its history
            self.history.load_state_dict(state["history"])
        if self.forget_rate is not None:
            self.forget_rate.estimates = list(state["forget_rates"])
        self.log = None if own["log"] is None else EpochLog.from_state_dict(own["log"], self.device)
        if self.source.bad_files is not None:
            self.source.bad_files.restore(state["bad_files"])

    def release(self) -> None:
        """Close the source, and hand the networks back: ordinary modules, in evaluation mode, without gradients."""
        self.threads.rest()
        self.source.close()
        self.step.optimizer.catch_up()
        del self.step.optimizer  # what it keeps, which may be more than what is copied next
        self.step.group.release()
        for network in self.networks:
            network.eval()


def _on_cpu(state: dict[str, Any]) -> dict[str, Any]:
    """The state with its tensors on the host, where another process can read them."""
    return {
        name: _on_cpu(value) if isinstance(value, dict) else value.cpu() if isinstance(value, Tensor) else value
        for name, value in state.items()
    }
