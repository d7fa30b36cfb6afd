"""The runs of mnist_causes.py: their names, settings and order, and where a finished one lies."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import jocor_fast as jf
from jocor_fast.cli import main as jocor_fast_command
from jocor_fast.files.names import CONFIG, read_json, read_summary
from jocor_fast.methods import Method, register
from jocor_fast.noise_kinds import Noise
from jocor_fast.paper.experiments import EXPERIMENTS
from jocor_fast.paper.run_queue import flags_of
from published_faults import FAULTS, SECOND_SOFTMAX, with_faults, with_transition
from record import RESULTS

TABLE = EXPERIMENTS["mnist"]
NOISES = {noise.name: noise for noise in TABLE.noises}
EIGHTY = "symmetric-0.8"
CAP, BETA1 = {"max_batches": 401}, {"beta1_after": 0.1}
DIFFERENCES: Mapping[str, Mapping[str, Any]] = {"cap": CAP, "beta1": BETA1, "cap-beta1": {**CAP, **BETA1}}
DRAWN = "published-noise-by-seed"
TAKEN_APART = (
    ("symmetric-0.5", "standard", None),
    ("symmetric-0.5", "decoupling", None),
    ("symmetric-0.2", "coteaching", None),
    (EIGHTY, "coteaching", None),
    ("asymmetric-0.4", "jocor", None),
    ("asymmetric-0.4", "jocor", 0.9),
)
LAMBDAS = (0.65, 0.9, None)  # None: the preset's .95
BALANCED = (  # recipe, method and seed: those that end far below the others, and some that do not
    *(("paper", "jocor", seed) for seed in (1, 2, 3, 4, 5)),
    *(("paper", "coteaching", seed) for seed in (1, 4)),
    *(("published", method, seed) for method in ("jocor", "coteaching") for seed in (1, 2, 3, 4, 5)),
)
THROUGHOUT = (  # of these, those that are selected per class after the ramp, too
    ("paper", "jocor", 4),
    ("paper", "coteaching", 4),
    ("published", "jocor", 2),
    ("published", "coteaching", 2),
)
MadeMethod: TypeAlias = "Callable[[Path], type[Method]]"
FOLDER = RESULTS / "mnist-causes"
COMMITTED = {"5/paper": RESULTS / "reproduce-mnist", "5/published": RESULTS / "reproduce-mnist-published"}


@dataclass
class Run:
    """A run of `jocor-fast train`.

    Attributes:
        name: its folder below the output.
        settings: by the names of its options.
        method: makes a method of this script's own, given the output; None: one of the package.
        rank: what is run first; `experiments`: those that it belongs to.
    """

    name: str
    settings: Mapping[str, Any]
    rank: int
    method: MadeMethod | None = None
    experiments: set[int] = field(default_factory=set)

    def folder(self, output: Path) -> Path | None:
        """Return where it is finished: below the output, or among the table's results; None where it is not."""
        recipe, rest = "/".join(self.name.split("/")[:2]), "/".join(self.name.split("/")[2:])
        places = [output / self.name] + [COMMITTED[recipe] / rest for _ in range(recipe in COMMITTED)]
        for place in places:
            older = "f-correction" in self.name and "transition_val_fraction" not in _settings(place)
            if read_summary(place).get("status") == "finished" and not older:
                return place
        return None

    def arguments(self, output: Path, epochs: int | None = None) -> list[str]:
        """Return what stands after `jocor-fast`; the number of epochs is that of the settings where it is None."""
        settings = {**self.settings, "device": "cpu", "threads": 1}
        if epochs is not None:
            settings["epochs"] = epochs
        return ["train", *flags_of(settings), "--output", str(output / self.name), "--resume"]

    def make(self, output: Path, epochs: int | None = None) -> int:
        """Train it, from where it was stopped, and return the exit code of `jocor-fast train`."""
        if self.method is not None:
            register(self.settings["method"])(self.method(output))
        return jocor_fast_command(self.arguments(output, epochs))


def collected_rows(folder: Path = FOLDER) -> dict[str, dict[str, str]]:
    """Return the lines of a folder's runs.csv by the names of their runs."""
    file = folder / "runs.csv"
    if not file.exists():
        return {}
    with file.open(encoding="utf-8", newline="") as lines:
        return {row["run"]: row for row in csv.DictReader(lines)}


def _settings(folder: Path) -> dict[str, Any]:
    settings: dict[str, Any] = (read_json(folder / CONFIG) or {}).get("settings", {})
    return settings


def of_table(noise: str, method: str, seed: int, recipe: str = "paper") -> str:
    """Return the name of a run of the table."""
    return f"5/{recipe}/mnist-{noise}/{method}/seed{seed}"


def faulty(faults: Sequence[str]) -> str:
    return f"coteaching-plus-{'-'.join(faults)}" if len(faults) < len(FAULTS) else "coteaching-plus-published"


def by_class(method: str, recipe: str, option: str) -> str:
    return f"{method}-{option.replace('_', '-')}" + ("" if recipe == "paper" else f"-recipe-{recipe}")


def corrected(source: str, second_softmax: str) -> str:
    return f"f-correction-{source}-t-softmax-{second_softmax}"


