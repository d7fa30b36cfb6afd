"""The losses with class weights, smoothed or soft targets, and the selection per group.

They are composed of the compiled loss of a row and torch's operators. A target t, a distribution over the classes, has
the label y (of a soft target the class with the largest share), and its cross-entropy is the label's and a sum of
differences of logits:

    -Σ_c t_c log p_c = CE(z, y) + Σ_c t_c (z_y - z_c)

With class weights w the row's loss is (1 - λ) Σ_c w_c t_c (-log p_c - log q_c) + λ r (KL(p‖q) + KL(q‖p)), r = Σ_c w_c
t_c. Rows are ranked by their loss without weights. Nothing in here makes the host wait for a device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling

from jocor_fast import arguments, tensor_arguments
from jocor_fast._operators import operator
from jocor_fast.errors import ArgumentValueError
from jocor_fast.reference import eligible_rows, kept_on_device

_joint_loss = operator("joint_loss")
_jocor_loss = operator("jocor_loss")
_select_small_loss = operator("select_small_loss")

ALL_ROWS = 2**63 - 1


class Terms(NamedTuple):
    """What a loss has besides its plain arguments.

    Attributes:
        class_weights: [C], how much the rows of each class count in the mean.
        label_smoothing: ε, the part of each target that is spread evenly over the classes.
        groups: [B] whole numbers, each of which keeps its share of its rows; None: all rows are ranked together.
        precedence: [B] in [0, 1), which rows to drop rather, where groups cannot all keep their exact share.
    """

    class_weights: Tensor | None = None
    label_smoothing: float = 0.0
    groups: Tensor | None = None
    precedence: Tensor | None = None


def terms_of(class_weights: Tensor | None, label_smoothing: float, target: Tensor) -> Terms | None:
    """Return the terms, None where they are those of the plain loss."""
    if class_weights is None and type(label_smoothing) is float and label_smoothing == 0.0 and not is_soft(target):
        return None
    smoothing = arguments.check_label_smoothing(label_smoothing)
    if class_weights is not None:
        tensor_arguments.check_class_weights(class_weights)
    return Terms(class_weights, smoothing) if class_weights is not None or smoothing or is_soft(target) else None


def is_soft(target: Tensor) -> bool:
    """Return whether a target holds probabilities, [B, C], rather than labels."""
    return isinstance(target, Tensor) and target.dtype.is_floating_point and target.dim() == 2


def selected_mean(
    per_sample: Tensor,
    target: Tensor,
    forget_rate: float | None,
    num_keep: int | Tensor | None,
    ignore_index: int | None,
) -> tuple[Tensor, ...]:
    """Return the fields of a JoCoROutput whose loss is the mean of the rows' smallest losses [B]."""
    losses = per_sample.detach()
    eligible = eligible_rows(target, ignore_index)
    selected = _select(losses, _rows_to_keep(eligible.sum(), forget_rate, num_keep), eligible, Terms())
    num_nonfinite = (eligible & ~losses.isfinite()).sum()
    return _mean(selected, per_sample, None), losses, selected, selected.sum(), num_nonfinite


def joint_rows(
    logits1: Tensor, logits2: Tensor, target: Tensor, co_lambda: float, ignore_index: int | None, terms: Terms
) -> Tensor:
    """Return the weighted joint loss of each row, [B]; see `jocor_fast.joint_loss`."""
    return _Target.of(logits1, logits2, target, ignore_index, terms).joint(logits1, logits2, co_lambda).trained


def jocor(
    logits1: Tensor,
    logits2: Tensor,
    target: Tensor,
    *,
    co_lambda: float,
    terms: Terms,
    forget_rate: float | None = None,
    num_keep: int | Tensor | None = None,
    ignore_index: int | None = None,
) -> tuple[Tensor, ...]:
    """Return the fields of a JoCoROutput; see `jocor_fast.jocor_loss`."""
    goal = _Target.of(logits1, logits2, target, ignore_index, terms)
    rows = goal.joint(logits1, logits2, co_lambda)
    keep = _rows_to_keep(goal.num_eligible(), forget_rate, num_keep)
    selected = _select(rows.ranked, keep, goal.eligible, terms)
    loss = _mean(selected, rows.trained, goal.weight)
    return loss, rows.ranked, selected, selected.sum(), (~rows.ranked.isfinite()).sum()


