"""The GPU and the versions of everything, and one sentence where there is no GPU or no nvcc."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "csrc"))
from build_decision import Toolkit, decide  # noqa: E402

CLOCKS = "clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,temperature.gpu,power.draw"
CLOCK_NAMES = ("sm_mhz", "memory_mhz", "max_sm_mhz", "max_memory_mhz", "celsius", "watts")

Facts = dict[str, Any]


class NotHere(Exception):
    """This machine cannot run the parts; the message is one sentence."""


def toolkit() -> Toolkit:
    """The toolkit that the extension would be built with."""
    import torch

    decision = decide(
        environ=os.environ,
        torch_version=torch.__version__,
        torch_cuda=torch.version.cuda,
        cuda_sources=[str(path) for path in (ROOT / "csrc" / "cuda").glob("*.cu")],
        package_folders=sys.path,
    )
    if decision.toolkit is None:
        raise NotHere(f"The parts need nvcc, and there is none to use: {decision.reason}.")
    return decision.toolkit


def facts() -> Facts:
    """Card, driver, clocks and versions, as they stand in every file.

    Raises:
        NotHere: no GPU, or no toolkit.
    """
    try:
        import torch
    except ImportError as error:
        raise NotHere(f"The parts need torch, and it cannot be imported: {error}.") from None
    if not torch.cuda.is_available():
        raise NotHere("The parts need a CUDA GPU, and torch sees none.")
    properties = torch.cuda.get_device_properties()
    return {
        "card": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "driver": query("driver_version") or "unknown",
        "clocks": {"start": clocks()},
        "nvcc": toolkit().release,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "jocor_fast": version(),
    }


def version() -> str:
    """The commit where this is a checkout, else what pyproject.toml says."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    try:
        described = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        described = ""
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    released = next(line.split('"')[1] for line in lines if line.startswith("version"))
    return f"{released} ({described})" if described else released


def clocks() -> dict[str, float]:
    """In this moment, of the first GPU; what nvidia-smi does not tell is left out."""
    told = zip(CLOCK_NAMES, query(CLOCKS).split(","), strict=False)
    return {name: float(text) for name, text in told if text.strip().replace(".", "", 1).isdigit()}


def query(fields: str) -> str:
    """What nvidia-smi says of the first GPU; empty where it says nothing."""
    if shutil.which("nvidia-smi") is None:
        return ""
    command = ["nvidia-smi", "--id=0", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def in_one_line(facts: Facts) -> str:
    """For the comment of a CSV, the caption of a picture, the head of a text; of the clocks the two that matter."""
    moments: dict[str, dict[str, float]] = facts["clocks"]
    clocks_then = [f"{at} {of.get('sm_mhz', '?')}/{of.get('memory_mhz', '?')}" for at, of in moments.items()]
    rest = [f"{name.replace('_', ' ')} {value}" for name, value in facts.items() if name != "clocks"]
    return "; ".join([*rest, f"clocks (SM/memory MHz) {', '.join(clocks_then)}"])
