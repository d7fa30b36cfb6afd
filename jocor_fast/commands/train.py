"""`jocor-fast train`: one run, from its options to its files."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from .._extension import build_info
from ..config import Config, ConfigError, resolve
from ..data import DataError, ImageDataset
from ..engine.environment import resolve_device
from ..engine.errors import RunError
from ..engine.folder import CONFIG, check_free
from ..engine.plan import whole_batch
from ..engine.processes import FailedElsewhere, Processes, joined_processes
from ..engine.run import EpochEvent, Run, fit
from ..engine.settings import TrainSettings
from ..experiments import METHOD_TITLES
from ..methods import METHODS
from ..noise_estimate import NoiseEstimate, estimate_noise
from ..options import AUTO, OPTIONS, TRAINING_FIELDS, UNFLAGGED_DEFAULTS, Option
from ..predictor import describe_input
from ..report.results import read_json
from ..report.screen import TrainingProgress, final_table, say, say_subjects, warm_up_progress
from ..report.tables import percent
from ..report.tensorboard import MissingTensorBoard, TensorBoardLog
from ..schedules import lr_step_factor, steps_per_epoch, trained_epochs
from ..task import Task, build_task, forget_rate_warning

SUMMARY = "train on a data set, with noise added or labels from a file"
USAGE = "[OPTIONS]"
HOW_TO_GO_ON = "resume with --resume"
DESCRIPTION = """\
Train on a data set whose training labels are wrong in part: noise is added to
known labels, or the labels come from a file. Options may also stand in a TOML
file (--config), their dashes as underscores:
    dataset = "mnist"
    noise = "symmetric"
    noise_rate = 0.5
Several processes train together under torchrun, which starts them:
    torchrun --nproc-per-node 2 -m jocor_fast train ..."""

# The others are kept in config.json and compared on --resume. Not part of what a run is: where files lie, which there
# are, when it pauses, and whether bad ones end it.
NOT_RECORDED = ("data_root", "output", "resume", "stop_after", "checkpoint_every", "tensorboard", "strict")
RECORDED = tuple(name for name in (*OPTIONS, *UNFLAGGED_DEFAULTS) if name not in NOT_RECORDED)
# T_k counts epochs of some 400 steps; far shorter ramps were measured to lose to plain training.
SHORT_RAMP_STEPS = 200
CLASSES_SHOWN = 20
HIGHEST_FORGET_RATE = 0.95  # of an estimate: some of each batch must be left to learn from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare every option of config.OPTIONS as a flag, in its groups, and --config."""
    declare(parser, OPTIONS.values())


