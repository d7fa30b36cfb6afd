"""Classes of which one is a hundred times rarer than another, with a tenth of the labels wrong: long-tail/ in results/.

JoCoR with and without a selection per class, and balanced class weights, on MNIST and on frozen features of CIFAR-10,
of which class c keeps n · 100^(−c/9) samples; what is tested on is balanced. Then the audits of these runs and of the
features, class by class. A wrong label is one of another sample ("proportional": rare classes get few of them), or one
of the nine others at random ("symmetric": most labels of the rarest class are then wrong).

    python benchmarks/long_tail.py [--data-root DIR] [--seeds 1 2 3] [--epochs 25]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

import jocor_fast as jf
from jocor_fast.data.catalogue import load_dataset
from jocor_fast.diagnosis.wrong_labels import Audit
from jocor_fast.models.networks import mlp
from jocor_fast.report.tables import TextTable
from record import RESULTS, described, machine, versions

RATIO, RATE = 100, 0.1
SETS, NOISES = ("features", "mnist"), ("proportional", "symmetric")
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "per class": {"selection_per_class": True},
    "per class, balanced": {"selection_per_class": True, "class_weights": "balanced"},
}
LAST = 10
FOLDER = RESULTS / "long-tail"
Split = tuple[np.ndarray, np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, default=Path(os.environ.get("JOCOR_FAST_DATA", ".")))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--parts", nargs="+", default=["training", "features"], choices=["training", "features"])
    arguments = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for seed in arguments.seeds:
        for name in arguments.sets:
            train, test = loaded(name, arguments.data_root)
            for noise in NOISES:
                rows = long_tail(train[1], seed)
                true = train[1][rows]
                given = drawn(true, noise, seed)
                where = {"set": name, "noise": noise, "seed": seed}
                if "features" in arguments.parts and name == "features":
                    found = jf.audit_features(train[0][rows], given, seed=seed)
                    write(where, "audit of features", {"audit": audited(found, given, true)})
                if "training" in arguments.parts:
                    for way in arguments.ways:
                        figures = trained((train[0][rows], given), true, test, seed, arguments.epochs, WAYS[way])
                        write(where, way, figures)


def loaded(name: str, root: Path) -> tuple[Split, Split]:
    """Training and test set, inputs and true labels."""
    if name == "mnist":
        data = load_dataset("mnist", root)
        assert data.test is not None
        return tuple((part.inputs.numpy(), part.labels.numpy()) for part in (data.train, data.test))  # type: ignore
    stored = np.load(root / "cifar10" / "features.npz")
    clean = np.load(root / "cifar10" / "cifar10n_labels.npz")["clean_label"].astype(np.int64)
    return (stored["x_train"].astype(np.float32), clean), (stored["x_test"].astype(np.float32), test_labels(root))


def test_labels(root: Path) -> np.ndarray:
    return np.load(root / "cifar10" / "cifar10_jpeg.npz")["test_labels"].astype(np.int64)


def long_tail(true: np.ndarray, seed: int) -> np.ndarray:
    """The rows of a drawn long tail."""
    generator = np.random.default_rng([seed, 1])
    classes, most = int(true.max()) + 1, int(np.bincount(true).min())
    kept = [round(most * RATIO ** (-number / (classes - 1))) for number in range(classes)]
    parts = [generator.permutation(np.flatnonzero(true == number))[:count] for number, count in enumerate(kept)]
    return generator.permutation(np.concatenate(parts))


def drawn(true: np.ndarray, noise: str, seed: int) -> np.ndarray:
    """Labels of which a tenth is wrong."""
    classes = int(true.max()) + 1
    share = np.bincount(true) / len(true)
    transition = jf.noise.symmetric(classes, RATE)
    if noise == "proportional":
        others = np.tile(share, (classes, 1)) * (1 - np.eye(classes))
        transition = RATE * others / others.sum(1, keepdims=True) + (1 - RATE) * np.eye(classes)
    return jf.noise.corrupt(true, transition, seed=seed)


def trained(
    data: Split, true: np.ndarray, test: Split, seed: int, epochs: int, options: dict[str, Any]
) -> dict[str, Any]:
    """A run's figures, and those of its audit."""
    width, classes = int(np.prod(data[0].shape[1:])), int(true.max()) + 1
    started = time.process_time()
    run = jf.train(
        lambda: mlp(width, classes),
        data,
        test_data=test,
        clean_labels=true,
        forget_rate=RATE,
        epochs=epochs,
        seed=seed,
        device="cpu",
        **options,
    )
    after_ramp = [line for line in run.metrics if line["keep_rate"] <= 1 - RATE + 1e-9]
    shares = np.array([line["selected_share_per_class"] for line in after_ramp], dtype=float) / (1 - RATE)
    last = run.metrics[-LAST:]
    return {
        "test_accuracy": float(np.mean([line["test_accuracy"] for line in last])),
        "label_precision": float(np.mean([line["label_precision"] for line in last])),
        "kept_of_expected": np.nanmean(shares, axis=0).tolist(),
        "least_kept_in_an_epoch": float(np.nanmin(shares)),
        "processor_seconds": time.process_time() - started,
        "audit": audited(jf.audit(run), data[1], true),
    }


