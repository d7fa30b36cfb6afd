"""The ratios: every contender in one process, taking turns, so that whatever slows the machine slows them all.

    python benchmarks/compare.py [--output DIR]

Twice, in child processes: once with glibc's malloc told to keep large blocks (MALLOC_TRIM_THRESHOLD_ and
MALLOC_MMAP_THRESHOLD_ at 1 GiB), once as it comes. As it comes, every large gradient is fresh memory whose pages the
kernel has to fill with zeros first, and that can cost more than the arithmetic. Writes loss_cpu.json and loss_cpu.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from contenders import CONTENDERS, OURS, SHAPES, THREADS, Inputs, assert_agree, make_inputs
from record import RESULTS, described, machine, markdown_table, microseconds, versions

GIB = str(1 << 30)
ALLOCATORS = {
    "malloc keeps large blocks": {"MALLOC_TRIM_THRESHOLD_": GIB, "MALLOC_MMAP_THRESHOLD_": GIB},
    "malloc as it comes": {},
}
SECONDS_PER_SHAPE = 12.0
MIN_ROUNDS = 15


def measure(inputs: Inputs) -> dict[str, list[float]]:
    """Seconds of single steps by contender. In a round each has a turn, in random order: a step untimed, some timed."""
    assert_agree(inputs)  # also compiles and warms up
    order, turns = list(CONTENDERS), random.Random(0)
    times: dict[str, list[float]] = {name: [] for name in order}
    timed_steps = max(2, min(20, 40_000 // inputs.logits1.numel()))
    end = perf_counter() + SECONDS_PER_SHAPE
    rounds = 0
    while rounds < MIN_ROUNDS or perf_counter() < end:
        turns.shuffle(order)
        for name in order:
            step = CONTENDERS[name]
            step(inputs)  # brings this contender's code and data back into the caches
            for _ in range(timed_steps):
                start = perf_counter()
                step(inputs)
                times[name].append(perf_counter() - start)
        rounds += 1
    return times


def summarise(times: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Median and quartiles in seconds, and the median over ours."""
    our_median = statistics.median(times[OURS])
    summary = {}
    for name, seconds in times.items():
        low, median, high = statistics.quantiles(seconds, n=4)
        summary[name] = {
            "median": median,
            "quartile_1": low,
            "quartile_3": high,
            "steps": len(seconds),
            "over_ours": median / our_median,
        }
    return summary


def measure_all() -> dict[str, Any]:
    torch.set_num_threads(THREADS)
    figures = {}
    for shape in SHAPES:
        print(f"  {shape}", file=sys.stderr, flush=True)
        figures[str(shape)] = summarise(measure(make_inputs(shape)))
    return {"machine": machine(), "versions": versions(), "described": described(), "figures": figures}


def run_child(allocator: dict[str, str]) -> dict[str, Any]:
    """This script again, in a process whose allocator and threads are set before anything is loaded."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    # Waiting OpenMP threads sleep: spinning ones of one contender would take the second core from the next.
    environ = {**inherited, **allocator, "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": str(THREADS)}
    child = subprocess.run([sys.executable, __file__, "--child"], env=environ, stdout=subprocess.PIPE, check=True)
    result: dict[str, Any] = json.loads(child.stdout)
    return result


def table(results: dict[str, dict[str, Any]]) -> str:
    parts = [
        "Joint loss, forward and backward through the public function, k = B/2, float32, two threads: median µs of "
        "single steps, and in brackets how many times ours that is. All contenders take turns in one process. Made by "
        "`python benchmarks/compare.py` (`make compare`).\n"
    ]
    for title, result in results.items():
        variables = " ".join(f"{name}={value}" for name, value in ALLOCATORS[title].items())
        rows = [
            [shape, *(f"{microseconds(of['median'])} ({of['over_ours']:.1f}×)" for of in figures.values())]
            for shape, figures in result["figures"].items()
        ]
        heading = f"{title} ({variables})" if variables else title
        parts.append(f"## {heading[0].upper()}{heading[1:]}\n\n{markdown_table(['B×C', *CONTENDERS], rows)}")
    parts.append(next(iter(results.values()))["described"] + "\n")
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, allow_abbrev=False, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of loss_cpu.json and loss_cpu.md")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        json.dump(measure_all(), sys.stdout)
        return
    results = {}
    for title, allocator in ALLOCATORS.items():
        print(title, file=sys.stderr, flush=True)
        results[title] = run_child(allocator)
    shared = {name: next(iter(results.values()))[name] for name in ("machine", "versions")}
    document = {
        "command": "python benchmarks/compare.py",
        **shared,
        "allocators": {
            title: {"environment": ALLOCATORS[title], "seconds": of["figures"]} for title, of in results.items()
        },
    }
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "loss_cpu.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    (arguments.output / "loss_cpu.md").write_text(table(results))
    print(table(results))


if __name__ == "__main__":
    main()