def coteaching(
    logits1: Tensor,
    logits2: Tensor,
    target: Tensor,
    *,
    terms: Terms,
    forget_rate: float | Tensor | None = None,
    num_keep: int | Tensor | None = None,
    disagreement: bool = False,
    ignore_index: int | None = None,
    rounding: str = "ceil",
) -> tuple[Tensor, ...]:
    """Return the fields of a CoTeachingOutput; see `jocor_fast.coteaching_loss`."""
    goal = _Target.of(logits1, logits2, target, ignore_index, terms)
    rows1, rows2 = goal.single(logits1), goal.single(logits2)
    finite = (rows1.ranked + rows2.ranked).isfinite()
    eligible, num_nonfinite = goal.eligible, (~finite).sum()
    count = goal.num_eligible()
    if disagreement:
        differing, lost = differing_rows(logits1, logits2, goal.labels, ignore_index)
        everything = torch.ones_like(finite) if eligible is None else eligible
        some = differing.any() | (lost > 0)
        eligible = torch.where(some, differing, everything)
        num_nonfinite = torch.where(some, lost + (differing & ~finite).sum(), num_nonfinite)
        count = torch.where(some, differing.sum() + lost, count)
    keep = _rows_to_keep(count, forget_rate, num_keep, rounding)
    finite = finite if eligible is None else finite & eligible
    selected1, selected2 = (_select(rows.ranked, keep, finite, terms) for rows in (rows1, rows2))
    loss = _mean(selected2, rows1.trained, goal.weight) + _mean(selected1, rows2.trained, goal.weight)
    return (
        *(loss, rows1.ranked, rows2.ranked, selected1, selected2, selected1.sum(), selected2.sum()),
        num_nonfinite,
    )


def decoupling(logits1: Tensor, logits2: Tensor, target: Tensor, *, terms: Terms) -> tuple[Tensor, ...]:
    """Return the fields of `decoupling_rows`; see `jocor_fast.decoupling_loss`."""
    goal = _Target.of(logits1, logits2, target, None, terms)
    rows = goal.joint(logits1, logits2, 0.0)
    differing, lost = differing_rows(logits1, logits2, goal.labels, None)
    selected = differing & rows.ranked.isfinite()
    num_nonfinite = lost + (differing & ~selected).sum()
    return _mean(selected, rows.trained, goal.weight), rows.ranked, selected, selected.sum(), num_nonfinite


def differing_rows(logits1: Tensor, logits2: Tensor, labels: Tensor, ignore_index: int | None) -> tuple[Tensor, Tensor]:
    """Return which rows with a finite cross-entropy have differing predictions, and how many more are not finite."""
    found = _jocor_loss(logits1.detach(), logits2.detach(), labels, ignore_index, 0.0, None, ALL_ROWS, None, True)
    return found[2], found[4]


class _Rows(NamedTuple):
    """The losses of rows, [B]: to rank by, detached and without class weights; and to train on."""

    ranked: Tensor
    trained: Tensor


