"""jf.audit_features: wrong labels found from features."""

from __future__ import annotations

import csv
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import jocor_fast as jf
from jocor_fast.diagnosis import feature_audit, feature_heads
from jocor_fast.diagnosis.feature_audit import calibrated
from jocor_fast.diagnosis.feature_heads import FOLDS, MOST_COLUMNS, Rows, seconds_needed

CLASSES = 4


def clusters(count: int = 800, width: int = 10, *, rate: float = 0.2, apart: float = 4.0, seed: int = 0):
    """Features [count, width] of four clusters, true labels, and given ones of which a share is wrong."""
    generator = np.random.default_rng(seed)
    true = np.arange(count) % CLASSES
    features = (generator.normal(size=(count, width)) + apart * np.eye(CLASSES, width)[true]).astype(np.float32)
    given = jf.noise.corrupt(true, jf.noise.symmetric(CLASSES, rate), seed=seed)
    return features, true, given


@pytest.fixture(scope="module")
def audited():
    features, true, given = clusters()
    return features, true, given, jf.audit_features(features, given)


def test_wrong_labels_are_found_and_right_ones_suggested(audited):
    _, true, given, found = audited
    wrong = given != true
    assert found.wrong[wrong].mean() > 0.95
    assert wrong[found.wrong].mean() > 0.85
    assert (found.suggested == true).mean() > 0.96
    assert wrong[found.ranking[: wrong.sum()]].mean() > 0.95
    np.testing.assert_array_equal(found.suggested[~found.wrong], given[~found.wrong])


def test_the_share_is_the_mean_score_and_lies_in_its_range(audited):
    _, true, given, found = audited
    rate = (given != true).mean()
    assert found.share == pytest.approx(found.score.mean(), abs=1e-6)
    assert found.share == pytest.approx(rate, abs=0.05)
    low, high = found.share_range
    assert low < rate < high


def test_a_known_share_is_kept(audited):
    features, _, given, _ = audited
    found = jf.audit_features(features, given, forget_rate=0.1)
    assert found.share == 0.1
    assert found.score.mean() == pytest.approx(0.1, abs=1e-6)
    assert found.selected.sum() < 0.97 * found.seen.sum()


def test_random_labels_are_predicted_by_chance():
    # Networks that had seen the labels of the rows that they judge would know many of them.
    features, _, _ = clusters(count=600, width=100)
    given = np.random.default_rng(1).integers(CLASSES, size=600)
    with pytest.warns(UserWarning, match="the features hardly tell the classes apart"):
        found = jf.audit_features(features, given)
    assert (found.prediction == given).mean() < 1 / CLASSES + 0.08


def test_strings_are_numbered_in_sorted_order(audited):
    features, _, given, found = audited
    named = jf.audit_features(features, np.array(["ant", "bee", "cat", "dog"])[given])
    assert named.classes == ("ant", "bee", "cat", "dog")
    np.testing.assert_array_equal(named.score, found.score)
    assert found.classes is None


def test_half_precision_and_mapped_files_give_the_same(tmp_path: Path, audited):
    features, _, given, _ = audited
    half = features.astype(np.float16)
    np.save(tmp_path / "features.npy", half)
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    expected = jf.audit_features(half.astype(np.float32), given).score
    for same in (half, mapped, torch.from_numpy(half)):
        np.testing.assert_array_equal(jf.audit_features(same, given).score, expected)


@pytest.mark.filterwarnings("error")
def test_arrays_that_torch_cannot_take_as_they_are_give_the_same(tmp_path: Path, audited):
    features, _, given, found = audited
    np.save(tmp_path / "x.npy", features)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    turned = np.ascontiguousarray(features[::-1])[::-1]
    for same in (mapped, turned):
        rows = Rows(same, torch.device("cpu"))
        torch.testing.assert_close(rows.take(slice(0, 9)), Rows(features, torch.device("cpu")).take(slice(0, 9)))
    np.testing.assert_array_equal(jf.audit_features(turned, given).score, found.score)


def test_another_seed_deals_other_folds(audited):
    features, _, given, found = audited
    np.testing.assert_array_equal(jf.audit_features(features, given).score, found.score)
    assert not np.array_equal(jf.audit_features(features, given, seed=1).score, found.score)


