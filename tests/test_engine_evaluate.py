"""Evaluation: every sample once, in evaluation mode, and the four accuracies."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from engine_cases import (
    CLASSES,
    blobs,
    fit,
    held_out,
    pair_of,
    parameters,
    same_bits,
    settings,
    small_cnn,
    small_mlp,
    small_tanh,
    without_timings,
)
from jocor_fast.data.samples import Samples
from jocor_fast.engine.evaluate import EVALUATION_BATCH, Accuracy, EvaluationSet, count_correct
from jocor_fast.engine.networks import SeparateNetworks, evaluating

CPU = torch.device("cpu")


class Table(nn.Module):
    """Answers with a fixed row of logits for each sample, whose number is its input; counts what it is asked."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)
        self.asked = torch.zeros(len(logits), dtype=torch.int64)

    def forward(self, numbers: Tensor) -> Tensor:
        self.asked += torch.bincount(numbers.flatten(), minlength=len(self.asked))
        return self.logits[numbers.flatten()]


def counts(tables: list[Table], labels: Tensor) -> list[float]:
    data = EvaluationSet(Samples(torch.arange(len(labels))[:, None], labels), CPU)
    evaluated, *correct = count_correct(SeparateNetworks(tables), tables, data).tolist()
    assert evaluated == len(labels)
    return correct


@pytest.mark.parametrize("count", [1, EVALUATION_BATCH - 1, EVALUATION_BATCH, EVALUATION_BATCH + 1, 10_000])
def test_every_sample_is_counted_exactly_once(count: int) -> None:
    labels = torch.arange(count) % CLASSES
    right, wrong = (
        nn.functional.one_hot(labels, CLASSES).float(),
        nn.functional.one_hot((labels + 1) % CLASSES, CLASSES).float(),
    )
    tables = [Table(right), Table(wrong)]
    assert counts(tables, labels)[:2] == [count, 0]
    for table in tables:
        assert table.asked.tolist() == [1] * count


def test_ten_thousand_images_at_batch_128_are_ten_thousand() -> None:
    """The published code drops the last, partial batch: 9,984 of them."""
    test = held_out(10_000)
    networks = pair_of(small_mlp)
    run = fit(settings(epochs=1, batch_size=128), networks, blobs(256), test=test)
    with torch.no_grad():
        shares = [(network(test.inputs / 255).argmax(1) == test.labels).double().mean().item() for network in networks]
    assert [run.metrics[0]["test_accuracy_1"], run.metrics[0]["test_accuracy_2"]] == pytest.approx(shares, abs=1e-12)
    assert run.metrics[0]["test_accuracy"] == pytest.approx(sum(shares) / 2, abs=1e-12)


def test_the_ensemble_is_the_arg_max_of_the_mean_probabilities() -> None:
    """Not of the logits: the first network's are large, its probabilities split between two wrong classes."""
    first = torch.tensor([[50.0, 50.0, 0.0, 0.0], [5.0, 0.0, 0.0, 0.0], [0.0, 9.0, 0.0, 0.0]])
    second = torch.tensor([[0.0, 0.0, 4.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    labels = torch.tensor([2, 0, 3])
    assert counts([Table(first), Table(second)], labels) == [1, 2, 2]


def test_one_network_has_one_accuracy() -> None:
    accuracy = Accuracy.of([4.0, 3.0])
    assert (accuracy.first, accuracy.second, accuracy.mean, accuracy.ensemble) == (0.75, None, 0.75, None)
    assert Accuracy.of([]) == Accuracy.of([0.0, 0.0]) == Accuracy(None, None, None, None)


def test_dropout_and_batchnorm_are_evaluated_as_such_and_learn_nothing_from_it() -> None:
    """With the batch's statistics, or dropout at work, an answer would depend on its neighbours and on chance."""
    data = held_out(40, (3, 8, 8))
    networks = pair_of(small_cnn)
    group = SeparateNetworks(networks)
    for _ in range(3):  # running statistics unlike those of one batch
        with torch.no_grad():
            group.logits(data.inputs[:7] / 255)
    before = [value.clone() for network in networks for value in network.state_dict().values()]
    _, *correct = count_correct(group, networks, EvaluationSet(data, CPU)).tolist()

    after = [value for network in networks for value in network.state_dict().values()]
    assert all(map(torch.equal, before, after))
    assert all(network.training for network in networks)
    with evaluating(networks), torch.no_grad():
        one_by_one = [
            sum(
                int(network(image[None] * (1 / 255)).argmax() == label)
                for image, label in zip(data.inputs, data.labels, strict=True)
            )
            for network in networks
        ]
    assert correct[:2] == one_by_one


def test_frozen_batchnorm_stays_frozen_through_an_evaluation() -> None:
    network = small_cnn()
    network[1].eval()
    with evaluating([network]):
        assert not any(module.training for module in network.modules())
    assert network.training
    assert not network[1].training
    assert network[5].training


def test_a_run_trains_in_training_mode_and_hands_back_in_evaluation_mode() -> None:
    seen: list[bool] = []

    class Watched(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            if torch.is_grad_enabled():
                seen.append(self.training)
            return super().forward(inputs)

    networks = (Watched(6, CLASSES).eval(), Watched(6, CLASSES))
    run = fit(settings(epochs=2), networks, blobs(40), test=held_out(9))
    assert seen == [True] * (2 * 2 * 2)
    assert not any(network.training for network in run.networks)


def test_test_labels_choose_nothing() -> None:
    """Case 38: with other test labels the same epoch is the best, and all but the test accuracies is the same."""
    test, val = held_out(60), held_out(30, seed=3)
    runs = [
        fit(settings(epochs=8, lr=0.001), small_mlp, blobs(70), test=Samples(test.inputs, labels), val=val)
        for labels in (test.labels, (test.labels + 1) % CLASSES)
    ]
    first, second = (
        [
            {name: value for name, value in line.items() if not name.startswith("test_")}
            for line in without_timings(run.metrics)
        ]
        for run in runs
    )
    assert first == second
    assert same_bits(*(parameters(run.networks) for run in runs))
    best = [run.summary["best_by_validation"] for run in runs]
    assert best[0]["epoch"] == best[1]["epoch"]
    assert best[0]["test_accuracy"] != best[1]["test_accuracy"]
    highest = max(runs[1].metrics, key=lambda line: line["test_accuracy"])
    assert highest["epoch"] != best[1]["epoch"], "else a choice by the test labels would not be noticed"


@pytest.mark.parametrize("network", [small_mlp, small_tanh], ids=["paired", "separate"])
def test_inputs_of_every_kind_reach_the_networks_alike(network: type[nn.Module]) -> None:
    data = blobs(40)
    runs = [
        fit(settings(epochs=2), pair_of(network), Samples(inputs, data.labels, input_scale=scale))
        for inputs, scale in (
            (data.inputs, 0.5),
            (data.inputs.float() * 0.5, 1.0),
            (data.inputs.double() * 0.5, 1.0),
            ((data.inputs.float() * 0.5).t().contiguous().t(), 1.0),
        )
    ]
    losses = [[line["train_loss"] for line in run.metrics] for run in runs]
    assert losses[0] == losses[1] == losses[2] == losses[3]


def test_whole_numbers_reach_the_networks_as_they_are() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.EmbeddingBag(50, CLASSES)

        def forward(self, tokens: Tensor) -> Tensor:
            assert tokens.dtype == torch.int64
            return self.embedding(tokens)

    data = Samples(torch.randint(50, (40, 5)), torch.randint(CLASSES, (40,)))
    assert fit(settings(epochs=1), Tokens, data).summary["status"] == "finished"
