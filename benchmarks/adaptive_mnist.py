"""JoCoR on MNIST with `--forget-rate adaptive` against the known τ, seed 1, 200 epochs: mnist.md in results/adaptive.

The runs with the known τ are those of `jocor-fast reproduce mnist`. A run that was stopped is resumed.

    python benchmarks/adaptive_mnist.py [--noises symmetric-0.2 symmetric-0.5 symmetric-0.8 asymmetric-0.4 clean]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from jocor_fast.files.names import CONFIG, SUMMARY, read_summary
from jocor_fast.report.tables import TextTable, percent
from record import RESULTS, described

FOLDER, KNOWN = RESULTS / "adaptive", RESULTS / "reproduce-mnist"
NOISES = ("symmetric-0.2", "symmetric-0.5", "symmetric-0.8", "asymmetric-0.4", "clean")
KEPT = {CONFIG, SUMMARY}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noises", nargs="*", default=NOISES, choices=NOISES)
    parser.add_argument("--work", type=Path, default=Path("runs") / "adaptive-mnist", help="where they are trained")
    arguments = parser.parse_args()
    for noise in arguments.noises:
        work = arguments.work / noise
        kind, _, rate = noise.partition("-")
        drawn = [] if noise == "clean" else ["--noise", kind, "--noise-rate", rate, "--noise-seed", "1"]
        flags = [
            "--dataset",
            "mnist",
            *drawn,
            "--forget-rate",
            "adaptive",
            "--seed",
            "1",
            "--device",
            "cpu",
            "--resume",
        ]
        subprocess.run([sys.executable, "-m", "jocor_fast", "train", *flags, "--output", str(work)], check=True)
        kept = FOLDER / f"mnist-{noise}"
        kept.mkdir(parents=True, exist_ok=True)
        for name in KEPT:
            (kept / name).write_bytes((work / name).read_bytes())
        write()


def write() -> None:
    """Write the table of the runs that there are."""
    rows = []
    for noise in NOISES:
        folder = FOLDER / f"mnist-{noise}"
        if not (folder / SUMMARY).exists():
            continue
        summary, known = read_summary(folder), KNOWN / f"mnist-{noise}" / "jocor" / "seed1"
        rate = summary["last"]["forget_rate"]
        mine, his, tau, difference = summary["last_10_mean"]["test_accuracy"], None, None, "n/a"
        if (known / SUMMARY).exists():
            his = read_summary(known)["last_10_mean"]["test_accuracy"]
            tau = json.loads((known / CONFIG).read_text())["settings"]["forget_rate"]
            difference = f"{100 * (mine - his):+.2f}"
        wrong = percent(summary["realised_noise_rate"])
        rows.append((noise, wrong, percent(rate), percent(tau), percent(mine), percent(his), difference))
    names = ("noise", "wrong", "τ, adaptive", "τ, known", "accuracy, adaptive", "accuracy, known", "difference")
    text = "JoCoR on MNIST, seed 1, 200 epochs, test accuracy as the mean of the last ten, in %.\n\n"
    (FOLDER / "mnist.md").write_text(f"{text}{TextTable(names, rows).markdown()}\n\n{described()}\n")


if __name__ == "__main__":
    main()
