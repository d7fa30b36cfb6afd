"""Case 29: labels of any shape and type as class numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import jocor_fast as jf
from jocor_fast.data.classes import class_numbers, label_values, number_classes


def test_labels_without_a_table_are_left_alone():
    labels = np.array([0, 1, 2, 1])
    (numbered,), table = number_classes(labels)
    assert (numbered.tolist(), table) == ([0, 1, 2, 1], None)


@given(st.lists(st.lists(st.integers(-50, 50) | st.just(2**62)), min_size=1, max_size=3))
def test_numbers_and_table_lead_back_to_the_labels(sets: list[list[int]]):
    numbered, table = number_classes(*sets)
    everything = sorted({label for labels in sets for label in labels})
    assert table == (None if everything == list(range(len(everything))) else tuple(map(str, everything)))
    for labels, numbers in zip(sets, numbered, strict=True):
        assert [everything[number] for number in numbers] == labels


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1))
def test_strings_are_numbered_in_sorted_order(labels: list[str]):
    (numbered,), table = number_classes(labels)
    assert table == tuple(sorted(set(labels)))
    assert [table[number] for number in numbered] == labels
    assert class_numbers(labels, len(table), label_table=table).tolist() == numbered.tolist()


def test_a_class_that_is_known_may_be_absent():
    assert class_numbers([0, 5, 2], 10).tolist() == [0, 5, 2]
    assert class_numbers([], 10).tolist() == []


def test_objects_that_are_all_strings_or_all_numbers_are_taken():
    assert label_values(np.array(["b", "a"], object)).tolist() == ["b", "a"]
    assert label_values(np.array([1, np.int8(2)], object)).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("labels", "error"),
    [
        ([0.5], ValueError),
        ([math.nan], ValueError),
        ([-math.inf], ValueError),
        ([2**63], ValueError),
        ([2**64], ValueError),
        ([-(2**63) - 1], ValueError),
        ([b"\xff"], ValueError),
        ([[1, 2]], ValueError),
        ([True], TypeError),
        ([1, None], TypeError),
        (["a", None], TypeError),
        ([1j], TypeError),
        (np.array([True, 1], object), TypeError),
        (np.array([1.5, "a"], object), TypeError),
        (torch.tensor([True]), TypeError),
    ],
    ids=repr,
)
def test_what_is_no_label_is_named(labels: object, error: type[Exception]):
    with pytest.raises(error, match=r"^val_labels must .*got"):
        label_values(labels, "val_labels")


@pytest.mark.parametrize(
    "value",
    [b"abc", "abc", {1, 2}, iter([1, 2]), (n for n in (1, 2)), None, {0: 1}, 3],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_array_is_named_with_its_type(value: object):
    got = f"must be an array, a tensor or a list, got {type(value).__name__}$"
    one = torch.nn.Linear(1, 2)
    for name, call in {
        "labels": lambda: jf.noise.corrupt(value, np.eye(2), seed=0),
        "transition": lambda: jf.noise.corrupt([0], value, seed=0),
        "train_data: labels": lambda: jf.train((one, one), ([[0.0]], value), forget_rate=0.0),
        "train_data: inputs": lambda: jf.train((one, one), (value, [0]), forget_rate=0.0),
        "clean_labels": lambda: jf.train((one, one), ([[0.0]], [0]), clean_labels=value, forget_rate=0.0),
    }.items():
        if name != "clean_labels" or value is not None:  # which says that there are none
            with pytest.raises(TypeError, match=f"^{name} {got}"):
                call()
    zeros = torch.zeros(2, 2)
    with pytest.raises(TypeError, match=f"^target must be a tensor, got {type(value).__name__}$"):
        jf.jocor_loss(zeros, zeros, value, forget_rate=0.0)  # type: ignore[arg-type]


def test_numbers_and_strings_do_not_mix():
    with pytest.raises(TypeError, match="labels must be all whole numbers or all strings, got both"):
        number_classes([0, 1], ["a"])
