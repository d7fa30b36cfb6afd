"""How long a step takes: on the wall, on the GPU, and on the host that enqueues it.

The GPU's own time comes from two events around the steps. A GPU that waits for its host would show the host's time
there, so it is first kept busy, long enough for everything to be enqueued behind it. A contender that itself waits
for the device cannot be helped so: its GPU time holds the wait, as it does in training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch

from cases import Cache

Step = Callable[[], object]

MOST_REPEATS = 20  # steps between two looks at a clock
SPAN_SECONDS = 1e-3  # that they should take together
FLUSH_CACHES = 4  # times the size of the last-level cache is read to fill it with other data
LONGEST_DELAY_SECONDS = 0.02


@dataclass(frozen=True)
class Sample:
    """Seconds a step. `gpu` and `host` (until the step is enqueued) on a GPU only."""

    wall: float
    gpu: float | None = None
    host: float | None = None


class CpuClock:
    """Single steps on the wall. There is no cold cache: a CPU's is not emptied between the steps of a training."""

    def samples(self, step: Step, cache: Cache) -> list[Sample]:
        """Times some steps, after an untimed one that brings code and data back into the caches."""
        start = perf_counter()
        step()
        count = max(2, min(MOST_REPEATS, int(SPAN_SECONDS / (perf_counter() - start))))
        times = []
        for _ in range(count):
            start = perf_counter()
            step()
            times.append(Sample(perf_counter() - start))
        return times


class GpuClock:
    """Means over a few steps in a row; cold: one step, after the second-level cache has been filled with other data."""

    def __init__(self) -> None:
        properties = torch.cuda.get_device_properties()
        self.flush_buffer = torch.zeros(FLUSH_CACHES * properties.L2_cache_size // 4, device="cuda")
        self.start, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # The clock it is rated at (in kHz). While it is slower, as after having been idle, a delay is longer than was
        # asked for, but never over before everything is enqueued; few run faster, and none twice as fast.
        self.cycles_per_second = 1e3 * properties.clock_rate
        self.delay(1)  # loads its kernel

    @staticmethod
    def delay(cycles: int) -> None:
        torch.cuda._sleep(cycles)

    def events_around(self, work: Callable[[], object]) -> float:
        self.start.record()
        work()
        self.end.record()
        self.end.synchronize()
        return self.start.elapsed_time(self.end) / 1e3

    def empty_cache(self) -> None:
        """By reading: lines that were written would have to go back to memory at the timed step's expense."""
        self.flush_buffer.sum()

    def samples(self, step: Step, cache: Cache) -> list[Sample]:
        step()
        torch.cuda.synchronize()
        started = perf_counter()
        step()
        torch.cuda.synchronize()
        repeats = 1 if cache == "cold" else max(1, min(MOST_REPEATS, int(SPAN_SECONDS / (perf_counter() - started))))

        def steps() -> None:
            for _ in range(repeats):
                step()

        if cache == "cold":
            self.empty_cache()
            torch.cuda.synchronize()
        started = perf_counter()
        steps()
        host = perf_counter() - started
        torch.cuda.synchronize()
        wall = perf_counter() - started
        if cache == "cold":
            self.empty_cache()
        self.delay(int(min(2 * host + 1e-4, LONGEST_DELAY_SECONDS) * self.cycles_per_second))
        gpu = self.events_around(steps)
        return [Sample(wall / repeats, gpu / repeats, host / repeats)]


Clock = CpuClock | GpuClock


def clock_of(device: str) -> Clock:
    return GpuClock() if device == "cuda" else CpuClock()


def copy_bytes_per_second(mebibytes: int = 1024, rounds: int = 10) -> float:
    """What a copy within the GPU's memory moves, read and written bytes together: the best of some rounds."""
    source = torch.empty(mebibytes << 20, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    clock = GpuClock()
    target.copy_(source)
    seconds = min(clock.events_around(lambda: target.copy_(source)) for _ in range(rounds))
    return 2 * source.numel() / seconds
