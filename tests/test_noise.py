"""Cases 25 to 28: transition matrices, and labels drawn from them."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jocor_fast import noise
from jocor_fast.data.catalogue import load_dataset
from jocor_fast.noise.class_pairs import FINE_CLASSES, SUPERCLASSES

RATES = st.floats(0, 1, exclude_max=True)
BALANCED = np.repeat(np.arange(10), 5000)
MNIST_PAIRS = {7: 1, 2: 7, 5: 6, 6: 5, 3: 8}
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR10_PAIRS = {"truck": "automobile", "bird": "airplane", "cat": "dog", "dog": "cat", "deer": "horse"}


def flips(matrix: np.ndarray) -> dict[int, int]:
    """{clean: noisy} of a matrix that turns a class into one other at most."""
    off_diagonal = matrix - np.diag(np.diagonal(matrix))
    assert ((off_diagonal > 0).sum(axis=1) <= 1).all()
    return {int(c): int(off_diagonal[c].argmax()) for c in np.flatnonzero(off_diagonal.any(axis=1))}


@given(st.integers(2, 20), RATES, st.booleans())
def test_every_matrix_has_rows_that_sum_to_one(num_classes: int, rate: float, include_true: bool):
    for matrix in (
        noise.symmetric(num_classes, rate, include_true=include_true),
        noise.pairflip(num_classes, rate),
        noise.asymmetric("mnist", rate),
        noise.asymmetric("cifar100", rate),
    ):
        assert matrix.dtype == np.float64
        assert (matrix >= 0).all()
        np.testing.assert_allclose(matrix.sum(axis=1), 1, rtol=0, atol=1e-12)


def test_symmetric_excludes_the_true_class_unless_asked():
    np.testing.assert_allclose(noise.symmetric(5, 0.4), np.full((5, 5), 0.1) + 0.5 * np.eye(5), atol=1e-15)
    np.testing.assert_allclose(
        noise.symmetric(5, 0.4, include_true=True), np.full((5, 5), 0.08) + 0.6 * np.eye(5), atol=1e-15
    )


def test_pairflip_turns_each_class_into_the_next():
    assert flips(noise.pairflip(10, 0.45)) == {c: (c + 1) % 10 for c in range(10)}
    assert np.diagonal(noise.pairflip(10, 0.45)) == pytest.approx([0.55] * 10)


def test_asymmetric_pairs_of_mnist_and_cifar10():
    assert flips(noise.asymmetric("mnist", 0.4)) == MNIST_PAIRS
    assert {CIFAR10_CLASSES[c]: CIFAR10_CLASSES[n] for c, n in flips(noise.asymmetric("cifar10", 0.4)).items()} == (
        CIFAR10_PAIRS
    )
    assert noise.asymmetric("mnist", 0.4)[7, 1] == 0.4


def test_cifar100_classes_are_numbered_by_name():
    assert len(set(FINE_CLASSES)) == 100
    assert (FINE_CLASSES[0], FINE_CLASSES[51], FINE_CLASSES[99]) == ("apple", "mushroom", "worm")
    assert all(len(names) == 5 for names in SUPERCLASSES.values())


def test_asymmetric_cifar100_goes_round_each_superclass():
    pairs = flips(noise.asymmetric("cifar100", 0.4))
    assert FINE_CLASSES[pairs[FINE_CLASSES.index("apple")]] == "mushroom"
    assert FINE_CLASSES[pairs[FINE_CLASSES.index("sweet_pepper")]] == "apple"
    for names in SUPERCLASSES.values():
        members = {FINE_CLASSES.index(name) for name in names}
        start = min(members)
        walked = [start]
        while (following := pairs[walked[-1]]) != start:
            walked.append(following)
        assert set(walked) == members
        assert walked == sorted(walked)


def test_published_cifar100_goes_round_blocks_of_five_numbers():
    assert flips(noise.asymmetric("cifar100-published", 0.4)) == {c: c + 1 if c % 5 < 4 else c - 4 for c in range(100)}


def test_case_25_symmetric_noise_on_50000_labels():
    noisy = noise.corrupt(BALANCED, noise.symmetric(10, 0.5), seed=0)
    wrong = noisy[noisy != BALANCED]
    assert noise.realised_rate(BALANCED, noisy) == pytest.approx(0.5, abs=0.01)
    offsets = np.bincount((noisy - BALANCED) % 10, minlength=10)[1:] / len(wrong)
    assert offsets == pytest.approx(np.full(9, 1 / 9), abs=0.01)


def test_case_25_inclusive_noise_is_wrong_less_often():
    matrix = noise.symmetric(10, 0.5, include_true=True)
    assert noise.expected_rate(matrix, BALANCED) == pytest.approx(0.45, abs=1e-12)
    assert noise.realised_rate(BALANCED, noise.corrupt(BALANCED, matrix, seed=0)) == pytest.approx(0.45, abs=0.01)


def test_case_26_pairflip_reaches_the_next_class_only():
    noisy = noise.corrupt(BALANCED, noise.pairflip(10, 0.45), seed=3)
    assert set(np.unique((noisy - BALANCED) % 10)) == {0, 1}
    assert noise.realised_rate(BALANCED, noisy) == pytest.approx(0.45, abs=0.01)


@pytest.mark.parametrize("dataset", ["mnist", "cifar10"])
def test_case_26_asymmetric_noise_takes_the_listed_pairs_only(dataset: str):
    matrix = noise.asymmetric(dataset, 0.4)
    noisy = noise.corrupt(BALANCED, matrix, seed=0)
    changed = noisy != BALANCED
    assert set(zip(BALANCED[changed].tolist(), noisy[changed].tolist(), strict=True)) == set(flips(matrix).items())
    assert noise.realised_rate(BALANCED, noisy) == pytest.approx(0.2, abs=0.01)


def test_case_26_cats_and_dogs_flip_once():
    """A tool that flips while it scans turns flipped cats back from dogs."""
    noisy = noise.corrupt(BALANCED, noise.asymmetric("cifar10", 0.4), seed=0)
    for clean, other in ((3, 5), (5, 3)):
        assert (noisy[clean == BALANCED] == other).mean() == pytest.approx(0.4, abs=0.02)


def test_case_26_cifar100_flips_stay_within_the_superclass():
    superclass = {FINE_CLASSES.index(name): group for group, names in SUPERCLASSES.items() for name in names}
    clean = np.repeat(np.arange(100), 500)
    noisy = noise.corrupt(clean, noise.asymmetric("cifar100", 0.4), seed=0)
    assert [superclass[c] for c in clean] == [superclass[c] for c in noisy.tolist()]
    assert noise.realised_rate(clean, noisy) == pytest.approx(0.4, abs=0.01)


def test_case_26_rate_on_mnist(data_root: Path):
    if not (data_root / "mnist").is_dir():
        pytest.skip("JOCOR_FAST_DATA has no folder mnist")
    labels = load_dataset("mnist", data_root).train.labels.numpy()
    matrix = noise.asymmetric("mnist", 0.4)
    assert noise.expected_rate(matrix, labels) == pytest.approx(0.198, abs=0.0005)
    assert noise.realised_rate(labels, noise.corrupt(labels, matrix, seed=0)) == pytest.approx(0.198, abs=0.004)


def test_case_27_rate_zero_changes_nothing():
    for matrix in (
        noise.symmetric(10, 0),
        noise.symmetric(10, 0.0, include_true=True),
        noise.pairflip(10, 0),
        noise.asymmetric("cifar10", 0),
        noise.transition_matrix("clean", 10, 0),
    ):
        np.testing.assert_array_equal(matrix, np.eye(10))
        np.testing.assert_array_equal(noise.corrupt(BALANCED, matrix, seed=0), BALANCED)
        assert noise.expected_rate(matrix, BALANCED) == 0


def test_one_class_and_rate_zero_is_the_identity():
    np.testing.assert_array_equal(noise.symmetric(1, 0), [[1]])
    np.testing.assert_array_equal(noise.pairflip(1, 0), [[1]])


def drawn_one_by_one(labels: np.ndarray, transition: np.ndarray, seed: int) -> list[int]:
    """`corrupt` as its docstring tells it, sample by sample, in exact arithmetic."""
    noisy = []
    for label, number in zip(labels, np.random.RandomState(seed).random_sample(len(labels)), strict=True):
        total, last = 0.0, None
        for candidate, probability in enumerate(transition[label]):
            total += probability
            if probability > 0:
                last = candidate
                if number < total:
                    break
        noisy.append(last)
    return noisy


@given(st.data())
def test_corrupt_looks_each_number_up_in_the_row_of_its_class(data: st.DataObject):
    num_classes = data.draw(st.integers(1, 6))
    weights = data.draw(hnp.arrays(np.float64, (num_classes, num_classes), elements=st.sampled_from([0, 0, 1, 2, 7])))
    weights[np.arange(num_classes), data.draw(st.integers(0, num_classes - 1))] += 1
    transition = weights / weights.sum(axis=1, keepdims=True)
    labels = data.draw(hnp.arrays(np.int64, st.integers(0, 60), elements=st.integers(0, num_classes - 1)))
    seed = data.draw(st.integers(0, 2**32 - 1))
    noisy = noise.corrupt(labels, transition, seed=seed)
    assert noisy.tolist() == drawn_one_by_one(labels, transition, seed)
    assert (transition[labels, noisy] > 0).all()


def test_a_number_on_the_border_belongs_to_the_class_above():
    """Intervals are half open, as the numbers are: else a class of probability 0 could be drawn by the number 0."""
    number = np.random.RandomState(0).random_sample(1)[0]
    assert noise.corrupt([0], [[number, 1 - number], [0, 1]], seed=0).tolist() == [1]
    above = np.nextafter(number, 1)
    assert noise.corrupt([0], [[above, 1 - above], [0, 1]], seed=0).tolist() == [0]


def test_a_row_that_sums_to_a_hair_under_one_never_draws_an_impossible_class():
    transition = np.array([[0.5, 0.499991, 0.0], [0, 1, 0], [0, 0, 1.0]])
    labels = np.zeros(400_000, np.int64)
    assert np.random.RandomState(0).random_sample(len(labels)).max() > 0.999991
    assert set(noise.corrupt(labels, transition, seed=0).tolist()) == {0, 1}


# The labels of the first release: they must never change.
PINNED_FIRST = [1, 4, 2, 3, 4, 5, 6, 8, 9, 6, 6, 1, 2, 8, 1, 1, 0, 7, 8, 9]
PINNED_SYMMETRIC = "9ce223140fe721ac"
PINNED_ASYMMETRIC = "86922edaa5be04c5"


def digest(labels: np.ndarray) -> str:
    return hashlib.sha256(labels.astype("<i8").tobytes()).hexdigest()[:16]


def test_case_28_the_labels_of_a_seed_are_fixed_for_ever():
    labels = np.arange(10_000) % 10
    assert noise.corrupt(labels[:20], noise.symmetric(10, 0.5), seed=0).tolist() == PINNED_FIRST
    assert digest(noise.corrupt(labels, noise.symmetric(10, 0.5), seed=0)) == PINNED_SYMMETRIC
    assert digest(noise.corrupt(labels, noise.asymmetric("cifar10", 0.4), seed=7)) == PINNED_ASYMMETRIC


def generator_states() -> tuple[str, object, bytes]:
    numpy_state = repr(np.random.get_state(legacy=False))  # noqa: NPY002
    return numpy_state, random.getstate(), torch.get_rng_state().numpy().tobytes()


def test_case_28_global_generators_are_neither_read_nor_moved():
    transition = noise.symmetric(10, 0.5)
    expected = noise.corrupt(BALANCED, transition, seed=1)
    for seed in (0, 1):
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        torch.manual_seed(seed)
        before = generator_states()
        np.testing.assert_array_equal(noise.corrupt(BALANCED, transition, seed=1), expected)
        assert generator_states() == before
    assert (noise.corrupt(BALANCED, transition, seed=2) != expected).any()


def test_labels_and_matrix_are_left_as_they_were():
    labels, transition = np.arange(10), noise.symmetric(10, 0.9)
    kept = labels.copy(), transition.copy()
    noise.corrupt(labels, transition, seed=0)
    np.testing.assert_array_equal(labels, kept[0])
    np.testing.assert_array_equal(transition, kept[1])


def test_a_class_may_be_absent_and_no_labels_are_no_labels():
    assert set(noise.corrupt([1] * 50, noise.pairflip(3, 0.5), seed=0).tolist()) == {1, 2}
    assert noise.corrupt([], noise.pairflip(3, 0.5), seed=0).shape == (0,)
    assert noise.expected_rate(noise.pairflip(3, 0.5), []) == 0
    assert noise.realised_rate(np.empty(0), np.empty(0)) == 0


def test_expected_rate_is_free_of_rounding():
    assert noise.expected_rate(noise.symmetric(10, 0.2), BALANCED) == 0.2
    assert noise.expected_rate(noise.asymmetric("cifar10", 0.4), BALANCED) == 0.2


def test_realised_rate_counts_rows():
    assert noise.realised_rate(np.array([0, 1, 2, 3]), np.array([0, 1, 3, 3])) == 0.25
    with pytest.raises(ValueError, match="noisy_labels must have the shape of clean_labels"):
        noise.realised_rate(np.zeros(3), np.zeros((3, 1)))
