"""Wrong labels of MNIST found by `jocor_fast.audit`, beside cleanlab's: audit_mnist.json and .md in results/.

Each noise and seed is a JoCoR run of 40 epochs, its τ the expected rate as in the paper, which is audited; and, where
cleanlab can be imported (no dependency of this project: `pip install cleanlab`), its find_label_issues on the
probabilities of the same perceptron from five folds, ten epochs each. What --work holds already is not done again.

    python benchmarks/audit_mnist.py --work runs/audit-mnist [--seeds 1 2 3]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

import jocor_fast as jf
from jocor_fast.cli import program as cli
from jocor_fast.config.resolve import resolve
from jocor_fast.config.task import Task, build_task
from jocor_fast.diagnosis.wrong_labels import Audit
from jocor_fast.report.tables import TextTable
from record import RESULTS, described, machine, versions

EPOCHS, FOLDS, FOLD_EPOCHS, BATCH = 40, 5, 10, 128
NOISES = {
    "symmetric 20 %": ("symmetric", "0.2"),
    "symmetric 50 %": ("symmetric", "0.5"),
    "asymmetric 40 %": ("asymmetric", "0.4"),
    "clean": ("clean", "0"),
}
FILTERS = ("prune_by_noise_rate", "both", "confident_learning", "predicted_neq_given")  # the first is the default
RANKINGS = ("self_confidence", "normalized_margin", "confidence_weighted_entropy")  # the same


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/audit-mnist"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--noises", nargs="+", default=list(NOISES), choices=list(NOISES))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for seed in arguments.seeds:
        for title in arguments.noises:
            rows.append({"noise": title, "seed": seed, **measured(title, seed, arguments.work)})
            print(json.dumps(rows[-1]), flush=True)
            write(rows)


def measured(title: str, seed: int, work: Path) -> dict[str, Any]:
    """The figures of one noise and seed; true labels serve to score what was found, and nothing else."""
    kind, rate = NOISES[title]
    noise = {"noise": kind, "noise_seed": str(seed), **({} if kind == "clean" else {"noise_rate": rate})}
    task = build_task(resolve({"dataset": "mnist", "seed": str(seed), **noise}))
    assert task.train.clean_labels is not None
    wrong = (task.train.labels != task.train.clean_labels).numpy()
    run = work / f"{kind}-{rate}" / f"seed{seed}"
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in noise.items()]
    common = ["--dataset=mnist", f"--seed={seed}", "--device=cpu", *flags]
    started = time.perf_counter()
    if cli.main(["train", *common, f"--epochs={EPOCHS}", f"--output={run}", "--resume"]) != 0:
        raise SystemExit(f"{run} failed")
    seconds = time.perf_counter() - started
    timings = run / "bench.json"
    if not timings.exists():  # else the run was there already
        timings.write_text(json.dumps({"train_seconds": seconds}))
    found, command_seconds = audited(run)
    estimate, estimate_seconds = estimated(common, run / "estimate")
    return {
        "realised_rate": float(wrong.mean()),
        "train_seconds": json.loads(timings.read_text())["train_seconds"],
        "audit_seconds": command_seconds,
        "share": found.share,
        "share_range": found.share_range,
        "estimate": estimate["rate"],
        "estimate_uncertainty": estimate["uncertainty"],
        "estimate_seconds": estimate_seconds,
        "jocor_fast": scores(wrong, found.score, found.wrong),
        "cleanlab": cleanlab(task, wrong, seed, run / "folds.npz"),
    }


def audited(run: Path) -> tuple[Audit, float]:
    """The audit's arrays, and how long the whole command takes, its page and files included."""
    started = time.perf_counter()
    if cli.main(["audit", str(run)]) != 0:
        raise SystemExit(f"the audit of {run} failed")
    return jf.audit(run), time.perf_counter() - started


def estimated(common: Sequence[str], output: Path) -> tuple[dict[str, Any], float | None]:
    """What `jocor-fast estimate-noise` finds before any run, and its time, None where it was there already."""
    seconds = None
    if not (output / "noise-estimate.json").exists():
        started = time.perf_counter()
        if cli.main(["estimate-noise", *common, f"--output={output}"]) != 0:
            raise SystemExit(f"the estimate in {output} failed")
        seconds = time.perf_counter() - started
    estimate: dict[str, Any] = json.loads((output / "noise-estimate.json").read_text())
    return estimate, seconds


def scores(wrong: np.ndarray, score: np.ndarray, flagged: np.ndarray) -> dict[str, float | None]:
    """How well a score ranks the wrong labels, and how well a filter finds them; None where no label is wrong."""
    if not wrong.any():
        return {"auroc": None, "average_precision": None, "f1": None, "flagged": float(flagged.mean())}
    return {
        "auroc": float(roc_auc_score(wrong, score)),
        "average_precision": float(average_precision_score(wrong, score)),
        "f1": float(f1_score(wrong, flagged)),
        "flagged": float(flagged.mean()),
    }


