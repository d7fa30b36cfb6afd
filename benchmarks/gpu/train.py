"""Parts "train" and "train-cifar": runs of `jocor-fast train`, and what their metrics say.

    python -m gpu.train short|cifar

Data come from $JOCOR_FAST_DATA. MNIST is replaced by the embedded digits where it is not there; CIFAR-10, for its 15
seconds of steps, by images of its size that are noise. Both also run for some seconds without CUDA graphs.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpu import records
from gpu.bars import BY_HOST, CIFAR, MNIST

NOISE = ("--noise", "symmetric", "--noise-rate", "0.5", "--noise-seed", "1", "--seed", "1")
MNIST_SECONDS, CIFAR_SECONDS, BY_HOST_SECONDS, CIFAR_FULL_SECONDS = 24, 15, 10, 410
WARM_UP_EPOCHS = 2  # left out of the steps a second


@dataclass(frozen=True)
class Run:
    name: str
    data: str  # what it was trained on
    seconds: float  # at which it is stopped
    options: Sequence[str]


def by_host(run: Run) -> Run:
    """A few seconds of the same, without CUDA graphs."""
    return Run(run.name + BY_HOST, run.data, BY_HOST_SECONDS, (*run.options, "--no-graph"))


def root() -> Path | None:
    named = os.environ.get("JOCOR_FAST_DATA")
    return Path(named) if named and Path(named).is_dir() else None


def first_with(pattern: str) -> Path | None:
    """The first file of $JOCOR_FAST_DATA that matches."""
    base = root()
    return None if base is None else next(iter(sorted(base.glob(pattern))), None)


def mnist_run() -> Run:
    data = "mnist" if first_with("mnist/train-images-idx3-ubyte*") else "digits"
    return Run(MNIST, data, MNIST_SECONDS, ("--dataset", data, *NOISE, "--epochs", "200"))


def cifar_run(seconds: float, scratch: Path, *, synthetic: bool) -> Run | None:
    found = first_with("cifar10/cifar-10-batches-py/data_batch_1") or first_with("cifar10/cifar10.npz")
    if found is None and not synthetic:
        return None
    options = ["--dataset", "cifar10" if found else f"npz:{synthetic_images(scratch)}", "--model", "cnn"]
    options += [*NOISE, "--epochs", "200", "--precision", "bfloat16", "--co-lambda", "0.9"]
    return Run(CIFAR, "cifar10" if found else "synthetic", seconds, options)


def synthetic_images(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for part, count in (("train", 50_000), ("test", 10_000)):
        arrays[f"x_{part}"] = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        arrays[f"y_{part}"] = rng.integers(0, 10, count)
    path = folder / "synthetic.npz"
    np.savez(path, **arrays)
    return path


def train(run: Run, folder: Path) -> bool:
    """Trains until the run ends or its seconds do, and records its metrics; False where it failed."""
    output = folder / run.name.replace(" ", "-")
    command = [sys.executable, "-m", "jocor_fast", "train", *run.options, "--device", "cuda", "--output", str(output)]
    print(" ".join(command), flush=True)
    process = subprocess.Popen(command)
    try:
        code = process.wait(run.seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        process.wait()
        code = 0  # as planned
    epochs = metrics_in(output)
    ok = code == 0 and bool(epochs)
    records.done(run.name, data=run.data, ok=ok, **figures(epochs, batch_size=batch_size_in(output)))
    return ok


def metrics_in(output: Path) -> list[dict[str, Any]]:
    path = output / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def batch_size_in(output: Path) -> int:
    path = output / "config.json"
    return int(json.loads(path.read_text())["settings"]["batch_size"]) if path.exists() else 128


def figures(epochs: Sequence[dict[str, Any]], *, batch_size: int) -> dict[str, Any]:
    """Epochs, seconds with evaluation, steps a second, the mean accuracy of the last ten epochs, and the curve."""
    if not epochs:
        return {"epochs": 0}
    steady = epochs[WARM_UP_EPOCHS:] or epochs
    accuracies = [epoch["test_accuracy"] for epoch in epochs]
    last = [accuracy for accuracy in accuracies[-10:] if accuracy is not None]
    return {
        "epochs": len(epochs),
        "seconds": round(sum(epoch["seconds"] + epoch["eval_seconds"] for epoch in epochs), 2),
        "steps_per_second": statistics.median(epoch["samples_per_second"] for epoch in steady) / batch_size,
        "test_accuracy": statistics.mean(last) if last else None,
        "curve": accuracies,
    }


def main() -> int:
    (extent,) = sys.argv[1:]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if extent == "short":
            captured = [mnist_run(), cifar_run(CIFAR_SECONDS, folder, synthetic=True)]
            runs = [*captured, *(by_host(run) for run in captured if run is not None)]
        else:
            runs = [cifar_run(CIFAR_FULL_SECONDS, folder, synthetic=False)]
        wanted = [run for run in runs if run is not None]
        records.plan(run.name for run in wanted)
        if not wanted:
            print("CIFAR-10 is not in $JOCOR_FAST_DATA/cifar10 (cifar-10-batches-py or cifar10.npz)")
            return 1
        went_well = [train(run, folder) for run in wanted]  # also after one that did not
        return 0 if all(went_well) else 1


if __name__ == "__main__":
    sys.exit(main())