def declare(parser: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    """Declare options as flags, in their groups, and --config."""
    groups: dict[str, Any] = {}
    for option in options:
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        arguments: dict[str, Any] = {"dest": option.name, "default": argparse.SUPPRESS, "help": _help(option)}
        if option.kind == "switch":
            arguments["action"] = "store_true"
        else:
            arguments["metavar"] = option.metavar
        groups[option.group].add_argument(option.flag, **arguments)
    list(groups.values())[-1].add_argument(
        "--config", metavar="FILE.toml", help="read options from a file; flags override it"
    )


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Train as the options say; 0, or a ConfigError, DataError or RunError."""
    flags = {name: value for name, value in vars(arguments).items() if name in OPTIONS}
    config = resolve(flags, arguments.config)
    with contextlib.ExitStack() as stack:
        try:
            processes = stack.enter_context(joined_processes(config["device"]))
        except ValueError as error:
            raise ConfigError(config.relabelled(str(error))) from error
        try:
            return _run(config, processes, console)
        except RuntimeError as error:
            if not processes.lost(error):
                raise
            raise RunError(processes.loss_in_words(error)) from error


def _run(config: Config, processes: Processes, console: Console) -> int:
    """This process's part of the run; the first one speaks for all."""
    if not processes.first:
        console.quiet = True
    processes.from_first(lambda: _check_output(config))  # before data are read, let alone τ estimated
    task = processes.one_a_machine_first(partial(build_task, config, announce=partial(say, console)))
    estimate = _estimated_forget_rate(config, task, processes, console)
    settings = config.train_settings()
    batch = _whole_batch(config, settings, task, processes)
    _print_header(config, task, _device(config), processes, batch, console)
    for warning in (
        _one_class_warning(task),
        forget_rate_warning(config, task),
        _ramp_warning(config, task, batch),
        _idle_warning(config, processes),
    ):
        if warning and processes.first:
            print(f"jocor-fast: warning: {warning}", file=sys.stderr)
    progress = TrainingProgress(console, trained_epochs(settings.epochs, settings.recipe), batch)
    with progress, _tensorboard(config, processes) as board:
        result = _fit(config, settings, task, processes, progress, board, estimate)
    if result.summary["status"] == "interrupted":
        say(console, f"left off after epoch {len(result.metrics)}, --resume goes on")
    elif not progress.epochs_shown:
        say(console, "this run is finished already, nothing was changed")
    if result.metrics:
        _print_result(result, Path(config["output"]), console)
    fault = result.summary.get("diverged")
    if fault is not None:
        place = f"epoch {fault['epoch']}" + (f", batch {fault['batch']}" if fault["batch"] is not None else "")
        sentence = f"the run diverged in {place}: {fault['reason']}; its files are kept in {config['output']}"
        raise RunError(sentence) if processes.first else FailedElsewhere(sentence)
    return 0


def _check_output(config: Config) -> None:
    """RunError where the folder holds a run that this one is not to go on with."""
    if config["resume"]:
        return
    try:
        check_free(Path(config["output"]))
    except RunError as error:
        raise RunError(config.relabelled(str(error))) from error


def _whole_batch(config: Config, settings: TrainSettings, task: Task, processes: Processes) -> int:
    """Rows of a batch in all processes; a ConfigError where they cannot share it."""
    try:
        return whole_batch(settings, len(task.train.labels), processes)
    except ValueError as error:
        raise ConfigError(config.relabelled(str(error))) from error


def _device(config: Config) -> torch.device:
    """Where the run will compute; a ConfigError where it cannot."""
    try:
        device = resolve_device(config["device"])
    except ValueError as error:
        raise ConfigError(config.relabelled(str(error))) from error
    method, why_not = METHODS[config["method"]], build_info()["reason"]
    with_kernels = method.selects or method.num_networks > 1
    if device.type == "cuda" and why_not is not None and with_kernels:
        raise ConfigError(f"{config.label('device')} {device}: this build of jocor_fast has no CUDA kernels, {why_not}")
    return device


def _tensorboard(config: Config, processes: Processes) -> contextlib.AbstractContextManager[TensorBoardLog | None]:
    """What writes for TensorBoard, where that is asked for; a ConfigError where its package is missing."""
    if not config["tensorboard"]:
        return contextlib.nullcontext()
    boards: list[TensorBoardLog] = []
    try:
        processes.from_first(lambda: boards.append(TensorBoardLog(Path(config["output"]))))
    except MissingTensorBoard as error:
        raise ConfigError(f"{config.label('tensorboard')} {error}") from error
    return boards[0] if boards else contextlib.nullcontext()


def _estimated_forget_rate(config: Config, task: Task, processes: Processes, console: Console) -> dict[str, Any] | None:
    """Decide --forget-rate auto: by the estimate in the folder of a run that goes on, else by one made now."""
    if config["forget_rate"] != AUTO:
        return None

    def stored_or_estimated() -> Any:
        known = read_json(Path(config["output"]) / CONFIG) if config["resume"] else None
        if known is not None and known.get("noise_estimate") is not None:
            return known["noise_estimate"]
        with warm_up_progress(console) as on_epoch:
            return estimate_noise(config, task, on_epoch=on_epoch).as_dict()

    stored = processes.from_first(stored_or_estimated)
    text = f"estimated {NoiseEstimate.of_dict(stored)}"
    config.decide("forget_rate", min(stored["rate"], HIGHEST_FORGET_RATE), config.sources["forget_rate"], text)
    return dict(stored)


def _fit(
    config: Config,
    settings: TrainSettings,
    task: Task,
    processes: Processes,
    progress: TrainingProgress,
    board: TensorBoardLog | None,
    estimate: dict[str, Any] | None,
) -> Run:
    """The engine's run; its complaints name the flag or key that is to blame."""

    def on_epoch(event: EpochEvent) -> None:
        progress.on_epoch(event.metrics)
        if board is not None:
            board.on_epoch(event.metrics)

    try:
        return fit(
            settings,
            task.build_network,
            task.train,
            test=task.test,
            val=task.val,
            output=config["output"],
            resume=config["resume"],
            stop_after=config["stop_after"],
            checkpoint_every=config["checkpoint_every"],
            processes=processes,
            extra_config={**_recorded(config, task), **({} if estimate is None else {"noise_estimate": estimate})},
            extra_checkpoint={"input": describe_input(task, config["model"], config["normalisation"])},
            extra_summary={
                "nominal_noise_rate": task.nominal_noise_rate,
                "realised_noise_rate": task.realised_noise_rate,
            },
            on_epoch=on_epoch,
            on_step=progress.on_step if progress.wants_steps else None,
            on_stage=progress.on_stage,
            on_wait=progress.on_wait if progress.wants_steps else None,
        )
    except FailedElsewhere:
        raise
    except RunError as error:
        raise RunError(config.relabelled(str(error))) from error
    except DataError:  # of images, which are read while the run is under way
        raise
    except ValueError as error:
        raise ConfigError(config.relabelled(str(error))) from error
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not _out_of_memory(error):
            raise
        smaller = "--batch-size or --image-size" if config["image_size"] is not None else "--batch-size"
        raise RunError(f"out of memory on {settings.device}: a smaller {smaller} needs less") from error


def _out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)  # on the CPU


