"""What stands beside every figure: the machine and the versions; and the form of the tables."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

import jocor_fast as jf

RESULTS = Path(__file__).resolve().parent / "results"


def machine() -> dict[str, Any]:
    """The processor and how many of its cores this process may use. No host name: the files are published."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
    }


def versions() -> dict[str, Any]:
    build = jf.build_info()
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "jocor_fast": build["version"],
        "compiler": build["compiler"],
        "instruction_set": build["cpu_instruction_sets"][0],
    }


def described() -> str:
    """Machine and versions in one line, for the foot of a table."""
    facts = {**machine(), **versions()}
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items())


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table: the first column to the left, figures to the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def microseconds(seconds: float) -> str:
    """Three significant digits, in µs: "7.94", "79.4", "12,300"."""
    return f"{float(f'{seconds * 1e6:.3g}'):,g}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
