"""Time the loss, the training step, training runs and the loading of images.

    python -m gpu.measure bench-short|bench-full|steps|train|train-cifar|dali

Data come from $JOCOR_FAST_DATA. Without MNIST there, runs train on the embedded digits; without CIFAR-10, the short run
trains on noise of its size. Without a package registry, unpack DALI and put its folder on PYTHONPATH.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cases import BAR_CASES, Case, gpu_cases
from gpu.bars import AT_ONCE, BY_HOST, CIFAR, DALI_ALONE, DALI_AND_RESNETS, MEMORY, MNIST
from gpu.records import Item, Work, work_through
from interleave import bytes_per_row_kept_for_backward, measure
from timing import GpuClock, copy_bytes_per_second
from training_runs import NOISE, Run, data_at_hand, mnist_or_digits, runs_at_once, train

RUNS = 5  # of MNIST, at once
PHOTOS, DALI_SECONDS = 8192, 15  # 100 MB of files, which stay in the page cache
SETTINGS = (*NOISE, "--noise-seed=1", "--seed=1", "--epochs=200", "--device=cuda")
CNN = ("--model", "cnn", "--precision", "bfloat16", "--co-lambda", "0.9")


def bench(*, full: bool) -> dict[str, Work]:
    """The loss against its contenders: what the bars need, most important first, or every case."""
    clock, copy = GpuClock(), cache(copy_bytes_per_second)

    def rows(case: Case) -> Item:
        measured = measure(case, "cuda", clock, seconds=0.4 if full else 0.5)
        return {"rows": [replace(figures, copy_bytes_per_second=copy()).as_row() for figures in measured]}

    return {
        "copy": lambda: {"bytes_per_second": copy()},
        MEMORY: lambda: {"bytes_a_row": bytes_per_row_kept_for_backward()},
        **{str(case): partial(rows, case) for case in (gpu_cases() if full else BAR_CASES)},
    }


def steps() -> dict[str, Work]:
    """The training step, rung by rung, and five runs at once against one alone."""
    from step_rungs import Task, rungs_of, tasks_of
    from steps import measure as measure_steps

    def figures(task: Task, rung: str) -> Item:
        torch.cuda.empty_cache()
        return asdict(measure_steps(task, rung, torch.device("cuda", 0)))

    rungs = [(task, rung) for task in tasks_of("cuda") for rung in rungs_of("cuda")]
    alone: dict[str, Work] = {f"{task.name}: {rung}": partial(figures, task, rung) for task, rung in rungs}
    return {**alone, AT_ONCE: partial(runs_at_once, RUNS)}


def dali(scratch: Path) -> dict[str, Work]:
    """Prepared photographs through DALI on the GPU, alone and into the training of two ResNet-18."""
    from loading import images_per_second, loaded_by, train_resnets
    from photos import write_photos

    device = torch.device("cuda", 0)
    images = cache(partial(write_photos, scratch / "photos", PHOTOS, prepared=True))

    def alone() -> Item:
        batches = loaded_by("dali", images(), device)
        return {"images_per_second": images_per_second(batches, PHOTOS, device, seconds=DALI_SECONDS)}

    into_training = lambda: train_resnets(images(), "dali", device, seconds=DALI_SECONDS)  # noqa: E731
    return {DALI_ALONE: alone, DALI_AND_RESNETS: into_training}


# --- training runs ----------------------------------------------------------------------------------------------------


def short_runs(scratch: Path) -> list[Run]:
    """MNIST whole and CIFAR-10 for a while, then both launched by the host."""
    data = mnist_or_digits()
    runs = [Run(MNIST, data, 24, ("--dataset", data, *SETTINGS)), cifar(15, scratch)]
    return runs + [replace(r, name=r.name + BY_HOST, seconds=10, options=(*r.options, "--no-graph")) for r in runs]


def cifar(seconds: float, scratch: Path | None = None) -> Run:
    """CIFAR-10, or noise of its size that is written into the scratch folder."""
    if data_at_hand("cifar10/cifar-10-batches-py/data_batch_1") or data_at_hand("cifar10/cifar10.npz"):
        return Run(CIFAR, "cifar10", seconds, ("--dataset", "cifar10", *SETTINGS, *CNN))
    if scratch is None:
        raise SystemExit("CIFAR-10 is not in $JOCOR_FAST_DATA/cifar10 (cifar-10-batches-py or cifar10.npz)")
    generator = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for part, count in (("train", 50_000), ("test", 10_000)):
        arrays[f"x_{part}"] = generator.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        arrays[f"y_{part}"] = generator.integers(0, 10, count)
    np.savez(scratch / "noise.npz", **arrays)
    return Run(CIFAR, "noise", seconds, ("--dataset", f"npz:{scratch / 'noise.npz'}", *SETTINGS, *CNN))


def main(part: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        items: dict[str, Any] = {
            "bench-short": lambda: bench(full=False),
            "bench-full": lambda: bench(full=True),
            "steps": steps,
            "dali": lambda: dali(scratch),
            "train": lambda: {run.name: partial(train, run, scratch) for run in short_runs(scratch)},
            "train-cifar": lambda: {CIFAR: partial(train, cifar(410), scratch)},
        }
        return work_through(items[part]())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
