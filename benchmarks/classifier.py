"""Time `JoCoRClassifier.fit` against scikit-learn's `MLPClassifier` of the same layer, epochs and batch, on the digits.

    python benchmarks/classifier.py [--rounds N] [--output DIR]

1,437 digits of 64 pixels, one hidden layer of 256 units, batches of 32, 50 epochs, Adam at 0.001: two networks with
selection against one. Each in processes of its own, on one thread and on two whose idle thread spins or sleeps, in
turns; a contender's figure is the median of its fastest setting. Writes classifier.json and classifier.md.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

import jocor_fast as jf
from record import described, parser, write
from turns import seconds, serve, table, take_turns

OURS, THEIRS = "JoCoRClassifier, two networks", "MLPClassifier, one network"
EPOCHS, BATCH, HIDDEN, ROUNDS = 50, 32, 256, 7


def fit(name: str) -> Callable[[], Any]:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    warnings.simplefilter("ignore", ConvergenceWarning)  # after so few epochs
    digits = load_digits()
    inputs, labels = (digits.data[:1437] / 16).astype(np.float32), digits.target[:1437]
    if name == OURS:
        asked: dict[str, Any] = {"epochs": EPOCHS, "batch_size": BATCH, "device": "cpu"}
        return lambda: jf.JoCoRClassifier(forget_rate=0.2, ramp_epochs=5, random_state=0, **asked).fit(inputs, labels)
    theirs = {"batch_size": BATCH, "max_iter": EPOCHS, "alpha": 0.0, "tol": 0.0, "n_iter_no_change": EPOCHS}
    return lambda: MLPClassifier((HIDDEN,), random_state=0, **theirs).fit(inputs, labels)


def main() -> None:
    parse = parser(__doc__)
    parse.add_argument("--rounds", type=int, default=ROUNDS, help=f"fits of each, default {ROUNDS}")
    parse.add_argument("--serve", help="for the script itself")
    given = parse.parse_args()
    if given.serve:
        serve(fit(given.serve))
        return
    processes = take_turns({name: [__file__, "--serve", name] for name in (OURS, THEIRS)}, given.rounds)
    text = (
        f"Fit on 1,437 digits, one hidden layer of {HIDDEN}, {EPOCHS} epochs, batch {BATCH}; median of {given.rounds} "
        "fits in turns, each contender's fastest setting. By `python benchmarks/classifier.py`.\n\n"
        f"{table(processes, OURS)}\n{described('threads')}\n"
    )
    write("classifier", text, {"seconds": seconds(processes)}, given.output)


if __name__ == "__main__":
    main()
