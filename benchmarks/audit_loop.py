"""The loop that people run, audit, look, correct, train again: audit-loop/ in results/.

Of each label set of CIFAR-10N so many labels are looked at in some order, and the true labels replace them. What is
left wrong is counted, and scikit-learn's logistic regression on the frozen features is trained on the corrected labels
and tested on clean ones. The orders: that of `jocor_fast.audit_features`; cleanlab's (no dependency of this project:
`pip install cleanlab`), by its default score on out-of-fold probabilities of logistic regression and of our own heads;
and at random. True labels correct what is looked at and measure; they choose nothing.

    python benchmarks/audit_loop.py [--data-root DIR] [--sets aggregate …]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping

import matplotlib.pyplot as plt
import numpy as np
from cleanlab.rank import get_label_quality_scores
from sklearn.linear_model import LogisticRegression

import jocor_fast as jf
from audit_features import logistic_regression, own_heads
from jocor_fast.data.catalogue import load_dataset
from jocor_fast.data.memory.cifar10n import LABEL_SETS
from jocor_fast.report.tables import TextTable, percent
from plot import finish
from record import RESULTS, described, write

NAME = "audit-loop"
FOLDER = RESULTS / NAME
LOOKED_AT = (0, 500, 2_500, 10_000)
OURS, RANDOM = "jocor_fast", "at random"
CLEANLAB: Mapping[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "cleanlab, logistic regression": logistic_regression,
    "cleanlab, our heads": own_heads,
}
DRAWS = 3  # of the random order, whose figures are means
MEASURES = {"wrong": "labels left wrong (%)", "accuracy": "test accuracy (%)"}

Curves = dict[str, dict[str, list[float]]]  # {order: {measure: a fraction for each of LOOKED_AT}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", help="folder of the data sets, as for jocor-fast train")
    parser.add_argument("--sets", nargs="+", default=list(LABEL_SETS), choices=list(LABEL_SETS))
    arguments = parser.parse_args()
    file = FOLDER / f"{NAME}.json"
    found: dict[str, Curves] = json.loads(file.read_text())["sets"] if file.exists() else {}
    for name in arguments.sets:
        found[name] = measured(f"cifar10n-{name}", arguments.data_root)
        sets = {known: found[known] for known in LABEL_SETS if known in found}
        write(NAME, text(sets), {"looked_at": LOOKED_AT, "sets": sets}, FOLDER)
        draw(sets)


def measured(name: str, data_root: str | None) -> Curves:
    """Return the curves of one label set."""
    dataset = load_dataset(name, data_root)
    assert dataset.train.clean_labels is not None
    assert dataset.test is not None
    (features, given), true, test = dataset.train.arrays(), dataset.train.clean_labels.numpy(), dataset.test.arrays()
    orders = {OURS: [jf.audit_features(features, given).ranking]}
    for who, probabilities in CLEANLAB.items():
        orders[who] = [np.argsort(get_label_quality_scores(given, probabilities(features, given)), kind="stable")]
    orders[RANDOM] = [np.random.default_rng(draw).permutation(len(given)) for draw in range(DRAWS)]

    def after(order: np.ndarray, looked_at: int) -> tuple[float, float]:
        labels = given.copy()
        labels[order[:looked_at]] = true[order[:looked_at]]
        head = LogisticRegression(max_iter=1000).fit(features, labels)
        return float((labels != true).mean()), float(head.score(*test))

    unseen = after(np.arange(0), 0)
    curves: Curves = {}
    for who, draws in orders.items():
        points = [unseen] + [tuple(np.mean([after(draw, count) for draw in draws], axis=0)) for count in LOOKED_AT[1:]]
        curves[who] = {measure: [point[number] for point in points] for number, measure in enumerate(MEASURES)}
    return curves


def text(sets: Mapping[str, Curves]) -> str:
    """Return the table, with what was asked for and missed."""
    rows = [
        (
            name,
            who,
            *(f"{percent(curves['wrong'][at])} / {percent(curves['accuracy'][at])}" for at in range(len(LOOKED_AT))),
        )
        for name, orders in sets.items()
        for who, curves in orders.items()
    ]
    table = TextTable(("labels", "order", *(f"{count:,}" for count in LOOKED_AT)), rows, text_columns=2)
    missed = [sentence for name, orders in sets.items() for sentence in misses(name, orders)]
    return (
        "Labels left wrong / test accuracy of logistic regression, in %, by the number of labels looked at, each of "
        "which becomes the true one. CIFAR-10N, 50,000 labels, frozen features; at random: means of "
        f"{DRAWS} draws. Of the 10,000 test images 0.1 % are ten. Made by `python benchmarks/audit_loop.py`.\n\n"
        f"{table.markdown()}\n"
        f"Asked for: ours above both of cleanlab's at every point. Missed: {'; '.join(missed) or 'nothing'}.\n\n"
        f"{described()}\n"
    )


def misses(name: str, orders: Curves) -> list[str]:
    """Return where cleanlab leaves as few labels wrong as ours, or leads to as high an accuracy."""
    return [
        f"{name}, {count:,} looked at: {measure} {percent(ours)}, {who} {percent(theirs)}"
        for who in CLEANLAB
        for measure, better in (("wrong", -1), ("accuracy", 1))
        for count, ours, theirs in zip(LOOKED_AT, orders[OURS][measure], orders[who][measure], strict=True)
        if count and better * ours <= better * theirs
    ]


def draw(sets: Mapping[str, Curves]) -> None:
    """Draw the curves: a column a label set, a row a measure."""
    figure, axes = plt.subplots(len(MEASURES), len(sets), figsize=(3 * len(sets), 5.5), squeeze=False, sharex=True)
    for column, (name, orders) in enumerate(sets.items()):
        for axis, (measure, title) in zip(axes[:, column], MEASURES.items(), strict=True):
            for who, curves in orders.items():
                axis.plot(LOOKED_AT, 100 * np.array(curves[measure]), marker="o", markersize=3, label=who)
            axis.set_ylabel(title if column == 0 else "")
            axis.grid(alpha=0.3)
        axes[0, column].set_title(name)
        axes[-1, column].set_xlabel("labels looked at")
    axes[0, 0].legend(fontsize=7)
    finish(figure, FOLDER / f"{NAME}.png", described())


if __name__ == "__main__":
    main()
