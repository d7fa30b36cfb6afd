"""Published rankings on CIFAR-10N next to those of `jocor-fast reproduce cifar10n`: rankings.md in reproduce-cifar10n/.

Ranks only, for the encoders differ: the published runs train ResNet-34 on the pixels, ours small networks on frozen
features. The published accuracies are those of Chhabra et al., Outlier Gradient Analysis (ICML 2025), table 11, whose
"random" stands by random 1 here, and for Standard and Co-teaching on worst those of Morales-Brotons et al., Exponential
Moving Average of Weights in Deep Learning (TMLR 2024), table 2, which quotes Wei et al., Learning with Noisy Labels
Revisited (ICLR 2022), and agrees with the other table where both have a method.

    python benchmarks/cifar10n_rankings.py [--table table.csv]
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Mapping
from pathlib import Path

from scipy.stats import spearmanr

from jocor_fast.methods import METHODS
from jocor_fast.report.tables import TextTable
from record import RESULTS

FOLDER = RESULTS / "reproduce-cifar10n"
PUBLISHED: Mapping[str, Mapping[str, float]] = {
    "aggregate": {
        "elr": 92.38,
        "jocor": 91.44,
        "cores": 91.23,
        "coteaching-plus": 90.61,
        "f-correction": 88.24,
        "gce": 87.85,
    },
    "random1": {
        "elr": 91.46,
        "jocor": 90.30,
        "coteaching-plus": 89.70,
        "cores": 89.66,
        "gce": 87.61,
        "f-correction": 86.88,
    },
    "worst": {
        "coteaching": 83.83,
        "cores": 83.60,
        "elr": 83.58,
        "jocor": 83.37,
        "coteaching-plus": 83.26,
        "gce": 80.66,
        "f-correction": 79.79,
        "standard": 77.69,
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, default=FOLDER / "table.csv", help="of jocor-fast reproduce cifar10n")
    with parser.parse_args().table.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["mean"]]
    ours = {name: {row["method"]: float(row["mean"]) for row in rows if row["noise"] == name} for name in PUBLISHED}
    seeds = sorted({int(row["n"]) for row in rows})
    (FOLDER / "rankings.md").write_text(text(ours, seeds))
    print(text(ours, seeds))


def text(ours: Mapping[str, Mapping[str, float]], seeds: list[int]) -> str:
    """rankings.md."""
    shared = {name: [method for method in found if method in ours[name]] for name, found in PUBLISHED.items()}
    theirs = {name: ranks(PUBLISHED[name], shared[name]) for name in PUBLISHED}
    own = {name: ranks(ours[name], shared[name]) for name in PUBLISHED}
    methods = [method for method in METHODS if any(method in found for found in shared.values())]
    places = {method: [theirs[name][method] for name in PUBLISHED if method in theirs[name]] for method in methods}
    methods.sort(key=lambda method: sum(places[method]) / len(places[method]))
    lines = [
        (
            METHODS[method].title,
            *(str(found[name].get(method, "")) for name in PUBLISHED for found in (theirs, own)),
        )
        for method in methods
    ]
    columns = ("method", *(f"{name}, {who}" for name in PUBLISHED for who in ("published", "ours")))
    agreement = ", ".join(
        f"{spearmanr(list(theirs[name].values()), list(own[name].values())).statistic:.2f} on {name}"
        for name in PUBLISHED
    )
    source = " ".join((__doc__ or "").split("\n\n")[1].split())
    runs = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return (
        "Methods of both that have a published accuracy, by test accuracy, best first. "
        f"{source} Ours: means of [table.csv](table.csv), {runs} seeds; neighbours may differ by less than a standard "
        "deviation. Made by `python benchmarks/cifar10n_rankings.py`.\n\n"
        f"{TextTable(columns, lines, text_columns=1).markdown()}\n"
        f"Spearman's rank correlation: {agreement}.\n"
    )


def ranks(accuracies: Mapping[str, float], methods: list[str]) -> dict[str, int]:
    """The place of each method among these, from 1."""
    order = sorted(methods, key=lambda method: -accuracies[method])
    return {method: order.index(method) + 1 for method in methods}


if __name__ == "__main__":
    main()
