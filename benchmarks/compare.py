"""The ratios: every contender in one process, taking turns, so that whatever slows the machine slows them all.

    python benchmarks/compare.py [--device cpu|cuda] [--output DIR]

On the CPU twice, in child processes: once with glibc's malloc told to keep large blocks (MALLOC_TRIM_THRESHOLD_ and
MALLOC_MMAP_THRESHOLD_ at 1 GiB), once as it comes. As it comes, every large gradient is fresh memory whose pages the
kernel has to fill with zeros first, and that can cost more than the arithmetic. Writes loss_cpu.json and loss_cpu.md.

On a GPU all shapes, types, pieces of work and caches: loss_gpu.csv and loss_gpu.png.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from cases import CPU_SHAPES, OURS, Case, cases_of
from interleave import Figures, measure
from record import described, device, machine, parser, versions
from tables import csv_text, markdown_table, microseconds
from timing import clock_of, copy_bytes_per_second

GIB = str(1 << 30)
ALLOCATORS = {
    "malloc keeps large blocks": {"MALLOC_TRIM_THRESHOLD_": GIB, "MALLOC_MMAP_THRESHOLD_": GIB},
    "malloc as it comes": {},
}
THREADS = 2
SECONDS_PER_SHAPE = 12.0
CPU_CASES = [Case(shape, torch.float32, "forward + backward") for shape in CPU_SHAPES]


# --- on the CPU -------------------------------------------------------------------------------------------------------


def measure_in_this_process() -> dict[str, Any]:
    torch.set_num_threads(THREADS)
    clock = clock_of("cpu")
    shapes: dict[str, dict[str, dict[str, float]]] = {}
    for case in CPU_CASES:
        print(f"  {case.shape}", file=sys.stderr, flush=True)
        of_case = measure(case, "cpu", clock, seconds=SECONDS_PER_SHAPE)
        our_median = next(figures.wall.median for figures in of_case if figures.contender == OURS)
        shapes[str(case.shape)] = {
            figures.contender: {
                "median": figures.wall.median,
                "quartile_1": figures.wall.quartile_1,
                "quartile_3": figures.wall.quartile_3,
                "steps": figures.samples,
                "over_ours": figures.wall.median / our_median,
            }
            for figures in of_case
        }
    return {"machine": machine(), "versions": versions(), "described": described(), "figures": shapes}


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
        shapes = result["figures"]
        rows = [
            [shape, *(f"{microseconds(of['median'])} ({of['over_ours']:.1f}×)" for of in contenders.values())]
            for shape, contenders in shapes.items()
        ]
        heading = f"{title} ({variables})" if variables else title
        names = next(iter(shapes.values()))
        parts.append(f"## {heading[0].upper()}{heading[1:]}\n\n{markdown_table(['B×C', *names], rows)}")
    parts.append(next(iter(results.values()))["described"] + "\n")
    return "\n".join(parts)


def compare_on_cpu(output: Path) -> None:
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
    (output / "loss_cpu.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    (output / "loss_cpu.md").write_text(table(results))
    print(table(results))


# --- on a GPU ---------------------------------------------------------------------------------------------------------


def compare_on_gpu(output: Path) -> None:
    from plot import draw_figures

    clock = clock_of("cuda")
    copy = copy_bytes_per_second()
    lines: list[Figures] = []
    for case in cases_of("cuda"):
        print(case, file=sys.stderr, flush=True)
        lines += [replace(figures, copy_bytes_per_second=copy) for figures in measure(case, "cuda", clock)]
    caption = described()
    (output / "loss_gpu.csv").write_text(csv_text(map(Figures.as_row, lines), [caption]))
    draw_figures(list(map(Figures.as_row, lines)), output / "loss_gpu.png", caption)
    print((output / "loss_gpu.csv").read_text())


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--device", choices=("cpu", "cuda"), default=device(), help="default: a GPU if any")
    options.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.child:
        json.dump(measure_in_this_process(), sys.stdout)
        return
    arguments.output.mkdir(parents=True, exist_ok=True)
    (compare_on_gpu if arguments.device == "cuda" else compare_on_cpu)(arguments.output)


if __name__ == "__main__":
    main()
