"""`jocor-fast train`: one run, from its options to its files."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from jocor_fast.cli.flags import declare
from jocor_fast.config.options import AUTO, OPTIONS, RUN_FIELDS, TRAINING_FIELDS
from jocor_fast.config.resolve import Config, resolve
from jocor_fast.config.stored_run import FOLDER, PATHS, is_relative, names_the_same
from jocor_fast.errors import FailedElsewhere, RunError
from jocor_fast.files.names import CHECKPOINT, CONFIG, FIRST_STAGE, read_json
from jocor_fast.machine import resolve_device
from jocor_fast.methods import METHODS
from jocor_fast.report.screen import TrainingProgress, final_table, phase, say, say_subjects, warn
from jocor_fast.report.tensorboard import TensorBoardLog
from jocor_fast.schedules import trained_epochs

if TYPE_CHECKING:
    import torch

    from jocor_fast.config.task import Task
    from jocor_fast.engine.processes import Processes
    from jocor_fast.runs.fit import Run

SUMMARY = "train on a data set, with noise added or labels from a file"
USAGE = "[OPTIONS]"
HOW_TO_GO_ON = "use --resume to continue"
NOTHING_YET = "there is nothing to resume yet, run it again"
DESCRIPTION = """\
Train on a data set whose training labels are partly wrong: noise is added to
known labels, or the labels come from a file. Options can also be in a TOML
file (--config), with underscores for dashes:
    dataset = "mnist"
    noise = "symmetric"
    noise_rate = 0.5
torchrun starts several processes that train together:
    torchrun --nproc-per-node 2 -m jocor_fast train ..."""

# The others are kept in config.json and compared on --resume. Not part of what a run is: where files lie, which there
# are, when it pauses, and whether bad ones end it.
NOT_RECORDED = ("data_root", "output", "resume", "stop_after", "checkpoint_every", "tensorboard", "strict")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare every option as a flag."""
    declare(parser, OPTIONS.values())


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Train as the options say; 0, or a ConfigError, DataError or RunError."""
    flags = {name: value for name, value in vars(arguments).items() if name in OPTIONS}
    config = resolve(flags, arguments.config)
    try:
        return _run_with_others(config, console)
    except (KeyboardInterrupt, SystemExit) as stop:  # the latter by SIGTERM
        output = Path(config.output)
        if any((folder / CHECKPOINT).exists() for folder in (output, output / FIRST_STAGE)):
            raise
        if isinstance(stop, SystemExit):
            raise SystemExit(stop.code, NOTHING_YET) from None
        raise KeyboardInterrupt(NOTHING_YET) from None


def _run_with_others(config: Config, console: Console) -> int:
    """Join the processes of the run, where there are several, and train."""
    from jocor_fast.engine.processes import joined_processes

    with contextlib.ExitStack() as stack:
        with config.naming("device"):
            processes = stack.enter_context(joined_processes(config.training.device))
        try:
            return _run(config, processes, console)
        except RuntimeError as error:
            if not processes.lost(error):
                raise
            raise RunError(processes.loss_in_words(error)) from error


def _run(config: Config, processes: Processes, console: Console) -> int:
    """This process's part of the run; the first one speaks for all."""
    from jocor_fast.cli.train_heading import print_heading
    from jocor_fast.cli.train_shown import Shown
    from jocor_fast.cli.train_warnings import warnings_of
    from jocor_fast.config.predictor import describe_input
    from jocor_fast.config.task import build_task
    from jocor_fast.engine.plan import whole_batch
    from jocor_fast.runs.dropped_classes import DroppedClasses
    from jocor_fast.runs.fit import Recording, as_begun, fit

    if not processes.first:
        console.quiet = True
    processes.from_first(lambda: _check_output(config))  # before data are read, let alone τ estimated
    task = processes.run_on_local_rank_zero_first(partial(build_task, config, announce=partial(say, console)))
    folder = _keep_names(config, processes)
    estimate = _estimated_forget_rate(config, task, processes, console)
    settings = config.training = as_begun(config.training, config.output if config.resume else None, processes)
    with config.naming("batch_size"):
        batch = whole_batch(settings, len(task.train.labels), processes)
    print_heading(config, task, _device(config), processes, batch, console)
    if processes.first:
        for warning in warnings_of(config, task, processes, batch):
            warn(warning)
    dropped = DroppedClasses(settings, task.dataset.class_names, lambda name: OPTIONS[name].flag, warn)
    watching = [dropped] if processes.first else []
    progress = TrainingProgress(console, trained_epochs(settings.epochs, settings.recipe), batch)
    with progress, _tensorboard(config, processes) as board, config.engine_complaints():
        result = fit(
            settings,
            task.build_network,
            task.train,
            test=task.test,
            val=task.val,
            recording=Recording(
                folder=config.output,
                resume=config.resume,
                stop_after=config.stop_after,
                checkpoint_every=config.checkpoint_every,
                config=_recorded(config, task, folder, estimate),
                network_input=describe_input(task.dataset, config.model),
                noise_rates=(task.nominal_noise_rate, task.realised_noise_rate),
            ),
            processes=processes,
            observers=[Shown(progress, board), *watching],
        )
    if result.summary["status"] == "interrupted":
        say(console, f"stopped after epoch {len(result.metrics)}; use --resume to continue")
    elif not progress.epochs_shown:
        say(console, "this run is finished already, nothing was changed")
    if result.metrics:
        _print_result(result, Path(config.output), console)
    fault = result.summary.get("diverged")
    if fault is not None:
        place = f"epoch {fault['epoch']}" + (f", batch {fault['batch']}" if fault["batch"] is not None else "")
        sentence = f"the run diverged in {place}: {fault['reason']}; its files are kept in {config.output}"
        raise RunError(sentence) if processes.first else FailedElsewhere(sentence)
    return 0


