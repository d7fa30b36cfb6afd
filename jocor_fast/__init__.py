"""Training with noisy labels by JoCoR (Wei et al., CVPR 2020): a compiled joint loss, and the trainer around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jocor_fast._command import end_at_once_on_interrupt, end_command

if TYPE_CHECKING:
    from jocor_fast.estimator import JoCoRClassifier

end_at_once_on_interrupt()
try:
    from jocor_fast import noise, reference, schedules
    from jocor_fast._extension import build_info
    from jocor_fast.diagnosis.wrong_labels import audit
    from jocor_fast.forward_correction import forward_corrected_loss
    from jocor_fast.losses import (
        CoTeachingOutput,
        DecouplingOutput,
        JoCoRLoss,
        JoCoROutput,
        coteaching_loss,
        decoupling_loss,
        jocor_loss,
        joint_loss,
        num_keep,
        select_small_loss,
    )
    from jocor_fast.training import train
except ImportError as error:
    end_command(error)
    raise

__version__: str = build_info()["version"]

__all__ = [
    "CoTeachingOutput",
    "DecouplingOutput",
    "JoCoRClassifier",
    "JoCoRLoss",
    "JoCoROutput",
    "audit",
    "build_info",
    "coteaching_loss",
    "decoupling_loss",
    "forward_corrected_loss",
    "jocor_loss",
    "joint_loss",
    "noise",
    "num_keep",
    "reference",
    "schedules",
    "select_small_loss",
    "train",
]


def __getattr__(name: str) -> Any:
    """`JoCoRClassifier` when it is asked for: scikit-learn takes a second to import."""
    if name != "JoCoRClassifier":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from jocor_fast.estimator import JoCoRClassifier

    globals()[name] = JoCoRClassifier
    return JoCoRClassifier
