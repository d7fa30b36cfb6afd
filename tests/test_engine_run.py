"""A run as a whole: metrics and summary, small or unknown data, the best epoch, and what it leaves alone."""

from __future__ import annotations

import random
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine_cases import (
    METRICS,
    blobs,
    fit,
    held_out,
    pair_of,
    run,
    same_bits,
    settings,
    small_mlp,
    small_tanh,
    strict_json,
    train_epochs,
    training,
    without_timings,
)
from jocor_fast.data.catalogue import load_dataset
from jocor_fast.data.samples import Samples
from jocor_fast.engine.settings import TrainSettings
from jocor_fast.errors import DataError
from jocor_fast.models.networks import mlp
from jocor_fast.noise import corrupt, symmetric
from jocor_fast.report.summary import best_by_validation
from jocor_fast.runs.fit import EpochEvent


def test_the_files_hold_what_the_run_returns(tmp_path: Path) -> None:
    events: list[EpochEvent] = []
    result = fit(
        settings(epochs=3, co_lambda=0.8),
        small_mlp,
        blobs(70),
        test=held_out(45),
        output=tmp_path / "run",
        config={"settings": {"dataset": "blobs"}, "sources": {"dataset": "flag", "lr": "preset"}, "more": [1]},
        noise_rates=(0.4, None),
        on_epoch=events.append,
    )
    lines = [strict_json(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    summary = strict_json((tmp_path / "run" / "summary.json").read_text())
    config = strict_json((tmp_path / "run" / "config.json").read_text())

    assert lines == result.metrics == [event.metrics for event in events]
    assert [list(line) for line in lines] == [METRICS] * 3
    trained_on = [line["samples_per_second"] * line["seconds"] for line in lines]
    assert trained_on == pytest.approx([64] * 3)  # four whole batches of the 70 samples
    assert [(event.epoch, event.epochs) for event in events] == [(1, 3), (2, 3), (3, 3)]
    assert summary == result.summary
    assert summary["status"] == "finished"
    assert summary["last"] == lines[-1]
    assert summary["nominal_noise_rate"] == 0.4
    assert summary["environment"]["torch"] == torch.__version__
    assert config["settings"] == {**settings(epochs=3, co_lambda=0.8).as_dict(), "dataset": "blobs"}
    assert (config["sources"]["dataset"], config["sources"]["lr"], config["more"]) == ("flag", "preset", [1])
    assert (config["sources"]["co_lambda"], config["sources"]["recipe"], config["sources"]["decay_start"]) == (
        "flag",
        "default",
        "default",
    )
    assert (tmp_path / "run" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "run" / "best.pt").exists()


def test_the_schedules_are_in_the_metrics() -> None:
    result = run(epochs=5, decay_start=3, ramp_epochs=4)
    assert [line["keep_rate"] for line in result.metrics] == pytest.approx([0.9, 0.8, 0.7, 0.6, 0.6])
    assert [line["lr"] for line in result.metrics] == pytest.approx([0.01, 0.01, 0.01, 0.01, 0.005])
    standard = run(method="standard", epochs=2)
    assert [line["keep_rate"] for line in standard.metrics] == [1.0, 1.0]


def test_label_precision_is_clean_among_selected_over_the_epoch() -> None:
    data = blobs(70)
    state = training(pair_of(small_mlp), data)
    choices: list[tuple[Tensor, Tensor]] = []
    loss = state.step.method.loss

    def watched(logits: tuple[Tensor, ...], labels: Tensor, num_keep: int) -> Any:
        outcome = loss(logits, labels, num_keep)
        choices.append((labels, outcome.selected[0]))
        return outcome

    state.step.method.loss = watched  # type: ignore[method-assign]
    watch = train_epochs(state, 3)
    (line,), order = watch.lines, watch.logs[0]["order"]

    assert data.clean_labels is not None
    clean = (data.labels == data.clean_labels)[order].split(16)
    selected = [mask for _, mask in choices]
    assert sum(int(mask.sum()) for mask in selected) == 4 * 10  # ceil(.6 · 16) of each of four batches
    right = sum(int((mask & true).sum()) for mask, true in zip(selected, clean, strict=True))
    assert line["label_precision"] == right / 40
    for (labels, _), rows in zip(choices, order.split(16), strict=True):
        assert torch.equal(labels, data.labels[rows])


def test_standard_trains_on_every_label_and_its_precision_says_so() -> None:
    data = blobs(64)
    assert data.clean_labels is not None
    result = run(data=data, method="standard", epochs=1)
    assert result.metrics[0]["label_precision"] == (data.labels == data.clean_labels).double().mean().item()
    assert result.summary["realised_noise_rate"] == pytest.approx(1 - result.metrics[0]["label_precision"])


def test_what_is_unknown_or_absent_is_null(tmp_path: Path) -> None:
    data = blobs(70)
    unknown = Samples(data.inputs, data.labels)
    result = fit(settings(epochs=2, method="standard"), small_mlp, unknown, output=tmp_path)
    line, summary = result.metrics[-1], result.summary
    nulls = {name for name, value in line.items() if value is None}
    assert nulls == {name for name in METRICS if "accuracy" in name} | {
        "forget_rate",
        "label_precision",
        "bad_files",
        "wait_share",
    }
    assert summary["last_10_mean"] == {"test_accuracy": None, "label_precision": None, "epochs": 2}
    assert summary["best_by_validation"] is None
    assert summary["realised_noise_rate"] is None

    tested = fit(settings(epochs=1, method="standard"), small_mlp, data, test=held_out(9)).metrics[0]
    assert tested["test_accuracy"] == tested["test_accuracy_1"]
    assert tested["test_accuracy_2"] is tested["test_accuracy_ensemble"] is None


@pytest.mark.parametrize("recipe", ["paper", "published"])
@pytest.mark.parametrize("epochs", [2, 5, 12])
def test_runs_shorter_than_ramp_decay_and_ten_epochs_work(recipe: str, epochs: int) -> None:
    result = run(recipe=recipe, epochs=epochs, ramp_epochs=10, decay_start=80)
    trained = epochs if recipe == "paper" else epochs - 1
    assert len(result.metrics) == trained
    assert result.summary["last_10_mean"]["epochs"] == min(10, trained)
    last = [line["test_accuracy"] for line in result.metrics[-10:]]
    assert result.summary["last_10_mean"]["test_accuracy"] == pytest.approx(sum(last) / len(last))


@pytest.mark.parametrize(("count", "batch_size", "steps"), [(1, 16, 1), (7, 16, 1), (33, 16, 2), (16, 1, 16)])
def test_data_of_any_size_are_trained_on_in_whole_batches(count: int, batch_size: int, steps: int) -> None:
    seen: list[tuple[int, int, int]] = []
    data = blobs(count)
    result = fit(settings(epochs=2, batch_size=batch_size), small_mlp, data, on_step=lambda *step: seen.append(step))
    assert seen == [(epoch, step, steps) for epoch in (1, 2) for step in range(1, steps + 1)]
    assert result.summary["status"] == "finished"
    assert result.metrics[0]["train_loss"] is not None


def test_every_epoch_has_an_order_of_its_own_and_leaves_out_other_samples() -> None:
    state = training(pair_of(small_mlp), blobs(70))
    first, second = (log["order"].tolist() for log in train_epochs(state, 1, 2).logs)
    assert len(set(first)) == len(set(second)) == 64
    assert first != second
    assert set(first) != set(second)


def test_the_best_epoch_is_the_first_with_the_highest_validation_accuracy(tmp_path: Path) -> None:
    val, test = held_out(30, seed=7), held_out(45)
    result = fit(settings(epochs=12), small_mlp, blobs(200), val=val, test=test, output=tmp_path)
    scores = [line["val_accuracy"] for line in result.metrics]
    best = result.summary["best_by_validation"]
    assert best["epoch"] == 1 + scores.index(max(scores)) < 12
    assert best["val_accuracy"] == max(scores)
    assert best["test_accuracy"] == result.metrics[best["epoch"] - 1]["test_accuracy"]

    saved = torch.load(tmp_path / "best.pt", weights_only=True)
    assert {name: saved[name] for name in best} == best
    networks = pair_of(small_mlp, seed=3)
    shares = []
    for network, weights in zip(networks, saved["networks"], strict=True):
        network.load_state_dict(weights)
        shares.append((network(val.inputs / 255).argmax(1) == val.labels).double().mean().item())
    assert sum(shares) / 2 == pytest.approx(max(scores))


def test_of_epochs_that_are_equally_good_the_first_is_the_best() -> None:
    scores = [None, 0.4, 0.7, 0.7, 0.6, 0.7]
    lines = [{"epoch": 1 + i, "val_accuracy": score, "test_accuracy": i / 10} for i, score in enumerate(scores)]
    assert best_by_validation(lines) == {"epoch": 3, "val_accuracy": 0.7, "test_accuracy": 0.2}


def test_the_callers_generators_modes_and_handlers_are_as_before(tmp_path: Path) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    torch.manual_seed(123)
    np.random.seed(123)  # noqa: NPY002 - the global generator is what must be left alone
    random.seed(123)
    before = (torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate())  # type: ignore[index]  # noqa: NPY002
    run(small_tanh, output=tmp_path, epochs=2)
    after = (torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate())  # type: ignore[index]  # noqa: NPY002
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
    assert signal.getsignal(signal.SIGTERM) is handler
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_callers_generator_changes_nothing_and_the_inputs_are_not_written_to() -> None:
    data = blobs(70)
    copies = [data.inputs.clone(), data.labels.clone()]
    torch.manual_seed(1)
    first = run(small_tanh, data=data, epochs=2)
    torch.manual_seed(2)
    second = run(small_tanh, data=data, epochs=2)
    assert without_timings(first.metrics) == without_timings(second.metrics)
    assert same_bits(copies, [data.inputs, data.labels])


def test_two_epochs_of_mnist_with_half_of_the_labels_wrong(data_root: Path) -> None:
    """The paper's smallest setting: 468 steps an epoch, all 10,000 test images, and well on the way to its 96 %."""
    try:
        mnist = load_dataset("mnist", data_root)
    except DataError as error:
        pytest.skip(str(error))
    clean = mnist.train.labels
    noisy = torch.from_numpy(corrupt(clean, symmetric(10, 0.5), seed=0))
    steps: list[int] = []
    result = fit(
        TrainSettings(forget_rate=0.5, co_lambda=0.95, epochs=2, device="cpu"),
        lambda: mlp(784, 10),
        replace(mnist.train, labels=noisy, clean_labels=clean),
        test=mnist.test,
        on_step=lambda epoch, step, of: steps.append(of),
    )
    assert steps == [468] * 936
    assert result.metrics[-1]["test_accuracy"] > 0.9
    assert result.metrics[-1]["label_precision"] > 0.54  # of 90 % kept, half of all being right
    counted = result.metrics[-1]["test_accuracy"] * 20_000
    assert counted == pytest.approx(round(counted), abs=1e-6)
