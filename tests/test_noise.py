"""Cases 25 to 28: transition matrices, and labels drawn from them."""

from __future__ import annotations

import hashlib
import math
import random
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jocor_fast import noise
from jocor_fast.data import DataError, load_dataset
from jocor_fast.data.cifar100_classes import FINE_CLASSES, SUPERCLASSES

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
    labels = load_dataset("mnist", data_root).train_labels
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


@pytest.mark.parametrize("rate", [-0.1, -1e-300, 1, 1.0, 1.5, math.nan, math.inf, np.float32("nan")])
def test_case_27_a_rate_outside_its_range_names_the_flag(rate: float):
    for call in (
        lambda: noise.symmetric(10, rate),
        lambda: noise.symmetric(10, rate, include_true=True),
        lambda: noise.pairflip(10, rate),
        lambda: noise.asymmetric("mnist", rate),
        *(lambda kind=kind: noise.transition_matrix(kind, 10, rate, "mnist") for kind in noise.NOISE_KINDS[:4]),
        lambda: noise.transition_matrix("clean", 10, rate),
    ):
        with pytest.raises(ValueError, match=r"--noise-rate.* got"):
            call()


@pytest.mark.parametrize("rate", [True, np.False_, "0.5", None, [0.5], 0.5j])
def test_a_rate_that_is_no_number_is_a_type_error(rate: object):
    for call in (
        lambda: noise.symmetric(10, rate),
        lambda: noise.pairflip(10, rate),
        lambda: noise.asymmetric("mnist", rate),
    ):
        with pytest.raises(TypeError, match=r"--noise-rate.*must be a float"):
            call()


def test_numbers_of_other_types_are_numbers():
    expected = noise.symmetric(10, 0.5)
    for rate in (np.float64(0.5), np.float16(0.5), Fraction(1, 2)):
        np.testing.assert_array_equal(noise.symmetric(np.int8(10), rate), expected)


@pytest.mark.parametrize(
    ("num_classes", "rate", "error"),
    [(1, 0.1, ValueError), (0, 0, ValueError), (-3, 0.1, ValueError), (True, 0, TypeError), (10.0, 0.1, TypeError)],
)
def test_a_number_of_classes_that_cannot_be_is_named(num_classes: object, rate: float, error: type[Exception]):
    for matrix in (noise.symmetric, noise.pairflip):
        with pytest.raises(error, match=r"^num_classes must be"):
            matrix(num_classes, rate)


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


