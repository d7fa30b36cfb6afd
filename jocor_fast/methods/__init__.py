"""The methods, by the names that the command line and `jf.train` take: a module for each family of them."""

from __future__ import annotations

from jocor_fast.methods.base import (
    GROUP,
    METHODS,
    FirstStage,
    History,
    Keep,
    Method,
    StepLoss,
    register,
    uses_forget_rate,
)
from jocor_fast.methods.paper import (  # first, for the order in which the methods are listed
    CoTeaching,
    CoTeachingPlus,
    Decoupling,
    FCorrection,
    JoCoR,
    JointOnly,
    Standard,
    StandardPlus,
)
from jocor_fast.methods.robust_losses import (
    Cores,
    GeneralisedCrossEntropy,
    NormalisedAndReverseCrossEntropy,
    SymmetricCrossEntropy,
)
from jocor_fast.methods.taks import TAkS

# isort: split
from jocor_fast.methods import label_estimates, mutual_learning, negative_learning, noise_layer

__all__ = [
    "GROUP",
    "METHODS",
    "CoTeaching",
    "CoTeachingPlus",
    "Cores",
    "Decoupling",
    "FCorrection",
    "FirstStage",
    "GeneralisedCrossEntropy",
    "History",
    "JoCoR",
    "JointOnly",
    "Keep",
    "Method",
    "NormalisedAndReverseCrossEntropy",
    "Standard",
    "StandardPlus",
    "StepLoss",
    "SymmetricCrossEntropy",
    "TAkS",
    "label_estimates",
    "mutual_learning",
    "negative_learning",
    "noise_layer",
    "register",
    "uses_forget_rate",
]