def _help(option: Option) -> str:
    text = f"{option.help}: {', '.join(option.choices)}" if option.kind == "choice" else option.help
    shown = [option.why] if option.why else []
    if option.default is not None and option.kind != "switch":
        shown.insert(0, f"{option.default:g}" if option.kind == "number" else str(option.default))
    return (f"{text} (default: {'; '.join(shown)})" if shown else text).replace("%", "%%")


def _recorded(config: Config, task: Task) -> dict[str, Any]:
    """What goes into config.json beside the engine's settings; the sources cover both."""
    recorded: dict[str, Any] = {
        "settings": {name: config[name] for name in RECORDED if name not in TRAINING_FIELDS},
        "sources": {name: config.sources[name] for name in RECORDED},
    }
    if task.dataset.label_table is not None:
        recorded["label_table"] = list(task.dataset.label_table)
    return recorded


def _print_header(
    config: Config, task: Task, device: torch.device, processes: Processes, batch: int, console: Console
) -> None:
    """What is about to be done, a line a subject; values that nobody asked for with their source and reason."""
    samples, recipe = len(task.train.labels), config["recipe"]
    epochs, steps = trained_epochs(config["epochs"], recipe), steps_per_epoch(samples, batch, recipe)
    method = METHODS[config["method"]]
    lines = {"data": _data_text(task), "noise": _noise_text(config, task)}
    if task.dataset.label_table is not None:
        lines["classes"] = _classes_text(task.dataset.label_table)
    lines["method"] = f"{METHOD_TITLES[config['method']]}, recipe {recipe}, seed {config['seed']}"
    if method.selects:
        lines["τ"] = (
            f"{config['forget_rate']:.4g} from epoch {config['ramp_epochs']} on ({config.origin('forget_rate')})"
        )
    if method.uses_co_lambda:
        lines["λ"] = f"{config['co_lambda']:g} ({config.origin('co_lambda')})"
    if config["method"] == "coteaching-plus":
        lines["warm-up"] = f"{config['warmup_epochs']} epochs ({config.origin('warmup_epochs')})"
    networks = f"{method.num_networks} × {config['model']}" if method.num_networks > 1 else config["model"]
    lines["network"] = f"{networks} on {device}, weights {_weights_text(config)}"
    if isinstance(task.dataset, ImageDataset):
        lines["images"] = _images_text(config, task.dataset)
    lines["batch"] = f"{config['batch_size']} ({config.origin('batch_size')})"
    if processes.count > 1:
        lines["batch"] += f", of {batch} in all: {processes.count} processes have {batch // processes.count} rows each"
        if method.selects:
            whole = config["selection_scope"] == "global"
            lines["selects"] = "all processes together" if whole else "each process among its own rows"
            lines["selects"] += f" ({config.origin('selection_scope')})"
    lines["training"] = (
        f"{epochs} epochs of {steps} steps ({config.origin('epochs')}), {config['optimizer']}, learning rate "
        + _rate_text(config)
    )
    if config["method"] == "f-correction":
        lines["training"] += ", twice: first a Standard network, whose predictions give the transition matrix"
    lines["output"] = config["output"]
    say_subjects(console, lines)
    if isinstance(task.dataset, ImageDataset):
        for note in task.dataset.notes:
            say_subjects(console, {"note": note})


def _rate_text(config: Config) -> str:
    if config["lr_plan"] == "linear":
        return f"{config['lr']:g} falling after epoch {config['decay_start']} ({config.origin('decay_start')})"
    rates = dict.fromkeys(
        config["lr"] * lr_step_factor(epoch, epochs=config["epochs"]) for epoch in range(1, config["epochs"] + 1)
    )
    return f"{', '.join(f'{rate:g}' for rate in rates)} in turn ({config.origin('lr_plan')})"


def _weights_text(config: Config) -> str:
    if config["pretrained"] is None:
        return config.reasons.get("pretrained", "drawn at random")
    return f"from {config['pretrained']}"


