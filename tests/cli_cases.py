"""Short runs of `jocor-fast train` in the current folder, and what they write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine_cases import strict_json
from jocor_fast.cli.program import main

SHORT = ["train", "--epochs", "2", "--device", "cpu"]


def train(*arguments: str, folder: str = "run") -> int:
    """`jocor-fast train` for two epochs. Returns its exit code."""
    return main([*SHORT, "--output", folder, *arguments])


def content(name: str, folder: str = "run") -> Any:
    """Of a .json file of a run, or of each line of a .jsonl file."""
    text = Path(folder, name).read_text(encoding="utf-8")
    return [strict_json(line) for line in text.splitlines()] if name.endswith(".jsonl") else strict_json(text)
