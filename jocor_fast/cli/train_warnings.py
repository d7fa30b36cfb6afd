"""What `jocor-fast train` warns of before it trains, a sentence each."""

from __future__ import annotations

from jocor_fast.config.options import OPTIONS
from jocor_fast.config.resolve import Config
from jocor_fast.config.task import Task
from jocor_fast.data.samples import input_warnings
from jocor_fast.engine.plan import unfinished_schedule
from jocor_fast.engine.processes import Processes
from jocor_fast.methods import METHODS
from jocor_fast.report.screen import counted
from jocor_fast.schedules import steps_per_epoch

# T_k counts epochs of some 400 steps; far shorter ramps were measured to lose to plain training.
SHORT_RAMP_STEPS = 200
# τ is "under" the realised rate only beyond this: the draw itself strays from its nominal rate by chance.
RATE_TOLERANCE = 0.005


def warnings_of(config: Config, task: Task, processes: Processes, batch: int) -> list[str]:
    """What a run with these settings, of `batch` rows in all processes, is to be warned of, a sentence each."""
    found = (
        _one_class_warning(task),
        *input_warnings(task.dataset.name, task.train.inputs),
        _forget_rate_warning(config, task),
        _ramp_warning(config, task, batch),
        *_idle_warnings(config, processes),
    )
    return [warning for warning in found if warning is not None]


def _forget_rate_warning(config: Config, task: Task) -> str | None:
    """A sentence where τ was chosen lower than the share of wrong labels, else None."""
    realised, forget_rate = task.realised_noise_rate, config.training.forget_rate
    if not METHODS[config.training.method].selects or realised is None or isinstance(forget_rate, str):
        return None
    expected = realised if task.expected_noise_rate is None else task.expected_noise_rate
    if forget_rate >= min(realised, expected) - RATE_TOLERANCE:
        return None
    return (
        f"{config.label('forget_rate')} {forget_rate:g} is less than the share of wrong labels, {realised:.3g}: "
        "wrong labels are trained on even if all are found"
    )


def _ramp_warning(config: Config, task: Task, batch: int) -> str | None:
    """A sentence where selection never is at full strength, or is before the networks know what to select by."""
    unfinished = unfinished_schedule(config.training)
    if unfinished is not None:
        return unfinished
    ramp, selects = (
        config.training.ramp_epochs,
        METHODS[config.training.method].selects and config.training.forget_rate != 0,
    )
    training = config.training
    steps = ramp * steps_per_epoch(len(task.train.labels), batch, training.recipe, training.max_batches)
    if not selects or not 0 < steps < SHORT_RAMP_STEPS:
        return None
    return (
        f"the ramp of {counted(ramp, 'epoch')} is only {counted(steps, 'step')} long, and a selection by loss so early "
        "can do harm: a smaller --batch-size or a larger --ramp-epochs helps"
    )


def _one_class_warning(task: Task) -> str | None:
    """A sentence where there is nothing to tell apart, as when the class folders lie a folder deeper than was said."""
    dataset = task.dataset
    if dataset.num_classes > 1:
        return None
    name = f", {dataset.class_names[0]!r}" if dataset.files is not None else ""
    return f"{dataset.name} has one class only{name}: there is nothing to learn"


def _idle_warnings(config: Config, processes: Processes) -> list[str]:
    """A sentence for each reason why flags change nothing; in a file they may serve other runs."""
    idle: dict[str, list[str]] = {}
    for name, option in OPTIONS.items():
        reason = option.idle(config, processes.count) if option.idle and config.sources[name] == "flag" else None
        if reason is not None:
            idle.setdefault(reason, []).append(option.flag)
    return [
        f"{' and '.join(flags)} change{'s' * (len(flags) == 1)} nothing: {reason}" for reason, flags in idle.items()
    ]
