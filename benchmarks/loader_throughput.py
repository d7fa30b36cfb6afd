"""Images a second of the loaders on the CPU, from original-size and from prepared files, in one run.

    python benchmarks/loader_throughput.py

writes benchmarks/results/loader_cpu.json and .md. The loaders take turns over the same files, with as many threads or
worker processes as there are cores. The files are warm: what is timed is decoding, not the disk.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

from loading import DALI, DATALOADER, OURS_WITHOUT, loaded_by, loaded_by_dataloader, seconds_of_a_pass
from photos import ORIGINAL, write_photos
from record import described, machine, write
from tables import markdown_table

COUNT, ROUNDS = 192, 5
ORIGINALS, PREPARED = f"originals, {ORIGINAL[0]}×{ORIGINAL[1]}", "prepared, 256×256"
CPU = torch.device("cpu")
FASTER_THAN_DATALOADER, PREPARED_OVER_ORIGINALS = 1.3, 2.0


def main() -> None:
    torch.set_num_threads(1)  # of the normalisation: the cores are the loaders'
    cores = machine()["cores"]
    load = os.getloadavg()[0]
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for kind in (ORIGINALS, PREPARED):
            images = write_photos(
                Path(scratch, "prepared" if kind == PREPARED else "originals"), COUNT, prepared=kind == PREPARED
            )
            loaders = {
                DALI: loaded_by("dali", images, CPU),
                OURS_WITHOUT: loaded_by("pillow", images, CPU),
                DATALOADER: loaded_by_dataloader(images, cores),
            }
            seconds: dict[str, list[float]] = {name: [] for name in loaders}
            for turn in range(ROUNDS + 1):  # the first one warms up
                for name, batches in loaders.items():
                    taken = seconds_of_a_pass(batches, CPU)
                    if turn:
                        seconds[name].append(taken)
            figures[kind] = {name: COUNT / statistics.median(taken) for name, taken in seconds.items()}
            del loaders
    verdicts = bars(figures)
    content = {"load_before": load, "images_per_second": figures, "bars": verdicts}
    write("loader_cpu", table(figures, verdicts, load), content)


def bars(figures: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    ratio = figures[ORIGINALS][DALI] / figures[ORIGINALS][DATALOADER]
    gains = {name: figures[PREPARED][name] / figures[ORIGINALS][name] for name in (DALI, OURS_WITHOUT)}
    wanted = [(f"{ORIGINALS}: {DALI} over {DATALOADER}", FASTER_THAN_DATALOADER, ratio)]
    wanted += [(f"{name}: prepared over originals", PREPARED_OVER_ORIGINALS, gain) for name, gain in gains.items()]
    return [{"what": what, "bar": bar, "figure": figure, "met": figure >= bar} for what, bar, figure in wanted]


def table(figures: dict[str, dict[str, float]], verdicts: list[dict[str, Any]], load: float) -> str:
    names = list(figures[ORIGINALS])
    rows = [[name, *(f"{figures[kind][name]:,.0f}" for kind in figures)] for name in names]
    lines = [
        "# Loading on a CPU: images a second\n",
        f"`python benchmarks/loader_throughput.py`: {COUNT} JPEGs of quality 90, resized to 256×256, cut to 224×224 "
        f"and normalised, in batches of 64; median of {ROUNDS} passes, the loaders in turn; files in the page cache.\n",
        markdown_table(["loader", *figures], rows),
        markdown_table(
            ["bar", "wanted", "figure", ""],
            [
                [line["what"], f"≥ {line['bar']}", f"{line['figure']:.2f}", "met" if line["met"] else "not met"]
                for line in verdicts
            ],
        ),
        f"{described()}, Pillow {_version('PIL')}, DALI {_version('nvidia.dali')}. "
        f"Load average before the run: {load:.1f}; above 0 others had a part of the cores, so read the ratios.\n",
    ]
    return "\n".join(lines)


def _version(module: str) -> str:
    import importlib

    return str(importlib.import_module(module).__version__)


if __name__ == "__main__":
    main()