def test_copies_of_rows_and_classes_of_one_or_two_rows_are_judged():
    features, true, given = clusters(count=200)
    features, true, given = np.tile(features, (3, 1)), np.tile(true, 3), np.tile(given, 3)
    given[:2], given[2] = CLASSES, CLASSES + 1
    found = jf.audit_features(features, given, num_classes=CLASSES + 3)
    assert np.isfinite(found.score).all()
    assert found.noise_matrix.shape == (CLASSES + 3, CLASSES + 3)
    assert found.wrong[:3].all()
    np.testing.assert_array_equal(found.suggested[:3], true[:3])


def test_pairs_of_classes_that_are_mixed_up_are_ranked_above_hard_samples():
    # Half of class 0 is labelled 1: the networks are not sure of its class.
    features, true, _ = clusters(count=1200, apart=3.0)
    given = jf.noise.corrupt(true, np.array([[0.6, 0.4, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]]), seed=0)
    found, wrong = jf.audit_features(features, given), given != true
    assert wrong[found.ranking[: wrong.sum()]].mean() > 0.8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x * np.where(np.arange(len(x)) == 7, np.nan, 1)[:, None], y), "finite, got nan in row 7"),
        (
            lambda x, y: (np.where(x == x[5, 0], 1e300, x.astype(float)), y),
            "features must fit in float32, got 1e[+]300 in row 5",
        ),
        (lambda x, y: (x * 0, y), "features must have a column that is not constant"),
        (lambda x, y: (x[:, 0], y), "features must have shape"),
        (lambda x, y: (x[:9], y[:9]), "N ≥ 10"),
        (lambda x, y: (x.astype(str), y), "features must be numbers"),
        (lambda x, y: (x, y[:-1]), "labels must be as many as the rows of features, 800, got 799"),
        (lambda x, y: (x, y * 0), "labels must be of two classes"),
        (lambda x, y: (x, np.arange(800)), "labels must be of at most 266 classes, a third of the rows, got 800"),
        (lambda x, y: (x * np.float32(1e-41), y), "features must have a column that is not constant"),
        (
            lambda x, y: (np.where(x == x[5, 0], -3e38, np.where(x == x[6, 0], 3e38, x * 1e36)), y),
            "features must fit in float32, got",
        ),
    ],
)
def test_unusable_input_is_refused(change, message, audited):
    features, _, given, _ = audited
    with pytest.raises((TypeError, ValueError), match=message):
        jf.audit_features(*change(features, given))


@pytest.mark.parametrize(
    "options",
    [{"forget_rate": 1.0}, {"forget_rate": "half"}, {"epochs": 0}, {"num_classes": 2}, {"seed": -1}, {"device": "gpu"}],
)
def test_arguments_out_of_range_are_refused(options, audited):
    features, _, given, _ = audited
    with pytest.raises(
        (TypeError, ValueError), match=r"forget_rate|epochs|seed|device must be auto|labels must lie in 0 … 1"
    ):
        jf.audit_features(features, given, **options)


