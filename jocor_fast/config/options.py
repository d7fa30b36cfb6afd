"""The options of `jocor-fast train`: name, type, default and help of each, in one table.

The defaults and values of training settings are those of `engine.settings.TrainSettings`; which of them a data set or a
recipe replaces is decided in config.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal

from jocor_fast.data.catalogue import DATASETS, models_text
from jocor_fast.data.images.preprocessing import CROP, NORMALISATIONS
from jocor_fast.data.images.source import LOADERS
from jocor_fast.engine.settings import AUGMENTATIONS, OPTIMIZERS, PRECISIONS, SCOPES, TrainSettings, further_options
from jocor_fast.methods import METHODS
from jocor_fast.noise.matrices import NOISE_KINDS
from jocor_fast.schedules import LR_PLANS, RECIPES

Kind = Literal["whole", "number", "text", "choice", "switch"]
AUTO = "auto"
VAL_LABELS = ("clean", "noisy", "small-loss")
TRAINING_FIELDS = tuple(setting.name for setting in fields(TrainSettings) if setting.name != "method_options")
# Training settings without a flag: a preset decides them, or this.
UNFLAGGED_DEFAULTS = {"warmup_epochs": TrainSettings.warmup_epochs}


@dataclass(frozen=True)
class Option:
    """One option. Its flag is the name with dashes; in TOML and config.json it goes by the name itself.

    Attributes:
        group: heads it in the help.
        default: what holds where nothing else is said; None where that depends on the data or on other options.
        why: how a default that is None comes about, or the reason of one that is not.
        choices: the values of a choice; words that stand for a value of another kind.
        aliases: older names of choices.
    """

    name: str
    group: str
    kind: Kind
    metavar: str
    help: str
    default: Any = None
    why: str = ""
    choices: Collection[str] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)

    @property
    def flag(self) -> str:
        """Such as "--noise-rate"."""
        return "--" + self.name.replace("_", "-")

    @property
    def expected(self) -> str:
        """What a value has to be, for error messages."""
        if self.kind == "choice":
            return f"one of {', '.join(self.choices)}"
        kind = {"whole": "a whole number", "number": "a number", "text": "text", "switch": "true or false"}[self.kind]
        return " or ".join((kind, *self.choices))

    def parse(self, text: str) -> Any:
        """The value of a flag's text; ValueError if it is not of the option's kind."""
        if text in self.choices:
            return text
        if self.kind == "whole":
            return int(text)
        if self.kind == "number":
            return float(text)
        return self.check(text)

    def check(self, value: Any) -> Any:
        """A value of the right type (an int where a float is meant becomes one); ValueError if it is of another."""
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if self.kind == "number" and number:
            with contextlib.suppress(OverflowError):  # a whole number beyond the largest float
                return float(value)
        if self.kind == "whole" and number and isinstance(value, int):
            return value
        if self.kind == "switch" and isinstance(value, bool):
            return value
        if self.kind == "text" and isinstance(value, str) and value and "\0" not in value:
            return value
        if isinstance(value, str) and self.aliases.get(value, value) in self.choices:
            return self.aliases.get(value, value)
        raise ValueError(f"{self.name} must be {self.expected}, got {value!r}")


def _training(
    name: str, group: str, kind: Kind, metavar: str, text: str, why: str = "", choices: Collection[str] = ()
) -> Option:
    """An option that is a training setting: its default is that of `TrainSettings`."""
    default = next(setting.default for setting in fields(TrainSettings) if setting.name == name)
    return Option(name, group, kind, metavar, text, None if default is MISSING else default, why, choices)


_DATA, _NOISE, _METHOD, _TRAINING = "what to learn from", "label noise to add", "method", "network and training"
_VALIDATION, _IMAGES, _MACHINE, _RUN = "validation", "image files", "machine", "the run"
_TOGETHER = "several processes (torchrun)"

_TABLE = (
    Option(
        "dataset", _DATA, "text", "NAME",
        "; ".join(f"{entry.spelling} {entry.help}".strip() for entry in DATASETS.values()),
        default="digits", why="they come with scikit-learn",
    ),
    Option(
        "data_root", _DATA, "text", "DIR",
        "folder of the data sets: NAME is looked for in DIR/NAME, then in DIR",
        why="$JOCOR_FAST_DATA, else ~/.cache/jocor_fast",
    ),
    Option(
        "labels", _DATA, "text", "FILE",
        "train on these labels instead of the data set's own: FILE.npy, FILE.npz:KEY, FILE.pt:KEY, or FILE.csv with "
        "columns id,label[,clean]; one for each training sample",
    ),
    Option(
        "clean_labels", _DATA, "text", "FILE",
        "the true labels, in the same forms; label precision is measured with them",
    ),
    Option(
        "labels_are_clean", _DATA, "switch", "",
        "the data set's own labels are the true ones, as those of the named benchmarks are; else the true labels are "
        "unknown where no noise is added",
        default=False,
    ),
    Option(
        "noise", _NOISE, "choice", "KIND", "kind of noise", choices=NOISE_KINDS,
        why="symmetric with --noise-rate, else clean",
    ),
    Option(
        "noise_rate", _NOISE, "number", "R",
        "share of labels to flip, in [0, 1); asymmetric noise flips those of some classes only",
    ),
    Option(
        "noise_seed", _NOISE, "whole", "N", "which draw of the noise to take",
        default=0, why="apart from --seed, so that runs can differ in all but their labels",
    ),
    Option(
        "noise_matrix", _NOISE, "text", "FILE",
        "a transition matrix of your own: FILE.npy [C, C], row i holding the probabilities of what class i is labelled",
    ),
    _training("method", _METHOD, "choice", "NAME", "how to learn", choices=METHODS),
    _training(
        "co_lambda", _METHOD, "number", "L", "λ in [0, 1]: weight of the agreement between the networks",
        "mnist, cifar10, cifar100: what the authors named; --recipe published: 0.1",
    ),
    _training(
        "forget_rate", _METHOD, "number", "T",
        "τ in [0, 1): share of each batch that is left out as mislabelled; auto: what estimate-noise finds, first",
        "the share of wrong labels to expect from the noise; required if the true labels are unknown", (AUTO,),
    ),
    _training(
        "ramp_epochs", _METHOD, "whole", "N", "epochs in which the share left out rises from 0 to τ",
        "networks learn the clean labels first, so leave them a few hundred steps",
    ),
    _training(
        "recipe", _METHOD, "choice", "NAME", "where paper and published code differ, follow which", choices=RECIPES,
    ),
    Option(
        "model", _TRAINING, "text", "NAME",
        "mlp, cnn (both from the paper), or a torchvision classifier such as resnet18",
        why=models_text(),
    ),
    Option(
        "pretrained", _TRAINING, "text", "WEIGHTS",
        "weights to start from, all but the last layer: FILE.pt, or default for those that torchvision downloads",
        why="drawn at random",
    ),
    _training(
        "epochs", _TRAINING, "whole", "N", "passes over the training data", "--recipe published trains one fewer",
    ),
    _training(
        "batch_size", _TRAINING, "whole", "B", "samples in a step", "digits: 32, since small data need small batches",
    ),
    _training("lr", _TRAINING, "number", "LR", "learning rate"),
    _training(
        "lr_plan", _TRAINING, "choice", "NAME",
        "how the learning rate falls, after --decay-start to 0 or as the paper has it for Clothing1M", "", LR_PLANS,
    ),
    _training(
        "decay_start", _TRAINING, "whole", "N", "last epoch at the full learning rate, which then falls to 0 linearly",
        "0.4 of the epochs; cifar100 with --recipe published: 0.5",
    ),
    _training("optimizer", _TRAINING, "choice", "NAME", "one optimiser for both networks", choices=OPTIMIZERS),
    _training("weight_decay", _TRAINING, "number", "W", "L2 penalty on the weights"),
    _training(
        "augment", _TRAINING, "choice", "NAME", "random crops and mirror images", "as in the paper", AUGMENTATIONS,
    ),
    _training("seed", _TRAINING, "whole", "N", "initial weights, order of the batches, validation split"),
    Option(
        "val_fraction", _VALIDATION, "number", "F", "share of the training data to hold out, in [0, 1)",
        default=0.0, why="no validation",
    ),
    Option(
        "val_labels", _VALIDATION, "choice", "KIND",
        "which labels of the held-out part to validate on; small-loss: the noisy ones of the share 1 − τ with the "
        "smallest loss, which are presumably right",
        default="noisy", why="nobody has others in practice", choices=VAL_LABELS,
    ),
    Option(
        "no_test", _VALIDATION, "switch", "", "leave the test set alone: nothing is measured on it", default=False,
    ),
    Option(
        "image_size", _IMAGES, "whole", "N",
        "side of the square that a network sees: images are resized to 8/7 of it and cropped; the time of a step "
        "grows with its square",
        default=CROP, why="as in the paper; without a GPU rather 32 or 64",
    ),
    Option(
        "normalisation", _IMAGES, "choice", "NAME", "mean and standard deviation that pixels are normalised by",
        default="imagenet", why="what torchvision's networks expect; the paper names none",
        choices=tuple(NORMALISATIONS),
    ),
    Option(
        "loader", _IMAGES, "choice", "NAME", "what decodes and resizes the files",
        default="auto", why="DALI on a GPU; on a CPU the faster of the two", choices=("auto", *LOADERS),
        aliases={"torchvision": "pillow"},
    ),
    Option(
        "strict", _IMAGES, "switch", "", "end the run at the first file that cannot be read, not go on without it",
        default=False,
    ),
    _training("device", _MACHINE, "text", "DEV", "auto, cpu, cuda or cuda:N", "a GPU where there is one"),
    _training("precision", _MACHINE, "choice", "TYPE", "what the networks compute in", choices=PRECISIONS),
    _training(
        "no_graph", _MACHINE, "switch", "", "on a GPU, launch every step from the host",
        "steps on data in memory are replayed as CUDA graphs",
    ),
    _training(
        "compile", _MACHINE, "switch", "", "compile the networks by torch.compile",
        "they run as they are, since compiling takes a minute",
    ),
    _training(
        "selection_scope", _TOGETHER, "choice", "SCOPE",
        "what is selected among, a process's own rows of a batch or those of all", "it needs no exchange", SCOPES,
    ),
    _training(
        "batch_scope", _TOGETHER, "choice", "SCOPE",
        "whose size --batch-size is, each process's or all of theirs; the learning rate stays as given", "", SCOPES,
    ),
    Option("output", _RUN, "text", "DIR", "folder for the run's files", why="runs/DATASET-METHOD-NOISE-seedN"),
    Option(
        "resume", _RUN, "switch", "", "go on from the last checkpoint in the output folder, or start if there is none",
        default=False,
    ),
    Option(
        "stop_after", _RUN, "whole", "N", "leave off after epoch N, to go on with --resume", why="the last epoch",
    ),
    Option(
        "checkpoint_every", _RUN, "whole", "N", "write a checkpoint every N steps too, for long epochs",
        why="one after each epoch",
    ),
    Option(
        "tensorboard", _RUN, "switch", "",
        "write every epoch for TensorBoard too, in the folder tensorboard of the run (needs the package of that name)",
        default=False,
    ),
)  # fmt: skip

_OF_EVERY_RUN = {option.name: option for option in _TABLE}


def method_options() -> dict[str, Option]:
    """Return the options of methods that are no settings of every run."""
    found: dict[str, Option] = {}
    for method in METHODS:
        for name, of in further_options(method).items():
            kind: Kind = "whole" if isinstance(of.default, int) else "number"
            text = f"{of.help} (method {method})"
            found.setdefault(name, Option(name, _METHOD, kind, of.metavar, text, of.default))
    return found


class _Options(Mapping[str, Option]):
    """The options by name; those of a method are there as soon as it is registered."""

    def __getitem__(self, name: str) -> Option:
        return _OF_EVERY_RUN[name] if name in _OF_EVERY_RUN else method_options()[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*_OF_EVERY_RUN, *method_options()))

    def __len__(self) -> int:
        return len(_OF_EVERY_RUN) + len(method_options())


OPTIONS = _Options()
