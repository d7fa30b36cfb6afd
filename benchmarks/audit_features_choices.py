"""How the constants of `jf.audit_features` were chosen: on drawn noise over frozen features of CIFAR-10.

    python benchmarks/audit_features_choices.py [--data-root DIR] [--sets people-17 …]

For each set of drawn labels (see audit_features.py) the ranking of wrong labels by the heads as they are and with one
constant changed, then by the odds for several T and steepnesses, and what the share is made of. No human label is read.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from audit_features import DRAWN, FOLDER, drawn, found_by, ranking
from jocor_fast.diagnosis import feature_audit, feature_heads
from jocor_fast.report.tables import TextTable
from record import described, machine, versions

SUBSETS = ("symmetric-17", "people-17")  # of which the first thousand rows are judged too
SMALL = 1000
HEADS: Mapping[str, Mapping[str, Any]] = {
    "as it is": {},
    "five folds": {"FOLDS": 5},
    "64 hidden units": {"HIDDEN": 64},
    "2 epochs": {"LEAST_EPOCHS": 2},
    "8 epochs": {"LEAST_EPOCHS": 8},
    "at least 300 steps": {"LEAST_STEPS": 300},
    "λ = 0": {"CO_LAMBDA": 0.0},
    "λ = 0.3": {"CO_LAMBDA": 0.3},
    "λ = 0.9": {"CO_LAMBDA": 0.9},
}
TRANSITIONS = (0.01, 0.05, 0.2)
STEEPNESSES = (0.7, 1.0, 1.5, 2.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, default=Path(os.environ.get("JOCOR_FAST_DATA", ".")))
    parser.add_argument("--sets", nargs="+", default=DRAWN, choices=DRAWN)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = arguments.data_root / "cifar10"
    features = np.load(folder / "features.npz")["x_train"]
    true = np.load(folder / "cifar10n_labels.npz")["clean_label"].astype(np.int64)
    for name in arguments.sets:
        given = drawn(name, true, features)
        sizes = (len(given), SMALL) if name in SUBSETS else (len(given),)
        figures = {
            "set": name,
            "rows": {size: measured(features[:size], given[:size], (given != true)[:size]) for size in sizes},
            "machine": machine(),
            "versions": versions(),
        }
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER / f"choices-{name}.json").write_text(json.dumps(figures, indent=1) + "\n")
        write_tables()


def measured(features: np.ndarray, given: np.ndarray, wrong: np.ndarray) -> dict[str, Any]:
    """The figures of one set of labels."""
    variants = {title: with_constants(changed, features, given, wrong) for title, changed in HEADS.items()}
    belief, _ = trained(features, given)
    share = feature_audit._Share.of(belief, given)
    by_transition = {}
    for least in TRANSITIONS:
        feature_audit.LEAST_TRANSITION = least
        by_transition[least] = ranking(wrong, feature_audit._log_odds(belief, given, share.transition))
    feature_audit.LEAST_TRANSITION = 0.05
    odds = feature_audit._log_odds(belief, given, share.transition)
    by_steepness = {
        steepness: found_by(wrong, feature_audit._probability(steepness * odds, wrong.mean()) > feature_audit.WRONG)
        for steepness in STEEPNESSES
    }
    return {
        "wrong": float(wrong.mean()),
        "heads": variants,
        "transition": by_transition,
        "steepness": by_steepness,
        "share": {"surest": share.anchored, "contradicted": share.contradicted, "estimate": share.share},
    }


def with_constants(
    changed: Mapping[str, Any], features: np.ndarray, given: np.ndarray, wrong: np.ndarray
) -> dict[str, float]:
    """The ranking where some constants of the heads are others."""
    usual = {name: getattr(feature_heads, name) for name in changed}
    try:
        for name, number in changed.items():
            setattr(feature_heads, name, number)
        belief, seconds = trained(features, given)
    finally:
        for name, number in usual.items():
            setattr(feature_heads, name, number)
    transition = feature_audit._Share.of(belief, given).transition
    return {**ranking(wrong, feature_audit._log_odds(belief, given, transition)), "processor_seconds": seconds}


def trained(features: np.ndarray, given: np.ndarray) -> tuple[np.ndarray, float]:
    """What the heads believe, and the processor's seconds that they took."""
    start = time.process_time()
    rows = feature_heads.Rows(features, torch.device("cpu"))
    heads = feature_heads.predict_held_out(rows, given, int(given.max()) + 1, forget_rate=0.0, epochs=None, seed=0)
    return feature_audit.calibrated(heads.log_probability, given), time.process_time() - start


def write_tables() -> None:
    """choices-anew.md, from all sets measured so far."""
    files = [FOLDER / f"choices-{name}.json" for name in DRAWN]
    stored = {
        f"{figures['set']}, {int(size):,} rows": entry
        for figures in (json.loads(file.read_text()) for file in files if file.exists())
        for size, entry in figures["rows"].items()
    }
    columns = ("", *stored)
    heads = [(title, *(ranks(entry["heads"][title]) for entry in stored.values())) for title in HEADS]
    seconds = ", ".join(
        f"{title} {np.mean([entry['heads'][title]['processor_seconds'] for entry in stored.values()]):.1f}"
        for title in HEADS
    )
    odds = [
        (f"T + {least}", *(ranks(entry["transition"][str(least)]) for entry in stored.values()))
        for least in TRANSITIONS
    ]
    odds += [
        (f"h = {h}", *(f"F1 {entry['steepness'][str(h)]['f1']:.4f}" for entry in stored.values())) for h in STEEPNESSES
    ]
    shares = [
        (name, *(f"{number:.3f}" for number in (*entry["share"].values(), entry["wrong"])))
        for name, entry in stored.items()
    ]
    measured_so_far = [name for name, file in zip(DRAWN, files, strict=True) if file.exists()]
    (FOLDER / "choices-anew.md").write_text(
        "The constants of `jf.audit_features`, measured anew ([how they were chosen](choices.md)): drawn noise over "
        f"frozen features of CIFAR-10, no human label, {len(measured_so_far)} of the {len(DRAWN)} sets. AUROC / "
        "average precision of the ranking; one seed; F1 where the share is known. Made by `python "
        "benchmarks/audit_features_choices.py`.\n\n"
        f"{TextTable(columns, heads, text_columns=1).markdown()}\nProcessor seconds, means: {seconds}.\n\n"
        f"{TextTable(columns, odds, text_columns=1).markdown()}\n"
        f"{TextTable(('set', 'surest', 'contradicted', 'estimate', 'wrong'), shares, text_columns=1).markdown()}\n"
        f"{described()}\n"
    )


def ranks(entry: Mapping[str, float]) -> str:
    return f"{entry['auroc']:.4f} / {entry['average_precision']:.4f}"


if __name__ == "__main__":
    main()