def _images_text(config: Config, dataset: ImageDataset) -> str:
    """How files become inputs, and what reads them."""
    size = dataset.resize
    resize = f"short side {size}" if isinstance(size, int) else f"resized to {size[0]}×{size[1]}"
    crop = "the centre" if config["augment"] == "none" else "a random part, mirrored at even odds (centre to evaluate)"
    normalisation = f"{config['normalisation']} normalisation ({config.origin('normalisation')})"
    reader = f"read by {config['loader']} ({config.origin('loader')})"
    return f"{resize}, cropped to {crop} of {dataset.crop}×{dataset.crop}, {normalisation}, {reader}"


def _data_text(task: Task) -> str:
    parts = [f"{len(task.train.labels):,} training"]
    if task.val is not None:
        parts.append(f"{len(task.val.labels):,} validation")
    parts.append(f"{len(task.test.labels):,} test" if task.test is not None else "no test")
    return f"{task.dataset.name}: {', '.join(parts)} samples, {_classes_count(task.dataset.num_classes)}"


def _classes_count(number: int) -> str:
    return "1 class" if number == 1 else f"{number} classes"


def _noise_text(config: Config, task: Task) -> str:
    rate = task.realised_noise_rate
    realised = (
        f"{percent(rate)} % of the labels are wrong" if rate is not None else "the share of wrong labels is unknown"
    )
    if config["labels"] is not None:
        return f"labels from {config['labels']}: {realised}"
    if config["noise_matrix"] is not None:
        return f"matrix from {config['noise_matrix']}, draw {config['noise_seed']}: {realised}"
    if config["noise"] is None:
        return f"none added, labels as {config['dataset']} has them: {realised}"
    if config["noise"] == "clean":
        return "none added (--noise-rate 0.5 would flip half of the labels)"
    return f"{config['noise']}, nominal {percent(config['noise_rate'])} %, draw {config['noise_seed']}: {realised}"


def _classes_text(label_table: Sequence[str]) -> str:
    shown = ", ".join(f"{number} = {label}" for number, label in enumerate(label_table[:CLASSES_SHOWN]))
    more = len(label_table) - CLASSES_SHOWN
    return f"{shown}, and {more} more in config.json" if more > 0 else shown


def _ramp_warning(config: Config, task: Task, batch: int) -> str | None:
    """A sentence where selection is at full strength before the networks have learnt what to select by."""
    ramp, selects = config["ramp_epochs"], METHODS[config["method"]].selects and config["forget_rate"] > 0
    steps = ramp * steps_per_epoch(len(task.train.labels), batch, config["recipe"])
    if not selects or not 0 < steps < SHORT_RAMP_STEPS:
        return None
    return (
        f"the ramp of {ramp} epochs is only {steps} steps long, and a selection by loss so early can do harm: a "
        "smaller --batch-size or a larger --ramp-epochs helps"
    )


def _one_class_warning(task: Task) -> str | None:
    """A sentence where there is nothing to tell apart, as when the class folders lie a folder deeper than was said."""
    dataset = task.dataset
    if dataset.num_classes > 1:
        return None
    name = f", {dataset.class_names[0]!r}" if isinstance(dataset, ImageDataset) else ""
    return f"{dataset.name} has one class only{name}: there is nothing to learn"


def _idle_warning(config: Config, processes: Processes) -> str | None:
    """A sentence where flags were given that the method has no use for (in a file they may serve other methods)."""
    scopes = [OPTIONS[name].flag for name in ("selection_scope", "batch_scope") if config.sources[name] == "flag"]
    if scopes and processes.count == 1:
        return f"{' and '.join(scopes)} change{'s' * (len(scopes) == 1)} nothing: there is one process"
    method = METHODS[config["method"]]
    unused = ["co_lambda"] * (not method.uses_co_lambda) + ["forget_rate", "ramp_epochs"] * (not method.selects)
    idle = [name for name in unused if config.sources[name] == "flag"]
    if not idle:
        return None
    flags = " and ".join(OPTIONS[name].flag for name in idle)
    reason = "has no λ" if idle == ["co_lambda"] else "does not select by loss"
    return f"{flags} change{'s' * (len(idle) == 1)} nothing: {config['method']} {reason}"


def _print_result(result: Run, output: Path, console: Console) -> None:
    console.print(final_table(result.metrics, result.summary).rich())
    files = {"curves": "curves.png", "epochs": "metrics.jsonl", "summary": "summary.json"}
    say_subjects(console, {what: str(output / name) for what, name in files.items()})
