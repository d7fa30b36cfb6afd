"""How often the warnings of estimate-noise, audit and train are right: results/warnings/README.md.

Each case is a part of a data set whose true labels are known, given wrong ones by a noise or by people (CIFAR-10N). The
command is run on it, and each warning that it gives is held against the truth by the rule that stands with it below.
What --work holds already is not computed again.

    python benchmarks/warning_rates.py --work runs/warnings [--fashion FOLDER]

needs mnist/, cifar10/features.npz and cifar10/cifar10n_labels.npz below $JOCOR_FAST_DATA; takes Fashion-MNIST where
FOLDER has its four files (Debian: dataset-fashion-mnist), and cifar10/cifar10.npz, the pixels, where it is there.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import jocor_fast as jf
from jocor_fast.cli.program import main as jocor_fast_command
from jocor_fast.config.resolve import resolve
from jocor_fast.config.task import build_task
from jocor_fast.data.catalogue import load_dataset
from jocor_fast.diagnosis.cross_fit import CrossFit, cross_fit, default_epochs
from jocor_fast.diagnosis.noise_estimate import from_predictions
from jocor_fast.report.tables import TextTable
from record import RESULTS, described, machine, versions

DRAWN = (
    ("clean", 0.0),
    ("symmetric", 0.15),
    ("symmetric", 0.4),
    ("symmetric", 0.7),
    ("pairflip", 0.15),
    ("pairflip", 0.35),
)
BY_PEOPLE = (("aggre_label", 0.0), ("random_label1", 0.0), ("worse_label", 0.0))  # of CIFAR-10N
SIZES = {
    "digits": (150, 400, 1437),
    "mnist": (300, 1000, 4000, 20000),
    "fashion-mnist": (300, 1000, 4000, 20000),
    "features": (300, 1000, 4000, 20000),
    "pixels": (1000, 4000),
}
TEST_SAMPLES = 1000
FEATURE_SCALE = 0.2325  # root mean square of the features, which are divided by it
MARGIN = 0.01  # of a share: what is nearer to the truth counts as right


@dataclass(frozen=True)
class Case:
    """A data set of the user's own, as this script makes it."""

    data: str
    samples: int
    classes: int
    noise: str
    rate: float
    seed: int

    @property
    def name(self) -> str:
        """Part of the names of its files."""
        return f"{self.data}-{self.samples}-{self.classes}-{self.noise}-{self.rate:g}-{self.seed}"


@dataclass(frozen=True)
class Labelled:
    """The samples of a case: inputs, given and true labels, and a test set with true ones."""

    inputs: np.ndarray
    given: np.ndarray
    true: np.ndarray
    test_inputs: np.ndarray
    test_labels: np.ndarray

    def write(self, path: Path, scale: float | None = None) -> Path:
        """Write the samples as an archive that --dataset npz: reads; `scale` multiplies the inputs as floats."""
        train, test = self.inputs, self.test_inputs
        if scale is not None:
            train, test = (np.float32(scale) * inputs.astype(np.float32) for inputs in (train, test))
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, x_train=train, y_train=self.given, x_test=test, y_test=self.test_labels)
        return path


