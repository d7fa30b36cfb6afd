"""The paper's settings and the experiments that `jocor-fast reproduce` runs, by name.

What a training run does unless told otherwise stands in `engine.settings.TrainSettings`, how the two recipes differ in
`schedules`; here stands what depends on the data set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# The methods as the paper's tables head them, in their order.
METHOD_TITLES: Mapping[str, str] = {
    "standard": "Standard",
    "standard-plus": "Standard+",
    "f-correction": "F-correction",
    "decoupling": "Decoupling",
    "coteaching": "Co-teaching",
    "coteaching-plus": "Co-teaching+",
    "joint-only": "Joint-only",
    "jocor": "JoCoR",
}

PUBLISHED_CO_LAMBDA = 0.1  # the published code's default; it has no search

# λ by data set, noise kind and rate (None: any). CIFAR's were named by the authors after the paper, MNIST's stands in
# their example. For other data and noise there is none: the paper's λ were searched for, and only these are known.
_CO_LAMBDA = (
    ("mnist", None, None, 0.95),
    ("cifar10", "symmetric", 0.2, 0.9),
    ("cifar10", "symmetric", 0.5, 0.9),
    ("cifar10", "symmetric", 0.8, 0.65),
    ("cifar10", "asymmetric", 0.4, 0.9),
    ("cifar100", None, None, 0.85),
)


def preset_co_lambda(dataset: str, noise: str | None, rate: float | None) -> float | None:
    """The λ that the authors named for a data set, noise kind and noise rate; None where they named none."""
    for known_dataset, known_noise, known_rate, co_lambda in _CO_LAMBDA:
        if dataset != known_dataset or known_noise not in (None, noise):
            continue
        if known_rate is None or (rate is not None and math.isclose(rate, known_rate, abs_tol=1e-9)):
            return co_lambda
    return None


@dataclass(frozen=True)
class Preset:
    """Settings of one data set that differ from the general defaults, each with its reason."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)


# MNIST, CIFAR-10 and CIFAR-100 are trained with the general defaults: batch 128, 200 epochs, T_k 10, Adam 1e-3.
PRESETS: Mapping[str, Preset] = {
    # T_k counts epochs of some 400 steps. The 1,437 digits at batch 128 have 11, the ramp is over after 110 steps,
    # before the networks have learnt what to select by, and JoCoR loses to Standard (77 against 84 %). At batch 32
    # the ramp has 440 steps and JoCoR wins (91 against 71 %).
    "digits": Preset(
        settings={"batch_size": 32},
        reasons={"batch_size": "small data need small batches"},
    ),
}


@dataclass(frozen=True)
class Noise:
    """A kind of label noise, as `--noise` takes it, and its nominal rate in [0, 1)."""

    kind: str
    rate: float

    @property
    def title(self) -> str:
        """As the paper heads its panels: "Symmetry-50%"."""
        families = {"symmetric": "Symmetry", "asymmetric": "Asymmetry", "pairflip": "Pair flip"}
        return f"{families.get(self.kind, self.kind)}-{100 * self.rate:.0f}%"


@dataclass(frozen=True)
class Cell:
    """One figure of a results table: a method on a data set under one noise, averaged over seeds."""

    dataset: str
    noise: Noise
    method: str
    settings: Mapping[str, Any]

    def run_folder(self, seed: int) -> str:
        """Where a run of the cell lies below the experiment's output."""
        return f"{self.dataset}-{self.noise.kind}-{self.noise.rate:g}/{self.method}/seed{seed}"

    def run_settings(self, seed: int) -> dict[str, Any]:
        """The settings of one run, by the option names of `jocor-fast train`; the noise is drawn anew for each seed."""
        return {
            "dataset": self.dataset,
            "noise": self.noise.kind,
            "noise_rate": self.noise.rate,
            "noise_seed": seed,
            "method": self.method,
            "seed": seed,
            **self.settings,
        }


@dataclass(frozen=True)
class Experiment:
    """What one `jocor-fast reproduce NAME` runs: every method under every noise, each with several seeds.

    Attributes:
        name: NAME.
        title: heads the table and the figure.
        dataset, noises, methods: the cells.
        settings: options of `jocor-fast train` for every run; whatever is not named is the default of `train`.
        seeds: how many seeds a cell gets (seeds 1, 2 …).
        minutes: an upper bound of what the whole takes on two CPU cores, for the help text.
        threads: CPU threads that a run can make use of.
    """

    name: str
    title: str
    dataset: str
    noises: tuple[Noise, ...]
    methods: tuple[str, ...]
    settings: Mapping[str, Any]
    seeds: int
    minutes: float
    threads: int

    def cells(self, methods: tuple[str, ...] | None = None, **overrides: Any) -> list[Cell]:
        """The cells in the order of the table; `methods` picks some, `overrides` replaces settings in all of them."""
        chosen = self.methods if methods is None else methods
        settings = {**self.settings, **overrides}
        return [Cell(self.dataset, noise, method, settings) for noise in self.noises for method in chosen]


EXPERIMENTS: Mapping[str, Experiment] = {
    "digits": Experiment(
        name="digits",
        title="Digits with half of the training labels wrong",
        dataset="digits",
        noises=(Noise("symmetric", 0.5),),
        methods=("standard", "jocor"),
        # Batch 32, not the paper's 128: at 128 JoCoR loses on so few images; the reason stands at PRESETS above.
        settings={"model": "mlp", "batch_size": 32, "epochs": 200, "ramp_epochs": 10, "co_lambda": 0.9},
        seeds=3,
        minutes=3,
        threads=1,  # a batch of 32 samples is too little work to share
    ),
}
