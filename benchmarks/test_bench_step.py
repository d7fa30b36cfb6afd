"""pytest-benchmark over the training step, rung by rung (`make bench`); a round is some steps, to an idle device."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from record import device
from step_rungs import Task, rungs_of, tasks_of
from steps import Figures, host_us_and_gpu_share, set_up

DEVICE = torch.device(device(), 0) if device() == "cuda" else torch.device("cpu")
ROUNDS = 2


@pytest.mark.parametrize("rung", rungs_of(DEVICE.type))
@pytest.mark.parametrize("task", tasks_of(DEVICE.type), ids=lambda task: task.model)
def test_steps(benchmark: BenchmarkFixture, task: Task, rung: str) -> None:
    benchmark.group = f"step: {task.name}"
    way = set_up(task, rung, DEVICE)

    def steps() -> None:
        way.run(task.steps, lambda done: None)
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()

    benchmark.pedantic(steps, rounds=ROUNDS)
    if benchmark.stats is None:  # --benchmark-disable
        return
    rate = task.steps / benchmark.stats.stats.median
    benchmark.extra_info["step"] = asdict(
        Figures(task.name, task.batch, rung, rate, *host_us_and_gpu_share(way, DEVICE, rate))
    )
