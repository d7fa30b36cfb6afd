"""Methods beyond the paper's in Python: each against a plain PyTorch loop of several epochs, written from its paper."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from checkpoint_cases import Killed, killed_at
from engine_cases import (
    CLASSES,
    blobs,
    fit,
    pair_of,
    parameters,
    same_bits,
    settings,
    small_tanh,
    train_epochs,
    training,
)
from jocor_fast.methods import METHODS, Keep, Method

METHODS_HERE = ("elr", "joint-optimization", "pencil", "nlnl", "dml", "adaptation")
RATE, EPOCHS = 0.3, 6
OPTIONS: dict[str, dict[str, Any]] = {
    "elr": {"elr_memory": 0.6, "elr_strength": 2},
    "joint-optimization": {"relabel_from": 0.5},
    "pencil": {"pencil_from": 0.34, "pencil_until": 0.67, "pencil_rate": 30},
    "nlnl": {"nlnl_threshold": 0.4},
    "adaptation": {"adaptation_warmup": 2},
    "dml": {},
}


class Plain:
    """A method as one would write it down: autograd, and a dictionary of what is known of each sample."""

    def __init__(self, labels: Tensor) -> None:
        self.given = F.one_hot(labels, CLASSES).float()
        self.means = [torch.zeros(CLASSES) for _ in labels]
        self.seen: list[list[Tensor]] = [[] for _ in labels]
        self.scores = 10 * self.given.clone()
        self.matrix = torch.zeros(CLASSES, CLASSES, requires_grad=True)
        self.predicted = [-1 for _ in labels]

    def elr(self, epoch: int, z: list[Tensor], y: Tensor, samples: Tensor) -> Tensor:
        losses = []
        for row, sample in zip(z[0], samples.tolist(), strict=True):
            p = row.softmax(0)
            bounded = p.detach().clamp(1e-4, 1 - 1e-4)
            self.means[sample] = 0.6 * self.means[sample] + 0.4 * bounded / bounded.sum()
            losses.append(2 * (1 - self.means[sample] @ p).log())
        return F.cross_entropy(z[0], y) + torch.stack(losses).mean()

    def joint_optimization(self, epoch: int, z: list[Tensor], y: Tensor, samples: Tensor) -> Tensor:
        p = z[0].softmax(1)
        for row, sample in zip(p.detach(), samples.tolist(), strict=True):
            self.seen[sample].append(row)
        labels = torch.stack([self.labels_now[sample] for sample in samples.tolist()])
        even = (-math.log(CLASSES) - p.mean(0).log()).mean()
        entropy = -(p * p.log()).sum(1).mean()
        return F.cross_entropy(z[0], labels) + 1.2 * even + 0.8 * entropy

    def pencil(self, epoch: int, z: list[Tensor], y: Tensor, samples: Tensor) -> Tensor:
        if epoch <= 2:
            return F.cross_entropy(z[0], y)
        p, scores = z[0].softmax(1), self.scores[samples].requires_grad_()
        label = scores.softmax(1)
        classification = (p * (p / label).log()).mean()
        if epoch > 4:
            return (p * (p / label.detach()).log()).mean()
        compatible = -(self.given[samples] * label.log()).sum(1).mean()
        loss = classification + 0.1 * compatible - 0.4 * (p * p.log()).mean()
        (gradient,) = torch.autograd.grad(loss, scores, retain_graph=True)
        self.scores[samples] = scores.detach() - 30 * len(samples) / 128 * gradient
        return classification - 0.4 * (p * p.log()).mean()

    def nlnl(self, epoch: int, z: list[Tensor], y: Tensor, samples: Tensor) -> Tensor:
        p = z[0].softmax(1)
        own, other = p.gather(1, y[:, None])[:, 0], p.gather(1, self.others[samples][:, None])[:, 0]
        if epoch <= 2:
            return -(1 - other).log().mean()
        if epoch <= 4:
            return -(1 - other)[own > 1 / CLASSES].log().mean()
        return -own[own > 0.4].log().mean()

    def dml(self, epoch: int, z: list[Tensor], y: Tensor, samples: Tensor) -> Tensor:
        first, second = (logits.softmax(1) for logits in z)
        one, other = (
            F.cross_entropy(z[0], y) + (second.detach() * (second.detach() / first).log()).sum(1).mean(),
            F.cross_entropy(z[1], y) + (first.detach() * (first.detach() / second).log()).sum(1).mean(),
        )
        return one + other

    def adaptation(self, epoch: int, z: list[Tensor], y: Tensor, samples: Tensor) -> Tensor:
        for sample, predicted in zip(samples.tolist(), z[0].argmax(1).tolist(), strict=True):
            self.predicted[sample] = predicted
        if epoch <= 2:
            return F.cross_entropy(z[0], y)
        return F.nll_loss((z[0].softmax(1) @ self.matrix.softmax(1)).log(), y)

    def begin(self, epoch: int, state: Method) -> None:
        """What happens before an epoch."""
        if epoch == 1:
            self.labels_now = list(self.given)
        elif epoch > 3:
            self.labels_now = [
                torch.stack(seen).mean(0) if seen else given for seen, given in zip(self.seen, self.given, strict=True)
            ]
        if "other class" in state.state:
            self.others = state.state["other class"].clone()
        if epoch == 3:
            counts = torch.ones(CLASSES, CLASSES)
            for predicted, label in zip(self.predicted, self.given.argmax(1).tolist(), strict=True):
                if predicted >= 0:
                    counts[predicted, label] += 1
            self.matrix = (counts / counts.sum(1, keepdim=True)).log().requires_grad_()


@pytest.mark.parametrize("name", METHODS_HERE)
def test_epochs_equal_those_of_a_plain_loop(name: str) -> None:
    data, changes = blobs(70), {"method": name, "epochs": EPOCHS, "optimizer": "sgd", "lr": RATE, "decay_start": EPOCHS}
    count = METHODS[name].num_networks
    mine, theirs = pair_of(small_tanh)[:count], pair_of(small_tanh)[:count]
    state = training(mine, data, **changes, method_options=OPTIONS[name])
    plain = Plain(data.labels)
    assert isinstance(data.inputs, Tensor)
    for epoch in range(1, EPOCHS + 1):
        order = train_epochs(state, epoch).logs[0]["order"]
        plain.begin(epoch, state.step.method)
        for samples in order.split(16):
            weights = [p for net in theirs for p in net.parameters()] + [plain.matrix]
            z = [net(data.inputs[samples] / 255) for net in theirs]
            loss = getattr(plain, name.replace("-", "_"))(epoch, z, data.labels[samples], samples)
            for weight, gradient in zip(weights, torch.autograd.grad(loss, weights, allow_unused=True), strict=True):
                if gradient is not None:
                    weight.data -= RATE * gradient
    for ours, expected in zip(mine, theirs, strict=True):
        torch.testing.assert_close(dict(ours.state_dict()), dict(expected.state_dict()), rtol=1e-3, atol=1e-4)
    if name == "adaptation":
        learnt = state.step.method.state["transition scores"]
        torch.testing.assert_close(learnt, plain.matrix, rtol=1e-3, atol=1e-4)
        assert not torch.equal(learnt, learnt.t())


def started(name: str, labels: Tensor, **changes: Any) -> Method:
    method = METHODS[name].of(settings(method=name, method_options=OPTIONS[name], **changes).as_dict())
    method.start(labels, CLASSES)
    return method


@pytest.mark.parametrize("epoch", [1, 3, 6])
@pytest.mark.parametrize("name", METHODS_HERE)
def test_a_row_that_is_not_finite_is_left_out_and_leaves_no_trace_in_the_state(name: str, epoch: int) -> None:
    labels = torch.arange(12) % CLASSES
    generator = torch.Generator().manual_seed(0)
    logits = [torch.randn(12, CLASSES, generator=generator) for _ in range(METHODS[name].num_networks)]
    results = []
    for value in (math.nan, math.inf):
        method = started(name, labels, epochs=EPOCHS)
        method.state.get("other class", torch.zeros(0)).fill_(3)
        spoilt = [z.clone() for z in logits]
        for z in spoilt:
            z[0] = value
            z[5] *= 1e4  # a gap that is still finite
            z[7] = torch.tensor([0.0, 1.0, 2.0, -math.inf])  # a class that is masked
            z.requires_grad_()
        step = method.loss(tuple(spoilt), labels, Keep(12, 0.0, epoch, samples=torch.arange(12)))
        gradients = torch.autograd.grad(step.loss, spoilt)
        assert step.loss.isfinite()
        assert all(gradient.isfinite().all() for gradient in gradients)
        assert not any(gradient[0].any() for gradient in gradients)
        assert all(tensor.isfinite().all() for tensor in method.state.values())
        assert step.num_nonfinite >= 1
        assert not step.selected[0][0]
        results.append([*gradients, *(tensor[1:] for tensor in method.state.values())])
    assert same_bits(*results)


@pytest.mark.parametrize("name", [name for name in METHODS_HERE if METHODS[name].num_networks == 1])
def test_a_run_goes_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    chosen = settings(method=name, epochs=EPOCHS, method_options=OPTIONS[name])
    whole = fit(chosen, small_tanh, blobs(70), output=tmp_path / "whole")
    for epoch in (2, 4, 5):
        with pytest.raises(Killed):
            fit(chosen, small_tanh, blobs(70), output=tmp_path / "killed", resume=True, checkpoint_every=3,
                on_step=killed_at(epoch, 4))  # fmt: skip
    resumed = fit(chosen, small_tanh, blobs(70), output=tmp_path / "killed", resume=True)
    assert same_bits(parameters(resumed.networks), parameters(whole.networks))
    one, other = (
        torch.load(tmp_path / run / "checkpoint.pt", weights_only=True)["training"]["method"]
        for run in ("whole", "killed")
    )
    assert one.keys() == other.keys()
    assert one
    assert same_bits(list(one.values()), list(other.values()))


def test_negative_learning_never_draws_the_label_and_draws_all_others() -> None:
    labels = torch.arange(400) % CLASSES
    method = started("nlnl", labels, epochs=EPOCHS)
    drawn = torch.zeros(CLASSES, CLASSES)
    for epoch in range(1, 5):
        method.begin_epoch(Keep(1, 0.0, epoch), training(pair_of(small_tanh)[:1], blobs(400), method="nlnl").history)
        history_labels = blobs(400).labels
        drawn.index_put_((history_labels, method.state["other class"]), torch.ones(400), accumulate=True)
    assert not drawn.diagonal().any()
    assert drawn.fill_diagonal_(1000).min() > 60


def test_where_no_row_is_to_be_learnt_negative_learning_changes_nothing() -> None:
    labels = torch.zeros(4, dtype=torch.int64)
    logits = torch.tensor([[0.0, 2.0, 2.0, 2.0]]).repeat(4, 1).requires_grad_()
    step = started("nlnl", labels, epochs=EPOCHS).loss((logits,), labels, Keep(4, 0.0, EPOCHS, samples=torch.arange(4)))
    assert (step.skip, step.loss.item(), step.selected[0].any()) == (1.0, 0.0, False)
