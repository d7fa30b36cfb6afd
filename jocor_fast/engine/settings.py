"""What a training run is told: every setting, its default and what it accepts, in one place."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch

from jocor_fast.methods import METHODS
from jocor_fast.schedules import default_decay_start

RECIPES = ("paper", "published")
OPTIMIZERS = ("adam", "sgd")
AUGMENTATIONS = ("none", "crop-flip")
PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """The settings of one run; their names are those of the command line and of config.json.

    Values are checked and brought to their plain type when the object is made: a wrong type is a TypeError, a wrong
    value a ValueError, one sentence that names the setting.

    Attributes:
        method: a name in `jocor_fast.methods.METHODS`.
        forget_rate: τ, float in [0, 1): the share of a batch that is left out once the ramp is over.
        co_lambda: λ, float in [0, 1].
        ramp_epochs: T_k, int ≥ 0: epochs over which the forget rate rises from 0 to τ.
        epochs: int ≥ 1 (≥ 2 for recipe "published", which trains one fewer).
        decay_start: int ≥ 0, the last epoch at the full rate; None: 0.4 · epochs, rounded down.
        batch_size: int ≥ 1.
        lr: float > 0.
        optimizer: "adam", or "sgd" (plain, without momentum).
        weight_decay: float ≥ 0, the L2 term of torch's optimisers.
        augment: "none", or "crop-flip": images are padded by 4, cropped at random and mirrored at random.
        recipe: "paper" or "published" (paper.md 5: where the paper and the authors' code differ).
        seed: int in [0, 2⁶³): initial weights (of networks that a function builds), batches, dropout, augmentation.
        device: "auto", or what `torch.device` accepts of the CPU and CUDA.
        precision: "float32", or "bfloat16" by autocast.
    """

    method: str = "jocor"
    forget_rate: float
    co_lambda: float = 0.9
    ramp_epochs: int = 10
    epochs: int = 200
    decay_start: int | None = None
    batch_size: int = 128
    lr: float = 1e-3
    optimizer: str = "adam"
    weight_decay: float = 0.0
    augment: str = "none"
    recipe: str = "paper"
    seed: int = 0
    device: str = "auto"
    precision: str = "float32"

    def __post_init__(self) -> None:
        self._choice("method", tuple(METHODS))
        self._choice("recipe", RECIPES)
        self._choice("optimizer", OPTIMIZERS)
        self._choice("augment", AUGMENTATIONS)
        self._choice("precision", PRECISIONS)
        self._real("forget_rate", "in [0, 1)", lambda value: 0 <= value < 1)
        self._real("co_lambda", "in [0, 1]", lambda value: 0 <= value <= 1)
        self._real("lr", "a finite number above 0", lambda value: 0 < value < math.inf)
        self._real("weight_decay", "a finite number of at least 0", lambda value: 0 <= value < math.inf)
        self._whole("ramp_epochs", 0)
        self._whole("epochs", 2 if self.recipe == "published" else 1)
        self._whole("batch_size", 1)
        self._whole("seed", 0)
        if self.seed >= 2**63:
            raise ValueError(f"seed must be under 2**63, got {self.seed}")
        if self.decay_start is None:
            object.__setattr__(self, "decay_start", default_decay_start(self.epochs))
        self._whole("decay_start", 0)
        self._device()

    def as_dict(self) -> dict[str, str | int | float]:
        """Return {name: value} as config.json and the checkpoints hold it."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def _choice(self, name: str, accepted: Sequence[str]) -> None:
        value = getattr(self, name)
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a string, got {type(value).__name__}")
        if value not in accepted:
            raise ValueError(f"{name} must be one of {', '.join(accepted)}, got {value!r}")

    def _real(self, name: str, accepted: str, holds) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise TypeError(f"{name} must be a number, got {type(value).__name__}")
        if not holds(value):  # NaN fails every comparison
            raise ValueError(f"{name} must be {accepted}, got {value}")
        object.__setattr__(self, name, float(value))

    def _whole(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise TypeError(f"{name} must be a whole number, got {type(value).__name__}")
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
        object.__setattr__(self, name, int(value))

    def _device(self) -> None:
        if not isinstance(self.device, (str, torch.device)):
            raise TypeError(f"device must be a string or a torch.device, got {type(self.device).__name__}")
        name = str(self.device)
        if name != "auto":
            try:
                kind = torch.device(name).type
            except RuntimeError:
                kind = name
            if kind not in ("cpu", "cuda"):
                raise ValueError(f"device must be auto, cpu, cuda or cuda:N, got {name!r}")
        object.__setattr__(self, "device", name)
