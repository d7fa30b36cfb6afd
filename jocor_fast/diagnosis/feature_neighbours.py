"""What the nearest neighbours of a row are labelled."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from jocor_fast.diagnosis.feature_heads import Rows
from jocor_fast.machine import derived_seed

NEIGHBOURS = 50  # 10 as by themselves they vote best add less to what the networks say
MOST_REFERENCES = 50_000  # rows that neighbours are sought among: a million rows among themselves would take hours
MOST_DIRECTIONS = 128  # that neighbours are sought by: the principal ones
_SAMPLE = 20_000  # rows that the directions are computed from
QUERIES = 128  # at once: their products with all references are kept small next to the features


def neighbour_votes(rows: Rows, labels: np.ndarray, num_classes: int, seed: int) -> np.ndarray:
    """Return the labels of each row's 50 nearest neighbours (fewer where there are few rows), as shares.

    Near is what has a similar direction in the space of the first 128 principal components: of vectors of unit length
    the nearest has the largest product.

    Args:
        rows: the features of N rows.
        labels: int64 [N].

    Returns:
        float32 [N, C]; a row is not its own neighbour.
    """
    generator = np.random.default_rng(derived_seed(seed, 3))
    reference = np.sort(generator.permutation(len(rows))[:MOST_REFERENCES])
    directions = _principal_directions(rows, reference[:: max(1, len(reference) // _SAMPLE)])
    known = torch.cat(
        [_directed(rows.take(part), directions) for part in np.array_split(reference, _pieces(reference))]
    )
    own = np.full(len(rows), -1, np.int64)
    own[reference] = np.arange(len(reference))
    reference_labels = torch.from_numpy(labels[reference]).to(rows.device)
    count = min(NEIGHBOURS, max(1, len(rows) // (4 * num_classes)), len(reference) - 1)
    votes = np.zeros((len(rows), num_classes), np.float32)
    for piece, inputs in rows.chunks():
        for start in range(0, len(inputs), QUERIES):
            similarity = _directed(inputs[start : start + QUERIES], directions) @ known.T
            here = slice(piece.start + start, piece.start + start + len(similarity))
            place = torch.from_numpy(own[here]).to(rows.device)
            in_reference = torch.nonzero(place >= 0)[:, 0]
            similarity[in_reference, place[in_reference]] = -torch.inf
            nearest = reference_labels[similarity.topk(count, sorted=False).indices]
            votes[here] = functional.one_hot(nearest, num_classes).float().mean(1).cpu().numpy()
    return votes


def _principal_directions(rows: Rows, sample: np.ndarray) -> Tensor | None:
    """The first principal components, float32 [D, 128]; None where there are no more columns than that."""
    if rows.width <= MOST_DIRECTIONS:
        return None
    pieces = np.array_split(sample, _pieces(sample))
    covariance = sum((part.T @ part for part in map(rows.take, pieces)), torch.zeros((), device=rows.device))
    return torch.linalg.eigh(covariance).eigenvectors[:, -MOST_DIRECTIONS:]


def _directed(inputs: Tensor, directions: Tensor | None) -> Tensor:
    return functional.normalize(inputs if directions is None else inputs @ directions)


def _pieces(rows: np.ndarray) -> int:
    return -(-len(rows) // 8192)