def cleanlab(task: Task, wrong: np.ndarray, seed: int, cache: Path) -> dict[str, Any] | None:
    """cleanlab's default, its best setting by the true labels, its estimate of the rate and its time."""
    try:
        from cleanlab.count import compute_confident_joint
        from cleanlab.filter import find_label_issues
        from cleanlab.rank import get_label_quality_scores
    except ImportError:
        return None
    if not cache.exists():
        started = time.perf_counter()
        probabilities = out_of_sample(task, seed)
        np.savez(cache, probabilities=probabilities, seconds=time.perf_counter() - started)
    with np.load(cache) as stored:
        probabilities, fold_seconds = stored["probabilities"], float(stored["seconds"])
    labels = task.train.labels.numpy()
    started = time.perf_counter()
    flagged = find_label_issues(labels, probabilities, filter_by=FILTERS[0], n_jobs=1)
    score = -get_label_quality_scores(labels, probabilities, method=RANKINGS[0])
    seconds = fold_seconds + time.perf_counter() - started
    joint = compute_confident_joint(labels, probabilities, calibrate=True)
    best: dict[str, float | None] = {"auroc": None, "average_precision": None, "f1": None}
    if wrong.any():
        filters = [flagged, *(find_label_issues(labels, probabilities, filter_by=f, n_jobs=1) for f in FILTERS[1:])]
        rankings = [-get_label_quality_scores(labels, probabilities, method=method) for method in RANKINGS]
        best = {
            "auroc": max(float(roc_auc_score(wrong, ranking)) for ranking in rankings),
            "average_precision": max(float(average_precision_score(wrong, ranking)) for ranking in rankings),
            "f1": max(float(f1_score(wrong, found)) for found in filters),
        }
    share = 1.0 - float(np.trace(joint)) / float(joint.sum())
    return {"default": scores(wrong, score, flagged), "best": best, "share": share, "seconds": seconds}


def out_of_sample(task: Task, seed: int) -> np.ndarray:
    """Probabilities [N, C] of plain training, each sample's from the fold that it was left out of."""
    assert isinstance(task.train.inputs, torch.Tensor)
    inputs, labels = task.train.inputs.float() * task.train.input_scale, task.train.labels
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        folds = torch.randperm(len(labels)).chunk(FOLDS)
        result = torch.empty(len(labels), task.dataset.num_classes)
        for number, held_out in enumerate(folds):
            rows = torch.cat([fold for other, fold in enumerate(folds) if other != number])
            network = task.build_network()
            optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, fused=True)
            for _ in range(FOLD_EPOCHS):
                for batch in rows[torch.randperm(len(rows))].split(BATCH):
                    optimizer.zero_grad()
                    F.cross_entropy(network(inputs.index_select(0, batch)), labels.index_select(0, batch)).backward()
                    optimizer.step()
            with torch.no_grad():
                result[held_out] = network(inputs.index_select(0, held_out)).softmax(1)
    return result.numpy()


def write(rows: Sequence[Mapping[str, Any]]) -> None:
    """Write what there is so far."""
    RESULTS.mkdir(exist_ok=True)
    content = {"machine": machine(), "versions": versions(), "epochs": EPOCHS, "rows": rows}
    (RESULTS / "audit_mnist.json").write_text(json.dumps(content, indent=2) + "\n")
    (RESULTS / "audit_mnist.md").write_text(text(rows))


def text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The tables: means over the seeds."""
    columns = ("noise", "seeds", "who", "AUROC", "average precision", "F1", "share found", "realised", "seconds")
    lines = []
    for title in NOISES:
        of_noise = [row for row in rows if row["noise"] == title]
        if not of_noise:
            continue
        fixed = (title, ", ".join(str(row["seed"]) for row in of_noise))
        realised = mean(of_noise, "realised_rate")
        for who, path, share, seconds in (
            ("jocor_fast", ("jocor_fast",), ("share",), ("audit_seconds",)),
            ("estimate-noise", (), ("estimate",), ("estimate_seconds",)),
            ("cleanlab, default", ("cleanlab", "default"), ("cleanlab", "share"), ("cleanlab", "seconds")),
            ("cleanlab, best setting", ("cleanlab", "best"), (), ()),
        ):
            if any(row["cleanlab"] is None for row in of_noise) and "cleanlab" in path:
                continue
            names = ("auroc", "average_precision", "f1")
            figures = [mean(of_noise, *path, name) if path else "" for name in names]
            estimated = mean(of_noise, *share) if share else "", realised if share else ""
            lines.append((*fixed, who, *figures, *estimated, mean(of_noise, *seconds, digits=1) if seconds else ""))
    notes = (
        f"Wrong labels of MNIST, means over the seeds: JoCoR of {EPOCHS} epochs (training not counted, "
        "`train_seconds` in the JSON file), then `jocor-fast audit` with its page; `jocor-fast estimate-noise`, which "
        "needs no run; cleanlab on five folds of ten epochs, its best setting chosen by the true labels. One thread; "
        "the machine had several times its cores of other work to do, which the times of long jobs suffer from. Made "
        "by `python benchmarks/audit_mnist.py`."
    )
    return f"{notes}\n\n{TextTable(columns, lines, text_columns=3).markdown()}\n{described()}\n"


def mean(rows: Sequence[Mapping[str, Any]], *path: str, digits: int = 4) -> str:
    """The mean of a figure that stands at this path in each row, as text; nothing where it does not apply."""
    values = []
    for row in rows:
        value: Any = row
        for name in path:
            value = value[name]
        values.append(value)
    return "" if None in values else f"{fmean(values):.{digits}f}"


if __name__ == "__main__":
    main()
