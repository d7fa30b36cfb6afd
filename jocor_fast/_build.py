"""What the build recorded of itself. Nothing here imports torch, which takes a second or more.

JOCOR_FAST_BUILD=none, which compiles nothing where it is set for an installation, hides the kernels where it is set for
a process.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

_BUILD_FILE = Path(__file__).with_name("_build.json")
INSTALL = "`pip install --no-build-isolation --force-reinstall --no-deps .` in its source folder"
REBUILD = f"rebuild it with {INSTALL}"


def check_torch(running: str, running_cuda: str | None) -> None:
    """Raise ImportError if there are kernels, and for another torch than the one of this version."""
    if BUILD["compiler"] is not None and not fits(BUILD["torch"], BUILD["cuda"], running, running_cuda):
        raise ImportError(
            f"jocor_fast was compiled against torch {BUILD['torch']} and torch {running} is running: {REBUILD}"
        )


def fits(built: str, built_cuda: str | None, running: str, running_cuda: str | None) -> bool:
    """Return whether kernels compiled against one torch run with another: its C++ interface changes with the minor.

    A CPU and a CUDA build of one minor serve alike; CUDA kernels also need a runtime of the toolkit's major version.
    """
    if built.split(".")[:2] != running.split(".")[:2]:
        return False
    return built_cuda is None or built_cuda.split(".")[0] == (running_cuda or "").split(".")[0]


def _read_build() -> dict[str, Any]:
    """Return what the build recorded of itself; raise ImportError if there is none."""
    try:
        build: dict[str, Any] = json.loads(_BUILD_FILE.read_text())
    except FileNotFoundError:
        installed = _installed_elsewhere()
        if installed is None:
            raise ImportError(f"jocor_fast has not been built: {REBUILD}") from None
        raise ImportError(
            f"jocor_fast has not been built in {_BUILD_FILE.parents[1]}, which shadows the package installed in "
            f"{installed}: start Python in another folder"
        ) from None
    if os.environ.get("JOCOR_FAST_BUILD") == "none":
        build |= {"compiler": None, "cuda": None, "cuda_architectures": [], "reason": "JOCOR_FAST_BUILD=none"}
    return build


def _installed_elsewhere() -> Path | None:
    """Return where else Python would find the package, built; None where it would not."""
    here = _BUILD_FILE.parents[1]
    places = (Path(entry) for entry in sys.path)
    return next((place for place in places if place != here and (place / "jocor_fast/_build.json").is_file()), None)


def _check_installed_torch() -> None:
    """Raise ImportError, as `check_torch`, by what the torch that an import would bring says of itself in a file."""
    found = None if "torch" in sys.modules else importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return
    try:
        text = Path(found.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return
    said = {name: re.search(rf"""^{name}(?:: .*)? = ['"](.+)['"]$""", text, re.M) for name in ("__version__", "cuda")}
    version, cuda = said["__version__"], said["cuda"]
    if version is not None:
        check_torch(version[1], cuda and cuda[1])


BUILD = _read_build()
_check_installed_torch()
