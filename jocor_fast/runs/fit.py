"""`fit`: a whole run, from its settings to its files."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from jocor_fast.data.samples import Samples, split_ids
from jocor_fast.engine import loop
from jocor_fast.engine.evaluate import predicted_probabilities
from jocor_fast.engine.loop import EpochEvent, Observer
from jocor_fast.engine.metrics import Fault
from jocor_fast.engine.networks import NetworkSource, build_networks
from jocor_fast.engine.processes import ALONE, Processes
from jocor_fast.engine.settings import TrainSettings, options_before
from jocor_fast.engine.state import TrainingState
from jocor_fast.files.names import CONFIG, FIRST_STAGE, read_json
from jocor_fast.machine import derived_seed, own_modes, own_threads, resolve_device, seed_generators, seeded_generators
from jocor_fast.methods import METHODS
from jocor_fast.runs.recorder import Recorder, Recording, Run, checksum

__all__ = ["EpochEvent", "Observer", "Recording", "Run", "fit"]


def fit(
    settings: TrainSettings,
    networks: NetworkSource,
    train: Samples,
    *,
    test: Samples | None = None,
    val: Samples | None = None,
    recording: Recording = Recording(),  # noqa: B008 - it is frozen
    processes: Processes = ALONE,
    observers: Sequence[Observer] = (),
) -> Run:
    """Train, evaluate and write the files of a run.

    Args:
        settings: what to do.
        networks: the modules (trained in place, from the weights they have), or a function that builds one: it is then
            called once a network, under torch's generator seeded with `settings.seed`. A first stage trains a copy of
            the module, or one that the function builds under a seed of its own.
        train: what to train on.
        test: what the test accuracies are measured on after every epoch; it chooses nothing.
        val: what the best epoch is chosen by.
        recording: which files to write, and whether to resume.
        processes: those that train this run together, each of which calls this with the same arguments. The first one
            reads and writes the files; the observers are called in each.
        observers: learn of the run's steps and epochs, of either stage of a method that has two.

    Returns:
        The run; also one that `stop_after` ended early (summary["status"] is "interrupted"), or that diverged (it is
        "diverged", and summary["diverged"] says where and why).

    Raises:
        TypeError, ValueError: an argument is wrong.
        RunError: the output folder holds a run, is another's that is under way, or cannot be written, or its
            checkpoints are damaged or of other settings; or another process has ended.
        SystemExit: with code 143 after SIGTERM, once the checkpoint and summary.json (status "interrupted") are written
            (only with an output folder, in the main thread).
    """
    settings = as_begun(settings, recording.folder if recording.resume else None, processes)
    device = resolve_device(settings.device)
    method = METHODS[settings.method]
    networks_of_first = networks
    if len(method.stages) > 1 and isinstance(networks, (nn.Module, Sequence)):
        networks_of_first = copy.deepcopy(networks)

    def first_stage(by: str, estimate: Callable[[np.ndarray], Tensor], held_out: float) -> Tensor:
        recorder.on_stage(f"first stage: {method.stages[0]}")
        folder = None if recording.folder is None else Path(recording.folder) / FIRST_STAGE
        resume, every = recording.resume, recording.checkpoint_every
        first = replace(settings, method=by, method_options={}, seed=derived_seed(settings.seed, 2))
        kept, validated, chosen = train, val, round(held_out * len(train))
        if chosen:
            kept_ids, held_out_ids = split_ids(len(train), min(chosen, len(train) - 1), first.seed)
            kept, validated = train.subset(kept_ids), replace(train.subset(held_out_ids), clean_labels=None)
        try:
            run = fit(
                first,
                networks_of_first,
                kept,
                test=test,
                val=validated,
                recording=Recording(
                    folder=folder, resume=resume, checkpoint_every=every, first_stage=True, best=chosen > 0
                ),
                processes=processes,
                observers=observers,
            )
        except SystemExit:
            recorder.write_summary("interrupted")
            raise
        if "diverged" in run.summary:
            fault = Fault(**run.summary["diverged"])
            raise _Diverged(replace(fault, reason=f"in the first stage, {fault.reason}"))
        estimated = processes.from_first(
            lambda: estimate(predicted_probabilities(run.networks[0], state.source, device, state.own_rows))
        )
        recorder.on_stage(f"second stage: {method.stages[1]}")
        return estimated.to(device)

    with own_threads(settings.threads), own_modes(device), seeded_generators(settings.seed, device):
        modules = build_networks(networks, method.num_networks, settings.method, device)
        if not processes.first:  # dropout masks of its own
            seed_generators(derived_seed(settings.seed, 3, processes.rank), device)
        processes.check_agreement(_described(settings, modules, train, test, val, recording))
        state = TrainingState(settings, modules, train, test, val, device, processes)
        try:
            recorder = Recorder(recording, state, train, observers)
            state.threads.on_choice = recorder.on_threads
            with recorder.recording_run() as finished:
                if finished is not None:
                    return finished
                try:
                    state.step.method.prepare(first_stage)
                    fault = loop.train(state, recorder.epochs_left, recorder)
                except _Diverged as diverged:
                    fault = diverged.fault
                return recorder.finish(fault)
        finally:
            state.release()


def as_begun(
    settings: TrainSettings, folder: str | os.PathLike[str] | None, processes: Processes = ALONE
) -> TrainSettings:
    """Return the settings to go on with in the folder of a run that may be older than some options; None: no folder."""
    if folder is None or not options_before(settings.method):
        return settings
    stored = processes.from_first(lambda: read_json(Path(folder) / CONFIG))
    return settings if stored is None else settings.as_begun(stored.get("settings", {}))


class _Diverged(Exception):
    def __init__(self, fault: Fault) -> None:
        self.fault = fault


def _described(
    settings: TrainSettings,
    modules: Sequence[nn.Module],
    train: Samples,
    test: Samples | None,
    val: Samples | None,
    recording: Recording,
) -> dict[str, Any]:
    """Return what a process was given, by name, for all to compare."""
    labels = {"training": train.labels, "clean": train.clean_labels}
    labels |= {name: None if of is None else of.labels for name, of in (("test", test), ("validation", val))}
    return {
        **settings.as_dict(),
        **{f"{name} labels": None if of is None else checksum(of) for name, of in labels.items()},
        "networks": [[tuple(parameter.shape) for parameter in module.parameters()] for module in modules],
        "whether there is an output folder": recording.folder is not None,
        **{name: getattr(recording, name) for name in ("resume", "stop_after", "checkpoint_every")},
    }
