"""`fit`: a whole run, from its settings to its files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from jocor_fast.engine.settings import TrainSettings


@dataclass(frozen=True)
class TrainData:
    """What is trained on: N samples; sample i keeps its id i.

    Attributes:
        inputs: [N, ...]: uint8 (the network gets `inputs · input_scale` as float32), floating (it gets them as float32) or
            int32/int64 (it gets them as they are: token ids).
        labels: int64 [N], noisy, 0 … C−1.
        clean_labels: int64 [N] where the truth is known, else None (label precision is then null).
        input_scale: factor for uint8 inputs.
    """

    inputs: Tensor
    labels: Tensor
    clean_labels: Tensor | None = None
    input_scale: float = 1 / 255


@dataclass(frozen=True)
class EvalData:
    """What is evaluated on: `inputs`, `labels` and `input_scale` as in `TrainData`, the labels being the truth."""

    inputs: Tensor
    labels: Tensor
    input_scale: float = 1 / 255


@dataclass(frozen=True)
class EpochEvent:
    """Handed to `on_epoch` when an epoch is trained, evaluated and (with an output folder) checkpointed.

    Attributes:
        epoch: the epoch, from 1.
        epochs: how many this run trains in all (one fewer than asked for with recipe "published").
        metrics: the epoch's line of metrics.jsonl.
    """

    epoch: int
    epochs: int
    metrics: dict[str, Any]


@dataclass(frozen=True)
class Run:
    """What a run leaves behind.

    Attributes:
        networks: the trained modules, on the run's device: two, or one for a one-network method.
        metrics: the lines of metrics.jsonl.
        summary: the content of summary.json; its "status" is "finished" or "diverged".
    """

    networks: tuple[nn.Module, ...]
    metrics: list[dict[str, Any]]
    summary: dict[str, Any]


def fit(
    settings: TrainSettings,
    networks: nn.Module | Sequence[nn.Module] | Callable[[], nn.Module],
    train: TrainData,
    *,
    test: EvalData | None = None,
    val: EvalData | None = None,
    output: str | Path | None = None,
    resume: bool = False,
    extra_config: dict[str, dict[str, Any]] | None = None,
    extra_summary: dict[str, Any] | None = None,
    on_epoch: Callable[[EpochEvent], None] | None = None,
    on_step: Callable[[int, int, int], None] | None = None,
) -> Run:
    """Train, evaluate and write the files of a run.

    Args:
        networks: the modules (trained in place, from the weights they have), or a function that builds one: it is then
            called once a network, under torch's generator seeded with `settings.seed`.
        output: folder for the files of the run; None writes nothing.
        resume: go on from the checkpoint in `output`; without one, start afresh; after a finished run, change nothing.
        extra_config: {"settings": {name: value}, "sources": {name: source}}, merged into config.json; these settings too
            must be the same when a run is resumed.
        extra_summary: merged into summary.json (nominal_noise_rate).
        on_epoch: called after every epoch.
        on_step: called after every step with (epoch, steps done in it, steps in it); must not touch the device.

    Returns:
        The run. A diverged run is returned as well (summary["status"] == "diverged"): the command line exits with 1.

    Raises:
        TypeError, ValueError: an argument is wrong.
        RunError: the output folder holds a run, cannot be written, or its checkpoints are damaged or of other settings.
        SystemExit: with code 143 after SIGTERM, once the checkpoint and summary.json (status "interrupted") are written
            (only with an output folder, in the main thread).
    """
    raise NotImplementedError
