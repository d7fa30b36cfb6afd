"""How pytest-benchmark runs here, and the table that goes beside its JSON."""

from __future__ import annotations

import os
from typing import Any

# Waiting OpenMP threads sleep: spinning ones of one contender would take the second core from the next.
# Read when torch is loaded, so it is set before any import that loads it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch

from contenders import OURS, SHAPES, THREADS
from record import described, machine, markdown_table, microseconds, versions

torch.set_num_threads(THREADS)


def pytest_benchmark_generate_machine_info() -> dict[str, Any]:
    return {**machine(), **versions()}


def pytest_benchmark_update_commit_info(commit_info: dict[str, Any]) -> None:
    for name in set(commit_info) - {"id", "dirty", "time"}:
        del commit_info[name]


def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    """Leaves out the single rounds and writes the medians as a table beside the JSON file."""
    medians: dict[str, dict[str, float]] = {}
    for benchmark in output_json["benchmarks"]:
        benchmark["stats"].pop("data", None)
        benchmark["params"]["case"] = benchmark["group"]
        medians.setdefault(benchmark["group"], {})[benchmark["params"]["contender"]] = benchmark["stats"]["median"]
    names = list(next(iter(medians.values())))
    rows = [
        [shape, *(f"{microseconds(of[name])} ({of[name] / of[OURS]:.1f}×)" for name in names)]
        for shape in map(str, SHAPES)
        if OURS in (of := medians.get(shape, {}))
    ]
    target = config.getoption("benchmark_json").with_suffix(".md")
    target.write_text(
        "Joint loss, forward and backward, k = B/2, float32: median µs (in brackets: over jocor_fast's). `make bench`; "
        "each contender is timed alone, one after the other. Ratios to quote are those of loss_cpu.md.\n\n"
        f"{markdown_table(['B×C', *names], rows)}\n{described()}\n"
    )