def audited(found: Audit, given: np.ndarray, true: np.ndarray) -> dict[str, Any]:
    """What an audit says of each class, by the given label."""
    wrong = given != true
    counts = {
        name: np.bincount(given[mask], minlength=int(true.max()) + 1).tolist()
        for name, mask in {
            "given": np.ones_like(wrong),
            "wrong": wrong,
            "found": found.wrong,
            "rightly": found.wrong & wrong,
        }.items()
    }
    return {"share": found.share, "realised": float(wrong.mean()), "per_class": counts}


def write(where: dict[str, Any], way: str, figures: dict[str, Any]) -> None:
    """Add a line of figures, and write the tables anew."""
    line = {**where, "way": way, **figures, "machine": machine(), "versions": versions()}
    path = FOLDER / "long-tail.jsonl"
    key = ("set", "noise", "seed", "way")
    lines = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
    lines = [other for other in lines if [other[name] for name in key] != [line[name] for name in key]] + [line]
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    (FOLDER / "long-tail.md").write_text(tables(lines))
    print(json.dumps({**where, "way": way, "test_accuracy": figures.get("test_accuracy")}), flush=True)


def tables(lines: list[dict[str, Any]]) -> str:
    """long-tail.md."""
    training: list[tuple[str, ...]] = [
        (
            "set",
            "noise",
            "selection",
            "seeds",
            "test accuracy, %",
            "label precision, %",
            "least class's share kept",
            "in an epoch",
        )
    ]
    audits: list[tuple[str, ...]] = [
        (
            "set",
            "noise",
            "audit of",
            "wrong labels of the rarest 3",
            "found",
            "of these wrong",
            "right labels called wrong",
        )
    ]
    for name in SETS:
        for noise in NOISES:
            for way in ("audit of features", *WAYS):
                own = [line for line in lines if (line["set"], line["noise"], line["way"]) == (name, noise, way)]
                if not own:
                    continue
                if "test_accuracy" in own[0]:
                    kept = np.array([line["kept_of_expected"] for line in own])
                    training.append(
                        (
                            *(name, noise, way, str(len(own)), spread([line["test_accuracy"] for line in own])),
                            *(spread([line["label_precision"] for line in own]), f"{kept.mean(0).min():.2f}"),
                            f"{min(line['least_kept_in_an_epoch'] for line in own):.2f}",
                        )
                    )
                audits.append((name, noise, way, *rarest([line["audit"]["per_class"] for line in own])))
    return (
        f"Long tails: of ten classes each has fewer samples than the last, the rarest a {RATIO}th of the first; "
        f"{100 * RATE:.0f} % of the labels are wrong. JoCoR, λ 0.9, τ {RATE:g}, batch 128, perceptrons with 256 hidden "
        "units; accuracy on balanced test data, mean of the last ten epochs, ± the standard deviation over seeds. The "
        "share that a class keeps is that of its rows, by their given label, after the ramp, divided by 0.9; that of "
        "the class with the least is shown, on average and in its worst epoch. Made by `python "
        f"benchmarks/long_tail.py`.\n\n{TextTable(training[0], training[1:], text_columns=3).markdown()}\n"
        "Audits, of the labels of the three rarest classes, all seeds together.\n\n"
        f"{TextTable(audits[0], audits[1:], text_columns=3).markdown()}\n{described()}\n"
    )


def rarest(counts: list[dict[str, list[int]]]) -> tuple[str, ...]:
    given, wrong, found, rightly = (
        sum(sum(each[name][-3:]) for each in counts) for name in ("given", "wrong", "found", "rightly")
    )
    precision = rightly / found if found else float("nan")
    return (
        f"{wrong} of {given}",
        f"{rightly}",
        f"{precision:.2f} of {found}",
        f"{(found - rightly) / (given - wrong):.2f}",
    )


def spread(values: list[float]) -> str:
    return f"{100 * np.mean(values):.2f} ± {100 * np.std(values):.2f}"


if __name__ == "__main__":
    main()
