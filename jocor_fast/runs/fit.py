"""`fit`: a whole run, from its settings to its files."""

from __future__ import annotations

import copy
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from jocor_fast import arguments
from jocor_fast.data.samples import EvalData, InputFiles, TrainData
from jocor_fast.engine.networks import NetworkSource, build_networks
from jocor_fast.engine.processes import ALONE, Processes
from jocor_fast.engine.settings import TrainSettings
from jocor_fast.engine.trainer import Trainer
from jocor_fast.files.names import FIRST_STAGE
from jocor_fast.machine import derived_seed, own_modes, resolve_device, seed_generators, seeded_generators
from jocor_fast.methods import METHODS
from jocor_fast.runs.first_stage import first_stage_settings
from jocor_fast.runs.session import EpochEvent, Run, Session

__all__ = ["EpochEvent", "EvalData", "Run", "TrainData", "fit"]


def fit(
    settings: TrainSettings,
    networks: NetworkSource,
    train: TrainData,
    *,
    test: EvalData | None = None,
    val: EvalData | None = None,
    output: str | os.PathLike[str] | None = None,
    resume: bool = False,
    stop_after: int | None = None,
    checkpoint_every: int | None = None,
    processes: Processes = ALONE,
    extra_config: Mapping[str, Any] | None = None,
    extra_checkpoint: Mapping[str, Any] | None = None,
    extra_summary: Mapping[str, Any] | None = None,
    on_epoch: Callable[[EpochEvent], None] | None = None,
    on_step: Callable[[int, int, int], None] | None = None,
    on_stage: Callable[[str], None] | None = None,
    on_wait: Callable[[float], None] | None = None,
) -> Run:
    """Train, evaluate and write the files of a run.

    Args:
        settings: what to do.
        networks: the modules (trained in place, from the weights they have), or a function that builds one: it is then
            called once a network, under torch's generator seeded with `settings.seed`. The first stage of F-correction
            trains a copy of the module, or one that the function builds under its own seed.
        train: what to train on.
        test: what the test accuracies are measured on after every epoch; it chooses nothing.
        val: what the best epoch is chosen by.
        output: folder for the files of the run; None writes nothing.
        resume: go on from the checkpoint in `output`; without one, start afresh; after a finished run, change nothing.
        stop_after: leave off after this epoch, if the run has more; `resume` goes on. The schedules are those of all
            epochs.
        checkpoint_every: steps between checkpoints within an epoch (there is one after each epoch in any case).
        processes: those that train this run together, each of which calls this with the same arguments. The first one
            reads and writes the files; `on_epoch` and the others are called in each.
        extra_config: merged into config.json. Its "settings" {name: value} join those of `settings`, and like them must
            be the same when the run is resumed; its "sources" say where each came from.
        extra_checkpoint: merged into checkpoint.pt and best.pt (what `jocor_fast.config.predictor` needs to know).
        extra_summary: merged into summary.json (nominal_noise_rate).
        on_epoch: called after every epoch, of either stage of a method that has two.
        on_step: called after every step (on a GPU: after several that were launched together) with (epoch, steps done
            in it, steps in it); must not touch the device.
        on_stage: called with what a stage is before it begins, if the method has two.
        on_wait: of a run on files, called before every step with the seconds that it waited for its batch.

    Returns:
        The run; also one that `stop_after` ended early (summary["status"] is "interrupted"), or that diverged (it is
        "diverged", and summary["diverged"] says where and why).

    Raises:
        TypeError, ValueError: an argument is wrong.
        RunError: the output folder holds a run, is another's that goes on, or cannot be written, or its checkpoints are
            damaged or of other settings; or another process has ended.
        SystemExit: with code 143 after SIGTERM, once the checkpoint and summary.json (status "interrupted") are written
            (only with an output folder, in the main thread).
    """
    device = resolve_device(settings.device)
    for name, number in (("stop_after", stop_after), ("checkpoint_every", checkpoint_every)):
        if number is not None:
            arguments.at_least(name, number, 1)
    if resume and output is None:
        raise ValueError("resume needs the output folder of the run to go on with, got output=None")
    first_stage = None
    if len(METHODS[settings.method].stages) > 1:
        networks_of_first = copy.deepcopy(networks) if isinstance(networks, (nn.Module, Sequence)) else networks
        first_stage = lambda method: fit(  # noqa: E731
            first_stage_settings(settings, method),
            networks_of_first,
            train,
            test=test,
            val=val,
            output=None if output is None else Path(output) / FIRST_STAGE,
            resume=resume,
            checkpoint_every=checkpoint_every,
            processes=processes,
            on_epoch=None if on_epoch is None else lambda event: on_epoch(replace(event, first_stage=True)),
            on_step=on_step,
        )
    with own_modes(device), seeded_generators(settings.seed, device):
        count = METHODS[settings.method].num_networks
        modules = build_networks(networks, count, settings.method, device)
        if not processes.first:  # dropout masks of its own
            seed_generators(derived_seed(settings.seed, 3, processes.rank), device)
        given: dict[str, Any] = {"whether there is an output folder": output is not None, "resume": resume}
        given |= {"stop_after": stop_after, "checkpoint_every": checkpoint_every}
        processes.check_agreement({**settings.as_dict(), **_described(modules, train, test, val), **given})
        trainer = Trainer(settings, modules, train, test, val, device, processes)
        try:
            session = Session(
                settings=settings,
                trainer=trainer,
                processes=processes,
                output=output,
                stop_after=stop_after,
                checkpoint_every=checkpoint_every,
                labels_checksum=_checksum(train.labels),
                files_checksum=train.inputs.checksum if isinstance(train.inputs, InputFiles) else None,
                extra_config=extra_config or {},
                extra_checkpoint=extra_checkpoint or {},
                extra_summary=extra_summary or {},
                on_epoch=on_epoch,
                on_step=on_step,
                first_stage=first_stage,
                on_stage=on_stage or (lambda stage: None),
                on_wait=on_wait,
            )
            return session.run(resume=resume)
        finally:
            trainer.release()


def _described(
    modules: Sequence[nn.Module], train: TrainData, test: EvalData | None, val: EvalData | None
) -> dict[str, Any]:
    """What can be told of networks and labels by name, so that processes see whether they were given the same."""
    labels = {"training": train.labels, "clean": train.clean_labels}
    labels |= {name: None if data is None else data.labels for name, data in (("test", test), ("validation", val))}
    return {
        **{f"{name} labels": None if of is None else _checksum(of) for name, of in labels.items()},
        "networks": [[tuple(parameter.shape) for parameter in module.parameters()] for module in modules],
    }


def _checksum(labels: Tensor) -> str:
    return f"{len(labels)} with checksum {zlib.crc32(labels.cpu().numpy().tobytes()):08x}"
