"""The bars that a Hopper card is held to, each with the figure that a call of the parts has measured for it, or None.

An H200 is an H100 with faster memory: shares are of what its own copy moves, and times of launches and host the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cases import COMPILED, COMPILED_TO_GRAPH, OURS, PUBLISHED, TOPK
from gpu import records

Row = dict[str, Any]

MEMORY = "memory"
MNIST, CIFAR = "MNIST MLP", "CIFAR-10 CNN bfloat16"
AT_ONCE = "five runs of MNIST at once"
DALI_ALONE, DALI_AND_RESNETS = "DALI alone", "DALI and two ResNet-18, bfloat16"
BY_HOST = ", each step launched by the host"  # of these two runs, in their names


@dataclass(frozen=True)
class Measured:
    """What all parts have recorded."""

    rows: list[Row]  # of the benches, as in bench.csv
    items: dict[str, records.Item]  # by name

    @classmethod
    def of(cls, items: Iterable[records.Item]) -> Measured:
        by_name = {item["item"]: item for item in items}
        return cls([row for item in by_name.values() for row in item.get("rows", ())], by_name)

    def bench(self, field: str, contender: str, shape: str, dtype: str, work: str, cache: str = "warm") -> float | None:
        key = (contender, shape, dtype, work, cache)
        names = ("contender", "shape", "dtype", "work", "cache")
        return next((row[field] for row in self.rows if tuple(row[name] for name in names) == key), None)

    def over_ours(self, field: str, contender: str, *case: str) -> float | None:
        theirs, ours = self.bench(field, contender, *case), self.bench(field, OURS, *case)
        return None if theirs is None or ours is None else theirs / ours

    def item(self, name: str, field: str) -> float | None:
        value: float | None = self.items.get(name, {}).get(field)
        return value

    def over_host(self, run: str) -> float | None:
        """Steps a second as the run has them over those that the host launches."""
        ours, by_host = (self.item(name, "steps_per_second") for name in (run, run + BY_HOST))
        return None if ours is None or by_host is None else ours / by_host

    def run(self, name: str, field: str, *, data: str, epochs: int = 1) -> float | None:
        """Of a training run on these data that came as far as this."""
        item = self.items.get(name, {})
        reached = item.get("data") == data and item.get("epochs", 0) >= epochs
        return self.item(name, field) if reached else None


@dataclass(frozen=True)
class Bar:
    what: str
    relation: str  # "≤" or "≥"
    limit: float
    unit: str
    figure: Callable[[Measured], float | None]

    def met(self, value: float) -> bool:
        return value <= self.limit if self.relation == "≤" else value >= self.limit


SMALL = ("128x10", "float32", "forward + backward")
MIDDLE = ("4096x1000", "bfloat16", "forward + backward")


def selection_bars(rows: int, limit: float) -> list[Bar]:
    case = (f"{rows}x1", "float32", "selection")
    return [
        Bar(f"selection alone, B = {rows}, GPU time", "≤", limit, "µs", lambda m: m.bench("gpu_us", OURS, *case)),
        Bar("the same, torch.topk over ours", "≥", 3, "×", lambda m: m.over_ours("gpu_us", TOPK, *case)),
    ]


def large_bar(work: str) -> Bar:
    return Bar(
        f"65536×1000 float32, cold, {work}: share of the copy's bytes a second", "≥", 0.88, "",
        lambda m: m.bench("share_of_copy", OURS, "65536x1000", "float32", work, "cold"),
    )  # fmt: skip


LOSS_BARS: Sequence[Bar] = (
    Bar("128×10 float32, forward and selection, GPU time", "≤", 5, "µs",
        lambda m: m.bench("gpu_us", OURS, "128x10", "float32", "forward")),
    Bar("128×10 float32, backward, GPU time", "≤", 3, "µs",
        lambda m: m.bench("gpu_us", OURS, "128x10", "float32", "gradient alone")),
    Bar("128×10 float32, forward + backward, wall: published formula over ours", "≥", 15, "×",
        lambda m: m.over_ours("wall_us", PUBLISHED, *SMALL)),
    Bar("the same, torch.compile over ours", "≥", 3, "×", lambda m: m.over_ours("wall_us", COMPILED, *SMALL)),
    Bar("the same, torch.compile reduce-overhead over ours", "≥", 1, "×",
        lambda m: m.over_ours("wall_us", COMPILED_TO_GRAPH, *SMALL)),
    large_bar("rows alone"),
    large_bar("gradient alone"),
    Bar("4096×1000 bfloat16, forward + backward, GPU time: torch.compile over ours", "≥", 1.5, "×",
        lambda m: m.over_ours("gpu_us", COMPILED, *MIDDLE)),
    Bar("the same, wall", "≥", 3, "×", lambda m: m.over_ours("wall_us", COMPILED, *MIDDLE)),
    *selection_bars(4096, 5),
    *selection_bars(65536, 20),
    Bar("kept for the backward pass beside the outputs, float32", "≤", 16.5, "bytes a row",
        lambda m: m.item(MEMORY, "bytes_a_row")),
)  # fmt: skip

# The paper's tables, symmetry-50 %, JoCoR: 96.64 ± 0.12 and 79.41 ± 0.25; two standard deviations below.
MNIST_ACCURACY, CIFAR_ACCURACY = 0.9640, 0.7891

TRAIN_BARS: Sequence[Bar] = (
    Bar("MNIST MLP, batch 128, float32", "≥", 15_000, "steps a second",
        lambda m: m.run(MNIST, "steps_per_second", data="mnist")),
    Bar("the same, 200 epochs with evaluation", "≤", 8, "s",
        lambda m: m.run(MNIST, "seconds", data="mnist", epochs=200)),
    Bar("the same, test accuracy of the last ten", "≥", MNIST_ACCURACY, "",
        lambda m: m.run(MNIST, "test_accuracy", data="mnist", epochs=200)),
    Bar("the same, captured over launched by the host", "≥", 5, "×", lambda m: m.over_host(MNIST)),
    Bar("five seeds of it at once, over one alone", "≤", 2, "×", lambda m: m.run(AT_ONCE, "ratio", data="mnist")),
    Bar("CIFAR-10 CNN, batch 128, bfloat16", "≥", 450, "steps a second", lambda m: m.item(CIFAR, "steps_per_second")),
    Bar("the same, 200 epochs with evaluation", "≤", 210, "s",
        lambda m: m.run(CIFAR, "seconds", data="cifar10", epochs=200)),
    Bar("the same, test accuracy of the last ten", "≥", CIFAR_ACCURACY, "",
        lambda m: m.run(CIFAR, "test_accuracy", data="cifar10", epochs=200)),
    Bar("the same, captured over launched by the host", "≥", 2, "×", lambda m: m.over_host(CIFAR)),
)  # fmt: skip

LOADING_BARS: Sequence[Bar] = (
    Bar("DALI, prepared JPEGs to normalised batches", "≥", 5_000, "images a second",
        lambda m: m.item(DALI_ALONE, "images_per_second")),
    Bar("the same into two ResNet-18, bfloat16, batch 64", "≥", 2_500, "images a second",
        lambda m: m.item(DALI_AND_RESNETS, "images_per_second")),
    Bar("the same, share of the time that the host waits for images", "≤", 0.05, "",
        lambda m: m.item(DALI_AND_RESNETS, "wait_share")),
)  # fmt: skip

BARS = (*LOSS_BARS, *TRAIN_BARS, *LOADING_BARS)


def verdicts(measured: Measured) -> list[dict[str, Any]]:
    """Every bar: what, the bar, the figure, and "met", "not met" or "not measured"."""
    lines = []
    for bar in BARS:
        value = bar.figure(measured)
        verdict = "not measured" if value is None else "met" if bar.met(value) else "not met"
        wanted = f"{bar.relation} {bar.limit:g} {bar.unit}".strip()
        lines.append({"what": bar.what, "bar": wanted, "figure": value, "unit": bar.unit, "verdict": verdict})
    return lines
