"""Run folders as `jocor-fast reproduce` leaves them, without the training, and a tiny MNIST to make some from."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jocor_fast.config.options import OPTIONS
from jocor_fast.config.resolve import resolve
from jocor_fast.paper.experiments import Cell
from jocor_fast.report.summary import best_by_validation, last_mean


def metrics_line(epoch: int, test: float, *, precision: float = 0.9, val: float | None = None) -> dict[str, Any]:
    """The fields of a line of metrics.jsonl that results are made of."""
    return {"epoch": epoch, "test_accuracy": test, "label_precision": precision, "val_accuracy": val}


def write_run(
    output: Path, cell: Cell, seed: int, lines: Sequence[dict[str, Any]] = (), *, status: str | None = "finished"
) -> Path:
    """A run with these lines; `status` None: it has not come to a summary."""
    folder = output / cell.run_folder(seed)
    folder.mkdir(parents=True)
    config = resolve({name: str(value) for name, value in cell.run_settings(seed).items()})
    settings = {name: config.value(name) for name in OPTIONS if name not in ("output", "resume", "data_root")}
    (folder / "config.json").write_text(json.dumps({"settings": settings, "sources": {}}), encoding="utf-8")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    if status is not None:
        summary = {
            "status": status,
            "last_10_mean": last_mean(lines),
            "best_by_validation": best_by_validation(lines),
            "last": lines[-1] if lines else None,
        }
        (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return folder


def write_accuracies(output: Path, cell: Cell, accuracies: Sequence[float]) -> None:
    """A finished run for each accuracy, which it has in all of its epochs; seeds count from 1."""
    for seed, accuracy in enumerate(accuracies, start=1):
        write_run(output, cell, seed, [metrics_line(epoch, accuracy) for epoch in range(1, 13)])


def write_tiny_mnist(folder: Path, train: int = 512, test: int = 64) -> None:
    """Write so many images in MNIST's own files, a bright row for each class."""
    folder.mkdir(parents=True)
    for part, count in (("train", train), ("t10k", test)):
        labels = np.arange(count, dtype=np.uint8) % 10
        images = np.zeros((count, 28, 28), dtype=np.uint8)
        images[np.arange(count), 2 * labels] = 255
        header = struct.pack(">IIII", 0x803, count, 28, 28)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, count) + labels.tobytes())
