"""Load the compiled kernels, where there are some, and say what this build is.

JOCOR_FAST_BUILD=none, which compiles nothing where it is set for an installation, hides the kernels where it is set for
a process.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

_BUILD_FILE = Path(__file__).with_name("_build.json")
_INSTALL = "`pip install --no-build-isolation --force-reinstall --no-deps .` in its source folder"
_REBUILD = f"rebuild it with {_INSTALL}"


def _read_build() -> dict[str, Any]:
    """Return what the build recorded of itself; raise ImportError if there is none, or kernels for another torch."""
    try:
        build: dict[str, Any] = json.loads(_BUILD_FILE.read_text())
    except FileNotFoundError:
        installed = _installed_elsewhere()
        if installed is None:
            raise ImportError(f"jocor_fast has not been built: {_REBUILD}") from None
        raise ImportError(
            f"jocor_fast has not been built in {_BUILD_FILE.parents[1]}, which shadows the package installed in "
            f"{installed}: start Python in another folder"
        ) from None
    if os.environ.get("JOCOR_FAST_BUILD") == "none":
        build |= {"compiler": None, "cuda": None, "cuda_architectures": [], "reason": "JOCOR_FAST_BUILD=none"}
    if build["compiler"] is None:
        build["torch"] = torch.__version__
    if not fits(build["torch"], build["cuda"], torch.__version__, torch.version.cuda):
        raise ImportError(
            f"jocor_fast was compiled against torch {build['torch']} and torch {torch.__version__} is running: "
            f"{_REBUILD}"
        )
    return build


def fits(built: str, built_cuda: str | None, running: str, running_cuda: str | None) -> bool:
    """Return whether kernels compiled against one torch run with another: its C++ interface changes with the minor.

    A CPU and a CUDA build of one minor serve alike; CUDA kernels also need a runtime of the toolkit's major version.
    """
    if built.split(".")[:2] != running.split(".")[:2]:
        return False
    return built_cuda is None or built_cuda.split(".")[0] == (running_cuda or "").split(".")[0]


def _installed_elsewhere() -> Path | None:
    """Return where else Python would find the package, built; None where it would not."""
    here = _BUILD_FILE.parents[1]
    places = (Path(entry) for entry in sys.path)
    return next((place for place in places if place != here and (place / "jocor_fast/_build.json").is_file()), None)


_BUILD = _read_build()

# The compiled module, or None. It is imported only after the check above: another torch fails with a missing symbol.
compiled: Any = None
if _BUILD["compiler"] is not None:
    try:
        from jocor_fast import _C as compiled
        from jocor_fast import _shapes as _shapes
    except ImportError as error:
        raise ImportError(f"jocor_fast's compiled part cannot be loaded ({error}): {_REBUILD}") from error

# The types of devices whose tensors the compiled operators take.
DEVICES = () if compiled is None else ("cpu", "cuda", "meta") if compiled.has_cuda else ("cpu", "meta")


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
        return (
            f"jocor_fast has no {kernels} kernels ({_BUILD['reason']}), {slower}: with {needed}, {_INSTALL} adds them"
        )
    return f"jocor_fast has no kernels for {device} tensors under torch {torch.__version__}, {slower}"
