"""Labels that people got wrong, found from features: audit-features/ in results/.

`jocor_fast.audit_features` on frozen features of CIFAR-10 under the five label sets of CIFAR-10N, next to cleanlab
(no dependency of this project: `pip install cleanlab`) on out-of-fold probabilities of logistic regression and of our
own heads, and to the votes of ten neighbours. The clean labels serve to score what was found, and nothing else. Drawn
noise, on which the method was chosen (audit_features_choices.py), is measured by the same functions. With --wide, only
time and memory are measured, on features such as benchmarks/wide_features.py makes.

    python benchmarks/audit_features.py [--data-root DIR] [--sets aggre_label … symmetric-17 …] [--wide FILE.npy]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score
from sklearn.model_selection import KFold

import jocor_fast as jf
from jocor_fast.diagnosis.feature_heads import Rows, predict_held_out
from jocor_fast.report.tables import TextTable
from record import RESULTS, described, machine, versions

HUMAN = ("aggre_label", "random_label1", "random_label2", "random_label3", "worse_label")
DRAWN = (
    *("symmetric-9", "symmetric-17", "symmetric-40", "pairs-17"),
    *("instance-9", "instance-17", "people-9", "people-17", "people-40"),
)
FILTERS = (
    "prune_by_noise_rate",  # the default
    "prune_by_class",
    "both",
    "confident_learning",
    "predicted_neq_given",
    "low_normalized_margin",
    "low_self_confidence",
)
RANKINGS = ("self_confidence", "normalized_margin", "confidence_weighted_entropy")
MEMORY_BAR = 51  # MB, twice the features; the first audit of a process loads libraries too
SHARE_BARS = {name: 0.04 if name == "worse_label" else 0.02 for name in HUMAN}
PAIRS = ((9, 1), (2, 0), (3, 5), (5, 3), (4, 7))  # truck → automobile, bird → airplane, cat ↔ dog, deer → horse
GUESSES, ONE_PERSON = 0.6, 0.176  # of the drawn people
FOLDER = RESULTS / "audit-features"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, default=Path(os.environ.get("JOCOR_FAST_DATA", ".")))
    parser.add_argument("--sets", nargs="+", default=[*HUMAN, *DRAWN], choices=[*HUMAN, *DRAWN])
    parser.add_argument("--wide", metavar="FILE.npy", help="other features of the same images, [50000, D]")
    parser.add_argument("--ours", action="store_true", help="keep the contenders' figures as they were measured")
    arguments = parser.parse_args()
    folder = arguments.data_root / "cifar10"
    features = np.load(folder / "features.npz")["x_train"]
    labels = {name: array.astype(np.int64) for name, array in np.load(folder / "cifar10n_labels.npz").items()}
    true = labels["clean_label"]
    FOLDER.mkdir(parents=True, exist_ok=True)
    if arguments.wide is not None:
        measure_wide(np.load(arguments.wide), labels["random_label1"])
        return
    nearest = None if arguments.ours else neighbours(features)
    for name in arguments.sets:
        given = labels[name] if name in HUMAN else drawn(name, true, features)
        ours = measured(features, given, given != true)
        others = (
            json.loads((FOLDER / f"{name}.json").read_text())
            if nearest is None
            else contenders(features, given, given != true, nearest)
        )
        figures = {
            **others,
            "set": name,
            **ours,
            "machine": machine(),
            "versions": versions(),
        }
        (FOLDER / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n")
        print(json.dumps(figures), flush=True)
        write_tables()


def measured(features: np.ndarray, given: np.ndarray, wrong: np.ndarray) -> dict[str, Any]:
    """Our figures of one label set."""
    with timed() as took:
        found = jf.audit_features(features, given)
    decided = found_by(wrong, found.wrong)
    estimate = {"share": found.share, "share_range": found.share_range}
    return {
        "realised": float(wrong.mean()),
        "jocor_fast": {**ranking(wrong, found.score), **decided, **estimate, **took},
    }


def contenders(features: np.ndarray, given: np.ndarray, wrong: np.ndarray, nearest: np.ndarray) -> dict[str, Any]:
    """The figures of cleanlab and of the votes of neighbours."""
    from cleanlab.filter import find_label_issues  # not needed for --ours

    with timed() as regression_took:
        probabilities = logistic_regression(features, given)
        default = find_label_issues(given, probabilities, n_jobs=1)
    regression = cleanlab(given, probabilities, default, wrong)
    with timed() as heads_took:
        probabilities = own_heads(features, given)
        default = find_label_issues(given, probabilities, n_jobs=1)
    votes = np.eye(int(given.max()) + 1)[given[nearest]].mean(1)
    return {
        "contenders": {
            "cleanlab, logistic regression": regression,
            "cleanlab, our heads": cleanlab(given, probabilities, default, wrong),
            "neighbours, k = 10": {
                "vote": ranking(wrong, -votes[np.arange(len(given)), given]),
                "majority": found_by(wrong, votes.argmax(1) != given),
            },
        },
        "took": {"cleanlab, logistic regression": regression_took, "cleanlab, our heads": heads_took},
    }


def measure_wide(features: np.ndarray, given: np.ndarray) -> None:
    """wide.json: what the audit takes, and one of the five folds of cleanlab's logistic regression."""
    with timed() as ours_took:
        found = jf.audit_features(features, given)
    figures = {
        "features": {"shape": features.shape, "float32_mb": features.size * 4 / 1e6},
        "set": "random_label1",
        "jocor_fast": {"share": found.share, **ours_took},
        "machine": machine(),
        "versions": versions(),
    }
    with timed() as figures["one fold of five of logistic regression"]:
        logistic_regression(features, given, folds=1)
    (FOLDER / "wide.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures), flush=True)


def cleanlab(given: np.ndarray, probabilities: np.ndarray, default: np.ndarray, wrong: np.ndarray) -> dict[str, Any]:
    """Every ranking and filter of cleanlab on the same probabilities."""
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    entries: dict[str, Any] = {FILTERS[0]: found_by(wrong, default)}
    for method in RANKINGS:
        quality = get_label_quality_scores(given, probabilities, method=method, adjust_pred_probs=False)
        entries[method] = ranking(wrong, -quality)
    for name in FILTERS[1:]:
        entries[name] = found_by(wrong, find_label_issues(given, probabilities, filter_by=name, n_jobs=1))
    return entries


def logistic_regression(features: np.ndarray, given: np.ndarray, folds: int = 5) -> np.ndarray:
    """Out-of-fold probabilities [N, C] of scikit-learn's logistic regression."""
    inputs = features.astype(np.float32)
    probabilities = np.empty((len(given), int(given.max()) + 1))
    for train, held_out in islice(KFold(5, shuffle=True, random_state=0).split(inputs), folds):
        model = LogisticRegression(max_iter=1000).fit(inputs[train], given[train])
        probabilities[held_out] = model.predict_proba(inputs[held_out])
    return probabilities


def own_heads(features: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Out-of-fold probabilities [N, C] of the pairs that `audit_features` trains."""
    rows = Rows(features, torch.device("cpu"))
    heads = predict_held_out(rows, given, int(given.max()) + 1, forget_rate=0.0, epochs=None, seed=0)
    return softmax(heads.log_probability.astype(np.float64), axis=1)


def neighbours(features: np.ndarray) -> np.ndarray:
    """The ten nearest other rows of each, int64 [N, 10], by cosine."""
    inputs = features.astype(np.float32)
    inputs /= np.linalg.norm(inputs, axis=1, keepdims=True)
    return np.concatenate(
        [
            torch.from_numpy(part @ inputs.T).topk(11).indices[:, 1:].numpy()
            for part in np.array_split(inputs, len(inputs) // 500)
        ]
    )


def ranking(wrong: np.ndarray, score: np.ndarray) -> dict[str, float]:
    """How well a score ranks the wrong labels."""
    return {
        "auroc": float(roc_auc_score(wrong, score)),
        "average_precision": float(average_precision_score(wrong, score)),
    }


def found_by(wrong: np.ndarray, flagged: np.ndarray) -> dict[str, float]:
    """How well a decision finds them."""
    return {"f1": float(f1_score(wrong, flagged)), "flagged": float(flagged.mean())}


def drawn(name: str, true: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Labels with drawn noise: what it depends on, and the percentage that is wrong.

    "instance": an annotator who now and then says what a weak classifier, out of fold, thinks possible. "people":
    annotators who see what it sees and more, and of whose errors six in ten are blind guesses: one of them (17 %
    wrong), the majority of three (9), a wrong one of three where there is one (40). With six in ten the three rates are
    to each other as those of CIFAR-10N.
    """
    kind, percentage = name.split("-")
    rate, classes = int(percentage) / 100, int(true.max()) + 1
    generator = np.random.default_rng(100)
    own = np.eye(classes)[true]
    if kind == "symmetric":
        return jf.noise.corrupt(true, jf.noise.symmetric(classes, rate), seed=100)
    if kind == "pairs":
        transition = np.eye(classes)
        for source, target in PAIRS:
            transition[source, source], transition[source, target] = 1 - 2 * rate, 2 * rate
        return jf.noise.corrupt(true, transition, seed=100)
    belief = logistic_regression(features[:, :32], true)
    if kind == "instance":
        part = min(1.0, rate / (1 - (belief * own).sum(1).mean()))
        return _draw((1 - part) * own + part * belief, generator)
    guesses = GUESSES * ONE_PERSON * classes / (classes - 1)
    boosted = (1 - guesses) * _boosted(belief, own, (1 - GUESSES) * ONE_PERSON) + guesses / classes
    people = np.stack([_draw(boosted, generator) for _ in range(3)])
    if percentage == "17":
        return people[0]
    wanted = np.where(people != true, generator.random(people.shape), -1.0).argmax(0)
    worst = people[wanted, np.arange(len(true))]
    votes = np.eye(classes)[people].sum(0) + 0.001 * generator.random(own.shape)
    return votes.argmax(1) if percentage == "9" else worst


def _draw(rows: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    return (rows.cumsum(1) > generator.random((len(rows), 1))).argmax(1)


def _boosted(belief: np.ndarray, own: np.ndarray, rate: float) -> np.ndarray:
    """The belief with as much more for the true class, in log-odds, as leaves this rate of errors."""
    return softmax(np.log(belief) + brentq(lambda boost: _errors(belief, own, boost) - rate, 0, 50) * own, axis=1)


def _errors(belief: np.ndarray, own: np.ndarray, boost: float) -> float:
    return float(1 - (softmax(np.log(belief) + boost * own, axis=1) * own).sum(1).mean())


@contextlib.contextmanager
def timed() -> Iterator[dict[str, float]]:
    """Seconds by the clock and of the processor, and the most memory that was in use above that at the start, MB."""
    took: dict[str, float] = {}
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    memory, clock, processor = resident("VmRSS"), time.perf_counter(), time.process_time()
    yield took
    took["seconds"] = time.perf_counter() - clock
    took["processor_seconds"] = time.process_time() - processor
    took["memory_mb"] = resident("VmHWM") - memory


def resident(field: str) -> float:
    """A figure of /proc/self/status, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1000 for line in lines if line.startswith(field))


def write_tables() -> None:
    """audit-features.md: every set measured so far, and what was asked for and missed."""
    files = [FOLDER / f"{name}.json" for name in (*HUMAN, *DRAWN)]
    stored = [json.loads(file.read_text()) for file in files if file.exists()]
    columns = ("set", "who", "AUROC", "average precision", "F1", "share", "seconds", "processor seconds", "MB")
    table = TextTable(columns, [line for figures in stored for line in lines_of(figures)], text_columns=2)
    missed = [sentence for figures in stored if figures["set"] in HUMAN for sentence in misses(figures)]
    (FOLDER / "audit-features.md").write_text(
        "Wrong labels of CIFAR-10N found from frozen features [50000, 256], and of drawn noise, on which the method "
        "was chosen. F1 is that of the default decision; of cleanlab's filters the best by the true labels is second. "
        "One thread; the human sets on a quiet machine, the drawn ones, where there are any, under load. "
        "Made by `python benchmarks/audit_features.py`.\n\n"
        f"{table.markdown()}\nMissed: {'; '.join(missed) or 'nothing'}.\n\n{described()}\n"
    )


def lines_of(figures: dict[str, Any]) -> list[tuple[str, ...]]:
    """The rows of the table about one set."""
    ours = figures["jocor_fast"]
    name = f"{figures['set']}, {figures['realised']:.3f} wrong"
    low, high = ours["share_range"]
    lines = [
        (
            *(name, "jocor_fast", *(f"{ours[key]:.4f}" for key in ("auroc", "average_precision", "f1"))),
            *(f"{ours['share']:.3f} ({low:.3f} to {high:.3f})", *times(ours)),
        )
    ]
    for who, entries in figures["contenders"].items():
        for method, entry in entries.items():
            if "auroc" in entry:
                scores = (f"{entry['auroc']:.4f}", f"{entry['average_precision']:.4f}", "")
                lines.append((name, f"{who}, {method}", *scores, "", "", "", ""))
        decisions = {method: entry for method, entry in entries.items() if "f1" in entry}
        best = max(decisions, key=lambda method: decisions[method]["f1"])
        for method in dict.fromkeys([next(iter(decisions)), best]):
            took = figures["took"].get(who) if method == FILTERS[0] else None
            entry = decisions[method]
            cells = times(took) if took else ("", "", "")
            lines.append((name, f"{who}, {method}", "", "", f"{entry['f1']:.4f}", f"{entry['flagged']:.3f}", *cells))
    return lines


def times(took: dict[str, float]) -> tuple[str, ...]:
    return tuple(f"{took[key]:.1f}" for key in ("seconds", "processor_seconds", "memory_mb"))


def misses(figures: dict[str, Any]) -> Sequence[str]:
    """What was asked for and is not so on one of the human sets."""
    ours, name = figures["jocor_fast"], figures["set"]
    found = [
        f"{name}: {key} {ours[key]:.4f}, {who}, {method} {entry[key]:.4f}"
        for who, entries in figures["contenders"].items()
        for method, entry in entries.items()
        for key in ("auroc", "average_precision", "f1")
        if key in entry and entry[key] >= ours[key]
    ]
    off = abs(ours["share"] - figures["realised"])
    if off > SHARE_BARS[name]:
        found.append(f"{name}: the share is {off:.3f} off, {SHARE_BARS[name]} were allowed")
    limit = figures["took"]["cleanlab, logistic regression"]["processor_seconds"] / 5
    if ours["processor_seconds"] > limit:
        found.append(f"{name}: {ours['processor_seconds']:.1f} s of the processor, {limit:.1f} were allowed")
    if ours["memory_mb"] > MEMORY_BAR:
        found.append(f"{name}: {ours['memory_mb']:.0f} MB, {MEMORY_BAR} were allowed")
    return found


if __name__ == "__main__":
    main()
