"""What small networks say of features whose labels they have not seen: pairs trained by JoCoR, one pair a fold.

The rows are dealt into five folds. Each pair of networks with one hidden layer is trained on four of them and predicts
the fifth. All ten networks are trained at once: their first layers are one product over the same batch, of which each
pair ignores the rows of its own fold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from jocor_fast.errors import ArgumentValueError
from jocor_fast.losses import jocor_loss
from jocor_fast.machine import derived_seed

FOLDS = 5
HIDDEN = 128  # a linear head predicts .692 of CIFAR-10's clean labels from the features, 128 units .710, 256 .715
BATCH_SIZE, LEAST_BATCH_SIZE = 1024, 32  # 256 rows predict no better and take four times as long
LEAST_EPOCHS, LEAST_STEPS = 6, 300
CO_LAMBDA = 0.3  # 0.7 and 0.9 are for networks deeper than these; 0 and 0.3 predict alike, and 0.3 agree better
LEARNING_RATE, WEIGHT_DECAY = 1e-2, 1e-2
WARM_UP = 0.1  # of the steps, in which the learning rate rises; it falls to 0 in the rest
RAMP_EPOCHS = 2  # over which the dropped fraction rises to τ
CHUNK_ROWS = 2048  # that are standardised at once
RUN_ROWS, BLOCK_ROWS = 64, 65536  # rows are read in runs, which lie together in a file, and shuffled in blocks of runs
MOST_SPREADS = 100.0  # between the columns, up to which they share a scale
_OTHER_FOLD = -1


class Rows:
    """Features [N, D] as the networks get them, read in pieces: they may be a file mapped into memory.

    All columns are centred, and divided by one number to give them a mean variance of 1: the components of embeddings
    have the spread that they deserve (principal components whitened predict .705 of CIFAR-10, and .711 as they are).
    Where the spreads differ by a factor of more than 100, as of measurements in different units, each column is
    divided by its own. Constant columns become 0.
    """

    def __init__(self, features: np.ndarray, device: torch.device) -> None:
        """Read the features once; ArgumentValueError where a number is not finite, or too large for float32."""
        self.features, self.device = features, device
        total, squares = np.zeros(self.width), np.zeros(self.width)
        offset = np.asarray(features[0], np.float64)  # near the mean: squares keep their digits
        for start in range(0, len(self), CHUNK_ROWS):
            chunk = np.asarray(features[start : start + CHUNK_ROWS], np.float64)
            _check_numbers(chunk, start)
            total += (chunk - offset).sum(0)
            squares += np.square(chunk - offset).sum(0)
        mean = total / len(self)
        spread = np.sqrt(np.maximum(squares / len(self) - mean**2, 0.0))
        varies = spread > 1e-6 * np.maximum(np.abs(offset + mean), np.finfo(np.float32).tiny)
        if not varies.any():
            raise ArgumentValueError("features", "must have a column that is not constant")
        alike = spread[varies].max() <= MOST_SPREADS * spread[varies].min()
        scale = np.full_like(spread, math.sqrt(np.square(spread[varies]).mean())) if alike else spread
        self._mean = torch.from_numpy((offset + mean).astype(np.float32))
        self._factor = torch.from_numpy(np.where(varies, 1 / np.where(varies, scale, 1), 0).astype(np.float32))

    def __len__(self) -> int:
        """Return N."""
        return len(self.features)

    @property
    def width(self) -> int:
        """D."""
        return int(self.features.shape[1])

    def take(self, rows: np.ndarray | slice) -> Tensor:
        """Return rows as float32 [B, D] on the device."""
        picked = torch.from_numpy(np.require(self.features[rows], np.float32, ("C", "W", "E")))  # views are copied
        return ((picked - self._mean) * self._factor).to(self.device)

    def chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield all rows in their order, a chunk at a time."""
        for start in range(0, len(self), CHUNK_ROWS):
            piece = slice(start, min(start + CHUNK_ROWS, len(self)))
            yield piece, self.take(piece)

    def batches(self, size: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
        """Yield the row numbers of an epoch's batches; what does not fill one is left out."""
        runs = generator.permutation(math.ceil(len(self) / RUN_ROWS))
        rest = np.empty(0, np.int64)
        for some in np.array_split(runs, math.ceil(len(self) / BLOCK_ROWS)):
            block = (some[:, None] * RUN_ROWS + np.arange(RUN_ROWS)).ravel()
            rest = np.concatenate([rest, generator.permutation(block[block < len(self)])])
            for start in range(0, len(rest) - size + 1, size):
                yield rest[start : start + size]
            rest = rest[len(rest) // size * size :]


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
        epochs: None: 6, or as many as make 300 steps.
        on_epoch: called after each epoch with the epochs done and their total.
    """
    generator = np.random.default_rng(derived_seed(seed, 1))
    fold = generator.permutation(np.arange(len(rows)) % FOLDS)
    batch_size = min(BATCH_SIZE, max(LEAST_BATCH_SIZE, len(rows) // 20), len(rows))
    steps = len(rows) // batch_size
    if epochs is None:
        epochs = max(LEAST_EPOCHS, math.ceil(LEAST_STEPS / steps))
    heads = _Heads(rows.width, num_classes, derived_seed(seed, 2)).to(rows.device)
    optimizer = torch.optim.AdamW(heads.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)
    warm_up = max(1.0, WARM_UP * steps * epochs)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm_up, 1 - step / (steps * epochs))
    )
    counts = torch.zeros(2, len(rows), dtype=torch.int64, device=rows.device)
    for epoch in range(epochs):
        dropped = forget_rate * min(1.0, epoch / RAMP_EPOCHS)
        for batch in rows.batches(batch_size, generator):
            logits = heads(rows.take(batch))
            loss, selected = _joint_loss(logits, labels[batch], fold[batch], dropped)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            counts[:, torch.from_numpy(batch).to(rows.device)] += torch.stack(
                [torch.full_like(selected, FOLDS - 1), selected]
            )
        if on_epoch is not None:
            on_epoch(epoch + 1, epochs)
    log_probability = np.empty((len(rows), num_classes), np.float32)
    prediction = np.empty((2, len(rows)), np.int64)
    with torch.no_grad():
        for piece, inputs in rows.chunks():
            own = torch.from_numpy(fold[piece]).to(rows.device)
            pair = heads(inputs)[:, own, torch.arange(len(own), device=rows.device)]  # [2, B, C]
            prediction[:, piece] = pair.argmax(2).cpu().numpy()
            log_probability[piece] = pair.log_softmax(2).mean(0).cpu().numpy()
    seen, selected_count = counts.cpu().numpy()
    return HeldOut(log_probability, prediction, seen, selected_count)


class _Heads(nn.Module):
    """Pairs of networks D → 128 → C for each fold: [B, D] to logits [2, FOLDS, B, C]."""

    def __init__(self, width: int, num_classes: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def weights(fan_in: int, *shape: int, gain: float) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=generator) * gain / math.sqrt(fan_in))

        count = 2 * FOLDS
        self.first = weights(width, width, count * HIDDEN, gain=math.sqrt(2))
        self.first_bias = nn.Parameter(torch.zeros(count * HIDDEN))
        self.second = weights(HIDDEN, count, HIDDEN, num_classes, gain=0.4)
        self.second_bias = nn.Parameter(torch.zeros(count, 1, num_classes))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.addmm(self.first_bias, inputs, self.first).relu()
        by_head = hidden.view(len(inputs), 2 * FOLDS, HIDDEN).transpose(0, 1)
        return torch.baddbmm(self.second_bias, by_head, self.second).unflatten(0, (2, FOLDS))


def _joint_loss(logits: Tensor, labels: np.ndarray, fold: np.ndarray, forget_rate: float) -> tuple[Tensor, Tensor]:
    """The sum of the pairs' JoCoR losses, and by how many pairs each row was selected, int64 [B]."""
    losses, selected = [], torch.zeros(len(labels), dtype=torch.int64, device=logits.device)
    for number in range(FOLDS):
        target = torch.from_numpy(np.where(fold == number, _OTHER_FOLD, labels)).to(logits.device)
        outcome = jocor_loss(
            logits[0, number],
            logits[1, number],
            target,
            co_lambda=CO_LAMBDA,
            forget_rate=forget_rate,
            ignore_index=_OTHER_FOLD,
        )
        losses.append(outcome.loss)
        selected += outcome.selected
    return torch.stack(losses).sum(), selected


def _check_numbers(chunk: np.ndarray, start: int) -> None:
    usable = np.abs(chunk) <= np.finfo(np.float32).max  # NaN fails the comparison
    if not usable.all():
        row, column = np.argwhere(~usable)[0]
        number = chunk[row, column]
        rule = "fit in float32" if np.isfinite(number) else "be finite"
        raise ArgumentValueError("features", f"must {rule}, got {number} in row {start + row}, column {column}")
