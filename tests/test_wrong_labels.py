"""The audit of a history: what it ranks, counts and suggests, and what it never looks at."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import f1_score, roc_auc_score

import jocor_fast as jf
from engine_cases import blobs, fit, settings, small_tanh
from jocor_fast.diagnosis.wrong_labels import WRONG, audit_history
from jocor_fast.engine.history import SampleStatistics
from jocor_fast.errors import RunError


def a_history(
    transition: np.ndarray, samples: int = 4000, *, networks: int = 2, seed: int = 0
) -> tuple[SampleStatistics, np.ndarray]:
    """What networks that are right on 95 % of the samples, and sure of most, leave behind; and the true labels."""
    generator = np.random.default_rng(seed)
    classes = len(transition)
    true = generator.integers(classes, size=samples)
    labels = jf.noise.corrupt(true, transition, seed=seed)
    prediction = np.where(generator.random((networks, samples)) < 0.95, true, generator.integers(classes, size=samples))
    certainty = generator.beta(200, 1, size=(networks, samples))
    probability = np.where(prediction == labels, certainty, 1 - certainty)
    everything = np.full(samples, 20)
    return SampleStatistics(labels, everything, everything // 2, np.ones(samples), probability, prediction), true


PAIRS = np.eye(5)
PAIRS[1, 1], PAIRS[1, 2] = 0.6, 0.4
PAIRS[3, 3], PAIRS[3, 0] = 0.6, 0.4


@pytest.mark.parametrize("networks", [1, 2])
@pytest.mark.parametrize("transition", [jf.noise.symmetric(5, 0.2), jf.noise.symmetric(5, 0.5), PAIRS])
def test_wrong_labels_their_share_and_the_matrix_are_found(transition: np.ndarray, networks: int) -> None:
    history, true = a_history(transition, networks=networks)
    found, wrong = audit_history(history), history.labels != true
    assert roc_auc_score(wrong, found.score) > 0.97
    assert f1_score(wrong, found.wrong) > 0.85
    low, high = found.share_range
    assert low <= wrong.mean() <= high
    assert found.share == pytest.approx(wrong.mean(), abs=0.02 if networks == 2 else 0.04)
    np.testing.assert_allclose(found.noise_matrix, transition, atol=0.06)
    np.testing.assert_allclose(found.noise_matrix.sum(axis=1), 1)
    assert (found.suggested[found.wrong & wrong] == true[found.wrong & wrong]).mean() > 0.95
    assert (found.suggested[~found.wrong] == found.given[~found.wrong]).all()


@pytest.mark.parametrize("networks", [1, 2])
def test_scores_and_range_are_those_of_the_formula_at_the_head_of_the_file(networks: int) -> None:
    """Sample by sample, by witnesses that count for h = 1 where there is one network, for 1.5 where there are two."""
    history, _ = a_history(jf.noise.symmetric(5, 0.4), samples=500, networks=networks)
    found = audit_history(history)
    labels = history.labels.tolist()
    matrix = np.zeros((5, 5))
    for row in history.prediction.tolist():
        for taken_for, label in zip(row, labels, strict=True):
            matrix[taken_for, label] += 1
    matrix /= matrix.sum(axis=1, keepdims=True)

    def score(sample: int, witnesses: float) -> float:
        label, says = labels[sample], [int(row[sample]) for row in history.prediction]
        against = [(float(p[sample]), a) for p, a in zip(history.probability, says, strict=True) if a != label]
        likeliest = max((other for other in range(5) if other != label), key=lambda other: matrix[other, label])
        other = min(against)[1] if against else likeliest  # of two contradictions that of the surer network
        q = 0.01 + 0.98 * float(np.mean([p[sample] for p in history.probability]))
        odds = ((1 - q) / q) ** witnesses * matrix[other, label] / matrix[label, label]
        return odds / (1 + odds) if against else min(odds / (1 + odds), 0.5)

    h = {1: 1.0, 2: 1.5}[networks]
    np.testing.assert_allclose(found.score, [score(sample, h) for sample in range(500)], rtol=1e-9)
    fewer = np.mean([score(sample, h - 0.5) > 0.5 for sample in range(500)])
    contradicted = (history.prediction != history.labels).any(axis=0).mean()
    margin = 2 * math.sqrt(found.share * (1 - found.share) / 500)
    bounds = (found.share, fewer, contradicted)
    assert found.share_range == pytest.approx((min(bounds) - margin, max(bounds) + margin))


def test_the_range_of_the_share_ends_at_none_and_at_all() -> None:
    """One label of twenty is wrong, give or take two; and one network or the other contradicts every label."""
    history, _ = a_history(np.eye(5), samples=20)
    history.prediction[0], history.prediction[1], history.probability[:] = history.labels, (history.labels + 1) % 5, 0.9
    history.prediction[0, 0], history.probability[:, 0] = history.prediction[1, 0], 0.001
    found = audit_history(history)
    assert found.share == 1 / 20
    assert found.share_range == (0.0, 1.0)


def test_a_label_that_no_network_contradicts_is_not_taken_for_wrong_however_unsure_they_are() -> None:
    """Such are networks after a few epochs on a hard task: of ten classes they give each a tenth."""
    history, _ = a_history(jf.noise.symmetric(10, 0.4))
    history.probability[:] = 0.1
    found = audit_history(history)
    contradicted = (history.prediction != history.labels).any(axis=0)
    assert (found.score[contradicted] > 0.5).any()
    assert not found.wrong[~contradicted].any()
    assert found.share <= found.share_range[1] <= contradicted.mean() + 0.02


def test_the_ranking_is_by_score_and_equal_scores_stay_in_order() -> None:
    history, _ = a_history(jf.noise.symmetric(5, 0.4))
    found = audit_history(history)
    assert sorted(found.ranking) == list(range(4000))
    ranked = found.score[found.ranking]
    assert (np.diff(ranked) <= 0).all()
    assert (np.diff(found.ranking)[np.diff(ranked) == 0] > 0).all()


def test_a_hard_sample_ranks_below_one_of_a_pair_that_is_often_taken_for_each_other() -> None:
    history, _ = a_history(PAIRS)
    labels, prediction, probability = history.labels, history.prediction, history.probability
    for sample, label in ((0, 2), (1, 4)):  # both networks say 1, with equal certainty; 1 is often labelled 2, never 4
        labels[sample], prediction[:, sample], probability[:, sample] = label, 1, 0.03
    found = audit_history(history)
    assert found.score[0] > 0.95
    assert found.suggested[0] == 1
    assert found.score[1] < 0.7


def test_a_sample_that_no_step_has_seen_is_not_suspicious() -> None:
    history, _ = a_history(jf.noise.symmetric(5, 0.4))
    history.seen[:2000], history.prediction[:, :2000], history.probability[:, :2000] = 0, -1, np.nan
    found = audit_history(history)
    assert not found.wrong[:2000].any()
    assert (found.score[:2000] == 0).all()
    assert found.share == pytest.approx(0.4, abs=0.03)  # of those that were seen
    nobody = audit_history(SampleStatistics(history.labels[:5], *(part[..., :5] for part in (
        history.seen, history.selected, history.loss, history.probability, history.prediction))))  # fmt: skip
    assert nobody.share == 0.0
    assert (nobody.noise_matrix == np.eye(len(nobody.noise_matrix))).all()


def test_clean_labels_and_classes_that_never_occur_are_fine() -> None:
    history, true = a_history(np.eye(5))
    history.prediction[:] = true
    found = audit_history(history, num_classes=7)
    assert found.share == 0.0
    assert (found.noise_matrix == np.eye(7)).all()


def test_a_label_of_the_only_class_is_not_suspicious_however_unsure_the_networks_are() -> None:
    history, _ = a_history(np.eye(1), samples=50)
    history.probability[:] = 0.001
    found = audit_history(history)
    assert (found.score == 0).all()
    assert found.share_range == (0.0, 0.0)
    assert found.noise_matrix.tolist() == [[1.0]]


def test_a_run_and_its_folder_have_the_same_audit_and_clean_labels_play_no_part(tmp_path: Path) -> None:
    data = blobs(400, noise=0.4)
    run = fit(settings(epochs=12), small_tanh, data, output=tmp_path / "run")
    in_memory, of_folder = jf.audit(run), jf.audit(tmp_path / "run")
    without_truth = jf.audit(fit(settings(epochs=12), small_tanh, type(data)(data.inputs, data.labels)))
    for other in (of_folder, without_truth):
        for name, value in vars(in_memory).items():
            np.testing.assert_array_equal(value, getattr(other, name), err_msg=name)
    assert data.clean_labels is not None
    wrong = (data.labels != data.clean_labels).numpy()
    assert roc_auc_score(wrong, in_memory.score) > 0.8


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"^run must be what jocor_fast.train returned or the folder of a run, got int"):
        jf.audit(3)  # type: ignore[arg-type]
    with pytest.raises(RunError, match=r"holds no whole checkpoint.pt"):
        jf.audit(tmp_path)
    (tmp_path / "checkpoint.pt").mkdir()  # as good as one without permission to read it, which root always has
    with pytest.raises(RunError, match=r"^RUN: .*checkpoint.pt cannot be read \(Is a directory\)"):
        jf.audit(tmp_path)


def test_the_labels_of_a_class_that_training_has_left_out_are_not_taken_for_wrong() -> None:
    """Networks that do not know a rare class contradict all of its labels; the same where they were trained on it."""
    history, true = a_history(jf.noise.symmetric(5, 0.1))
    rare = (true == 4) & (np.arange(len(true)) % 20 > 0)
    kept = [part[..., ~rare] for part in (history.labels, history.seen, history.selected, history.loss)]
    prediction, probability = history.prediction[:, ~rare], history.probability[:, ~rare]
    given = kept[0] == 4
    prediction[:, given], probability[:, given] = 3, 0.01
    kept[2] = np.where(given, 0, kept[2])
    found = audit_history(SampleStatistics(*kept, probability, prediction))
    assert not found.wrong[given].any()
    assert (found.score[given] == WRONG).any()  # they are suspicious nevertheless
    assert found.wrong[~given].mean() == pytest.approx(0.1, abs=0.02)
    kept[2] = kept[1] // 2
    assert audit_history(SampleStatistics(*kept, probability, prediction)).wrong[given].all()
