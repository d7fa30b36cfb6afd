"""Small runs that end before their time, and what the tests of checkpoints compare of them."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import nn

from engine_cases import (
    blobs,
    fit,
    held_out,
    parameters,
    same_bits,
    settings,
    small_cnn,
    small_mlp,
    small_tanh,
    without_timings,
)
from jocor_fast.runs.fit import EpochEvent, Run

OF_FIT = ("config", "checkpoint_every")
CHECKPOINTS = ("checkpoint.pt", "checkpoint-previous.pt")


class Killed(BaseException):
    """Stands for a process that ends without a word."""


KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], dict[str, Any]]] = {
    "paired": (small_mlp, (6,), {}),
    "separate": (small_tanh, (6,), {"optimizer": "sgd", "lr": 0.1}),
    "batchnorm, dropout, crops": (small_cnn, (3, 8, 8), {"augment": "crop-flip"}),
    "two choices, float16": (small_cnn, (3, 8, 8), {"method": "coteaching-plus", "precision": "float16"}),
    "per class": (small_mlp, (6,), {"selection_per_class": True, "class_weights": "balanced", "label_smoothing": 0.1}),
    "balanced ramp": (small_mlp, (6,), {"balanced_ramp": True, "label_smoothing": 0.1, "ramp_epochs": 2}),
    "adaptive": (small_mlp, (6,), {"forget_rate": "adaptive"}),
    "whole set": (small_mlp, (6,), {"method": "taks", "forget_rate": 0.05}),
    "standard, published": (small_mlp, (6,), {"method": "standard", "recipe": "published", "decay_start": 2}),
}


def train(kind: str, output: Path | None, *, resume: bool = False, **rest: Any) -> Run:
    network, shape, changes = KINDS[kind]
    own = {name: rest.pop(name) for name in list(rest) if not name.startswith("on_") and name not in OF_FIT}
    sets = {"test": held_out(21, shape), "val": held_out(15, shape, seed=3)}
    return fit(settings(**changes, **own), network, blobs(70, shape), **sets, output=output, resume=resume, **rest)


@functools.cache
def whole(kind: str) -> Run:
    """A run that nobody touched, made once."""
    return train(kind, None)


def killed_after(epoch: int) -> Callable[[EpochEvent], None]:
    def on_epoch(event: EpochEvent) -> None:
        if event.epoch == epoch:
            raise Killed

    return on_epoch


def killed_at(epoch: int, step: int) -> Callable[[int, int, int], None]:
    def on_step(*at: int) -> None:
        if at[:2] == (epoch, step):
            raise Killed

    return on_step


def terminated_at(epoch: int, step: int) -> Callable[[int, int, int], None]:
    def on_step(*at: int) -> None:
        if at[:2] == (epoch, step):
            os.kill(os.getpid(), signal.SIGTERM)

    return on_step


@contextlib.contextmanager
def limited_files() -> Iterator[Callable[[int], None]]:
    """Yield a function; once called, no file may grow past so many bytes, as on a full disk, until the block ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}


def metrics_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_same(resumed: Run, whole: Run, folder: Path) -> None:
    assert without_timings(resumed.metrics) == without_timings(whole.metrics)
    assert same_bits(parameters(resumed.networks), parameters(whole.networks))
    assert metrics_in(folder) == resumed.metrics
    assert resumed.summary["status"] == "finished"
    assert resumed.summary["best_by_validation"] == whole.summary["best_by_validation"]