def transition(noise: Noise, source: str, output: Path, seed: int) -> Callable[[], Any]:
    """Return what gives the true T, or that of the table's run of F-correction, None before that has it."""
    if source == "true":
        return lambda: jf.noise.transition_matrix(noise.kind, 10, noise.rate or 0.0, "mnist")
    return lambda: read_summary(output / of_table(noise.name, "f-correction", seed)).get("transition")


class Runs:
    """All runs by name, each once, in the order in which they prove most."""

    def __init__(self) -> None:
        self.by_name: dict[str, Run] = {}
        for adding in (self._fcorrection, self._faults, self._differences, self._lambdas, self._classes, self._table):
            adding()

    def in_order(self, experiment: int | None = None) -> list[Run]:
        """Return the runs of an experiment, None: of all."""
        runs = [run for run in self.by_name.values() if experiment is None or experiment in run.experiments]
        return sorted(runs, key=lambda run: run.rank)

    def _add(
        self,
        experiment: int,
        rank: int,
        noise: str,
        method: str,
        seed: int,
        *,
        name: str = "",
        recipe: str = "paper",
        own: tuple[str, MadeMethod] | None = None,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Add a run of a method of the table, by its settings there and these; without a name it is the table's."""
        overrides = {} if recipe == "paper" else {"recipe": recipe}
        cell = TABLE.cells([method], [NOISES[noise]], **overrides)[0]
        chosen = {**cell.run_settings(seed), **settings}
        if own is not None:
            chosen["method"] = own[0]
        path = f"{experiment}/{noise}/{name}/seed{seed}" if name else of_table(noise, method, seed, recipe)
        run = self.by_name.setdefault(path, Run(path, chosen, rank, None if own is None else own[1]))
        run.rank = min(rank, run.rank)
        run.experiments.add(experiment)

    def _fcorrection(self) -> None:
        for noise in NOISES:  # first, for the estimates
            self._add(3, 0, noise, "f-correction", seed=1)
            self._add(3, 0, noise, "f-correction", seed=1, name="f-correction-beta1", settings=BETA1)
        for cap, source, second in product(({}, CAP), ("true", "estimated"), SECOND_SOFTMAX):
            if (source, second, cap) == ("estimated", "none", {}):
                continue
            for noise in NOISES:
                name = corrected(source, second)

                def method(
                    output: Path, of: Noise = NOISES[noise], source: str = source, second: str = second
                ) -> type[Method]:
                    return with_transition(transition(of, source, output, 1), second)

                path = name + "-cap" * bool(cap)
                self._add(3, 40 if cap else 0, noise, "f-correction", 1, name=path, own=(name, method), settings=cap)

    def _faults(self) -> None:
        for noise in NOISES:
            self._add(2, 10, noise, "coteaching-plus", seed=1)
        for faults, recipe in (*(((fault,), "paper") for fault in FAULTS), (FAULTS, "paper"), (FAULTS, "published")):
            for noise in NOISES:

                def method(output: Path, faults: Sequence[str] = faults) -> type[Method]:
                    return with_faults(*faults)

                own = (faulty(faults), method)
                path = own[0] if recipe == "paper" else f"{own[0]}-recipe-published"
                self._add(2, 10, noise, "coteaching-plus", 1, name=path, recipe=recipe, own=own)

    def _differences(self) -> None:
        for seed, (noise, method, co_lambda) in product((1, 2, 3), TAKEN_APART):
            rank = 20 if seed == 1 else 50
            chosen = {} if co_lambda is None else {"co_lambda": co_lambda}
            title = method if co_lambda is None else f"{method}-lambda-{co_lambda:g}"
            if chosen:
                self._add(1, rank, noise, method, seed, name=f"{title}-paper", settings=chosen)
            else:
                self._add(1, rank, noise, method, seed)
            for name, settings in DIFFERENCES.items():
                self._add(1, rank, noise, method, seed, name=f"{title}-{name}", settings={**chosen, **settings})
            drawn = {**chosen, "noise_seed": seed}
            self._add(1, rank, noise, method, seed, name=f"{title}-{DRAWN}", recipe="published", settings=drawn)

    def _lambdas(self) -> None:
        for seed, co_lambda in product(range(1, 11), LAMBDAS):
            if co_lambda is None:
                self._add(4, 30, EIGHTY, "jocor", seed)
            else:
                chosen = {"co_lambda": co_lambda}
                self._add(4, 30, EIGHTY, "jocor", seed, name=f"jocor-lambda-{co_lambda:g}", settings=chosen)

    def _classes(self) -> None:
        for recipe, method, seed in BALANCED:
            self._add(6, 45, EIGHTY, method, seed, recipe=recipe)
            asked = ["balanced_ramp", *["selection_per_class"] * ((recipe, method, seed) in THROUGHOUT)]
            for option in asked:
                name = by_class(method, recipe, option)
                self._add(6, 45, EIGHTY, method, seed, name=name, recipe=recipe, settings={option: True})

    def _table(self) -> None:
        for seed, recipe in product(range(1, 6), jf.schedules.RECIPES):
            for noise, method in product(NOISES, TABLE.methods):
                self._add(5, 60 + seed, noise, method, seed, recipe=recipe)
