"""Measures one case: its contenders take turns, in random order, until the time is over."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

import torch

import jocor_fast as jf
from cases import Cache, Case, Shape
from contenders import assert_agrees, contenders_of, expected_result
from inputs import CO_LAMBDA, make_inputs
from timing import Clock, Sample

MIN_ROUNDS = 15


class Quartiles(NamedTuple):
    """Seconds a step."""

    quartile_1: float
    median: float
    quartile_3: float

    @classmethod
    def of(cls, seconds: Sequence[float | None]) -> Quartiles | None:
        known = [s for s in seconds if s is not None]
        return cls(*statistics.quantiles(known, n=4)) if len(known) > 1 else None


@dataclass(frozen=True)
class Figures:
    """What was measured of one contender in one case. `gpu` and `host`: on a GPU only."""

    case: Case
    cache: Cache
    contender: str
    wall: Quartiles
    gpu: Quartiles | None
    host: Quartiles | None
    samples: int
    copy_bytes_per_second: float | None = None

    @property
    def bytes_per_second(self) -> float:
        return self.case.bytes_moved / (self.gpu or self.wall).median

    def as_row(self) -> dict[str, Any]:
        """A line of the CSV; µs, and bytes as 10^9."""
        row: dict[str, Any] = {
            "shape": str(self.case.shape),
            "dtype": self.case.dtype_name,
            "work": self.case.work,
            "cache": self.cache,
            "contender": self.contender,
        }
        for name in ("gpu", "wall", "host"):
            of: Quartiles | None = getattr(self, name)
            row[f"{name}_us"] = None if of is None else _digits(of.median * 1e6)
            if name != "host":
                row[f"{name}_us_quartiles"] = None if of is None else _range(of)
        row["gb_per_s"] = _digits(self.bytes_per_second / 1e9)
        copy = self.copy_bytes_per_second
        row["share_of_copy"] = None if copy is None else _digits(self.bytes_per_second / copy)
        row["samples"] = self.samples
        return row


def measure(case: Case, device: str, clock: Clock, *, seconds: float = 1.0) -> list[Figures]:
    """Every contender of a case, in every cache; `seconds` for each cache, and at least MIN_ROUNDS rounds."""
    torch._dynamo.reset()  # else what was compiled for other cases is looked through at every call
    inputs = make_inputs(case, device)
    expected = expected_result(inputs, case)
    steps = {name: prepare(inputs, case.work) for name, prepare in contenders_of(case, device).items()}
    for name, step in steps.items():
        assert_agrees(name, step(), expected)  # also compiles and warms up
    del expected
    figures = []
    for cache in case.caches if device == "cuda" else case.caches[:1]:
        order, turns = list(steps), random.Random(0)
        samples: dict[str, list[Sample]] = {name: [] for name in order}
        end = perf_counter() + seconds
        rounds = 0
        while rounds < MIN_ROUNDS or perf_counter() < end:
            turns.shuffle(order)
            for name in order:
                samples[name] += clock.samples(steps[name], cache)
            rounds += 1
        for name, taken in samples.items():
            wall = Quartiles.of([sample.wall for sample in taken])
            assert wall is not None
            figures.append(
                Figures(
                    case,
                    cache,
                    name,
                    wall=wall,
                    gpu=Quartiles.of([sample.gpu for sample in taken]),
                    host=Quartiles.of([sample.host for sample in taken]),
                    samples=len(taken),
                )
            )
    return figures


def bytes_per_row_kept_for_backward(rows: int = 65536) -> float:
    """Return what the loss holds on a GPU until the backward pass, besides its outputs.

    The allocator counts in blocks of 512 bytes.
    """
    inputs = make_inputs(Case(Shape(rows, 10), torch.float32, "forward"), "cuda")
    before = torch.cuda.memory_allocated()
    out = jf.jocor_loss(inputs.logits1, inputs.logits2, inputs.target, co_lambda=CO_LAMBDA, num_keep=inputs.kept)
    held = torch.cuda.memory_allocated() - before
    outputs = sum(-(-tensor.nbytes // 512) * 512 for tensor in out)
    return (held - outputs) / rows


def _digits(value: float) -> float:
    return float(f"{value:.4g}")


def _range(of: Quartiles) -> str:
    return f"{_digits(of.quartile_1 * 1e6)}–{_digits(of.quartile_3 * 1e6)}"
