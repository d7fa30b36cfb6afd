"""What speaks against an audit, of plain numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jocor_fast.diagnosis.doubts import HeldOut, caveat, doubts
from jocor_fast.diagnosis.wrong_labels import Audit

SAMPLES, CLASSES = 1000, 10
NAMES = [f"class {number}" for number in range(CLASSES)]
GIVEN = np.arange(SAMPLES) % CLASSES


def an_audit(*, agreement: float = 0.8, seen: int = 30, suggested: np.ndarray | None = None) -> Audit:
    """Two networks that agree with a share of the labels; what they contradict, or `suggested` says, is wrong."""
    prediction = np.where(np.arange(SAMPLES) < agreement * SAMPLES, GIVEN, (GIVEN + 1) % CLASSES)
    suggested = prediction if suggested is None else suggested
    wrong, everywhere = suggested != GIVEN, np.full(SAMPLES, seen)
    return Audit(
        given=GIVEN,
        suggested=suggested,
        score=wrong.astype(float),
        wrong=wrong,
        ranking=np.argsort(~wrong, kind="stable"),
        share=float(wrong.mean()),
        share_range=(0.0, 1.0),
        noise_matrix=np.eye(CLASSES),
        prediction=np.stack([prediction, prediction]),
        selected=everywhere,
        seen=everywhere,
    )


@pytest.mark.parametrize("few", [True, False], ids=["rare class", "large class"])
def test_rare_classes_that_training_has_left_out_are_named(few: bool) -> None:
    given = GIVEN.copy()
    if few:
        given[np.flatnonzero(GIVEN == 3)[SAMPLES // CLASSES // 4 :]] = 0
    left_out = given == 3
    found = an_audit()
    unknown = replace(
        found,
        given=given,
        selected=np.where(left_out, 9, found.selected),
        prediction=np.tile(np.where(left_out, 4, given), (2, 1)),
        suggested=given,
    )
    sentence = "has hardly trained on what is labelled class 3, and does not judge these labels"
    assert [said for said in doubts(unknown, None, NAMES) if said.startswith("has hardly")] == [
        f"{sentence}: a run with a selection per class does"
    ] * few


def measured(accuracy: float, name: str = "test") -> HeldOut:
    return HeldOut(name, accuracy, GIVEN)


@pytest.mark.parametrize("held_out", [None, measured(0.95), measured(0.75, "held-out")])
def test_nothing_is_said_of_a_good_run(held_out: HeldOut | None) -> None:
    assert doubts(an_audit(), held_out, NAMES) == []


def test_few_steps_are_not_much_to_judge_by() -> None:
    assert doubts(an_audit(seen=9), None, NAMES) == ["has seen each sample 9 times only: not much to judge by"]
    assert doubts(an_audit(seen=10), None, NAMES) == []


@pytest.mark.parametrize(("agreement", "learnt"), [(0.12, False), (0.14, True)])  # of 0.1 by chance, ± 0.0095
def test_networks_that_have_learnt_nothing_are_named(agreement: float, learnt: bool) -> None:
    found = doubts(an_audit(agreement=agreement, suggested=GIVEN), None, NAMES)
    said = (
        f"has networks that predict {100 * agreement:.2f} % of the labels, where always the most frequent one would be "
        "10.00 %: they have learnt nothing to judge by"
    )
    assert found == ([] if learnt else [said])


@pytest.mark.parametrize("name", ["test", "held-out"])
@pytest.mark.parametrize(("accuracy", "agreement", "memorised"), [(0.1, 0.5, True), (0.2, 0.9, False)])
def test_networks_that_know_only_the_labels_they_were_trained_on_are_named(
    name: str, accuracy: float, agreement: float, memorised: bool
) -> None:
    found = doubts(an_audit(agreement=agreement), measured(accuracy, name), NAMES)
    assert any("the networks have memorised the labels" in sentence for sentence in found) is memorised
    assert not memorised or f"but 10.00 % of the {name} labels" in found[0]


def test_so_few_held_out_samples_that_chance_decides_are_no_evidence() -> None:
    """Of ten, one is right: networks that are right on half of them would be so once in a hundred times."""
    few = HeldOut("held-out", 0.1, GIVEN[:10])
    assert doubts(an_audit(agreement=0.35), few, NAMES) == []
    assert doubts(an_audit(agreement=0.75), few, NAMES) != []


@pytest.mark.parametrize(
    ("accuracy", "agreement", "noted"),
    [
        (0.5, 0.55, "0.00 %"),  # of 0.45 that are contradicted, 0.5 would be by mistake
        (0.6, 0.5, None),  # the labels are worse than those of test data, so some are wrong
        (0.8, 0.85, None),  # they err rarely
    ],
)
def test_networks_whose_own_errors_may_explain_what_was_found_are_noted(
    accuracy: float, agreement: float, noted: str | None
) -> None:
    note = caveat(an_audit(agreement=agreement), measured(accuracy, "test"))
    assert (note is None) if noted is None else note is not None and f"as few as {noted} of the labels" in note
    assert caveat(an_audit(agreement=agreement), measured(accuracy, "held-out")) is None  # whose labels may be wrong


def test_classes_that_would_lose_nearly_all_their_labels_are_named() -> None:
    rare = GIVEN.copy()
    rare[(GIVEN == 3) & (np.arange(SAMPLES) > 90)] = 4
    (sentence,) = doubts(an_audit(suggested=rare), None, NAMES)
    assert sentence.startswith("would label hardly any sample class 3, as where networks have not learnt")
    (sentence,) = doubts(an_audit(suggested=np.zeros_like(GIVEN)), None, NAMES)
    assert "any sample class 1, class 2, class 3, class 4, class 5 and 4 more, as" in sentence
