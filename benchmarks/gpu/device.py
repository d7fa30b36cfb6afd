"""The GPU and the versions of everything, or why this machine cannot run the parts."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "csrc"))
from build_decision import Toolkit, decide  # noqa: E402

Facts = dict[str, Any]


class NotHere(Exception):
    """This machine cannot run the parts; the message says why."""


def toolkit() -> Toolkit:
    """Return the toolkit that the extension would be built with, or raise NotHere."""
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
    """Return card, driver, clocks and versions for the head of every file, or raise NotHere without GPU or toolkit."""
    try:
        import torch
    except ImportError as error:
        raise NotHere(f"The parts need torch, and it cannot be imported: {error}.") from None
    if not torch.cuda.is_available():
        raise NotHere("The parts need a CUDA GPU, and torch sees none.")
    card = torch.cuda.get_device_properties()
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    released = next(line.split('"')[1] for line in lines if line.startswith("version"))
    return {
        "date": f"{datetime.date.today()}",
        "card": card.name,
        "capability": f"{card.major}.{card.minor}",
        "memory_gib": round(card.total_memory / 2**30, 1),
        "driver": nvidia_smi("driver_version"),
        "clocks": {"start": clocks()},
        "nvcc": toolkit().release,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "jocor_fast": f"{released}, commit {output_of('git', '-C', str(ROOT), 'describe', '--always', '--dirty')}",
    }


def clocks() -> str:
    """Return the first GPU's clocks now (processors', memory's, the processors' highest), its temperature and power."""
    return nvidia_smi("clocks.sm,clocks.mem,clocks.max.sm,temperature.gpu,power.draw")


def nvidia_smi(fields: str) -> str:
    return output_of("nvidia-smi", "--id=0", f"--query-gpu={fields}", "--format=csv,noheader")


def output_of(*command: str) -> str:
    """Return what a command prints; "unknown" if it fails or does not exist."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def in_one_line(facts: Facts) -> str:
    """Return the facts for the head of a file or the caption of a picture."""
    moments = [f"clocks at {moment} {of}" for moment, of in facts["clocks"].items()]
    return "; ".join([*(f"{name} {value}" for name, value in facts.items() if name != "clocks"), *moments])
