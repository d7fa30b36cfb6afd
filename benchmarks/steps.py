"""The training step, rung by rung: steps a second, the host's time for a step, the share of time the GPU computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from step_rungs import RUNGS, Rung, Task
from tables import markdown_table

SECONDS = 1.0  # of steps are timed, at least
HOST_STEPS = 24  # enough for three launches of eight, and few enough for the device's queue to take them all


@dataclass(frozen=True)
class Figures:
    """
    Attributes:
        host_us: until a step is launched, its waits included.
        gpu_share: of the time between the first and the last kernel; None on a CPU.
    """

    task: str
    batch: int
    rung: str
    steps_per_second: float
    host_us: float
    gpu_share: float | None


def measure(task: Task, rung: str, where: torch.device, *, seconds: float = SECONDS) -> Figures:
    """One rung of one task, after the steps that set it up."""
    way = set_up(task, rung, where)
    steps_per_second = _steps_per_second(way, task.steps, where, seconds)
    return Figures(task.name, task.batch, rung, steps_per_second, *host_us_and_gpu_share(way, where, steps_per_second))


def set_up(task: Task, rung: str, where: torch.device) -> Rung:
    """The rung, past the steps that load libraries and record graphs."""
    way = RUNGS[rung](task, where)
    way.run(2 * HOST_STEPS if where.type == "cuda" else 1, _nobody)
    return way


def host_us_and_gpu_share(way: Rung, where: torch.device, steps_per_second: float) -> tuple[float, float | None]:
    """On a CPU the host is what computes."""
    if where.type != "cuda":
        return 1e6 / steps_per_second, None
    return 1e6 * _host_seconds(way, where), _gpu_share(way)


def table(results: Sequence[Figures]) -> str:
    """A row a rung; in brackets how many times the published step's figure."""
    first: dict[str, float] = {}
    rows = []
    for of in results:
        base = first.setdefault(of.task, of.steps_per_second)
        share = "" if of.gpu_share is None else f"{100 * of.gpu_share:.0f} %"
        rate = f"{of.steps_per_second:,.{0 if of.steps_per_second >= 100 else 2}f} ({of.steps_per_second / base:.1f}×)"
        rows.append([f"{of.task}, batch {of.batch}: {of.rung}", rate, f"{of.host_us:,.0f}", share])
    return markdown_table(["step", "steps a second", "host µs a step", "GPU computes"], rows)


def _nobody(steps: int) -> None:
    pass


def _wait(where: torch.device) -> None:
    if where.type == "cuda":
        torch.cuda.synchronize(where)


def _steps_per_second(way: Rung, steps: int, where: torch.device, seconds: float) -> float:
    _wait(where)
    done, started = 0, perf_counter()
    while not done or perf_counter() - started < seconds:
        way.run(steps, _nobody)
        done += steps
        _wait(where)
    return done / (perf_counter() - started)


def _host_seconds(way: Rung, where: torch.device) -> float:
    """Between the first launch and the last, from an idle device on."""
    _wait(where)
    stamps: list[tuple[int, float]] = []
    way.run(HOST_STEPS, lambda steps: stamps.append((steps, perf_counter())))
    (first, start), (last, end) = stamps[0], stamps[-1]
    return (end - start) / (last - first)


def _gpu_share(way: Rung) -> float:
    """The time in which at least one kernel ran, of that between the first and the last."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        way.run(HOST_STEPS, _nobody)
        torch.cuda.synchronize()
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in trace.events() or ()
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    return covered(spans) / (max(end for _, end in spans) - spans[0][0]) if spans else 0.0


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """How much of a line these sorted spans cover."""
    total, reached = 0.0, float("-inf")
    for start, end in spans:
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
