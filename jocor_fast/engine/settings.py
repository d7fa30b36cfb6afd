"""What a training run is told: every setting, its default and what it accepts, in one place."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields

import torch

from jocor_fast import arguments
from jocor_fast.errors import ArgumentTypeError, ArgumentValueError
from jocor_fast.methods import METHODS, Option
from jocor_fast.schedules import LR_PLANS, RECIPES, default_decay_start, trained_epochs

OPTIMIZERS = ("adam", "sgd")
AUGMENTATIONS = ("none", "crop-flip")
PRECISIONS = ("float32", "bfloat16", "float16")
SCOPES = ("process", "global")


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """The settings of one run; their names are those of the command line and of config.json.

    Values are checked and brought to their plain type when the object is made: a wrong type is a TypeError, a wrong
    value a ValueError, one sentence that names the setting.

    Attributes:
        method: a name in `jocor_fast.methods.METHODS`.
        forget_rate: τ, float in [0, 1): the share of a batch that is left out once the ramp is over.
        co_lambda: λ, float in [0, 1].
        warmup_epochs: int ≥ 0: epochs in which method "coteaching-plus" is "coteaching".
        ramp_epochs: T_k, int ≥ 0: epochs over which the forget rate rises from 0 to τ.
        epochs: int ≥ 1 (≥ 2 for recipe "published", which trains one fewer).
        decay_start: int ≥ 0, the last epoch at the full rate; None: `schedules.default_decay_start`.
        batch_size: int ≥ 1.
        lr: float > 0.
        lr_plan: "linear" (full up to `decay_start`, then falling to 0) or "clothing1m" (`schedules.lr_step_factor`).
        optimizer: "adam" (β1 by the recipe, β2 0.999), or "sgd" (plain, without momentum).
        weight_decay: float ≥ 0, the L2 term of torch's optimisers.
        augment: "none", or "crop-flip": images are cropped at random (those in memory after padding them by 4) and
            mirrored at random.
        recipe: "paper" or "published", see `jocor_fast.schedules`.
        seed: int in [0, 2⁶³): initial weights (of networks that a function builds), batches, dropout, augmentation.
        device: "auto", "cpu", "cuda" or "cuda:N" (or the torch.device).
        precision: "float32", or by autocast "bfloat16" or "float16" (with loss scaling).
        no_graph: bool; True: no CUDA graphs, each step is launched by the host.
        compile: bool; True: the networks are compiled by torch.compile, in their first steps.
        selection_scope: of several processes, "process": each selects among its own rows of a batch; "global": all
            select together, as one process does that has the whole batch.
        batch_scope: whether `batch_size` is that of each process ("process") or of all together ("global").
        method_options: further options of the method, by name; one that is not given has its default.
    """

    method: str = "jocor"
    forget_rate: float
    co_lambda: float = 0.9
    ramp_epochs: int = 10
    warmup_epochs: int = 0
    epochs: int = 200
    decay_start: int | None = None
    batch_size: int = 128
    lr: float = 1e-3
    lr_plan: str = "linear"
    optimizer: str = "adam"
    weight_decay: float = 0.0
    augment: str = "none"
    recipe: str = "paper"
    seed: int = 0
    device: str = "auto"
    precision: str = "float32"
    no_graph: bool = False
    compile: bool = False
    selection_scope: str = "process"
    batch_scope: str = "process"
    method_options: Mapping[str, int | float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        options = further_options(self.method)
        self._choice("recipe", RECIPES)
        self._choice("lr_plan", LR_PLANS)
        self._choice("optimizer", OPTIMIZERS)
        self._choice("augment", AUGMENTATIONS)
        self._choice("precision", PRECISIONS)
        self._choice("selection_scope", SCOPES)
        self._choice("batch_scope", SCOPES)
        self._set("forget_rate", arguments.check_forget_rate(self.forget_rate))
        self._set("co_lambda", arguments.check_co_lambda(self.co_lambda))
        for name in ("lr", "weight_decay"):
            value = arguments.as_real(name, getattr(self, name))
            if not 0 <= value < math.inf or (name == "lr" and value == 0):  # NaN fails the comparison
                accepted = "finite and above 0" if name == "lr" else "finite and at least 0"
                raise ArgumentValueError(name, f"must be {accepted}, got {value}")
            self._set(name, value)
        for name, least in (("ramp_epochs", 0), ("warmup_epochs", 0), ("epochs", 1), ("batch_size", 1), ("seed", 0)):
            self._set(name, arguments.at_least(name, getattr(self, name), least))
        trained_epochs(self.epochs, self.recipe)  # refuses one epoch of recipe "published"
        if self.seed >= 2**63:
            raise ArgumentValueError("seed", f"must be under 2**63, got {self.seed}")
        if self.decay_start is None:
            self._set("decay_start", default_decay_start(self.epochs, recipe=self.recipe))
        self._set("decay_start", arguments.at_least("decay_start", self.decay_start, 0))
        self._set("device", device_name(self.device))
        for name in ("no_graph", "compile"):
            self._set(name, arguments.check_switch(name, getattr(self, name)))
        for name in self.method_options:
            if name not in options:
                raise ArgumentTypeError(name, f"must be left out: method {self.method!r} has no such option")
        given = {name: self.method_options.get(name, option.default) for name, option in options.items()}
        self._set("method_options", {name: options[name].check(value) for name, value in given.items()})

    def as_dict(self) -> dict[str, str | int | float]:
        """Return {name: value} as config.json and the checkpoints hold it."""
        values = asdict(self)
        return values | values.pop("method_options")

    def sources(self) -> dict[str, str]:
        """Return {name: "default" or "flag"}: which settings are as they are without being asked for."""
        defaults = {setting.name: setting.default for setting in fields(self)}
        defaults |= {name: option.default for name, option in further_options(self.method).items()}
        defaults["decay_start"] = default_decay_start(self.epochs, recipe=self.recipe)
        return {name: "default" if value == defaults[name] else "flag" for name, value in self.as_dict().items()}

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _choice(self, name: str, accepted: Collection[str]) -> None:
        arguments.check_choice(name, getattr(self, name), accepted)


def further_options(method: str) -> dict[str, Option]:
    """Return the options of a method that are not settings of every run."""
    options = METHODS[arguments.check_choice("method", method, METHODS)].options
    settings = {setting.name for setting in fields(TrainSettings)}
    return {name: option for name, option in options.items() if name not in settings}


def device_name(device: str | torch.device) -> str:
    """Return the device as text; whether it exists is checked when a run starts."""
    if not isinstance(device, (str, torch.device)):
        raise ArgumentTypeError("device", f"must be a str or a torch.device, got {type(device).__name__}")
    name = str(device)
    try:
        known = name == "auto" or torch.device(name).type in ("cpu", "cuda")
    except RuntimeError:
        known = False
    if not known:
        raise ArgumentValueError("device", f"must be auto, cpu, cuda or cuda:N, got {name!r}")
    return name
