"""The settings of a training run: name, default, check, flag and help of each, declared once."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from jocor_fast import arguments
from jocor_fast.errors import ArgumentTypeError, ArgumentValueError, did_you_mean
from jocor_fast.methods import GROUP, METHODS
from jocor_fast.option import Option, option, options_of
from jocor_fast.schedules import LR_PLANS, RECIPES, default_decay_start, has_decay_start, trained_epochs

if TYPE_CHECKING:
    import torch

OptimizerSource: TypeAlias = "Callable[[list[torch.Tensor]], torch.optim.Optimizer]"

_MOST_DEVICE = 127  # torch has 8 bits for the number of a device
_MOST_THREADS = 1024  # more than any machine gains by, and few enough to start
BALANCED = "balanced"  # class weights
ADAPTIVE = "adaptive"  # τ
OPTIMIZERS = ("adam", "sgd")
AUGMENTATIONS = ("none", "crop-flip")
PRECISIONS = ("float32", "bfloat16", "float16")
SCOPES = ("process", "global")
METHOD, TRAINING, MACHINE = GROUP, "network and training", "machine"
TOGETHER = "several processes (torchrun)"
SHOWN_AS = {"co_lambda": "λ", "warmup_epochs": "warm-up", "transition_val_fraction": "T split"}


def _or_none(check: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    """Return the check of an option whose default None leaves it to the recipe."""
    return lambda name, value: None if value is None else check(name, value)


def _seed(name: str, value: Any) -> int:
    seed = arguments.not_negative_int(name, value)
    if seed >= 2**63:
        raise ArgumentValueError(name, f"must be under 2**63, got {seed}")
    return seed


def _threads(name: str, value: Any) -> int:
    threads = arguments.positive_int(name, value)
    if threads > _MOST_THREADS:
        raise ArgumentValueError(name, f"must be at most {_MOST_THREADS}, got {threads}")
    return threads


def device_name(device: str | torch.device) -> str:
    """Return the device as text; whether it exists is checked when a run starts."""
    if not isinstance(device, str) and type(device).__module__ != "torch":
        raise ArgumentTypeError("device", f"must be a str or a torch.device, got {type(device).__name__}")
    name = str(device)
    number = re.fullmatch(r"auto|cpu|cuda|(?:cpu|cuda):(0|[1-9]\d*)", name)
    if number is None or int(number[1] or 0) > _MOST_DEVICE:
        raise ArgumentValueError("device", f"must be auto, cpu, cuda or cuda:N, got {name!r}")
    return name


def _device(name: str, value: Any) -> str:
    return device_name(value)


def _no_selection(run: Any, processes: int) -> str | None:
    return None if METHODS[run.training.method].selects else f"{run.training.method} does not select by loss"


def _no_ramp(run: Any, processes: int) -> str | None:
    chooses = METHODS[run.training.method].chooses_samples
    return f"{run.training.method} drops τ from the first epoch on" if chooses else _no_selection(run, processes)


def _no_decay(run: Any, processes: int) -> str | None:
    """Where β1 changes there, it does whatever the plan."""
    training = run.training
    if has_decay_start(training.lr_plan) or training.recipe == "published" or training.beta1_after is not None:
        return None
    return f"--lr-plan {run.training.lr_plan} sets when the learning rate falls"


def _no_adam(run: Any, processes: int) -> str | None:
    return None if run.training.optimizer == "adam" else f"--optimizer {run.training.optimizer} has no β1"


def _on_gpu(run: Any, processes: int) -> str | None:
    return "the run is on a GPU" if run.training.device.startswith("cuda") else None


def _alone(run: Any, processes: int) -> str | None:
    return "there is one process" if processes == 1 else None


def _idle(name: str) -> Callable[[Any, int], str | None]:
    """Return why an option of a method changes nothing in a run of another one."""

    def reason(run: Any, processes: int) -> str | None:
        method = run.training.method
        return None if name in METHODS[method].options else f"{method} has no {SHOWN_AS.get(name, name)}"

    return reason


def _of_method(method: str, name: str, why: str) -> Any:
    """Declare an option of a method as a setting of every run."""
    one = METHODS[method].options[name]
    return option(one.default, METHOD, one.metavar, one.help, check=one.check, idle=_idle(name), why=why)


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """The settings of one run; their names are those of the command line and of config.json.

    Values are checked and brought to their plain type when the object is made: a wrong type is a TypeError, a wrong
    value a ValueError, and the message names the setting. What `option` declares is a flag of `jocor-fast train`.

    Attributes:
        forget_rate: τ, float in [0, 1): the share of a batch that is left out once the ramp is over; "adaptive": it
            follows the run (`engine.forget_rate`).
        optimizer: one of `OPTIMIZERS`, or a function that builds a torch optimiser of the parameters (files name it).
        method_options: further options of the method, by name; one that is not given has its default.
        class_weights: how much the samples of each class count in a loss: C numbers; "balanced": inverse to their
            numbers, N / (C · n); None: all alike.
        decay_start: None becomes `schedules.default_decay_start`.
    """

    # fmt: off
    method: str = option("jocor", METHOD, "NAME", "training method", choices=METHODS)
    forget_rate: float | str
    co_lambda: float = _of_method(
        "jocor", "co_lambda", why="mnist, cifar10, cifar100: the authors' values; --recipe published: 0.1"
    )
    method_options: Mapping[str, int | float] = field(default_factory=dict)
    ramp_epochs: int = option(
        10, METHOD, "N", "epochs over which the dropped share rises from 0 to τ", check=arguments.not_negative_int,
        idle=_no_ramp,
        why="networks learn the clean labels first: leave them a few hundred steps",
    )
    selection_per_class: bool = option(
        False, METHOD, "",
        "keep the same share of each class, so that a rare one is not dropped as a whole; a class with few rows in a "
        "batch keeps those that its samples' losses so far rank lowest",
        check=arguments.check_switch, idle=_no_selection, why="as in the paper, the smallest losses of the whole batch",
    )
    balanced_ramp: bool = option(
        False, METHOD, "",
        "keep the same share of each class while the dropped share rises: no class is dropped before it is learnt, as "
        "can happen where most labels are wrong",
        check=arguments.check_switch, idle=_no_ramp, why="as in the paper, the smallest losses of the whole batch",
    )
    warmup_epochs: int = _of_method("coteaching-plus", "warmup_epochs", why="cifar10: 20; cifar100: 5")
    epochs: int = option(
        200, TRAINING, "N", "passes over the training data", check=arguments.positive_int,
        why="--recipe published trains one fewer",
    )
    decay_start: int | None = option(
        None, TRAINING, "N", "last epoch at the full learning rate, which then decays linearly to 0",
        check=arguments.not_negative_int, idle=_no_decay,
        why="0.4 of the epochs; cifar100 with --recipe published: 0.5",
    )
    max_batches: int | None = option(
        None, TRAINING, "N", "train on at most N batches an epoch, drawn anew each time",
        check=_or_none(arguments.positive_int),
        why="all whole ones; --recipe published: 401",
    )
    beta1_after: float | None = option(
        None, TRAINING, "B", "Adam's β1 from epoch --decay-start on, in [0, 1); before it is 0.9",
        check=_or_none(arguments.check_fraction), idle=_no_adam, why="0.9; --recipe published: 0.1",
    )
    batch_size: int = option(
        128, TRAINING, "B", "samples per step", check=arguments.positive_int,
        why="digits: 32, as small data need small batches",
    )
    lr: float = option(1e-3, TRAINING, "LR", "learning rate", check=arguments.above_zero)
    lr_plan: str = option(
        "linear", TRAINING, "NAME",
        "schedule of the learning rate: linear decay to 0 after --decay-start, or the paper's steps for Clothing1M",
        choices=LR_PLANS,
    )
    optimizer: str | OptimizerSource = option(  # noqa: RUF009 - its default is a str
        "adam", TRAINING, "NAME", "optimiser of both networks", choices=OPTIMIZERS
    )
    weight_decay: float = option(0.0, TRAINING, "W", "L2 penalty on the weights", check=arguments.not_negative)
    class_weights: str | tuple[float, ...] | None = None
    label_smoothing: float = option(
        0.0, TRAINING, "E", "part of each label to spread evenly over all classes, in [0, 1]",
        check=arguments.in_unit_interval,
    )
    augment: str = option(
        "none", TRAINING, "NAME", "random crops and horizontal flips", choices=AUGMENTATIONS, why="as in the paper"
    )
    recipe: str = option(
        "paper", METHOD, "NAME", "which to follow where the paper and its published code differ", choices=RECIPES
    )
    seed: int = option(0, TRAINING, "N", "seed of initial weights, batch order and validation split", check=_seed)
    device: str = option(
        "auto", MACHINE, "DEV", "auto, cpu, cuda or cuda:N", check=_device, why="a GPU where there is one"
    )
    precision: str = option("float32", MACHINE, "TYPE", "floating-point type of the networks", choices=PRECISIONS)
    no_graph: bool = option(
        False, MACHINE, "", "on a GPU, launch every step from the host instead of replaying CUDA graphs",
        check=arguments.check_switch,
        why="CUDA graphs, for data in memory",
    )
    compile: bool = option(
        False, MACHINE, "", "compile the networks with torch.compile", check=arguments.check_switch,
        why="not compiled; compiling takes a minute",
    )
    threads: int | None = option(
        None, MACHINE, "N", "threads on the CPU", check=_or_none(_threads), idle=_on_gpu,
        why="those that OMP_NUM_THREADS or the cores allow, or one for a step where that is faster and changes no bit",
    )
    selection_scope: str = option(
        "process", TOGETHER, "SCOPE",
        "select among each process's own rows of a batch, or among the rows of all processes",
        choices=SCOPES, idle=_alone, why="it needs no exchange",
    )
    batch_scope: str = option(
        "process", TOGETHER, "SCOPE",
        "whether --batch-size counts the rows of each process, or of all together; the learning rate stays as given",
        choices=SCOPES, idle=_alone,
    )
    # fmt: on

    def __post_init__(self) -> None:
        self._set("forget_rate", _forget_rate(self.forget_rate))
        if self.decay_start is None:
            epochs = arguments.at_least("epochs", self.epochs, 1)
            self._set("decay_start", default_decay_start(epochs, recipe=self.recipe))
        for name, declared in options_of(type(self)).items():
            value = getattr(self, name)
            if name == "optimizer" and callable(value):
                continue
            if declared.kind == "choice":
                arguments.check_choice(name, value, declared.choices)
            elif declared.check is not None:
                self._set(name, declared.check(name, value))
        if METHODS[self.method].chooses_samples:
            self._set("ramp_epochs", 0)
            if self.forget_rate == ADAPTIVE:
                wanted = f"must be a number for method {self.method!r}, whose epochs are all as long"
                raise ArgumentValueError("forget_rate", f"{wanted}, got {ADAPTIVE!r}")
        self._set("class_weights", _class_weights(self.class_weights))
        for name, value in (("class_weights", self.class_weights), ("label_smoothing", self.label_smoothing or None)):
            if value is not None and not METHODS[self.method].takes_terms:
                raise ArgumentValueError(name, f"must be left out: the loss of method {self.method!r} has none")
        if callable(self.optimizer) and self.weight_decay:
            raise ArgumentValueError(
                "weight_decay", "must be left out with a function for optimizer, which sets its own"
            )
        trained_epochs(self.epochs, self.recipe)  # refuses one epoch of recipe "published"
        self._set_method_options()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> TrainSettings:
        """Make the settings from values by name, options of methods among them; those of other methods are left out."""
        own = {one.name: values[one.name] for one in fields(cls) if one.name in values}
        further = {name: values[name] for name in further_options(values["method"]) if name in values}
        return cls(**own, method_options=further)

    def as_dict(self) -> dict[str, str | int | float]:
        """Return {name: value} as config.json and the checkpoints hold it."""
        values = asdict(self)
        if callable(self.optimizer):
            values["optimizer"] = f"function {getattr(self.optimizer, '__qualname__', type(self.optimizer).__name__)}"
        others: dict[str, int | float] = values.pop("method_options")
        return values | others

    def sources(self) -> dict[str, str]:
        """Return {name: "default" or "flag"}: whether a setting has its default value."""
        defaults = {one.name: one.default for one in fields(self)}
        defaults |= {name: one.default for name, one in further_options(self.method).items()}
        defaults["decay_start"] = default_decay_start(self.epochs, recipe=self.recipe)
        return {name: "default" if value == defaults[name] else "flag" for name, value in self.as_dict().items()}

    def as_begun(self, stored: Collection[str]) -> TrainSettings:
        """Return the settings to resume a run with whose stored settings have these names.

        What was added to its method since, and has its default, has the value of the time before (`Option.before`).
        """
        given = self.method_options
        older = {name: value for name, value in options_before(self.method).items() if name not in stored}
        changed = {
            name: value for name, value in older.items() if given[name] == further_options(self.method)[name].default
        }
        return replace(self, method_options={**given, **changed}) if changed else self

    def _set_method_options(self) -> None:
        options = further_options(self.method)
        for name in self.method_options:
            if name not in options:
                hint = did_you_mean(name, [one.name for one in fields(self)])
                raise ArgumentTypeError(name, f"must be left out: method {self.method!r} has no such option{hint}")
        given = {name: self.method_options.get(name, one.default) for name, one in options.items()}
        checks = {name: one.check or (lambda _, value: value) for name, one in options.items()}
        self._set("method_options", {name: checks[name](name, value) for name, value in given.items()})

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


def _forget_rate(rate: Any) -> float | str:
    """Return τ as a float, or "adaptive"; ArgumentError where it is neither."""
    if isinstance(rate, str):
        if rate != ADAPTIVE:
            raise ArgumentValueError("forget_rate", f"must be a number in [0, 1) or {ADAPTIVE!r}, got {rate!r}")
        return rate
    return arguments.check_forget_rate(rate)


def _class_weights(weights: Any) -> str | tuple[float, ...] | None:
    """Return class weights as a plain type; ArgumentError where they are none."""
    if weights is None or (isinstance(weights, str) and weights == BALANCED):
        return weights
    array = hasattr(weights, "tolist")  # of NumPy, or a tensor
    if isinstance(weights, str) or not (array or isinstance(weights, Sequence)):
        raise ArgumentTypeError("class_weights", f"must be {BALANCED!r} or a number for each class, got {weights!r}")
    numbers = weights.tolist() if array else weights
    return tuple(arguments.not_negative("class_weights", number) for number in numbers)


def further_options(method: str) -> dict[str, Option]:
    """Return the options of a method that are not settings of every run."""
    options = METHODS[arguments.check_choice("method", method, METHODS)].options
    settings = {one.name for one in fields(TrainSettings)}
    return {name: one for name, one in options.items() if name not in settings}


def options_before(method: str) -> dict[str, Any]:
    """Return {name: value} of the method's options that had another value than their default before they existed."""
    return {name: one.before for name, one in further_options(method).items() if one.before is not None}


def method_options() -> dict[str, Option]:
    """Return the options of methods that are not settings of every run."""
    found: dict[str, Option] = {}
    for method in METHODS:
        for name, one in further_options(method).items():
            found.setdefault(name, replace(one, help=f"{one.help} (method {method})", idle=_idle(name)))
    return found
