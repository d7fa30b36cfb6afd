"""pytest-benchmark over cases × contenders × caches, on a GPU if there is one (`make bench`).

What pytest-benchmark times is a step from an idle device until it is idle again. On a GPU the device's own time and the
host's are in extra_info; the ratios to quote are those of compare.py, whose contenders take turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from cases import Cache, Case, cases_of
from contenders import Result, Step, assert_agrees, contenders_of, expected_result
from inputs import Inputs, make_inputs
from interleave import Quartiles
from record import device
from timing import GpuClock

DEVICE = device()
CASES = cases_of(DEVICE)
CACHES: tuple[Cache, ...] = ("warm", "cold") if DEVICE == "cuda" else ("warm",)
GPU_SAMPLES = 15
COLD_ROUNDS = 20


@dataclass
class Prepared:
    """A case's inputs and what its contenders must return. Steps are prepared when their turn comes."""

    case: Case
    inputs: Inputs
    expected: Result
    steps: dict[str, Step]

    def step_of(self, contender: str) -> Step:
        if contender not in self.steps:
            self.steps[contender] = contenders_of(self.case, DEVICE)[contender](self.inputs, self.case.work)
            assert_agrees(contender, self.steps[contender](), self.expected)
        return self.steps[contender]


@lru_cache(maxsize=1)
def prepared(case: Case) -> Prepared:
    torch._dynamo.reset()  # else what was compiled for other cases is looked through at every call
    inputs = make_inputs(case, DEVICE)
    return Prepared(case, inputs, expected_result(inputs, case), {})


@pytest.fixture(scope="session")
def clock() -> GpuClock | None:
    return GpuClock() if DEVICE == "cuda" else None


TIMED = [
    pytest.param(case, name, id=f"{case} {name}".replace(" ", "-"))
    for case in CASES
    for name in contenders_of(case, DEVICE)
]


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize(("case", "contender"), TIMED)
def test_time(benchmark: BenchmarkFixture, case: Case, clock: GpuClock | None, contender: str, cache: Cache) -> None:
    step = prepared(case).step_of(contender)
    benchmark.group = f"{case} {cache}" if DEVICE == "cuda" else str(case)
    benchmark.extra_info.update(shape=str(case.shape), dtype=case.dtype_name, work=case.work, cache=cache)
    benchmark.extra_info.update(contender=contender, bytes_moved=case.bytes_moved)
    if clock is None:
        benchmark(step)
        return
    add_gpu_times(benchmark.extra_info, clock, step, cache)

    def until_idle() -> None:
        step()
        torch.cuda.synchronize()

    if cache == "warm":
        benchmark(until_idle)
    else:
        benchmark.pedantic(until_idle, setup=lambda: empty(clock), rounds=COLD_ROUNDS)


def add_gpu_times(extra_info: dict[str, Any], clock: GpuClock, step: Step, cache: Cache) -> None:
    samples = [sample for _ in range(GPU_SAMPLES) for sample in clock.samples(step, cache)]
    for name in ("gpu", "host"):
        quartiles = Quartiles.of([getattr(sample, name) for sample in samples])
        assert quartiles is not None
        extra_info[f"{name}_seconds"] = quartiles.median


def empty(clock: GpuClock) -> None:
    clock.empty_cache()
    torch.cuda.synchronize()
