"""Load the compiled kernels, where there are some, and say what this build is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from jocor_fast._build import BUILD as _BUILD
from jocor_fast._build import INSTALL, REBUILD, check_torch
from jocor_fast._build import fits as fits

check_torch(torch.__version__, torch.version.cuda)
if _BUILD["compiler"] is None:
    _BUILD["torch"] = torch.__version__

# The compiled module, or None. It is imported only after the check above: another torch fails with a missing symbol.
compiled: Any = None
if _BUILD["compiler"] is not None:
    try:
        from jocor_fast import _C as compiled
        from jocor_fast import _shapes as _shapes
    except ImportError as error:
        raise ImportError(f"jocor_fast's compiled part cannot be loaded ({error}): {REBUILD}") from error

# The types of devices whose tensors the compiled operators take.
DEVICES = () if compiled is None else ("cpu", "cuda", "meta") if compiled.has_cuda else ("cpu", "meta")


def cpu_operator(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operator of the trainer's own on CPU tensors, `plain` where nothing is compiled."""
    return plain if compiled is None else getattr(torch.ops.jocor_fast, name).default


def build_info() -> dict[str, Any]:
    """Return what this build is: a dict for bug reports and result files.

    Keys: version, torch (compiled against, or the one that runs where nothing is compiled), compiler (None: nothing is
    compiled), cuda (toolkit's release, or None), cuda_architectures (list of str), cpu_instruction_sets (list of str:
    those compiled in, the one in use first), reason (why there is no CUDA, or nothing is compiled, or None).
    """
    in_use = [] if compiled is None else [compiled.cpu_instruction_set()]
    others = [] if compiled is None else [name for name in compiled.cpu_instruction_sets() if name not in in_use]
    return {
        **{key: _BUILD[key] for key in ("version", "torch", "compiler", "cuda", "cuda_architectures")},
        "cpu_instruction_sets": in_use + others,
        "reason": _BUILD["reason"],
    }


def why_plain(device: str) -> str | None:
    """Return why losses of tensors on a type of device are computed by plain PyTorch; None where kernels compute them.

    A sentence, which says how to get kernels where there is a way.
    """
    if device in DEVICES:
        return None
    slower = "losses and selections run in plain PyTorch, which is slower"
    if device == "cpu" or (device == "cuda" and torch.version.cuda is not None):
        kernels, needed = ("compiled", "g++ 11 or newer") if compiled is None else ("CUDA", "a CUDA toolkit")
        return f"jocor_fast has no {kernels} kernels ({_BUILD['reason']}), {slower}: with {needed}, {INSTALL} adds them"
    return f"jocor_fast has no kernels for {device} tensors under torch {torch.__version__}, {slower}"
