"""Noise: what is accepted for rates, labels, seeds, matrices, names and files, and the sentence for what is not."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from jocor_fast import noise
from jocor_fast.errors import DataError


@pytest.mark.parametrize("rate", [-0.1, -1e-300, 1, 1.0, 1.5, 10**400, math.nan, math.inf, np.float32("nan")])
def test_case_27_a_rate_outside_its_range_is_named(rate: float):
    for call in (
        lambda: noise.symmetric(10, rate),
        lambda: noise.symmetric(10, rate, include_true=True),
        lambda: noise.pairflip(10, rate),
        lambda: noise.asymmetric("mnist", rate),
        *(lambda kind=kind: noise.transition_matrix(kind, 10, rate, "mnist") for kind in noise.NOISE_KINDS[:4]),
        lambda: noise.transition_matrix("clean", 10, rate),
    ):
        with pytest.raises(ValueError, match=r"^rate must .* got"):
            call()


@pytest.mark.parametrize("rate", [True, np.False_, "0.5", None, [0.5], 0.5j])
def test_a_rate_that_is_no_number_is_a_type_error(rate: object):
    for call in (
        lambda: noise.symmetric(10, rate),
        lambda: noise.pairflip(10, rate),
        lambda: noise.asymmetric("mnist", rate),
    ):
        with pytest.raises(TypeError, match=r"^rate must be a float"):
            call()


def test_numbers_of_other_types_are_numbers():
    expected = noise.symmetric(10, 0.5)
    for rate in (np.float64(0.5), np.float16(0.5), Fraction(1, 2)):
        np.testing.assert_array_equal(noise.symmetric(np.int8(10), rate), expected)


@pytest.mark.parametrize(
    ("num_classes", "rate", "error"),
    [
        *((number, 0.1, ValueError) for number in (1, 0, -3, 2**20 + 1, 2**63, 10**400)),
        (0, 0.0, ValueError),
        (True, 0, TypeError),
        (10.0, 0.1, TypeError),
    ],
    ids=lambda value: f"{value!s:.21}",
)
def test_a_number_of_classes_that_cannot_be_is_named(num_classes: object, rate: float, error: type[Exception]):
    for matrix in (noise.symmetric, noise.pairflip):
        with pytest.raises(error, match=r"^num_classes must be"):
            matrix(num_classes, rate)


@pytest.mark.parametrize("switch", ["no", 0, None])
def test_whether_the_true_class_is_drawn_is_a_bool(switch: object):
    with pytest.raises(TypeError, match=r"^include_true must be a bool"):
        noise.symmetric(10, 0.5, include_true=switch)


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
        (0, TypeError),
        ([[0, 1]], ValueError),
        ([[0], [1, 2]], ValueError),
        (np.zeros((2, 1, 1), int), ValueError),
        ([True, False], TypeError),
        (["0", "1"], TypeError),
        ([b"0"], TypeError),
        ([0, None], TypeError),
        ([0j], TypeError),
        (np.array(["2020-01-01"], "M8[D]"), TypeError),
        ("012", TypeError),
        (None, TypeError),
        ({0: 1}, TypeError),
    ],
    ids=repr,
)
def test_what_is_no_label_is_named(labels: object, error: type[Exception]):
    with pytest.raises(error, match=r"^labels must .*got"):
        noise.corrupt(labels, noise.symmetric(3, 0.5), seed=0)
    with pytest.raises(error, match=r"^clean_labels must .*got"):
        noise.expected_rate(noise.symmetric(3, 0.5), labels)


@pytest.mark.parametrize(
    ("seed", "error"),
    [(-1, ValueError), (2**32, ValueError), (True, TypeError), (0.0, TypeError), (None, TypeError), ("0", TypeError)],
)
def test_a_seed_that_numpy_cannot_take_is_named(seed: object, error: type[Exception]):
    with pytest.raises(error, match=r"^seed must"):
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
        ([[math.nan, 1], [0, 1]], ValueError, "at least 0, got nan"),
        ([[math.inf, 1], [0, 1]], ValueError, "got inf in row 0"),
        ([["1", "0"], ["0", "1"]], TypeError, "floats"),
        ([[True, False], [False, True]], TypeError, "floats"),
        ([[1], [0, 1]], ValueError, "shape"),
        (None, TypeError, "array"),
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
    with pytest.raises(ValueError, match=r"shape \[3, 3\], .* got \[4, 4\]"):
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
    with pytest.raises(ValueError, match=rf"^kind must be .* for {dataset!r}, got {kind}, .*cifar100.* only$"):
        noise.transition_matrix(kind, 10, 0.4, dataset)


def test_unknown_names_are_listed():
    with pytest.raises(ValueError, match=r"^kind must be one of symmetric, .*clean, got 'symetric'"):
        noise.transition_matrix("symetric", 10, 0.4)
    with pytest.raises(ValueError, match=r"dataset must be one of mnist, .*got 'digits'"):
        noise.asymmetric("digits", 0.4)
    with pytest.raises(TypeError, match="dataset must be a str, got NoneType"):
        noise.asymmetric(None, 0.4)
    with pytest.raises(ValueError, match=r"^rate must be 0 for clean labels, got 0.2"):
        noise.transition_matrix("clean", 10, 0.2)


def test_a_matrix_from_a_file(tmp_path: Path):
    path = tmp_path / "matrix.npy"
    np.save(path, noise.pairflip(3, 0.25).astype(np.float32))
    np.testing.assert_array_equal(noise.read_transition(path, 3), noise.pairflip(3, 0.25))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.eye(4), r"shape \[3, 3\], .* got \[4, 4\]"),
        (np.eye(3) * 0.5, "rows that sum to 1"),
        (np.eye(3, dtype=bool), "floats, got bool"),
        (np.array([[1, None]], object), "floats, got object"),
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


@pytest.mark.parametrize("kind", ["symmetric", "symmetric-inclusive", "pairflip"])
def test_noise_on_one_class_is_refused_in_terms_of_the_data(kind: str) -> None:
    with pytest.raises(ValueError, match=r"^rate must be 0 for npz:a.npz, whose labels are .* one class, got 0\.4$"):
        noise.transition_matrix(kind, 1, 0.4, "npz:a.npz")
    assert noise.transition_matrix(kind, 1, 0.0, "npz:a.npz").tolist() == [[1.0]]
