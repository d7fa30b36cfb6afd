"""Training runs as processes: one for a limited time, several at once against one alone; and what metrics tell."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from jocor_fast.report.summary import AVERAGED_EPOCHS
from record import device

TRAIN = (sys.executable, "-m", "jocor_fast", "train")
NOISE = ("--noise", "symmetric", "--noise-rate", "0.5")
WARM_UP_EPOCHS = 2  # not counted in the steps a second


def data_at_hand(pattern: str) -> bool:
    """Return whether $JOCOR_FAST_DATA holds files that match."""
    root = os.environ.get("JOCOR_FAST_DATA")
    return root is not None and any(Path(root).glob(pattern))


def mnist_or_digits() -> str:
    return "mnist" if data_at_hand("mnist/train-images-idx3-ubyte*") else "digits"


@dataclass(frozen=True)
class Run:
    name: str
    data: str  # what it is trained on
    seconds: float  # at which it is stopped
    options: Sequence[str]


def train(run: Run, folder: Path) -> dict[str, Any]:
    """Run `jocor-fast train` until it ends or its seconds do, and return its figures; ok is False if it failed."""
    output = folder / run.name.replace(" ", "-")
    process = subprocess.Popen([*TRAIN, *run.options, f"--output={output}"])
    try:
        ok = process.wait(run.seconds) == 0
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        process.wait()
        ok = True  # as planned
    metrics = output / "metrics.jsonl"
    epochs = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    if not epochs:
        return {"data": run.data, "ok": False, "epochs": 0}
    batch_size = json.loads((output / "config.json").read_text())["settings"]["batch_size"]
    return {"data": run.data, "ok": ok, **figures(epochs, batch_size)}


def figures(epochs: Sequence[Mapping[str, Any]], batch_size: int) -> dict[str, Any]:
    """Return seconds with evaluation, steps a second, the mean accuracy of the last ten epochs, and the curve."""
    steady = epochs[WARM_UP_EPOCHS:] or epochs
    last = [epoch["test_accuracy"] for epoch in epochs[-AVERAGED_EPOCHS:] if epoch["test_accuracy"] is not None]
    return {
        "epochs": len(epochs),
        "seconds": round(sum(epoch["seconds"] + epoch["eval_seconds"] for epoch in epochs), 2),
        "steps_per_second": statistics.median(epoch["samples_per_second"] for epoch in steady) / batch_size,
        "test_accuracy": statistics.mean(last) if last else None,
        "curve": [{name: epoch[name] for name in ("epoch", "test_accuracy")} for epoch in epochs],
    }


def least_share_of_a_class(metrics: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the smallest share of a class's labels that was selected over the last ten epochs; None: not recorded."""
    shares = [line.get("selected_share_per_class") for line in metrics[-AVERAGED_EPOCHS:]]
    if not shares or not all(shares):
        return None
    return min(map(statistics.fmean, zip(*shares, strict=True)))


def seconds_of_runs(count: int, options: Sequence[str]) -> float:
    """Return the seconds from the start of so many runs, with seeds 1 … count, to the end of the last."""
    with tempfile.TemporaryDirectory() as scratch:
        started = perf_counter()
        runs = [
            subprocess.Popen(
                [*TRAIN, *options, f"--seed={seed}", f"--noise-seed={seed}", f"--output={Path(scratch, str(seed))}"],
                stdout=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            for seed in range(1, count + 1)
        ]
        codes = [run.wait() for run in runs]
        if any(codes):
            raise RuntimeError(f"runs ended with {codes}")
        return perf_counter() - started


def runs_at_once(count: int) -> dict[str, Any]:
    """Time one run of MNIST's JoCoR, and `count` of them at once, as `jocor-fast reproduce --jobs N` starts them."""
    data = mnist_or_digits()
    epochs = 200 if device() == "cuda" or data == "digits" else 3
    options = ["--dataset", data, *NOISE, "--device", device(), "--epochs", str(epochs)]
    alone, together = seconds_of_runs(1, options), seconds_of_runs(count, options)
    measured = {"one_alone": alone, "all_at_once": together, "ratio": together / alone}
    return {"data": data, "epochs": epochs, "runs": count, **measured}
