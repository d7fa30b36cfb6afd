"""How pytest-benchmark runs here, and the table that goes beside its JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

# Waiting OpenMP threads sleep: spinning ones of one contender would take the second core from the next.
# Read when torch is loaded, so it is set before any import that loads it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch

from cases import OURS
from plot import draw_figures
from record import described, device, machine, versions
from steps import Figures
from steps import table as steps_table
from tables import markdown_table, microseconds
from timing import copy_bytes_per_second

torch.set_num_threads(2)


def pytest_benchmark_generate_machine_info() -> dict[str, Any]:
    on_gpu = {"copy_bytes_per_second": copy_bytes_per_second()} if device() == "cuda" else {}
    return {**machine(), **versions(), **on_gpu}


def pytest_benchmark_update_commit_info(commit_info: dict[str, Any]) -> None:
    for name in set(commit_info) - {"id", "dirty", "time"}:
        del commit_info[name]


def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    """Leaves out the single rounds; writes the medians as tables and as a picture beside the JSON file."""
    copy = output_json["machine_info"].get("copy_bytes_per_second")
    rows, steps = [], []
    for benchmark in output_json["benchmarks"]:
        benchmark["stats"].pop("data", None)
        benchmark.pop("params")  # the case itself, and what extra_info says too
        if "step" in benchmark["extra_info"]:
            steps.append(Figures(**benchmark["extra_info"]["step"]))
        else:
            rows.append(as_row(benchmark, copy))
    target = config.getoption("benchmark_json")
    if steps:
        target.with_name("bench_step.md").write_text(
            "The training step, rung by rung; in brackets: over the published step. `make bench`; each timed alone.\n\n"
            f"{steps_table(steps)}\n{described()}\n"
        )
    if not rows:
        return
    clock = "GPU time" if device() == "cuda" else "time"
    target.with_suffix(".md").write_text(
        f"Joint loss, k = B/2: median {clock} in µs (in brackets: over jocor_fast's). `make bench`; each contender is "
        "timed alone, one after the other. Ratios to quote are those of `make compare`.\n\n"
        f"{table(rows)}\n{described()}\n"
    )
    draw_figures(rows, target.with_suffix(".png"), described())


def as_row(benchmark: Mapping[str, Any], copy: float | None) -> dict[str, Any]:
    info, wall = benchmark["extra_info"], benchmark["stats"]["median"]
    seconds = info.get("gpu_seconds", wall)
    info["bytes_per_second"] = info["bytes_moved"] / seconds
    if copy is not None:
        info["share_of_copy"] = info["bytes_per_second"] / copy
    gpu = 1e6 * info["gpu_seconds"] if "gpu_seconds" in info else None
    return {**info, "group": benchmark["group"], "seconds": seconds, "gpu_us": gpu, "wall_us": 1e6 * wall}


def table(rows: list[dict[str, Any]]) -> str:
    groups: dict[str, dict[str, float]] = {}
    for row in rows:
        groups.setdefault(row["group"], {})[row["contender"]] = row["seconds"]
    names = list(dict.fromkeys(name for of in groups.values() for name in of))

    def cell(of: dict[str, float], name: str) -> str:
        if name not in of:
            return ""
        return f"{microseconds(of[name])} ({of[name] / of[OURS]:.1f}×)" if OURS in of else microseconds(of[name])

    return markdown_table(
        ["case", *names], [[group, *(cell(of, name) for name in names)] for group, of in groups.items()]
    )
