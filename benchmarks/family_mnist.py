"""Every method of `train` on MNIST, one seed: the table and the epochs in results/family-mnist, of runs that there are.

The methods of the paper's table are those of results/reproduce-mnist; runs of the others are looked for in the folders
that are named, as `jocor-fast reproduce mnist --methods all --seeds 1` leaves them.

    python benchmarks/family_mnist.py runs/reproduce-mnist
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from jocor_fast.files.names import read_metrics, read_summary
from jocor_fast.methods import METHODS
from record import RESULTS, described
from tables import csv_text, markdown_table

KNOWN, FOLDER = RESULTS / "reproduce-mnist", RESULTS / "family-mnist"
NOISES = ("symmetric-0.2", "symmetric-0.5", "symmetric-0.8", "asymmetric-0.4")
EPOCHS, LAST, SHOWN_EVERY = 200, 10, 5


def epochs_of(folders: Sequence[Path], noise: str, method: str) -> list[dict[str, Any]]:
    """Return the metrics of the finished run, of the first folder that has it; empty where none has."""
    for folder in folders:
        run = folder / f"mnist-{noise}" / method / "seed1"
        if read_summary(run).get("status") == "finished":
            lines = read_metrics(run)
            if len(lines) == EPOCHS:
                return lines
    return []


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folders", nargs="+", type=Path, help="folders of `reproduce mnist`, the first ones first")
    folders = [*options.parse_args().folders, KNOWN]
    rows, epochs = [], []
    for name, method in METHODS.items():
        row = [method.title]
        for noise in NOISES:
            lines = epochs_of(folders, noise, name)
            for line in lines:
                if line["epoch"] % SHOWN_EVERY == 0 or line["epoch"] == 1 or line["epoch"] > EPOCHS - LAST:
                    kept = {of: _rounded(line[of]) for of in ("test_accuracy", "label_precision", "keep_rate")}
                    epochs.append({"noise": noise, "method": name, "epoch": line["epoch"], **kept})
            accuracies = [line["test_accuracy"] for line in lines]
            row.append(f"{fmean(accuracies[-LAST:]):.2%} ({max(accuracies):.2%})" if lines else "not run")
        rows.append(row)
    text = (
        f"Test accuracy of seed 1: mean of the last ten of {EPOCHS} epochs (the best epoch's, which no run can know)."
    )
    text += f"\n\n{markdown_table(['method', *NOISES], rows)}\n{described()}\n"
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "table.md").write_text(text, encoding="utf-8")
    comment = f"metrics.jsonl of seed 1: every {SHOWN_EVERY}th epoch, and the last {LAST}"
    (FOLDER / "epochs.csv").write_text(csv_text(epochs, [comment]), encoding="utf-8")
    print(text)


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)


if __name__ == "__main__":
    main()
