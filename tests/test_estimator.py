"""`JoCoRClassifier` among scikit-learn's own: its checks, pipelines, cross-validation, and what cleanlab makes."""

from __future__ import annotations

import pickle
import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from torch import nn

import jocor_fast as jf
from children import python
from jocor_fast.data.catalogue import load_dataset
from jocor_fast.models.networks import mlp
from jocor_fast.noise import corrupt, symmetric

# Checks of scikit-learn that may be skipped, and why. None fails, and none is expected to.
NOT_RUN = {
    "check_array_api_input": "for estimators that compute in their caller's array library; this one computes in torch",
    "check_classifier_data_not_an_array": "needs pandas, for data frames",
}


def test_every_check_of_scikit_learn_that_applies_passes() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of data that the checks choose
        results = check_estimator(jf.JoCoRClassifier(epochs=30), on_fail=None, on_skip=None)
    assert {result["check_name"]: repr(result["exception"]) for result in results if result["status"] == "failed"} == {}
    assert {result["check_name"] for result in results if result["status"] != "passed"} <= set(NOT_RUN)
    assert len(results) > 40


SLOW = ("sklearn", "scipy.optimize", "matplotlib", "shtab", "tensorboard", "torchvision", "nvidia.dali")


def test_the_library_its_help_and_a_run_start_without_slow_imports() -> None:
    """Nor does a run import torch's compiler, which takes a second; torch.optim.Adam would."""
    code = (
        "import sys, jocor_fast.cli; jocor_fast.cli.build_parser(); "
        f"slow = set({SLOW}) & set(sys.modules); assert not slow, slow; "
        "import engine_cases; engine_cases.run(epochs=1); print('torch._dynamo' in sys.modules)"
    )
    done = python("-c", code, PATH="")
    assert done.stdout == "False\n", done.stderr
    assert "JoCoRClassifier" in jf.__all__
    with pytest.raises(AttributeError, match="has no attribute 'JoCorClassifier'"):
        _ = jf.JoCorClassifier


@pytest.mark.parametrize("module", ["losses", "forward_correction", "reference", "schedules", "methods"])
def test_the_losses_are_imported_without_the_trainer(module: str) -> None:
    trainer = {f"jocor_fast.{wing}" for wing in ("engine", "runs", "config", "report", "cli", "training", "models")}
    if module != "methods":  # which need the estimate of a noise matrix, and with it arrays of labels
        trainer |= {"jocor_fast.data", "jocor_fast.noise"}
    code = f"import sys, jocor_fast.{module}; print(sorted({trainer} & set(sys.modules)))"
    done = python("-c", code)
    assert done.stdout == "[]\n", done.stderr


def test_what_is_imported_late_is_there_as_any_other_name() -> None:
    code = (
        "import jocor_fast as jf; missing = set(jf.__all__) - set(dir(jf)); "
        "print(missing, jf.noise.symmetric(2, 0.5).tolist(), jf.train.__name__, jf.audit.__name__)"
    )
    done = python("-c", code)
    assert done.stdout == "set() [[0.5, 0.5], [0.5, 0.5]] train audit\n", done.stderr


@cache
def noisy_digits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """700 digits as features, their labels with 30 % of them wrong, and the true ones; as strings."""
    digits = load_dataset("digits")
    names = np.array([f"digit {number}" for number in range(10)])
    clean = digits.train.arrays()[1][:700]
    noisy = corrupt(clean, symmetric(10, 0.3), seed=0)
    return digits.train.arrays()[0][:700].reshape(700, 64), names[noisy], names[clean]


@cache
def held_out_probabilities() -> np.ndarray:
    """Of every noisy digit, by networks that were not trained on it."""
    X, noisy, _ = noisy_digits()
    model = make_pipeline(StandardScaler(), jf.JoCoRClassifier(0.3, epochs=40, random_state=0))
    probabilities: np.ndarray = cross_val_predict(model, X, noisy, cv=3, method="predict_proba")
    return probabilities


def test_in_a_pipeline_cross_validation_finds_the_true_labels() -> None:
    _, noisy, clean = noisy_digits()
    probabilities, classes = held_out_probabilities(), np.unique(noisy)
    assert probabilities.sum(axis=1) == pytest.approx(1)
    assert (noisy == clean).mean() < 0.73
    assert (classes[probabilities.argmax(axis=1)] == clean).mean() > 0.85


def test_cleanlab_finds_the_wrong_labels_with_its_probabilities() -> None:
    cleanlab = pytest.importorskip("cleanlab.filter", reason="cleanlab is not installed")
    _, noisy, clean = noisy_digits()
    numbers = np.unique(noisy, return_inverse=True)[1]
    suspicious = cleanlab.find_label_issues(numbers, held_out_probabilities())
    wrong = noisy != clean
    assert (suspicious & wrong).sum() > 0.8 * wrong.sum()
    assert (suspicious & wrong).sum() > 0.8 * suspicious.sum()


