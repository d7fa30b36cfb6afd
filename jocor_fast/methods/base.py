"""A method as a policy: which networks it trains, on which rows of a batch, by which loss.

A method is one class, registered by the name that the command line and `jf.train` take; its fields are its options.
It sees logits and labels, never a network, a data set or an optimiser; nothing in a step makes the host wait for the
device.

Modules of methods import torch, and whatever imports it, as a `DeferredModule`: `jocor-fast --help` prints their
options.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeAlias, TypeVar

from jocor_fast._deferred import DeferredModule
from jocor_fast.option import Option, options_of

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

    from jocor_fast import closed_forms
    from jocor_fast.closed_forms import Rows
    from jocor_fast.composed_losses import Terms
else:
    torch, closed_forms = DeferredModule("torch"), DeferredModule("jocor_fast.closed_forms")

GROUP = "method"  # of the options, in the help


class Keep(NamedTuple):
    """How much of a batch is kept, and how its loss is made.

    Numbers, or 0-d tensors on the device that a captured step reads there.
    """

    num_keep: int | Tensor  # k, the rows that R(t) leaves of a whole batch; int64
    forget_rate: float | Tensor  # 1 − R(t), for a method that counts k among fewer rows; float64
    epoch: int = 1  # on the host: what depends on it is a `Method.phase`
    terms: Terms | None = None  # class weights, label smoothing, a selection per class; None: nothing of these
    samples: Tensor | None = None  # int64 [B], the numbers of the rows' samples, for a method with a `Method.state`


class StepLoss(NamedTuple):
    """What a method makes of a batch; nothing of it waits for the device."""

    loss: Tensor  # 0-d, to be differentiated
    selected: tuple[Tensor, ...]  # masks [B]: the rows that train; two where each network makes a choice of its own
    num_nonfinite: Tensor  # 0-d int64: rows whose loss is not finite
    per_sample: Tensor  # [B], detached: the loss of each row, of both networks together where there are two
    skip: Tensor | None = None  # 0-d float32: 1 where the parameters are to stay as they are, which Adam's moments move
    logits: tuple[Tensor, ...] = ()  # [B, C] of each network, detached; the step adds them


class History(Protocol):
    """What the steps so far saw of each sample, on the device: all that `Method.begin_epoch` may read of it."""

    labels: Tensor  # int64 [N]

    def losses(self) -> Tensor:
        """Return [N], moving means of the rows' losses (`StepLoss.per_sample`); NaN for a sample never seen."""
        ...

    def probabilities(self) -> Tensor:
        """Return [K, N], moving means of each network's probability of the given label; NaN likewise."""
        ...

    def predictions(self) -> Tensor:
        """Return int64 [K, N], the class that each network predicted last; −1 for a sample never seen."""
        ...


# Trains a network by the method of that name, and returns what the function makes of its probabilities float64 [N, C]
# of the training samples, on the run's device. (Of several processes one calls the function, and all get the result.)
# The number is the share of the samples that is held out, by whose labels the best epoch's network is chosen; 0: the
# network trains on all samples, and the last epoch's is taken.
FirstStage: TypeAlias = "Callable[[str, Callable[[np.ndarray], Tensor], float], Tensor]"


@dataclass(eq=False)
class Method:
    """A policy. What most methods have in common stands here.

    Attributes:
        state: tensors of the method's own, by name, on the device: made by `start`, changed in place by `begin_epoch`
            and `loss`, kept in checkpoints. One with N rows has a row a sample, and several processes exchange the rows
            that each has trained on; any other must come out the same in all of them. Those that require a gradient
            are trained with the networks. Nothing else may carry over from one step to the next.
    """

    title: ClassVar[str]  # as the paper heads its tables
    options: ClassVar[Mapping[str, Option]] = {}  # set by `register`, of the fields
    num_networks: ClassVar[int] = 2
    num_choices: ClassVar[int] = 1  # how many masks `StepLoss.selected` holds
    selects: ClassVar[bool] = True  # False: τ and its ramp change nothing, and the keep rate is reported as 1
    chooses_samples: ClassVar[bool] = False  # True: an epoch trains on the samples that `choose` picks, without a ramp
    sieves: ClassVar[bool] = False  # True: rows by a rule without τ, and their share is reported as the keep rate
    takes_terms: ClassVar[bool] = False  # whether its loss heeds `Keep.terms`
    stages: ClassVar[tuple[str, ...]] = ("",)  # what is trained one after the other, where that is more than one thing
    state: dict[str, Tensor] = field(default_factory=dict, init=False)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Method:
        """Make the method from the settings of a run by their names, of which it takes those that are its fields."""
        return cls(**{field.name: settings[field.name] for field in fields(cls) if field.init})

    def start(self, labels: Tensor, classes: int) -> None:
        """Make `state`, before the run begins or resumes.

        Args:
            labels: int64 [N], what the run is trained on, on its device.
            classes: C.
        """

    def prepare(self, first_stage: FirstStage) -> None:
        """Get ready before the first batch; a method of two stages trains the first."""

    def begin_epoch(self, keep: Keep, history: History) -> None:
        """Change `state` before the first step of an epoch; the host may wait for the device here.

        An epoch that is resumed half-way does not begin again.

        Args:
            keep: of the epoch, as numbers of the host.
            history: up to the epoch before.
        """

    def choose(
        self,
        epoch: int,
        num_keep: int,
        probabilities: Callable[[], Tensor],
        labels: Tensor,
        generator: torch.Generator,
        groups: Tensor | None,
    ) -> Tensor:
        """Return which samples an epoch trains on, bool [N] with `num_keep` of them, for `chooses_samples`.

        Args:
            epoch: from 1.
            num_keep: k = (1 − τ) · N.
            probabilities: predicts all samples by the first network as it is: [N, C]; rows of a sample may be NaN.
            labels: int64 [N].
            generator: draws the same numbers in every process, and is kept in checkpoints.
            groups: int64 [N], the classes of a selection per class; None: of all samples together.
        """
        raise NotImplementedError

    def summary(self) -> dict[str, Any]:
        """Return what summary.json holds of the method's own."""
        return {}

    def unreached(self, epochs: int) -> str | None:
        """Return in a clause what makes the method but comes after so many epochs, all that a run trains; else None."""
        return None

    def phase(self, epoch: int) -> Hashable:
        """Return what decides, in an epoch, which operators `loss` runs: a captured step holds for one value."""
        return None

    def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
        """Return the loss of a batch.

        Args:
            logits: [B, C] of each network.
            labels: int64 [B].
            keep: of the epoch.
        """
        raise NotImplementedError


def mean_step(rows: Rows, logits: tuple[Tensor, ...], trains: Tensor | None = None) -> StepLoss:
    """Return the mean over the rows that train, [B] bool (None: all), for `Method.loss`."""
    out = closed_forms.mean_loss(rows, logits, trains)
    return StepLoss(out.loss, (out.selected,), out.num_nonfinite, rows.losses)


METHODS: dict[str, type[Method]] = {}
M = TypeVar("M", bound=type[Method])


def register(name: str) -> Callable[[M], M]:
    """Make a method known by its name, with its fields as options."""

    def registered(method: M) -> M:
        dataclass(eq=False)(method)
        method.options = options_of(method)
        METHODS[name] = method
        return method

    return registered


def uses_forget_rate(method: str, val_labels: str | None) -> bool:
    """Return whether τ changes anything: which rows train, or which the validation (`--val-labels`) leaves out."""
    return METHODS[method].selects or val_labels == "small-loss"
