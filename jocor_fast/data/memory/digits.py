"""The embedded data set: the 1,797 handwritten digits of 8×8 pixels that scikit-learn brings along."""

from __future__ import annotations

from jocor_fast.data.dataset import Dataset, DataShape, Entry, Wanted, in_memory

_TRAIN_SIZE = 1437
_PERMUTATION_SEED = 0  # fixed: every run and every machine has the same 1,437 / 360 split


def load_digits(wanted: Wanted) -> Dataset:
    """Load the digits: images [N, 8, 8] of 0 … 16, ten classes, 1,437 to train and 360 to test.

    The split is a fixed permutation (scikit-learn keeps the digits in the order of their writers).
    """
    import numpy as np
    from sklearn.datasets import load_digits as scikit_learn_digits  # imported here: it takes a second

    digits = scikit_learn_digits()
    order = np.random.RandomState(_PERMUTATION_SEED).permutation(len(digits.target))
    images, labels = digits.images[order].astype(np.uint8), digits.target[order].astype(np.int64)
    parts = {"train": slice(_TRAIN_SIZE), "test": slice(_TRAIN_SIZE, None)}
    return in_memory(
        wanted.name, {part: (images[rows], labels[rows]) for part, rows in parts.items()}, 10, input_scale=1 / 16
    )


SHAPE = DataShape(1437, 360, (8, 8), (1,) * 10, filled=0.511)
DIGITS = Entry("digits", load_digits, place="part of scikit-learn", shape=SHAPE)
