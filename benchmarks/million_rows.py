"""A million rows of features from a mapped file: million-rows.json and .md in audit-features/ of results/.

The 50,000 × 256 frozen features of CIFAR-10, repeated with noise of a tenth of each column's spread, float32 in a file
of 1 GB, under 17 % symmetric noise drawn over the true labels. `jocor-fast audit --features` reads it in a process of
its own, whose memory is looked at twice a second.

    python benchmarks/million_rows.py [--data-root DIR] [--rows 1000000] [--folder DIR]
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score

import jocor_fast as jf
from record import RESULTS, described, write

RATE, JITTER, SEED = 0.17, 0.1, 7
FIELDS = ("VmRSS", "RssAnon", "RssFile")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, default=Path(os.environ.get("JOCOR_FAST_DATA", ".")))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="where the file is written (default: a temporary folder)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        wrong = made(arguments.data_root / "cifar10", arguments.rows, Path(folder))
        figures = {"rows": arguments.rows, "realised": float(wrong.mean()), **audited(Path(folder), wrong)}
    write("million-rows", text(figures), figures, RESULTS / "audit-features")


def made(data: Path, rows: int, folder: Path) -> np.ndarray:
    """Write x.npy and y.npy, and return which labels are wrong."""
    source = np.load(data / "features.npz")["x_train"].astype(np.float32)
    clean = np.load(data / "cifar10n_labels.npz")["clean_label"].astype(np.int64)
    generator = np.random.default_rng(SEED)
    spread = JITTER * source.std(0)
    table = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (rows, source.shape[1]))
    for start in range(0, rows, 10_000):
        picked = np.arange(start, min(start + 10_000, rows)) % len(source)
        noise = generator.standard_normal((len(picked), source.shape[1]), dtype=np.float32)
        table[start : start + len(picked)] = source[picked] + spread * noise
    table.flush()
    true = np.resize(clean, rows)
    given = jf.noise.corrupt(true, jf.noise.symmetric(int(clean.max()) + 1, RATE), seed=SEED)
    np.save(folder / "y.npy", given)
    return given != true


def audited(folder: Path, wrong: np.ndarray) -> dict[str, Any]:
    """Run the command; what it says, takes and finds."""
    files = [f"--features={folder / 'x.npy'}", f"--labels={folder / 'y.npy'}", f"--output={folder / 'audit'}"]
    command = [sys.executable, "-m", "jocor_fast", "audit", *files, "--device=cpu"]
    before, start = os.times(), time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    highest = dict.fromkeys(FIELDS, 0.0)
    while process.poll() is None:
        highest = {name: max(highest[name], amount) for name, amount in resident(process.pid).items()}
        time.sleep(0.5)
    seconds, after = time.perf_counter() - start, os.times()
    assert process.stdout is not None
    said = process.stdout.read()
    if process.returncode:
        raise SystemExit(said)
    announced = re.search(r"[\d,]+ rows of .*", said)
    assert announced is not None
    spent = sum(after[2:4]) - sum(before[2:4])  # of children, user and system
    return {
        "announced": announced[0],
        "seconds": seconds,
        "processor_seconds": spent,
        "features_mb": (folder / "x.npy").stat().st_size / 1e6,
        **{f"most_{name}_mb": amount for name, amount in highest.items()},
        **ranked(folder / "audit" / "suspicious.csv", wrong),
    }


def ranked(path: Path, wrong: np.ndarray) -> dict[str, float]:
    """How well the scores in suspicious.csv rank the wrong labels."""
    with path.open() as file:
        columns = file.readline().strip().split(",")
        wanted = [columns.index(name) for name in ("id", "score")]
        table = np.loadtxt(file, delimiter=",", usecols=wanted)
    score = np.empty(len(wrong))
    score[table[:, 0].astype(np.int64)] = table[:, 1]
    return {
        "auroc": float(roc_auc_score(wrong, score)),
        "average_precision": float(average_precision_score(wrong, score)),
    }


def resident(process: int) -> dict[str, float]:
    """What a process has in memory, MB, in all, of its own, and of mapped files; 0 where it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        lines = []
    amounts = {line.partition(":")[0]: line.split()[1] for line in lines if line.startswith(FIELDS)}
    return {name: float(amounts.get(name, 0)) / 1000 for name in FIELDS}


def text(figures: dict[str, Any]) -> str:
    """million-rows.md."""
    most = [figures[f"most_{name}_mb"] for name in FIELDS]
    return (
        f"`jocor-fast audit --features` on {figures['rows']:,} × 256 float32 features in a mapped file of "
        f"{figures['features_mb']:,.0f} MB: those of CIFAR-10 repeated with noise of {JITTER:g} of each column's "
        f"spread, {100 * figures['realised']:.1f} % of the labels wrong (symmetric, drawn). Made by `python "
        "benchmarks/million_rows.py`.\n\n"
        f"It announces: {figures['announced']}.\n\n"
        f"- {figures['processor_seconds']:.0f} s of the processor and {figures['seconds']:.0f} s by the clock, files "
        "written included.\n"
        f"- Most memory in use: {most[0]:,.0f} MB in all, of which at most {most[1]:,.0f} MB are its own (libraries "
        f"included) and at most {most[2]:,.0f} MB pages of files, which the system can take back.\n"
        f"- AUROC {figures['auroc']:.4f}, average precision {figures['average_precision']:.4f}.\n\n{described()}\n"
    )


if __name__ == "__main__":
    main()