def _check_output(config: Config) -> None:
    """Raise RunError where the folder holds a run that is not to be resumed, or cannot be written into."""
    from jocor_fast.runs.folder import check_free, check_place

    if not config.resume:
        with config.naming("output"):
            check_free(Path(config.output), "--resume")
            check_place(Path(config.output))


def _device(config: Config) -> torch.device:
    """Where the run will compute; a ConfigError where it cannot."""
    with config.naming("device"):
        return resolve_device(config.training.device)


def _tensorboard(config: Config, processes: Processes) -> contextlib.AbstractContextManager[TensorBoardLog | None]:
    """What writes for TensorBoard, where that is asked for; a ConfigError where its package is missing."""
    if not config.tensorboard:
        return contextlib.nullcontext()
    boards: list[TensorBoardLog] = []
    with config.naming("tensorboard"):
        processes.from_first(lambda: boards.append(TensorBoardLog(Path(config.output))))
    return boards[0] if boards else contextlib.nullcontext()


def _estimated_forget_rate(config: Config, task: Task, processes: Processes, console: Console) -> dict[str, Any] | None:
    """Decide --forget-rate auto: by the estimate in the folder of a resumed run, else by a new one."""
    if config.forget_rate != AUTO:
        return None
    from jocor_fast.diagnosis.noise_estimate import NoiseEstimate, estimate_noise
    from jocor_fast.noise.estimate import HIGHEST_FORGET_RATE

    def stored_or_estimated() -> Any:
        known = read_json(Path(config.output) / CONFIG) if config.resume else None
        if known is not None and known.get("noise_estimate") is not None:
            return known["noise_estimate"]
        with phase(console, "estimating the noise", "epochs") as on_epoch:
            return estimate_noise(config, task, on_epoch=on_epoch).as_dict()

    stored = processes.from_first(stored_or_estimated)
    text = f"estimated {NoiseEstimate.of_dict(stored)}"
    config.decide("forget_rate", min(stored["rate"], HIGHEST_FORGET_RATE), config.sources["forget_rate"], text)
    return dict(stored)


def _keep_names(config: Config, processes: Processes) -> str | None:
    """The folder that relative paths in the settings are from, None where there are none.

    A run resumed from another folder keeps the names of its files, if these are the same.
    """
    stored = processes.from_first(lambda: read_json(Path(config.output) / CONFIG) if config.resume else None)
    if stored is not None:
        then, folder = stored.get("settings", {}), stored.get(FOLDER)
        if (then.get("loader"), config.loader) == ("torchvision", "pillow"):  # the name that it had then
            config.loader = "torchvision"
        if all(names_the_same(name, then.get(name), folder, config.value(name)) for name in PATHS):
            for name in PATHS:
                setattr(config, name, then.get(name))
            return folder
    return os.getcwd() if any(is_relative(name, config.value(name)) for name in PATHS) else None


def _recorded(config: Config, task: Task, folder: str | None, estimate: dict[str, Any] | None) -> dict[str, Any]:
    """Return what config.json holds besides the engine's settings; the sources cover both."""
    settings = {name: config.value(name) for name in RUN_FIELDS if name not in NOT_RECORDED}
    of_method = METHODS[config.training.method].options
    recorded: dict[str, Any] = {
        "settings": settings,
        "sources": {name: config.sources[name] for name in {**settings, **dict.fromkeys(TRAINING_FIELDS), **of_method}},
    }
    if task.dataset.label_table is not None:
        recorded["label_table"] = list(task.dataset.label_table)
    recorded |= {} if folder is None else {FOLDER: folder}
    return recorded | ({} if estimate is None else {"noise_estimate": estimate})


def _print_result(result: Run, output: Path, console: Console) -> None:
    last = result.metrics[-1]
    if any(last[name] is not None for name in ("test_accuracy", "label_precision", "val_accuracy")):
        console.print(final_table(result.metrics, result.summary).rich())
    else:
        nothing = "no accuracy, without test data and true labels (--val-fraction 0.1 would hold labels out)"
        say_subjects(console, {"measured": nothing, "next": f"jocor-fast audit {shlex.quote(str(output))}"})
    files = {"curves": "curves.png", "epochs": "metrics.jsonl", "summary": "summary.json"}
    say_subjects(console, {what: str(output / name) for what, name in files.items()})
