"""The README's picture: the runs of one folder side by side, test accuracy and label precision against epochs.

    python benchmarks/mnist_curves.py [FOLDER]

FOLDER (default: benchmarks/results/mnist-symmetric-0.5) holds a run's metrics.jsonl in a folder for each recipe:

    jocor-fast train --dataset mnist --noise symmetric --noise-rate 0.5 --co-lambda 0.95 --epochs 200
        --seed 1 --noise-seed 1 --recipe paper|published --output RUN

Writes FOLDER/curves.png.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

DEFAULT = Path(__file__).parent / "results" / "mnist-symmetric-0.5"
PANELS = {"test_accuracy": "test accuracy, %", "label_precision": "label precision, %"}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT
    figure, axes = plt.subplots(1, len(PANELS), figsize=(9, 3.2), layout="constrained")
    for run in sorted(path.parent for path in folder.glob("*/metrics.jsonl")):
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        for axis, (field, label) in zip(axes, PANELS.items(), strict=True):
            axis.plot(
                [line["epoch"] for line in lines], [100 * line[field] for line in lines], label=f"recipe {run.name}"
            )
            axis.set(xlabel="epoch", ylabel=label)
            axis.grid(alpha=0.3)
    axes[0].set_ylim(bottom=90)
    axes[0].legend(loc="lower right")
    figure.suptitle("MNIST, half of the labels wrong (symmetric), λ 0.95, seed 1")
    figure.savefig(folder / "curves.png", dpi=110)


if __name__ == "__main__":
    main()
