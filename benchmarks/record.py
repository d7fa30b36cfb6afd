"""What stands beside every figure, the machine and the versions, and how figures are written down."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import jocor_fast as jf

RESULTS = Path(__file__).resolve().parent / "results"


def device() -> str:
    """What the benches run on: "cuda" where there is a GPU and a build for it, else "cpu"."""
    return "cuda" if torch.cuda.is_available() and jf.build_info()["cuda"] else "cpu"


def machine() -> dict[str, Any]:
    """The GPU, if any; the processor and how many of its cores this process may use. No host name: it is published."""
    gpu = {"card": torch.cuda.get_device_name()} if device() == "cuda" else {}
    return {
        **gpu,
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
        **({"cuda": build["cuda"]} if device() == "cuda" else {}),
    }


def described(*without: str) -> str:
    """Return machine and versions in one line, for the foot of a table."""
    facts = {name: value for name, value in {**machine(), **versions()}.items() if name not in without}
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items())


def parser(text: str | None) -> argparse.ArgumentParser:
    """Of a script that writes its results into a folder; `text` is its docstring."""
    made = argparse.ArgumentParser(
        description=text, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--output", type=Path, default=RESULTS, help="folder of what is written")
    return made


def write(name: str, text: str, content: Mapping[str, Any], output: Path = RESULTS) -> None:
    """Write NAME.json, the content beside machine and versions, and NAME.md, and print the text."""
    output.mkdir(parents=True, exist_ok=True)
    document = {"machine": machine(), "versions": versions(), **content}
    (output / f"{name}.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (output / f"{name}.md").write_text(text, encoding="utf-8")
    print(text)


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
