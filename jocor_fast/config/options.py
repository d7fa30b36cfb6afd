"""The options of `jocor-fast train` that are no training settings, and all options by name.

Training settings are declared in `engine.settings.TrainSettings`, options of a method in `methods`; which of their
defaults a data set or a recipe replaces is decided in resolve.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from jocor_fast.data.catalogue import DATASETS, entry_of, models_text
from jocor_fast.data.dataset import Entry
from jocor_fast.data.images.decoder import LOADERS
from jocor_fast.data.images.preprocessing import CROP, NORMALISATIONS
from jocor_fast.engine.settings import ADAPTIVE, MACHINE, METHOD, TOGETHER, TRAINING, TrainSettings, method_options
from jocor_fast.methods import uses_forget_rate
from jocor_fast.noise_kinds import NOISE_KINDS
from jocor_fast.option import Option, option, options_of

AUTO = "auto"
VAL_LABELS = ("clean", "noisy", "small-loss")
DATA, NOISE, VALIDATION, IMAGES, RUN = (
    "data", "label noise to add", "validation", "image files", "the run"
)  # fmt: skip
# In the order of the help.
GROUPS = (DATA, NOISE, METHOD, TRAINING, VALIDATION, IMAGES, MACHINE, TOGETHER, RUN)


def _needs_no_root(run: Any, processes: int) -> str | None:
    return f"{run.dataset} is not looked for in it" if run.entry.find is None else None


def _clean_anyway(run: Any, processes: int) -> str | None:
    clean = run.entry.labels == "true" and run.labels is None
    return f"the labels of {run.dataset} count as clean" if clean else None


def _nothing_drawn(run: Any, processes: int) -> str | None:
    drawn = run.noise not in (None, "clean") or run.noise_matrix is not None
    return None if drawn else "no noise is drawn (--noise-rate 0.5 would flip half of the labels)"


def _no_forgetting(run: Any, processes: int) -> str | None:
    used = uses_forget_rate(run.training.method, run.val_labels)
    return None if used else f"{run.training.method} does not select by loss"


def _nothing_held_out(run: Any, processes: int) -> str | None:
    return "--val-fraction is 0: nothing is held out" if run.val_fraction == 0 else None


@dataclass(kw_only=True)
class RunOptions:
    """The options of a run besides its training settings.

    None is what does not apply, or is decided later: the model and the forget rate from the data.
    """

    # fmt: off
    dataset: str = option(
        "digits", DATA, "NAME",
        "; ".join(f"{entry.spelling} {entry.help}".strip() for entry in DATASETS.values()),
        why="they come with scikit-learn",
    )
    data_root: str | None = option(
        None, DATA, "DIR", "folder of the data sets: NAME is looked for in DIR/NAME, then in DIR",
        why="$JOCOR_FAST_DATA, else ~/.cache/jocor_fast", idle=_needs_no_root,
    )
    labels: str | None = option(
        None, DATA, "FILE",
        "train on these labels instead of the data set's own: FILE.npy, FILE.npz:KEY, FILE.pt:KEY, or FILE.csv with "
        "columns id,label[,clean], each id of 0 … N−1 once",
    )
    clean_labels: str | None = option(
        None, DATA, "FILE", "the true labels, in the same forms; label precision is measured with them"
    )
    labels_are_clean: bool = option(
        False, DATA, "",
        "treat the data set's own labels as true; without it the true labels of your own data are unknown (those of "
        "the named benchmarks are true)",
        idle=_clean_anyway,
    )
    noise: str | None = option(
        None, NOISE, "KIND",
        "kind of noise, which turns labels into any other class (symmetric), any class (symmetric-inclusive), the next "
        "class (pairflip), or a similar one by the paper's list for mnist, cifar10 and cifar100 (asymmetric; "
        "asymmetric-published: by the code's)",
        choices=NOISE_KINDS, why="symmetric with --noise-rate, else clean",
    )
    noise_rate: float | None = option(
        None, NOISE, "R", "share of labels to flip, in [0, 1); asymmetric noise flips labels of some classes only"
    )
    noise_seed: int | None = option(
        0, NOISE, "N", "random seed of the noise", idle=_nothing_drawn,
        why="independent of --seed: runs can share the same noisy labels",
    )
    noise_matrix: str | None = option(
        None, NOISE, "FILE",
        "your own transition matrix: FILE.npy [C, C]; row i holds the probabilities of each label for class i",
    )
    forget_rate: float | str | None = option(
        None, METHOD, "T",
        "τ in [0, 1): share of each batch to drop as mislabelled; auto: run estimate-noise first and use its result; "
        "adaptive: estimate it while training, until the ramp is over",
        choices=(AUTO, ADAPTIVE), idle=_no_forgetting,
        why="the expected share of wrong labels; required if the true labels are unknown",
    )
    class_weights: str | None = option(
        None, TRAINING, "W",
        "balanced: weight the samples of each class inversely to their number; or a weight for each class, from "
        "FILE.npy, FILE.npz:KEY or FILE.pt:KEY; samples are selected without the weights",
        why="all alike",
    )
    model: str | None = option(
        None, TRAINING, "NAME", "mlp, cnn (both from the paper), or a torchvision classifier such as resnet18",
        why=models_text(),
    )
    pretrained: str | None = option(
        None, TRAINING, "WEIGHTS",
        "initial weights of all but the last layer: FILE.pt, or the word default (torchvision's weights)",
        why="drawn at random",
    )
    val_fraction: float = option(
        0.0, VALIDATION, "F", "share of the training data to hold out, in [0, 1)", why="no validation"
    )
    val_labels: str = option(
        "noisy", VALIDATION, "KIND",
        "which labels of the held-out part to validate on; small-loss: the noisy labels of the 1 − τ of the samples "
        "with the smallest loss, which are probably right",
        choices=VAL_LABELS, idle=_nothing_held_out, why="others are rarely known in practice",
    )
    no_test: bool = option(False, VALIDATION, "", "do not evaluate on the test set")
    image_size: int | None = option(
        CROP, IMAGES, "N",
        "height and width of the network's input: images are resized to 8/7 of it and cropped; the time per step "
        "grows with its square",
        why="as in the paper; on a CPU prefer 32 or 64",
    )
    normalisation: str | None = option(
        "imagenet", IMAGES, "NAME", "mean and standard deviation that normalise the pixels", choices=NORMALISATIONS,
        why="what torchvision's networks expect; the paper names none",
    )
    loader: str | None = option(
        "auto", IMAGES, "NAME", "decoder of the files", choices=("auto", *LOADERS),
        aliases={"torchvision": "pillow"}, why="DALI on a GPU; on a CPU the faster of the two",
    )
    strict: bool = option(False, IMAGES, "", "stop at the first unreadable file instead of replacing it")
    output: str = option(None, RUN, "DIR", "folder for the run's files", why="runs/DATASET-METHOD-NOISE-seedN")
    resume: bool = option(
        False, RUN, "", "continue from the last checkpoint in the output folder, or start if there is none"
    )
    stop_after: int | None = option(
        None, RUN, "N", "stop after epoch N; --resume continues the run", why="the last epoch"
    )
    checkpoint_every: int | None = option(
        None, RUN, "N", "also write a checkpoint every N steps, for long epochs", why="one after each epoch"
    )
    tensorboard: bool = option(
        False, RUN, "",
        "also write TensorBoard events, into the folder tensorboard of the run (needs the package tensorboard)",
    )
    # fmt: on

    @property
    def entry(self) -> Entry:
        """What is known of the data set before it is read."""
        return entry_of(self.dataset)


RUN_FIELDS = tuple(one.name for one in fields(RunOptions))
_DECLARED = options_of(TrainSettings) | options_of(RunOptions)
TRAINING_FIELDS = tuple(options_of(TrainSettings))


class _Options(Mapping[str, Option]):
    """The options by name, in the order of the help; those of a method are there as soon as it is registered."""

    def __getitem__(self, name: str) -> Option:
        return _DECLARED[name] if name in _DECLARED else method_options()[name]

    def __iter__(self) -> Iterator[str]:
        known = _DECLARED | method_options()
        return iter([one.name for group in GROUPS for one in known.values() if one.group == group])

    def __len__(self) -> int:
        return len(_DECLARED) + len(method_options())


OPTIONS: Mapping[str, Option] = _Options()
