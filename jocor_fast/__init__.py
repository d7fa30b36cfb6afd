"""Training with noisy labels by JoCoR (Wei et al., CVPR 2020): a compiled joint loss, and the trainer around it.

What needs torch is imported when it is first used, unless torch has been imported already.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from jocor_fast._command import end_at_once_on_interrupt, end_command

if TYPE_CHECKING:
    from jocor_fast import noise, reference, schedules
    from jocor_fast._extension import build_info
    from jocor_fast.closed_forms import dml_loss, elr_loss
    from jocor_fast.diagnosis.feature_audit import audit_features
    from jocor_fast.diagnosis.wrong_labels import audit
    from jocor_fast.estimator import JoCoRClassifier
    from jocor_fast.forward_correction import forward_corrected_loss
    from jocor_fast.linear_losses import linear_jocor_loss, linear_joint_loss
    from jocor_fast.losses import (
        JoCoRLoss,
        coteaching_loss,
        decoupling_loss,
        jocor_loss,
        joint_loss,
        num_keep,
        select_small_loss,
    )
    from jocor_fast.outputs import CoresOutput, CoTeachingOutput, DecouplingOutput, JoCoROutput
    from jocor_fast.robust_losses import cores_loss, gce_loss, nce_rce_loss, sce_loss
    from jocor_fast.training import load_run, train

end_at_once_on_interrupt()
try:
    from jocor_fast._build import BUILD

    if sys.modules.get("torch") is not None:  # whoever has waited for it finds the operators in torch.ops.jocor_fast
        for _module in ("jocor_fast.losses", "jocor_fast.linear_losses"):
            importlib.import_module(_module)
except ImportError as error:
    end_command(error)
    raise

__version__: str = BUILD["version"]

__all__ = [
    "CoTeachingOutput",
    "CoresOutput",
    "DecouplingOutput",
    "JoCoRClassifier",
    "JoCoRLoss",
    "JoCoROutput",
    "audit",
    "audit_features",
    "build_info",
    "cores_loss",
    "coteaching_loss",
    "decoupling_loss",
    "dml_loss",
    "elr_loss",
    "forward_corrected_loss",
    "gce_loss",
    "jocor_loss",
    "joint_loss",
    "linear_jocor_loss",
    "linear_joint_loss",
    "load_run",
    "nce_rce_loss",
    "noise",
    "num_keep",
    "reference",
    "sce_loss",
    "schedules",
    "select_small_loss",
    "train",
]

# The module of each name, imported when the name is first used.
_MODULES = {
    **dict.fromkeys(("CoTeachingOutput", "CoresOutput", "DecouplingOutput", "JoCoROutput"), "jocor_fast.outputs"),
    **dict.fromkeys(
        (
            "JoCoRLoss",
            "coteaching_loss",
            "decoupling_loss",
            "jocor_loss",
            "joint_loss",
            "num_keep",
            "select_small_loss",
        ),
        "jocor_fast.losses",
    ),
    **dict.fromkeys(("cores_loss", "gce_loss", "nce_rce_loss", "sce_loss"), "jocor_fast.robust_losses"),
    **dict.fromkeys(("dml_loss", "elr_loss"), "jocor_fast.closed_forms"),
    **dict.fromkeys(("linear_jocor_loss", "linear_joint_loss"), "jocor_fast.linear_losses"),
    **{name: f"jocor_fast.{name}" for name in ("noise", "reference", "schedules")},
    "JoCoRClassifier": "jocor_fast.estimator",
    "audit": "jocor_fast.diagnosis.wrong_labels",
    "audit_features": "jocor_fast.diagnosis.feature_audit",
    "build_info": "jocor_fast._extension",
    "forward_corrected_loss": "jocor_fast.forward_correction",
    "load_run": "jocor_fast.training",
    "train": "jocor_fast.training",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(_MODULES[name])
    globals()[name] = module if module.__name__ == f"{__name__}.{name}" else getattr(module, name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