class _Target(NamedTuple):
    """What a batch is to learn.

    Attributes:
        labels: [B], for the compiled loss, with its ignore_index; of soft targets the class with the largest share.
        column: int64 [B, 1], the labels to index classes with; 0 in rows without a valid one.
        eligible: [B] bool, rows that are not ignored; None: all.
        valid: [B] bool, rows whose soft target is a distribution; None: all.
        shares: [B, C], t but for what the label has; None: the label has everything.
        class_weights: [C] in the type of the losses.
        weight: [B], what the mean divides by the sum of: as torch's cross_entropy, 1 for soft targets.
        total: [B], r.
    """

    labels: Tensor
    ignore_index: int | None
    column: Tensor
    eligible: Tensor | None
    valid: Tensor | None
    shares: Tensor | None
    class_weights: Tensor | None
    weight: Tensor | None
    total: Tensor | None

    @classmethod
    def of(cls, logits1: Tensor, logits2: Tensor, target: Tensor, ignore_index: int | None, terms: Terms) -> _Target:
        """Read the target as the terms say; raise what is wrong with it."""
        tensor_arguments.check_logits(logits1, logits2)
        classes, real = logits1.shape[1], torch.promote_types(logits1.dtype, torch.float32)
        shares, valid, eligible, labels = None, None, None, target
        if is_soft(target):
            if ignore_index is not None:
                raise ArgumentValueError("ignore_index", "must be left out where target holds probabilities")
            shares, valid = _distributions(target, logits1, real)
            labels = shares.argmax(1)
        else:
            tensor_arguments.check_target("logits1", logits1, target)
        if ignore_index is not None:
            eligible = eligible_rows(target, ignore_index)
        column = labels.long().clamp(0, classes - 1)[:, None]
        if terms.label_smoothing:
            part = terms.label_smoothing / classes
            masked = (logits1.detach() == -torch.inf) | (logits2.detach() == -torch.inf)
            spread = torch.where(masked, 0.0, torch.full((), part, dtype=real, device=logits1.device))
            shares = spread if shares is None else (1 - terms.label_smoothing) * shares + spread
        weights = weight = total = None
        if terms.class_weights is not None:
            tensor_arguments.check_number_of_weights(terms.class_weights, logits1)
            weights = terms.class_weights.detach().to(real)
            weight = total = weights[column[:, 0]]
            if shares is not None:
                total = weight + (shares * (weights - weight[:, None])).sum(1)
            if valid is not None:
                weight = None
        return cls(labels, ignore_index, column, eligible, valid, shares, weights, weight, total)

    def num_eligible(self) -> Tensor:
        """How many rows are eligible, 0-d int64."""
        return torch.full_like(self.column[:, 0], 1).sum() if self.eligible is None else self.eligible.sum()

    def joint(self, logits1: Tensor, logits2: Tensor, co_lambda: float) -> _Rows:
        """The joint loss of each row."""
        z1, z2 = self._computed(logits1), self._computed(logits2)
        own = _joint_loss(z1, z2, self.labels, self.ignore_index, co_lambda)[0]
        return self._rows(own, (z1, z2), 1.0 - co_lambda)

    def single(self, logits: Tensor) -> _Rows:
        """The cross-entropy of each row of one network: half the joint loss with itself at λ = 0."""
        z = self._computed(logits)
        return self._rows(_joint_loss(z, z, self.labels, self.ignore_index, 0.0)[0] * 0.5, (z,), 1.0)

    def _computed(self, logits: Tensor) -> Tensor:
        """The logits in the type of the losses where gradients of several terms are to add up in it."""
        return logits if self.shares is None else logits.to(torch.promote_types(logits.dtype, torch.float32))

    def _rows(self, own: Tensor, networks: tuple[Tensor, ...], factor: float) -> _Rows:
        """The rows' losses, of the compiled loss of their labels."""
        shares, weights = self.shares, self.class_weights
        rest: Tensor | None = None  # Σ_c t_c (z_y - z_c) of all networks, for each class
        if shares is not None and factor:
            # A class without a share adds nothing, also where its logit is infinite.
            apart = [torch.where(shares > 0, z.gather(1, self.column) - z, 0.0) for z in networks]
            rest = factor * shares * sum(apart[1:], apart[0])
        ranked = own.detach() if rest is None else own.detach() + rest.detach().sum(1)
        # A row that is not finite keeps its loss and gets no gradient; one that is ignored has neither.
        kept = own.detach().isfinite() if self.eligible is None else own.detach().isfinite() & self.eligible
        ranked = torch.where(kept, ranked, own.detach())
        if self.valid is not None:
            ranked = torch.where(self.valid, ranked, torch.nan)
        if rest is None and self.total is None and self.valid is None:
            return _Rows(ranked, own)
        trained = own if self.total is None else self.total * own
        if rest is not None:
            trained = trained + (rest if weights is None else rest * weights).sum(1)
        return _Rows(ranked, torch.where(kept & ranked.isfinite(), trained, ranked))


