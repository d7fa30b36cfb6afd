"""Case 34: the transition matrix as it is estimated from given probabilities."""

import numpy as np
import pytest

from jocor_fast import noise
from jocor_fast.noise.estimate import anchor_percentile, estimate_transition


def predictions(transition: np.ndarray, samples: int, seed: int = 0) -> np.ndarray:
    """What a perfect network trained on noisy labels predicts: p·T, with p near one class for most samples."""
    generator = np.random.default_rng(seed)
    classes = len(transition)
    sharp = generator.dirichlet(np.full(classes, 0.02), samples)
    return sharp @ transition


@pytest.mark.parametrize("percentile", [97.0, 100.0])
@pytest.mark.parametrize(
    "transition",
    [noise.symmetric(10, 0.5), noise.pairflip(10, 0.45), noise.asymmetric("mnist", 0.4), noise.symmetric(2, 0.0)],
    ids=["symmetric", "pair flip", "asymmetric", "clean"],
)
def test_clean_anchor_points_give_the_matrix(transition: np.ndarray, percentile: float) -> None:
    estimate = estimate_transition(predictions(transition, 5000), percentile)
    assert estimate.shape == transition.shape
    assert estimate.dtype == np.float64
    np.testing.assert_allclose(estimate, transition, atol=0.02)
    np.testing.assert_allclose(estimate.sum(axis=1), 1, rtol=1e-12)


def test_the_probabilities_are_not_written_to() -> None:
    probabilities = predictions(noise.symmetric(4, 0.3), 200)
    before = probabilities.copy()
    probabilities.flags.writeable = False
    estimate_transition(probabilities, 97.0)[...] = 0
    np.testing.assert_array_equal(probabilities, before)


def test_the_97th_percentile_is_no_quantile_of_97_and_passes_over_outliers() -> None:
    """Of 100 samples the anchor is the one that 3 exceed; those are outliers here, of another mixture."""
    probabilities = np.full((100, 2), 0.5)
    probabilities[:97, 0] = np.linspace(0.0, 0.8, 97)
    probabilities[97:, 0] = 1.0
    probabilities[:, 1] = 1 - probabilities[:, 0]
    np.testing.assert_allclose(estimate_transition(probabilities, 97.0)[0], [0.8, 0.2], atol=1e-12)
    np.testing.assert_allclose(estimate_transition(probabilities, 100.0)[0], [1.0, 0.0], atol=1e-12)


def test_of_equal_samples_the_first_is_the_anchor() -> None:
    probabilities = np.array([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3], [0.6, 0.3, 0.1]])
    np.testing.assert_allclose(estimate_transition(probabilities, 100.0)[0], [0.6, 0.1, 0.3])


@pytest.mark.parametrize(("classes", "percentile"), [(10, 97.0), (14, 97.0), (33, 97.0), (34, 100.0), (100, 100.0)])
def test_many_classes_take_the_arg_max(classes: int, percentile: float) -> None:
    assert anchor_percentile(classes) == percentile


@pytest.mark.parametrize("probabilities", [np.ones(3), np.ones((0, 3)), np.full((2, 2), np.nan)])
def test_what_is_no_matrix_of_probabilities_is_refused(probabilities: np.ndarray) -> None:
    with pytest.raises(ValueError, match="probabilities must be"):
        estimate_transition(probabilities, 97.0)


@pytest.mark.parametrize("percentile", [-1, 101, float("nan")])
def test_a_percentile_out_of_range_is_refused(percentile: float) -> None:
    with pytest.raises(ValueError, match="percentile must lie"):
        estimate_transition(np.ones((2, 1)), percentile)