class Sources:
    """The data sets, each read once."""

    def __init__(self, root: Path, fashion: Path | None) -> None:
        self._root, self._fashion = root, fashion

    def names(self) -> list[str]:
        """Return those that are there."""
        absent = {"fashion-mnist"} if self._fashion is None else set()
        absent |= set() if (self._root / "cifar10" / "cifar10.npz").exists() else {"pixels"}
        return [name for name in SIZES if name not in absent]

    @cache  # noqa: B019  # there is one object
    def samples(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and true labels."""
        if name in ("digits", "mnist", "fashion-mnist"):
            root = self._fashion if name == "fashion-mnist" else self._root
            train = load_dataset(name, str(root)).train
            assert isinstance(train.inputs, torch.Tensor)
            inputs = train.inputs.numpy()
            return (inputs.astype(np.float32) / 16 if name == "digits" else inputs), train.labels.numpy()
        if name == "features":
            inputs = np.load(self._root / "cifar10" / "features.npz")["x_train"].astype(np.float32) / FEATURE_SCALE
        else:
            inputs = np.load(self._root / "cifar10" / "cifar10.npz")["x_train"]
        return inputs, self.by_people()["clean_label"].astype(np.int64)

    @cache  # noqa: B019
    def by_people(self) -> Mapping[str, np.ndarray]:
        """Return the labels of CIFAR-10N."""
        return dict(np.load(self._root / "cifar10" / "cifar10n_labels.npz"))

    def labelled(self, case: Case) -> Labelled:
        """Draw the samples of a case: of two classes those that are numbered 3 and 5."""
        inputs, labels = self.samples(case.data)
        pool = np.arange(len(labels)) if case.classes == 10 else np.flatnonzero(np.isin(labels, (3, 5)))
        drawn = np.random.default_rng(case.seed).permutation(pool)
        rows, others = drawn[: case.samples], drawn[case.samples : case.samples + TEST_SAMPLES]
        true, test = (
            labels[part] if case.classes == 10 else (labels[part] == 5).astype(int) for part in (rows, others)
        )
        if case.noise.endswith(("label", "label1")):
            given = self.by_people()[case.noise][rows].astype(np.int64)
        elif case.noise == "clean":
            given = true.copy()
        else:
            matrix = getattr(jf.noise, case.noise)(case.classes, case.rate)
            given = jf.noise.corrupt(true, matrix, seed=case.seed)
        return Labelled(inputs[rows], given, true, inputs[others], test)


@dataclass(frozen=True)
class Verdict:
    """A warning that a case has given, or could have: its key in WARNINGS, and whether it was given and is right."""

    warning: str
    data: str
    given: bool
    right: bool


# --- estimate-noise, and train --forget-rate auto ---------------------------------------------------------------------


def estimate_cases(names: Sequence[str]) -> list[Case]:
    """Return the cases of the estimate: every second of a grid, for time, and the strongest noise on easy data."""
    grid = [
        Case(data, samples, classes, noise, rate, seed)
        for seed in (0, 1)
        for data in SIZES
        for samples in SIZES[data]
        for classes, noises in (
            (10, (*DRAWN, *BY_PEOPLE) if data in ("features", "pixels") else DRAWN),
            (2, (("symmetric", 0.15), ("symmetric", 0.3))),
        )
        for noise, rate in noises
    ]
    easy = (("digits", 1437), ("mnist", 1000), ("mnist", 4000), ("fashion-mnist", 4000))
    strong = [Case(data, samples, 10, *noise, 0) for data, samples in easy for noise in (DRAWN[3], DRAWN[5])]
    return [case for case in (*grid[::2], *strong) if case.data in names]


def estimated(case: Case, sources: Sources, work: Path) -> tuple[dict[str, Any], Verdict]:
    """Estimate the noise of a case, as estimate-noise does it with nothing but the noisy labels."""
    kept = work / "predictions" / f"{case.name}.npz"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        samples = sources.labelled(case)
        archive = samples.write(work / "estimate.npz")
        config = resolve({"dataset": f"npz:{archive}", "device": "cpu", "seed": str(case.seed), "forget_rate": "0.1"})
        task, settings = build_task(config), config.training
        epochs = default_epochs(case.samples, settings.batch_size)
        fit = cross_fit(settings, task.build_network, task.train, case.classes, epochs=epochs)
        np.savez(kept, p=fit.probability.astype(np.float32), half=fit.half, given=samples.given, true=samples.true)
    with np.load(kept) as content:
        fit = CrossFit(content["half"], content["p"].astype(float), None)
        given, true = content["given"], content["true"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = from_predictions(fit, given)
    realised = float((given != true).mean())
    row = {"case": case.name, "realised": realised, "estimate": found.rate, "uncertainty": found.uncertainty}
    too_high = found.rate - realised > max(found.uncertainty, MARGIN)
    return {**row, "too_high": too_high, "warned": bool(caught)}, Verdict("high", case.data, bool(caught), too_high)


# --- train and audit --------------------------------------------------------------------------------------------------


def audit_cases(names: Sequence[str]) -> Iterator[tuple[Case, str, int]]:
    """Return (case, method, epochs): good runs, short ones, and networks that memorise every label."""
    some, all_at_random = ("symmetric", 0.4), ("symmetric", 0.9)
    drawn = (("clean", 0.0), some, ("symmetric", 0.7), all_at_random, ("pairflip", 0.35))
    for data in (name for name in names if name != "pixels"):
        people = (BY_PEOPLE[0], BY_PEOPLE[2]) if data == "features" else ()
        runs = [("jocor", 30, noise) for noise in (*drawn, *people)]
        runs += [("jocor", 5, noise) for noise in (drawn[0], some)]
        runs += [("standard", 30, noise) for noise in (some, all_at_random)]
        for method, epochs, (noise, rate) in runs:
            yield Case(data, 1077 if data == "digits" else 2000, 10, noise, rate, 0), method, epochs


def ramp_cases(names: Sequence[str]) -> Iterator[Case]:
    for data in (name for name in names if name != "pixels"):
        for noise, rate in (("symmetric", 0.15), ("symmetric", 0.4), ("pairflip", 0.35)):
            yield Case(data, 1000, 10, noise, rate, 0)


def trained(
    case: Case,
    sources: Sources,
    work: Path,
    *,
    method: str = "jocor",
    epochs: int = 30,
    batch: int = 128,
    scale: float = 0,
) -> dict[str, Any]:
    """Train on a case by the command and audit the run; return what was warned of and what was found."""
    run = work / "runs" / f"{case.name}-{method}-{epochs}-{batch}-{scale:g}"
    samples = sources.labelled(case)
    realised = float((samples.given != samples.true).mean())
    archive = samples.write(work / "data" / f"{case.name}-{scale:g}.npz", scale or None)
    options = [
        f"--method={method}",
        f"--epochs={epochs}",
        f"--batch-size={batch}",
        f"--forget-rate={min(realised, 0.9):g}",
    ]
    if not (run / "train.txt").exists():
        said = warned(["train", f"--dataset=npz:{archive}", "--device=cpu", *options, f"--output={run}", "--resume"])
        (run / "train.txt").write_text(said)
    said = warned(["audit", str(run), "--images=0"])
    last = json.loads((run / "summary.json").read_text())["last"]
    report = json.loads((run / "audit" / "audit.json").read_text())
    with open(run / "audit" / "suspicious.csv") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: int(row["id"]))
    suggested = np.array([int(row["suggested"]) for row in rows])
    score = np.array([float(row["score"]) for row in rows])
    return {
        "case": run.name,
        "realised": realised,
        "test_accuracy": last["test_accuracy"],
        "share": report["share"],
        "lift": lift(score, samples.given != samples.true),
        "lost": lost_classes(samples.given, samples.true, suggested),
        "warnings": (run / "train.txt").read_text() + said,
    }


def warned(arguments: Sequence[str]) -> str:
    """Run a command; return its warnings."""
    error = io.StringIO()
    with contextlib.redirect_stderr(error), contextlib.redirect_stdout(io.StringIO()):
        code = jocor_fast_command(list(arguments))
    if code != 0:
        raise SystemExit(f"{' '.join(arguments)} failed: {error.getvalue()}")
    return error.getvalue()


def lift(score: np.ndarray, wrong: np.ndarray) -> float | None:
    """Return the average precision of the ranking, from 0 for chance to 1 for perfect; None where nothing is wrong."""
    if not wrong.any():
        return None
    order = np.argsort(-score, kind="stable")
    hits = wrong[order]
    average = float((np.cumsum(hits) / np.arange(1, len(hits) + 1))[hits].mean())
    return (average - wrong.mean()) / (1 - wrong.mean())


def lost_classes(given: np.ndarray, true: np.ndarray, suggested: np.ndarray) -> list[bool]:
    """Return of each class that keeps less than a tenth of its labels whether it has far more samples in truth."""
    before, after, truth = (np.bincount(labels, minlength=10) for labels in (given, suggested, true))
    return [bool(after[number] < truth[number] / 2) for number in np.flatnonzero(after < 0.1 * before)]


def is_misleading(row: Mapping[str, Any]) -> bool:
    """Whether the list of an audit is nearer to chance than to perfect; of clean labels, whether it names many."""
    return row["share"] > 0.05 if row["lift"] is None else row["lift"] < 0.5


AUDIT_WARNINGS = {
    "few steps": ("times only: not much to judge by", is_misleading),
    "learnt nothing": ("they have learnt nothing to judge by", is_misleading),
    "memorised": ("the list is no better than chance", is_misleading),
    "class given up": ("would label hardly any sample", lambda row: any(row["lost"])),
}


def audited(names: Sequence[str], sources: Sources, work: Path) -> Iterator[tuple[dict[str, Any], list[Verdict]]]:
    for case, method, epochs in audit_cases(names):
        row = trained(case, sources, work, method=method, epochs=epochs)
        text = row.pop("warnings")
        yield (
            row,
            [Verdict(key, case.data, words in text, right(row)) for key, (words, right) in AUDIT_WARNINGS.items()],
        )


def compared(names: Sequence[str], sources: Sources, work: Path) -> Iterator[tuple[dict[str, Any], list[Verdict]]]:
    """The warnings of train: the run is held against one that does what the warning advises."""
    for case in ramp_cases(names):
        plain = trained(case, sources, work)
        better = trained(case, sources, work, batch=32)
        gain = better["test_accuracy"] - plain["test_accuracy"]
        words = "a selection by loss so early can do harm"
        given = words in plain.pop("warnings")
        yield {**plain, "gain": gain}, [Verdict("short ramp", case.data, given, gain > 0)]
        if case.noise == "symmetric":  # pixels as floats from 0 to 255, or what is made large
            unscaled = trained(case, sources, work, scale={"digits": 16, "features": 50}.get(case.data, 1))
            gain = plain["test_accuracy"] - unscaled["test_accuracy"]
            given = "reach the networks as they are" in unscaled.pop("warnings")
            yield {**unscaled, "gain": gain}, [Verdict("scale", case.data, given, gain > 0)]


# --- the report -------------------------------------------------------------------------------------------------------

WARNINGS = {  # key: command, words, right where
    "high": (
        "estimate-noise, train --forget-rate auto",
        "the noise is probably estimated too high",
        f"the estimate is above the truth by more than its uncertainty and {100 * MARGIN:.0f} %",
    ),
    "few steps": ("audit", "not much to judge by", "the ranking is nearer to chance than to perfect (see below)"),
    "learnt nothing": ("audit", "they have learnt nothing to judge by", "the same"),
    "memorised": ("audit", "the list is no better than chance", "the same"),
    "class given up": (
        "audit",
        "would label hardly any sample …",
        "a class that is named has more than twice as many samples as would be labelled so",
    ),
    "short ramp": (
        "train",
        "a selection by loss so early can do harm",
        "batches of 32, as it advises, give a higher test accuracy",
    ),
    "scale": ("train", "learn little from numbers so large", "inputs of a usual scale give a higher test accuracy"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/warnings"))
    parser.add_argument("--fashion", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sources = Sources(Path(os.environ["JOCOR_FAST_DATA"]), arguments.fashion)
    names, rows, verdicts = sources.names(), [], list[Verdict]()
    for case in estimate_cases(names):
        row, verdict = estimated(case, sources, arguments.work)
        rows.append(row)
        verdicts.append(verdict)
        print(json.dumps(row), flush=True)
    for part in (audited, compared):
        for row, found in part(names, sources, arguments.work):
            rows.append(row)
            verdicts += found
            print(json.dumps(row), flush=True)
    output = RESULTS / "warnings"
    output.mkdir(parents=True, exist_ok=True)
    content = {"machine": machine(), "versions": versions(), "cases": rows}
    (output / "cases.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (output / "README.md").write_text(report(verdicts), encoding="utf-8")


def report(verdicts: Sequence[Verdict]) -> str:
    """Return README.md."""
    table = []
    for key, (command, words, right) in WARNINGS.items():
        found = [verdict for verdict in verdicts if verdict.warning == key]
        given = [verdict for verdict in found if verdict.given]
        true, due = sum(verdict.right for verdict in given), sum(verdict.right for verdict in found)
        false = f"{100 * (1 - true / len(given)):.0f} %" if given else "n/a"
        table.append(
            (command, f"{words} ({right})", str(len(found)), str(len(given)), str(true), false, f"{true}/{due}")
        )
    columns = ("command", "warning (right where)", "cases", "given", "right", "false alarms", "found of those due")
    return PREFACE.replace("TABLE", TextTable(columns, table, text_columns=2).markdown()).replace("FOOT", described())


PREFACE = """# How often the warnings are right

    python benchmarks/warning_rates.py --work runs/warnings --fashion FOLDER

A warning fires only where it is right more often than not, over parts of digits, MNIST, Fashion-MNIST and CIFAR-10
(frozen features, and pixels for the estimate) of 150 to 20,000 samples, under no noise, noise of 15 to 70 %, labels
all at random, and the labels of people (CIFAR-10N). A ranking is nearer to chance than to perfect where its average
precision is less than half-way from the share of wrong labels to 1; of clean labels, where more than 5 % are named.
The cases, each with its figures, are in cases.json. The rule of the first warning was
chosen on them: on others it may be right less often.

TABLE
Other warnings state facts, and cannot be false alarms:

- `train`: one class only; a ramp that is not over at the end; a forget rate under the known share of wrong labels;
  flags that change nothing; a damaged checkpoint that the one before it stands in for; labels numbered in sorted
  order; inputs that are not finite; steps that no CUDA graph holds.
- `predict`: files that are skipped, each by name.

"The noise is probably estimated too high" used to follow from the agreement alone: it was given in 87 of these cases
and right in 60; on digits, MNIST and Fashion-MNIST in 34, and right in 9. That the networks' errors on test data may
explain what an audit found was a warning too, and right in one of ten; it is a note now, for networks that agree with
the training labels as often as with the test data's.

FOOT
"""

if __name__ == "__main__":
    main()