def test_an_output_that_is_a_file_is_refused_first(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        jf.audit_features("no features", [], output=tmp_path / "file")


def test_columns_share_a_scale_unless_their_units_differ():
    generator = np.random.default_rng(0)
    alike = generator.normal(size=(500, 3)) * [1, 2, 5] + 100
    scaled = Rows(alike, torch.device("cpu")).take(slice(None)).numpy()
    np.testing.assert_allclose(scaled.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(scaled.std(0) / scaled.std(0)[0], alike.std(0) / alike.std(0)[0], rtol=1e-4)
    assert (scaled**2).mean() == pytest.approx(1, rel=1e-4)
    units = np.column_stack([alike[:, 0], 1e4 * alike[:, 1], np.full(500, 7.0)])
    scaled = Rows(units, torch.device("cpu")).take(slice(None)).numpy()
    np.testing.assert_allclose(scaled.std(0), [1, 1, 0], atol=1e-4)


def test_an_epoch_takes_each_row_once_but_for_the_last_few():
    rows = Rows(np.random.default_rng(0).normal(size=(1000, 2)), torch.device("cpu"))
    fold = np.random.default_rng(0).permutation(np.arange(1000) % FOLDS)
    batches = list(rows.batches(fold, 12, np.random.default_rng(0)))
    taken = np.concatenate(batches)
    assert len(batches) == 1000 // FOLDS // 12
    assert len(np.unique(taken)) == len(taken) == 12 * FOLDS * len(batches)
    for batch in batches:
        np.testing.assert_array_equal(fold[batch], np.repeat(np.arange(FOLDS), 12))


def test_the_time_that_is_announced_grows_with_the_rows():
    short, long = (seconds_needed(count, 64, CLASSES, torch.device("cpu")) for count in (5_000, 1_000_000))
    assert long > 20 * short > 0


@pytest.mark.parametrize("rows", [[0], [7], [3, 5, 9, 11]])
@pytest.mark.parametrize("scales", [1.0, 10.0 ** np.arange(10)])
def test_rows_beside_which_all_others_are_alike_are_refused(rows: list[int], scales, audited):
    features, _, given, _ = audited
    broken = features.astype(np.float64) * scales
    broken[rows] = 1e25 * scales
    with pytest.raises(
        ValueError, match=rf"that make all others look alike, got numbers up to 1e\+(25|34) in row {rows[0]}"
    ):
        jf.audit_features(broken, given)


def test_a_far_row_and_rows_that_are_mostly_the_same_are_taken(audited):
    features, _, given, found = audited
    far = features.copy()
    far[7] = 100
    assert (jf.audit_features(far, given).wrong == found.wrong).mean() > 0.97
    few = np.where(np.arange(len(features))[:, None] % 4 == 0, features, 0)
    with pytest.warns(UserWarning, match="the features hardly tell"):
        jf.audit_features(few, given)


def test_more_classes_than_a_matrix_of_them_can_hold_are_refused_first(audited):
    features, _, given, _ = audited
    with pytest.raises(ValueError, match="num_classes must be at most 50,000, got 1,000,000"):
        jf.audit_features(features, given, num_classes=10**6)


@pytest.mark.parametrize("most", [0, 2048])
def test_the_first_components_keep_nearly_all_the_variance_that_they_can(most: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(feature_heads, "MOST_COVARIANCE", most)
    generator = np.random.default_rng(0)
    features = generator.normal(size=(900, 400)) * np.arange(1, 401) ** -0.6
    features = features @ np.linalg.qr(generator.normal(size=(400, 400)))[0]
    centred = features - features.mean(0)
    reduced = Rows(features, torch.device("cpu")).take(slice(None)).numpy()
    kept = np.linalg.qr(reduced)[0].T @ centred
    values = np.linalg.svd(centred, compute_uv=False)
    assert np.square(kept).sum() > 0.995 * np.square(values[:MOST_COLUMNS]).sum()


def test_columns_that_are_many_more_than_the_rows_take_no_matrix_of_them(monkeypatch: pytest.MonkeyPatch):
    features = np.random.default_rng(0).normal(size=(60, 3000)).astype(np.float32)
    shapes = []
    scatter = Rows._scatter
    monkeypatch.setattr(Rows, "_scatter", lambda *call: shapes.append(scatter(*call).shape) or scatter(*call))
    assert Rows(features, torch.device("cpu")).take(slice(None)).isfinite().all()
    assert set(shapes) == {(3000, MOST_COLUMNS + feature_heads.SPARE_DIRECTIONS)}


def test_wide_features_are_judged_by_their_principal_components():
    features, _, given = clusters(width=300)
    rows = Rows(features, torch.device("cpu"))
    reduced = rows.take(np.arange(len(features)))
    assert reduced.shape == (800, MOST_COLUMNS)
    assert reduced.square().mean() == pytest.approx(1, rel=1e-3)
    scaled = torch.from_numpy(features - features.mean(0)) / features.std(0).max()
    distances, expected = torch.pdist(reduced[:50]), torch.pdist(scaled[:50])
    assert np.corrcoef(distances, expected)[0, 1] > 0.99
    rolled = np.roll(features, 7, axis=1)
    np.testing.assert_allclose(
        jf.audit_features(rolled, given).share, jf.audit_features(features, given).share, atol=0.05
    )


def test_networks_that_are_too_sure_are_corrected():
    generator = np.random.default_rng(0)
    given = generator.integers(CLASSES, size=2000)
    log_probability = np.log(np.full((2000, CLASSES), 0.1) + 0.6 * np.eye(CLASSES)[given]).astype(np.float32)
    log_probability[:600] = np.roll(log_probability[:600], 1, axis=1)
    belief = calibrated(3 * log_probability, given)
    np.testing.assert_allclose(belief.max(1), 0.7, atol=0.05)
    np.testing.assert_allclose(belief.sum(1), 1, rtol=1e-5)


def test_classes_that_no_row_has_cost_nothing(audited):
    features, _, given, found = audited
    large = jf.audit_features(features, 5 * given + 7, num_classes=20_000)
    np.testing.assert_array_equal(large.score, found.score)
    np.testing.assert_array_equal(large.suggested, 5 * found.suggested + 7)
    np.testing.assert_array_equal(large.prediction, 5 * found.prediction + 7)
    assert large.noise_matrix.shape == (20_000, 20_000)
    np.testing.assert_array_equal(large.noise_matrix[7:27:5, 7:27:5], found.noise_matrix)
    assert large.noise_matrix[3, 3] == 1


def test_masked_values_are_refused(audited):
    features, _, given, _ = audited
    hidden = np.arange(len(given)) == 3
    with pytest.raises(ValueError, match="labels must have no masked values"):
        jf.audit_features(features, np.ma.masked_array(given, hidden))
    with pytest.raises(ValueError, match="features must have no masked values"):
        jf.audit_features(np.ma.masked_array(features, np.broadcast_to(hidden[:, None], features.shape)), given)
    shown = jf.audit_features(features, np.ma.masked_array(given, False))
    np.testing.assert_array_equal(shown.given, given)


def test_output_holds_the_files_of_the_command(tmp_path: Path):
    features, _, given = clusters(count=200)
    found = jf.audit_features(features, np.array(list("abcd"))[given], output=tmp_path / "audit")
    with open(tmp_path / "audit" / "suspicious.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["id"]) for row in rows] == found.ranking.tolist()
    assert rows[0]["given"] == "abcd"[given[found.ranking[0]]]
    report = json.loads((tmp_path / "audit" / "audit.json").read_text())
    assert (report["flagged"], report["classes"]) == (int(found.wrong.sum()), list("abcd"))
    assert {"audit.html", "corrected.csv", "noise-matrix.png"} <= {path.name for path in (tmp_path / "audit").iterdir()}


def test_little_speaks_against_the_label_of_a_rare_class_where_no_pair_was_seen() -> None:
    given = np.repeat([0, 1], [990, 10])
    belief = np.tile(np.float32([0.9, 0.1]), (1000, 1))
    half, rare = (feature_audit._log_odds(belief, labels, np.eye(2))[-1] for labels in (np.arange(1000) % 2, given))
    assert rare == pytest.approx(half + np.log(0.02 / 0.5), abs=0.05)


@pytest.fixture(scope="module")
def rare():
    """Features of four clusters that overlap, the last a sixtieth of the first; right labels but for a tenth."""
    generator, true = np.random.default_rng(0), np.repeat(range(CLASSES), (1200, 600, 300, 20))
    features = generator.normal(size=(len(true), 10)) + 2 * np.eye(CLASSES, 10)[true]
    return features, true, np.where(generator.random(len(true)) < 0.1, generator.permutation(true), true)


def test_right_labels_of_a_rare_class_are_not_called_wrong_for_its_rarity(rare) -> None:
    features, true, given = rare
    found = jf.audit_features(features, given)
    assert found.wrong[(given == 3) & (true == 3)].mean() < 0.1
    assert found.share == pytest.approx(found.score.mean(), abs=1e-6)


def test_a_rare_class_is_not_dropped_from_training_where_the_share_is_known(rare) -> None:
    features, _, given = rare
    found = jf.audit_features(features, given, forget_rate=0.3)
    assert found.selected[given == 3].sum() > 0.6 * found.seen[given == 3].sum()


@pytest.mark.parametrize("told", [False, True])
def test_features_that_do_not_tell_the_classes_apart_are_named(told: bool) -> None:
    features, _, given = clusters(rate=0.3)
    generator = np.random.default_rng(0)
    labels = generator.permutation(given) if told else given
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        jf.audit_features(features, labels)
    said = [str(warning.message) for warning in caught]
    assert [text.startswith("the features hardly tell the classes apart: networks") for text in said] == [True] * told


def test_a_rare_class_is_not_taken_for_noise_by_the_few_rows_that_are_predicted_to_be_of_it() -> None:
    given = np.repeat([0, 1, 2], [700, 280, 20])
    predicted = given.copy()
    predicted[980:] = 0
    predicted[[0, 1, 701, 980]] = 2
    estimate = feature_audit._Share.of(np.float32(0.05 + 0.85 * np.eye(3)[predicted]), given)
    assert estimate.transition[2, 2] > 0.8
    assert estimate.share < 0.1