def blobs() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    y = generator.integers(0, 3, 90)
    return (3 * np.eye(3)[y] + generator.normal(size=(90, 3))).astype(np.float32), y


def test_a_ramp_that_the_epochs_never_climb_is_warned_of_where_fit_is_called() -> None:
    with pytest.warns(UserWarning, match="the ramp of 5 epochs is longer than the run of 4") as caught:
        jf.JoCoRClassifier(ramp_epochs=5, epochs=4).fit(*blobs())
    assert [warning.filename for warning in caught] == [__file__]


def test_fitting_is_jocor_training_with_the_parameters() -> None:
    X, y = blobs()
    fitted = jf.JoCoRClassifier(0.25, co_lambda=0.7, ramp_epochs=3, epochs=8, lr=0.01, random_state=4).fit(X, y)
    seed = int(np.random.RandomState(4).randint(2**31 - 1))
    run = jf.train(
        lambda: mlp(3, 3), (X, y), forget_rate=0.25, co_lambda=0.7, ramp_epochs=3, epochs=8, lr=0.01,
        batch_size=32, seed=seed, device="cpu",
    )  # fmt: skip
    for ours, theirs in zip(fitted.networks_, run.networks, strict=True):
        assert all(map(torch.equal, ours.state_dict().values(), theirs.state_dict().values()))
    mean = sum(network(torch.from_numpy(X)).double().softmax(1) for network in run.networks) / 2
    assert fitted.predict_proba(X) == pytest.approx(mean.detach().numpy(), abs=1e-12)
    assert (fitted.predict(X) == mean.argmax(1).numpy()).all()
    assert (fitted.n_iter_, len(fitted.metrics_)) == (8, 8)


def test_the_random_state_fixes_the_fit_and_a_copy_predicts_the_same() -> None:
    X, y = blobs()
    first = jf.JoCoRClassifier(epochs=3, random_state=0).fit(X, y)
    again, other = clone(first).fit(X, y), clone(first).set_params(random_state=1).fit(X, y)
    assert (first.predict_proba(X) == again.predict_proba(X)).all()
    assert (first.predict_proba(X) != other.predict_proba(X)).any()
    assert (pickle.loads(pickle.dumps(first)).predict_proba(X) == first.predict_proba(X)).all()


def test_parameters_are_searched_by_grid_search() -> None:
    X, y = blobs()
    search = GridSearchCV(jf.JoCoRClassifier(epochs=30, batch_size=8, random_state=0), {"lr": [1e-9, 0.01]}, cv=2).fit(
        X, y
    )
    assert search.best_params_ == {"lr": 0.01}
    assert search.best_score_ > 0.8


def test_networks_of_ones_own_and_images() -> None:
    generator = np.random.default_rng(0)
    images, y = generator.normal(size=(40, 1, 8, 8)), generator.integers(0, 2, 40)
    seen: list[Any] = []

    def build(shape: Any, classes: int) -> nn.Module:
        seen.append((tuple(shape), classes))
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Dropout(), nn.Linear(72, classes))

    fitted = jf.JoCoRClassifier(network=build, epochs=2, random_state=0).fit(images, y)
    assert seen == [((1, 8, 8), 2)] * 2
    assert (fitted.predict_proba(images) == fitted.predict_proba(images)).all(), "no dropout in prediction"
    assert jf.JoCoRClassifier(network="cnn", epochs=1).fit(images[:, 0], y).predict(images[:, 0]).shape == (40,)


@pytest.mark.parametrize(
    ("samples", "epochs", "expected"), [(64, 100, 50), (1437, 100, 10), (320, 100, 40), (64, 1, 0)]
)
def test_the_ramp_has_400_steps_where_the_epochs_allow(samples: int, epochs: int, expected: int) -> None:
    assert jf.JoCoRClassifier(epochs=epochs)._settings(samples).ramp_epochs == expected


@pytest.mark.parametrize(
    ("parameters", "error", "sentence"),
    [
        ({"forget_rate": 1.0}, ValueError, "forget_rate"),
        ({"epochs": 0}, ValueError, "epochs must be at least 1, got 0"),
        ({"ramp_epochs": -1}, ValueError, "ramp_epochs must be at least 0"),
        ({"method": "magic"}, ValueError, "method must be one of"),
        ({"network": "resnet17"}, ValueError, "network must be mlp, cnn or"),
        ({"network": None}, TypeError, "network must be a str, got NoneType"),
        (
            {"network": lambda shape, _: nn.Linear(*shape, 7)},
            ValueError,
            "outputs as there are classes, 3, got 7",
        ),
        (
            {"network": lambda shape, _: nn.Linear(*shape, 2)},
            ValueError,
            "outputs as there are classes, 3, got 2",
        ),
        ({"lr": 1e30, "network": "mlp", "epochs": 5}, RuntimeError, "training diverged in epoch"),
    ],
)
def test_a_wrong_parameter_is_named_when_fitting(
    parameters: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        jf.JoCoRClassifier(**parameters).fit(*blobs())