def test_case_28_another_process_draws_the_same_labels():
    script = (
        "import hashlib, numpy as np; from jocor_fast import noise;"
        "np.random.seed(5);"
        "print(hashlib.sha256(noise.corrupt(np.arange(10_000) % 10, noise.symmetric(10, 0.5), seed=0)"
        ".astype('<i8').tobytes()).hexdigest()[:16])"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == PINNED_SYMMETRIC


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


@pytest.mark.parametrize(
    "labels",
    [
        [0, 2, 1, 2],
        (0, 2, 1, 2),
        np.array([[0], [2], [1], [2]]),
        *(np.array([0, 2, 1, 2], t) for t in ("i1", "u1", ">i2", "u4", "i8", "u8", "f2", "f4", "f8")),
        np.array([0, 9, 2, 9, 1, 9, 2, 9])[::2],
        np.array([0, 2, 1, 2], object),
        torch.tensor([0, 2, 1, 2], dtype=torch.uint8),
        torch.tensor([[0.0], [2.0], [1.0], [2.0]], dtype=torch.bfloat16, requires_grad=True),
    ],
    ids=lambda labels: str(getattr(labels, "dtype", type(labels).__name__)),
)
def test_case_29_any_array_like_of_whole_numbers_is_taken(labels: object):
    noisy = noise.corrupt(labels, noise.symmetric(3, 0.5), seed=4)
    assert noisy.dtype == np.int64
    assert noisy.tolist() == noise.corrupt(np.array([0, 2, 1, 2]), noise.symmetric(3, 0.5), seed=4).tolist()


def test_a_class_may_be_absent_and_no_labels_are_no_labels():
    assert set(noise.corrupt([1] * 50, noise.pairflip(3, 0.5), seed=0).tolist()) == {1, 2}
    assert noise.corrupt([], noise.pairflip(3, 0.5), seed=0).shape == (0,)
    assert noise.expected_rate(noise.pairflip(3, 0.5), []) == 0
    assert noise.realised_rate(np.empty(0), np.empty(0)) == 0


@pytest.mark.parametrize(
    ("labels", "error"),
    [
        ([0, 3], ValueError),
        ([-1, 0], ValueError),
        ([2**40], ValueError),
        ([2**70], ValueError),
        (np.array([2**64 - 1], np.uint64), ValueError),
        ([0.5], ValueError),
        ([math.nan], ValueError),
        ([math.inf], ValueError),
        ([1e300], ValueError),
        (0, ValueError),
        ([[0, 1]], ValueError),
        ([[0], [1, 2]], ValueError),
        (np.zeros((2, 1, 1), int), ValueError),
        ([True, False], TypeError),
        (["0", "1"], TypeError),
        ([b"0"], TypeError),
        ([0, None], TypeError),
        ([0j], TypeError),
        (np.array(["2020-01-01"], "M8[D]"), TypeError),
        ("012", ValueError),
        (None, (TypeError, ValueError)),
        ({0: 1}, (TypeError, ValueError)),
    ],
    ids=repr,
)
def test_what_is_no_label_is_named(labels: object, error: type[Exception] | tuple[type[Exception], ...]):
    with pytest.raises(error, match=r"^labels must .*got"):
        noise.corrupt(labels, noise.symmetric(3, 0.5), seed=0)
    with pytest.raises(error, match=r"^clean_labels must .*got"):
        noise.expected_rate(noise.symmetric(3, 0.5), labels)


@pytest.mark.parametrize(
    ("seed", "error"),
    [(-1, ValueError), (2**32, ValueError), (True, TypeError), (0.0, TypeError), (None, TypeError), ("0", TypeError)],
)
def test_a_seed_that_numpy_cannot_take_is_named(seed: object, error: type[Exception]):
    with pytest.raises(error, match=r"^seed \(--noise-seed\) must"):
        noise.corrupt([0, 1], noise.pairflip(2, 0.5), seed=seed)


@pytest.mark.parametrize(
    ("matrix", "error", "message"),
    [
        ([[1, 0, 0]], ValueError, r"shape \[C, C\], got \[1, 3\]"),
        (np.ones(3), ValueError, "shape"),
        (np.ones((0, 0)), ValueError, "shape"),
        ([[0.5, 0.4], [0, 1]], ValueError, "got 0.9 in row 0"),
        ([[1, 0], [0, 1.0001]], ValueError, "got 1.0001 in row 1"),
        ([[1.5, -0.5], [0, 1]], ValueError, "at least 0"),
        ([[math.nan, 1], [0, 1]], ValueError, "finite"),
        ([[math.inf, 1], [0, 1]], ValueError, "finite"),
        ([["1", "0"], ["0", "1"]], TypeError, "floats"),
        ([[True, False], [False, True]], TypeError, "floats"),
        ([[1], [0, 1]], ValueError, "shape"),
        (None, TypeError, "floats"),
    ],
    ids=repr,
)
def test_what_is_no_transition_matrix_is_named(matrix: object, error: type[Exception], message: str):
    with pytest.raises(error, match=rf"^transition must .*{message}"):
        noise.corrupt([0, 1], matrix, seed=0)
    with pytest.raises(error, match=rf"^transition must .*{message}"):
        noise.check_transition(matrix)


def test_rows_that_sum_to_one_within_1e_5_are_a_matrix():
    noise.check_transition([[0.33333, 0.33333, 0.333335], [0, 1, 0], [0, 0, 1]], 3)
    np.testing.assert_array_equal(noise.check_transition(torch.eye(4), 4), np.eye(4))
    with pytest.raises(ValueError, match=r"shape \[3, 3\], got \[4, 4\]"):
        noise.check_transition(np.eye(4), 3)


@pytest.mark.parametrize(
    ("kind", "dataset", "expected"),
    [
        ("symmetric", "digits", noise.symmetric(10, 0.4)),
        ("symmetric-inclusive", None, noise.symmetric(10, 0.4, include_true=True)),
        ("pairflip", "npz:x.npz", noise.pairflip(10, 0.4)),
        ("asymmetric", "mnist", noise.asymmetric("mnist", 0.4)),
        ("asymmetric", "cifar10", noise.asymmetric("cifar10", 0.4)),
        ("asymmetric", "cifar100", noise.asymmetric("cifar100", 0.4)),
        ("asymmetric-published", "cifar100", noise.asymmetric("cifar100-published", 0.4)),
    ],
)
def test_noise_by_its_name_on_the_command_line(kind: str, dataset: str | None, expected: np.ndarray):
    np.testing.assert_array_equal(noise.transition_matrix(kind, 10, 0.4, dataset), expected)


@pytest.mark.parametrize(
    ("kind", "dataset"),
    [
        ("asymmetric", "fashion-mnist"),
        ("asymmetric", "cifar100-published"),
        ("asymmetric", None),
        ("asymmetric-published", "mnist"),
    ],
)
def test_pairs_exist_for_three_data_sets_only(kind: str, dataset: str | None):
    with pytest.raises(
        ValueError, match=rf"--noise\) {kind} exists for .*cifar100.* only, got the data set {dataset!r}"
    ):
        noise.transition_matrix(kind, 10, 0.4, dataset)


def test_unknown_names_are_listed():
    with pytest.raises(ValueError, match=r"--noise\) must be one of symmetric, .*clean, got 'symetric'"):
        noise.transition_matrix("symetric", 10, 0.4)
    with pytest.raises(ValueError, match=r"dataset must be one of mnist, .*got 'digits'"):
        noise.asymmetric("digits", 0.4)
    with pytest.raises(TypeError, match="dataset must be a str, got NoneType"):
        noise.asymmetric(None, 0.4)
    with pytest.raises(ValueError, match=r"--noise-rate\) must be 0 for clean labels, got 0.2"):
        noise.transition_matrix("clean", 10, 0.2)


def test_expected_rate_is_free_of_rounding():
    assert noise.expected_rate(noise.symmetric(10, 0.2), BALANCED) == 0.2
    assert noise.expected_rate(noise.asymmetric("cifar10", 0.4), BALANCED) == 0.2


def test_realised_rate_counts_rows():
    assert noise.realised_rate(np.array([0, 1, 2, 3]), np.array([0, 1, 3, 3])) == 0.25
    with pytest.raises(ValueError, match="noisy_labels must have the shape of clean_labels"):
        noise.realised_rate(np.zeros(3), np.zeros((3, 1)))


def test_a_matrix_from_a_file(tmp_path: Path):
    path = tmp_path / "matrix.npy"
    np.save(path, noise.pairflip(3, 0.25).astype(np.float32))
    np.testing.assert_array_equal(noise.read_transition(path, 3), noise.pairflip(3, 0.25))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.eye(4), r"shape \[3, 3\], got \[4, 4\]"),
        (np.eye(3) * 0.5, "rows that sum to 1"),
        (np.eye(3, dtype=bool), "floats, got bool"),
        (np.array([[1, None]], object), "Python objects"),
        (b"rubbish", "Python objects"),
        (b"", "no data|No data|EOF"),
        (None, "does not exist"),
    ],
    ids=["classes", "sums", "type", "objects", "rubbish", "empty", "absent"],
)
def test_a_file_that_holds_no_matrix_is_named(tmp_path: Path, content: object, message: str):
    path = tmp_path / "matrix.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.save(path, content, allow_pickle=True)
    with pytest.raises(DataError, match=rf"matrix\.npy.*({message})"):
        noise.read_transition(path, 3)
