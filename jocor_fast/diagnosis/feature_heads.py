"""What small networks say of features whose labels they have not seen: pairs trained by JoCoR, one pair a fold.

The rows are dealt into three folds. Each pair of networks with one hidden layer is trained on two of them and predicts
the third. A batch holds as many rows of each fold, so the two of each pair are a window on it, and all six networks
are trained by one batched product a layer, without a copy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from jocor_fast.engine.optimizer import FusedAdam
from jocor_fast.errors import ArgumentValueError
from jocor_fast.losses import jocor_loss, joint_loss, num_keep, select_small_loss
from jocor_fast.machine import derived_seed

FOLDS = 3  # five take twice the time for a gain of .001 in AUROC
HIDDEN = 128
FOLD_ROWS, LEAST_FOLD_ROWS = 256, 11  # of each fold in a batch
LEAST_EPOCHS, LEAST_STEPS = 4, 100
CO_LAMBDA = 0.7  # 0.3 suits 50,000 rows as well, and a thousand worse
LEARNING_RATE, MOMENTUM = 1e-2, 0.9
WARM_UP = 0.1  # of the steps, in which the learning rate rises; it falls to 0 in the rest
RAMP_EPOCHS = 2  # over which the dropped fraction rises to τ
MOST_COLUMNS = 256  # more are reduced to as many principal components
SAMPLE = 20_000  # rows that the directions are computed from
SPARE_DIRECTIONS, ITERATIONS = 32, 4  # of the subspace iteration
MOST_COVARIANCE = 2048  # columns; of more, the rows are read once an iteration instead
SAMPLED_NUMBERS = 2**19  # that tell what usual rows are,
LEAST_VARIANCE = 1e-4  # and of how much variance at least, as a part of that of all
CHUNK_ROWS, CHUNK_NUMBERS = 2048, 2**22  # at most that are standardised at once
RUN_ROWS, BLOCK_ROWS = 64, 65536  # rows are read in runs, which lie together in a file, and shuffled in blocks of runs
LARGEST = float(np.finfo(np.float32).max) / 4  # differences from the mean have to be numbers, too
MOST_SPREADS = 100.0  # between the columns, up to which they share a scale
TIMED_STEPS = 5
MOST_LOGITS = 2**24  # of a batch, all networks together: with many classes, batches are smaller


class Rows:
    """Features [N, D] as the networks get them, read in pieces: they may be a file mapped into memory.

    All columns are centred, and divided by one number to give them a mean variance of 1: the components of embeddings
    have the spread that they deserve (principal components whitened predict .705 of CIFAR-10, and .711 as they are).
    Where the spreads differ by a factor of more than 100, as of measurements in different units, each column is
    divided by its own. Constant columns become 0. More than 256 columns are reduced to their first principal
    components, which are kept in memory.
    """

    def __init__(self, features: np.ndarray, device: torch.device) -> None:
        """Read the features once; ArgumentValueError where a number is not finite, or too large for float32."""
        self.features, self.device = features, device
        self._reduced: Tensor | None = None
        self.chunk_rows = rows_of_chunk(self.width)
        total, squares = np.zeros(self.width), np.zeros(self.width)
        offset = np.asarray(features[0], np.float64)  # near the mean: squares keep their digits
        farthest, row = 0.0, 0  # from the first row
        for start in range(0, len(self), self.chunk_rows):
            chunk = np.asarray(features[start : start + self.chunk_rows], np.float64)
            _check_numbers(chunk, start)
            chunk = chunk - offset
            total += chunk.sum(0)
            np.square(chunk, out=chunk)
            squares += chunk.sum(0)
            distances = chunk.sum(1)
            if distances.max() > farthest:
                farthest, row = float(distances.max()), start + int(distances.argmax())
        mean = total / len(self)
        spread = np.sqrt(np.maximum(squares / len(self) - mean**2, 0.0))
        varies = spread > np.maximum(1e-6 * np.abs(offset + mean), np.finfo(np.float32).tiny)
        if not varies.any():
            raise ArgumentValueError("features", "must have a column that is not constant")
        alike = spread[varies].max() <= MOST_SPREADS * spread[varies].min()
        scale = np.full_like(spread, math.sqrt(np.square(spread[varies]).mean())) if alike else spread
        factor = np.where(varies, 1 / np.where(varies, scale, 1), 0)
        self._check_usual_rows(factor, row)
        self._mean = torch.from_numpy((offset + mean).astype(np.float32))
        self._factor = torch.from_numpy(factor.astype(np.float32))
        if self.width > MOST_COLUMNS:
            self._reduced = self._principal_components()

    def _check_usual_rows(self, factor: np.ndarray, farthest: int) -> None:
        """Raise ArgumentValueError where a few rows, such as broken ones, are nearly all of the columns' variance.

        The scale would be theirs, and all other rows alike.
        """
        step = max(1, len(self) * self.width // SAMPLED_NUMBERS)
        sample = np.asarray(self.features[::step], np.float64)
        usual = np.median(sample, axis=0)
        variance = float(np.median(np.square((sample - usual) * factor).sum(1)))
        if 0 < variance < LEAST_VARIANCE * np.count_nonzero(factor):
            ends = {
                row: np.square((np.asarray(self.features[row], np.float64) - usual) * factor).sum()
                for row in (0, farthest)
            }
            row = max(ends, key=lambda number: ends[number])
            number = max(np.asarray(self.features[row], np.float64).tolist(), key=abs)
            rule = "must have no rows that make all others look alike"
            raise ArgumentValueError("features", f"{rule}, got numbers up to {number:g} in row {row}")

    def _principal_components(self) -> Tensor:
        """Return the first principal components of the rows, float32 [N, 256], of a mean variance of 1.

        The directions come from a subspace iteration, which takes a tenth of the time of all eigenvectors of 1,280
        columns, and for as many columns as there are pixels in an image no matrix of columns by columns.
        """
        sample = np.arange(0, len(self), max(1, len(self) // SAMPLE))
        parts = np.array_split(sample, math.ceil(len(sample) / self.chunk_rows))
        generator = torch.Generator().manual_seed(0)
        count = min(self.width, MOST_COLUMNS + SPARE_DIRECTIONS)
        directions = torch.randn(self.width, count, generator=generator).to(self.device)
        covariance = self._scatter(parts, None) if self.width <= MOST_COVARIANCE else None
        for _ in range(ITERATIONS):
            product = self._scatter(parts, directions) if covariance is None else covariance @ directions
            directions = torch.linalg.qr(product).Q
        product = self._scatter(parts, directions) if covariance is None else covariance @ directions
        # In float32 it may not converge where there are fewer rows than columns.
        spread, rotation = (part.float() for part in torch.linalg.eigh((directions.T @ product).double()))
        scale = torch.sqrt(MOST_COLUMNS / spread[-MOST_COLUMNS:].sum())
        directions = directions @ rotation[:, -MOST_COLUMNS:] * scale
        reduced = torch.empty(len(self), MOST_COLUMNS, device=self.device)
        for piece, inputs in self.chunks():
            torch.mm(inputs, directions, out=reduced[piece])
        return reduced

    def _scatter(self, parts: list[np.ndarray], directions: Tensor | None) -> Tensor:
        """Return the covariance [D, D] of some rows times directions [D, K], or itself."""
        total = torch.zeros(self.width, self.width if directions is None else directions.shape[1], device=self.device)
        share = 1 / sum(map(len, parts))
        for rows in parts:
            part = self.take(rows)
            total.addmm_(part.T, part if directions is None else part @ directions, alpha=share)
        return total

    def __len__(self) -> int:
        """Return N."""
        return len(self.features)

    @property
    def width(self) -> int:
        """D, or 256 where there are more columns."""
        return int(self.features.shape[1]) if self._reduced is None else MOST_COLUMNS

    def take(self, rows: np.ndarray | slice) -> Tensor:
        """Return rows as float32 [B, D] on the device."""
        if self._reduced is not None:
            return self._reduced[torch.from_numpy(rows).to(self.device) if isinstance(rows, np.ndarray) else rows]
        part = self.features[rows]
        half = part.dtype == np.float16  # torch converts it eight times as fast
        picked = torch.from_numpy(np.require(part, None if half else np.float32, ("C", "W", "E")))  # views are copied
        return (picked.float() - self._mean).mul_(self._factor).to(self.device)

    def chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield all rows in their order, a chunk at a time."""
        for start in range(0, len(self), self.chunk_rows):
            piece = slice(start, min(start + self.chunk_rows, len(self)))
            yield piece, self.take(piece)

    def batches(self, fold: np.ndarray, size: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
        """Yield an epoch's batches: `size` row numbers of each fold, one fold after the other; the rest is left out."""
        runs = generator.permutation(math.ceil(len(self) / RUN_ROWS))
        waiting = [np.empty(0, np.int64)] * FOLDS
        for some in np.array_split(runs, math.ceil(len(self) / BLOCK_ROWS)):
            rows = (some[:, None] * RUN_ROWS + np.arange(RUN_ROWS)).ravel()
            rows = generator.permutation(rows[rows < len(self)])
            waiting = [np.concatenate([rest, rows[fold[rows] == number]]) for number, rest in enumerate(waiting)]
            end = min(map(len, waiting)) // size * size
            for start in range(0, end, size):
                yield np.concatenate([rest[start : start + size] for rest in waiting])
            waiting = [rest[end:] for rest in waiting]


@dataclass(frozen=True, eq=False)
class HeldOut:
    """What the pairs say of the rows that they were not trained on.

    Attributes:
        log_probability: float32 [N, C], the mean of the two networks' log-probabilities, up to a constant of the row.
        prediction: int64 [2, N].
        seen: int64 [N], how many steps a row was in, of all pairs together.
        selected: int64 [N], in how many of them it was trained on.
    """

    log_probability: np.ndarray
    prediction: np.ndarray
    seen: np.ndarray
    selected: np.ndarray


def predict_held_out(
    rows: Rows,
    labels: np.ndarray,
    num_classes: int,
    *,
    forget_rate: float,
    epochs: int | None,
    seed: int,
    on_epoch: Callable[[int, int], None] | None = None,
) -> HeldOut:
    """Train the pairs, and let each predict the fold that it has not seen.

    Args:
        rows: the features of N rows.
        labels: int64 [N].
        forget_rate: τ, the fraction of each batch that JoCoR drops after two epochs.
        epochs: None: 4, or as many as make 100 steps.
        on_epoch: called after each epoch with the epochs done and their total.
    """
    generator = np.random.default_rng(derived_seed(seed, 1))
    fold = generator.permutation(np.arange(len(rows)) % FOLDS)
    size, steps, usual = _plan(len(rows), num_classes)
    epochs = usual if epochs is None else epochs
    frequency = np.maximum(np.bincount(labels, minlength=num_classes), 1) / len(rows)
    heads = _Heads(rows.width, frequency, derived_seed(seed, 2), rows.device)
    optimizer = FusedAdam(heads.parameters)
    warm_up, done = max(1.0, WARM_UP * steps * epochs), 0
    counts = torch.zeros(2, len(rows), dtype=torch.int64, device=rows.device)
    targets = torch.from_numpy(labels).to(rows.device)
    for epoch in range(epochs):
        dropped = forget_rate * min(1.0, epoch / RAMP_EPOCHS)
        for batch in rows.batches(fold, size, generator):
            numbers = torch.from_numpy(batch).to(rows.device)
            windows = _windows(numbers, size)
            first, second = (logits.flatten(0, 1) for logits in heads(_windows(rows.take(batch), size)))
            target = targets[windows].flatten()
            if dropped:  # per class: by loss alone, a rare one would be dropped as a whole
                losses = joint_loss(first, second, target, co_lambda=CO_LAMBDA)
                selected = select_small_loss(losses, num_keep(len(target), dropped), groups=target)
                loss = losses[selected].mean()
            else:
                outcome = jocor_loss(first, second, target, co_lambda=CO_LAMBDA, forget_rate=0.0)
                loss, selected = outcome.loss, outcome.selected
            (FOLDS * loss).backward()
            rate = LEARNING_RATE * min((done + 1) / warm_up, 1 - done / (steps * epochs))
            optimizer.step(lr=rate, beta1=MOMENTUM)
            for parameter in heads.parameters:
                parameter.grad = None
            counts[0, numbers] += FOLDS - 1
            counts[1].index_add_(0, windows.flatten(), selected.long())
            done += 1
        if on_epoch is not None:
            on_epoch(epoch + 1, epochs)
    log_probability = np.empty((len(rows), num_classes), np.float32)
    prediction = np.empty((2, len(rows)), np.int64)
    with torch.no_grad():
        for piece, inputs in rows.chunks():
            for number in range(FOLDS):
                own = np.flatnonzero(fold[piece] == number)
                pair = torch.cat(heads(inputs[own].T[None], (number + 1) % FOLDS))  # [2, B, C]
                prediction[:, piece.start + own] = pair.argmax(2).cpu().numpy()
                log_probability[piece.start + own] = pair.log_softmax(2).mean(0).cpu().numpy()
    seen, selected = counts.cpu().numpy()
    return HeldOut(log_probability, prediction, seen, selected)


def seconds_needed(count: int, width: int, num_classes: int, device: torch.device) -> float:
    """Return about how long `Rows` and `predict_held_out` take here, if reading [count, width] features takes no time.

    A few steps on zeros are timed; the rest is a part of an epoch, as measured, and the principal components' products.
    """
    size, steps, epochs = _plan(count, num_classes)
    columns = min(width, MOST_COLUMNS)
    heads = _Heads(columns, np.full(num_classes, 1 / num_classes), 0, device)
    inputs = torch.zeros(FOLDS, columns, (FOLDS - 1) * size, device=device)
    target = torch.zeros(FOLDS * (FOLDS - 1) * size, dtype=torch.int64, device=device)
    for number in range(1 + TIMED_STEPS):
        if number == 1:  # the first is slow
            start = time.perf_counter()
        first, second = (logits.flatten(0, 1) for logits in heads(inputs))
        jocor_loss(first, second, target, co_lambda=CO_LAMBDA, forget_rate=0.0).loss.backward()
        heads.parameters[0].grad[0, 0, 0].item()  # type: ignore[index]  # waits for the device
    step = (time.perf_counter() - start) / TIMED_STEPS
    reduction = width / 1000 if width > MOST_COLUMNS else 0.0
    return step * steps * (1.3 * epochs + 0.5 + reduction)


def _plan(count: int, num_classes: int) -> tuple[int, int, int]:
    """Return how many rows of each fold are in a batch, the steps of an epoch, and the usual number of epochs."""
    most = min(FOLD_ROWS, max(1, MOST_LOGITS // (2 * FOLDS * (FOLDS - 1) * num_classes)))
    size = min(most, max(LEAST_FOLD_ROWS, count // (20 * FOLDS)), count // FOLDS)
    steps = count // FOLDS // size
    return size, steps, max(LEAST_EPOCHS, math.ceil(LEAST_STEPS / steps))


def _windows(batch: Tensor, size: int) -> Tensor:
    """What each pair is trained on, views [FOLDS, …, (FOLDS − 1) · size]: pair p on all folds but p − 1."""
    return torch.cat([batch, batch[: (FOLDS - 2) * size]]).unfold(0, (FOLDS - 1) * size, size)


class _Heads:
    """Pairs of networks D → 128 → C for each fold: inputs [FOLDS, D, B] to logits [FOLDS, B, C] of either network.

    They begin by predicting each class as often as it is labelled: the few steps do not have to learn which are rare.
    Samples are columns: with few classes, the products of the second layer take a quarter of the time of those by rows.
    """

    def __init__(self, width: int, frequency: np.ndarray, seed: int, device: torch.device) -> None:
        generator, num_classes = torch.Generator().manual_seed(seed), len(frequency)
        prior = torch.from_numpy(np.log(frequency).astype(np.float32))[:, None].expand(2 * FOLDS, num_classes, 1)

        def weights(*shape: int, scale: float) -> Tensor:
            drawn = torch.randn(*shape, generator=generator) * scale if scale else torch.zeros(shape)
            return drawn.to(device).requires_grad_()

        self.parameters = [
            weights(FOLDS, 2 * HIDDEN, width, scale=math.sqrt(2 / width)),
            weights(FOLDS, 2 * HIDDEN, 1, scale=0),
            weights(2 * FOLDS, num_classes, HIDDEN, scale=0.4 / math.sqrt(HIDDEN)),
            prior.clone().to(device).requires_grad_(),
        ]

    def __call__(self, inputs: Tensor, pair: int | None = None) -> tuple[Tensor, ...]:
        """Return the logits of all pairs, or of one, twice [1, B, C] for inputs [1, D, B]."""
        pairs = slice(None) if pair is None else slice(pair, pair + 1)
        networks = slice(None) if pair is None else slice(2 * pair, 2 * pair + 2)
        first, first_bias, second, second_bias = self.parameters
        hidden = torch.baddbmm(first_bias[pairs], first[pairs], inputs).relu_().view(-1, HIDDEN, inputs.shape[2])
        logits = torch.baddbmm(second_bias[networks], second[networks], hidden)
        return logits.mT.unflatten(0, (-1, 2)).unbind(1)


def rows_of_chunk(width: int) -> int:
    """Return how many rows are standardised at once."""
    return max(1, min(CHUNK_ROWS, CHUNK_NUMBERS // width))


def _check_numbers(chunk: np.ndarray, start: int) -> None:
    usable = np.abs(chunk) <= LARGEST  # NaN fails the comparison
    if not usable.all():
        row, column = np.argwhere(~usable)[0]
        number = chunk[row, column]
        rule = "fit in float32" if np.isfinite(number) else "be finite"
        raise ArgumentValueError("features", f"must {rule}, got {number} in row {start + row}, column {column}")