def _distributions(target: Tensor, logits: Tensor, real: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return soft targets whose rows sum to 1, [B, C], and which rows hold a distribution, [B]."""
    tensor_arguments.check_soft_target(target, logits)
    shares = target.detach().to(real)
    total = shares.sum(1, keepdim=True)
    valid = (shares >= 0).all(1) & ((total[:, 0] - 1).abs() <= tensor_arguments.SHARES_TOLERANCE)
    if target.device.type == "cpu" and not is_compiling() and not valid.all():
        row = int((~valid).nonzero()[0])
        raise ArgumentValueError(
            "target", f"must hold rows of probabilities that sum to 1, got {target[row].tolist()} in row {row}"
        )
    return shares / total, valid


def _rows_to_keep(
    eligible: Tensor, forget_rate: float | Tensor | None, num_keep: int | Tensor | None, rounding: str = "ceil"
) -> int | Tensor:
    """Return k, of so many eligible rows (0-d int64)."""
    if forget_rate is not None:
        return kept_on_device(eligible, forget_rate, rounding)
    assert num_keep is not None  # exactly one of the two is given
    return num_keep


def _select(losses: Tensor, keep: int | Tensor, eligible: Tensor | None, terms: Terms) -> Tensor:
    if terms.groups is not None:
        return select_per_group(losses, keep, eligible, terms.groups, terms.precedence)
    selected: Tensor = _select_small_loss(losses, *split(keep), eligible)
    return selected


def select_per_group(
    losses: Tensor, keep: int | Tensor, eligible: Tensor | None, groups: Tensor, precedence: Tensor | None = None
) -> Tensor:
    """Return the mask of `keep` rows, of which each group has its share; see `jocor_fast.select_small_loss`.

    Of n rows the group of m has the share m·k/n. It keeps as many whole rows, those with the smallest losses, and its
    next one if its remainder is among the largest. Where a precedence is given, it is taken off the remainder, and the
    largest group takes what the others leave: a group that has one row in a batch then keeps it as often as its share
    says, by what is known of the row.

    Args:
        losses: [B].
        keep: k.
        eligible: [B] bool; None: all rows.
        groups: [B] whole numbers.
        precedence: [B] in [0, 1), spread evenly over all rows of a group; None: the same for all.
    """
    groups = groups.long()
    candidates = losses.isfinite() if eligible is None else losses.isfinite() & eligible
    by_loss = torch.where(candidates, losses + 0.0, torch.inf).argsort(stable=True)  # -0 + 0 is +0
    order = by_loss[groups[by_loss].argsort(stable=True)]  # by group, then by loss
    ordered, taking_part = groups[order], candidates[order].long()
    number = torch.zeros_like(order)
    number[1:] = (ordered[1:] != ordered[:-1]).cumsum(0)
    sizes = torch.zeros_like(order).index_add_(0, number, taking_part)
    size, rank = sizes[number], taking_part.cumsum(0) - 1 - (sizes.cumsum(0) - sizes)[number]
    count = sizes.sum()
    kept = torch.minimum(count, keep) if isinstance(keep, Tensor) else count.clamp(max=keep)
    whole, rest = size * kept // count.clamp(min=1), size * kept % count.clamp(min=1)
    certain = (taking_part > 0) & (rank < whole)
    next_one = (taking_part > 0) & (rank == whole) & (rest > 0)
    remainder = rest.double() / count.clamp(min=1)
    if precedence is not None:
        remainder = torch.where(number == sizes.argmax(), 0.0, remainder - precedence[order])
    # Back in the order of the losses, which decide between equal remainders.
    key = torch.full_like(remainder, torch.inf)
    key[order] = torch.where(next_one, -remainder, torch.inf)
    chosen = by_loss[key[by_loss].argsort(stable=True)]
    place = torch.empty_like(chosen)
    place[chosen] = torch.arange(len(chosen), device=chosen.device)
    selected = torch.zeros_like(candidates)
    selected[order] = certain | (next_one & (place[order] < kept - certain.sum()))
    return selected


def _mean(selected: Tensor, losses: Tensor, weight: Tensor | None) -> Tensor:
    """Return the mean of the selected losses, divided by the sum of their weights; 0 without any."""
    counts = selected if weight is None else torch.where(selected, weight, 0.0)
    total = counts.sum()
    return torch.where(selected, losses / torch.where(total > 0, total, 1), 0.0).sum()


def split(number: int | float | Tensor | None) -> tuple[int | float | None, Tensor | None]:
    """Return (number, None), or (None, tensor) of a tensor whose value is read on its device."""
    return (None, number) if isinstance(number, Tensor) else (number, None)
