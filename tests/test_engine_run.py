"""A run as a whole: metrics and summary, small, broken or unknown data, and what it leaves alone."""

from __future__ import annotations

import json
import random
import signal
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from engine_cases import (
    CLASSES,
    blobs,
    held_out,
    pair_of,
    parameters,
    run,
    same_bits,
    settings,
    small_cnn,
    small_mlp,
    small_tanh,
    trainer,
    without_timings,
)
from jocor_fast.data import DataError, load_dataset
from jocor_fast.engine import augment
from jocor_fast.engine.plan import plan_epoch
from jocor_fast.engine.run import EpochEvent, EvalData, TrainData, fit
from jocor_fast.engine.settings import TrainSettings
from jocor_fast.engine.summary import best_by_validation
from jocor_fast.models import mlp
from jocor_fast.noise import corrupt, symmetric

pytestmark = pytest.mark.usefixtures("one_thread")

FIELDS = [
    "epoch",
    "lr",
    "keep_rate",
    "train_loss",
    "label_precision",
    "test_accuracy_1",
    "test_accuracy_2",
    "test_accuracy",
    "test_accuracy_ensemble",
    "val_accuracy",
    "nonfinite_rows",
    "bad_files",
    "wait_share",
    "seconds",
    "eval_seconds",
    "samples_per_second",
    "selected_share_per_class",
]


def no_nan(text: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in a file")

    return json.loads(text, parse_constant=refuse)


def test_the_files_hold_what_the_run_returns(tmp_path: Path) -> None:
    events: list[EpochEvent] = []
    result = fit(
        settings(epochs=3, co_lambda=0.8),
        small_mlp,
        blobs(70),
        test=held_out(45),
        output=tmp_path / "run",
        extra_config={"settings": {"dataset": "blobs"}, "sources": {"dataset": "flag", "lr": "preset"}, "more": [1]},
        extra_summary={"nominal_noise_rate": 0.4},
        on_epoch=events.append,
    )
    lines = [no_nan(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    summary = no_nan((tmp_path / "run" / "summary.json").read_text())
    config = no_nan((tmp_path / "run" / "config.json").read_text())

    assert lines == result.metrics == [event.metrics for event in events]
    assert [list(line) for line in lines] == [FIELDS] * 3
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
    training = trainer(pair_of(small_mlp), data)
    choices: list[tuple[Tensor, Tensor]] = []
    loss = training.step.method.loss

    def watched(logits: tuple[Tensor, ...], labels: Tensor, num_keep: int) -> Any:
        outcome = loss(logits, labels, num_keep)
        choices.append((labels, outcome.selected[0]))
        return outcome

    training.step.method.loss = watched  # type: ignore[method-assign]
    plan = plan_epoch(training.settings, 3, 70)
    training.train_epoch(plan, stop=lambda: False)
    order = training.log.order if training.log is not None else torch.empty(0)
    line, _ = training.finish_epoch(plan)

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
    unknown = TrainData(data.inputs, data.labels)
    result = fit(settings(epochs=2, method="standard"), small_mlp, unknown, output=tmp_path)
    line, summary = result.metrics[-1], result.summary
    nulls = {name for name, value in line.items() if value is None}
    assert nulls == {name for name in FIELDS if "accuracy" in name} | {"label_precision", "bad_files", "wait_share"}
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
    training = trainer(pair_of(small_mlp), blobs(70))
    orders = []
    for epoch in (1, 2):
        plan = plan_epoch(training.settings, epoch, 70)
        training.train_epoch(plan, stop=lambda: False)
        assert training.log is not None
        orders.append(training.log.order.tolist())
        training.finish_epoch(plan)
    first, second = orders
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


class Exploding(nn.Module):
    """A linear model: from some call on the logits in `rows` are NaN, and their gradients are too, or 0."""

    def __init__(self, calls: int, rows: slice, *, gradients: bool = False) -> None:
        super().__init__()
        self.linear, self.calls, self.rows, self.gradients = nn.Linear(6, CLASSES), calls, rows, gradients

    def forward(self, inputs: Tensor) -> Tensor:
        logits = self.linear(inputs)
        if self.training and torch.is_grad_enabled():
            self.calls -= 1
            if self.calls < 0:
                factor = torch.ones(len(logits), 1)
                factor[self.rows] = torch.nan
                logits = logits * factor if self.gradients else torch.where(factor.isnan(), factor, logits)
        return logits


def test_rows_that_are_not_finite_are_counted_and_leave_jocor_unharmed(tmp_path: Path) -> None:
    networks = (Exploding(6, slice(0, 3)), nn.Linear(6, CLASSES))
    result = fit(settings(epochs=3), networks, blobs(64), output=tmp_path)
    assert [line["nonfinite_rows"] for line in result.metrics] == [0, 2 * 3, 4 * 3]
    assert result.summary["status"] == "finished"
    assert all(value.isfinite().all() for value in parameters(result.networks))
    assert all(line["train_loss"] is not None for line in result.metrics)


def test_a_run_whose_parameters_are_not_finite_has_diverged(tmp_path: Path) -> None:
    """A row that is multiplied by NaN on its way spreads over all weights; the checkpoint before it is kept."""
    events: list[int] = []
    result = fit(
        settings(method="standard", epochs=5),
        Exploding(6, slice(0, 1), gradients=True),
        blobs(64),
        test=held_out(9),
        output=tmp_path,
        on_epoch=lambda event: events.append(event.epoch),
    )
    assert result.summary["status"] == "diverged"
    reason = "a parameter or running statistic is not finite"
    assert result.summary["diverged"] == {"epoch": 2, "batch": 3, "reason": reason}
    assert result.metrics[1]["nonfinite_rows"] == 1 + 16  # that row, and then every row of the next batch
    assert events == [1, 2]
    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        no_nan(line)
    assert no_nan((tmp_path / "summary.json").read_text()) == result.summary
    checkpoint = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert len(checkpoint["history"]) == 1
    assert all(value.isfinite().all() for value in checkpoint["training"]["networks"][0].values())


def test_a_run_without_a_finite_loss_for_an_epoch_has_diverged() -> None:
    networks = (Exploding(4, slice(None)), nn.Linear(6, CLASSES))
    result = fit(settings(epochs=5), networks, blobs(64))
    assert [line["epoch"] for line in result.metrics] == [1, 2]
    assert result.summary["diverged"] == {"epoch": 2, "batch": 1, "reason": "no step had a finite loss"}
    assert (result.metrics[1]["train_loss"], result.metrics[1]["label_precision"]) == (None, None)


def test_the_epoch_in_which_a_run_diverged_is_not_the_best_whatever_its_accuracy(tmp_path: Path) -> None:
    """No best.pt is written of it: NaN logits are answered by class 0, which all of these samples are of."""
    val = EvalData(torch.zeros(9, 6), torch.zeros(9, dtype=torch.int64))
    network = Exploding(6, slice(0, 1), gradients=True)
    with torch.no_grad():
        network.linear.bias[0] = -9.0
    result = fit(settings(method="standard", epochs=5), network, blobs(64), val=val, output=tmp_path)
    assert [line["val_accuracy"] for line in result.metrics] == [0.0, 1.0]
    assert result.summary["best_by_validation"] == {"epoch": 1, "val_accuracy": 0.0, "test_accuracy": None}
    assert torch.load(tmp_path / "best.pt", weights_only=True)["epoch"] == 1


class Statistic(nn.Linear):
    """A layer with a statistic that plays no part in its output."""

    def __init__(self, value: float) -> None:
        super().__init__(6, CLASSES)
        self.register_buffer("statistic", torch.full((2,), value))


def test_a_statistic_that_is_not_a_number_has_diverged_and_an_infinite_mask_has_not() -> None:
    broken = fit(settings(epochs=1), lambda: Statistic(torch.nan), blobs(64)).summary
    assert broken["diverged"] == {"epoch": 1, "batch": None, "reason": "a parameter or running statistic is not finite"}
    assert fit(settings(epochs=1), lambda: Statistic(-torch.inf), blobs(64)).summary["status"] == "finished"


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


def test_crops_are_shifted_windows_and_half_are_mirrored() -> None:
    """Every result is found among the 81 · 2 windows of its padded image; shifts and mirrors vary within a batch."""
    images = torch.randint(1, 256, (64, 2, 5, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    kept = images.clone()
    result = augment.crop_flip(images, torch.Generator().manual_seed(1))
    assert torch.equal(images, kept)
    assert result.dtype == torch.uint8
    assert result.shape == images.shape
    padded = nn.functional.pad(images, [augment.PADDING] * 4)
    found = []
    for image, crop in zip(padded, result, strict=True):
        windows = {
            (top, left, mirrored): window.flip(-1) if mirrored else window
            for top in range(9)
            for left in range(9)
            for mirrored in (False, True)
            for window in [image[:, top : top + 5, left : left + 6]]
        }
        found.append(next(place for place, window in windows.items() if torch.equal(window, crop)))
    assert len({place[:2] for place in found}) > 30
    assert [(min(ends), max(ends)) for ends in list(zip(*found, strict=True))[:2]] == [(0, 8), (0, 8)]
    assert 20 < sum(mirrored for *_, mirrored in found) < 44
    gray = augment.crop_flip(images[:, 0], torch.Generator().manual_seed(1))
    assert torch.equal(gray, result[:, 0])


def test_crops_are_drawn_anew_each_step_and_follow_the_seed() -> None:
    data = blobs(32, (3, 8, 8))
    plain, first, again = (run_cnn(data, augment=kind) for kind in ("none", "crop-flip", "crop-flip"))
    assert same_bits(first, again)
    assert not same_bits(plain, first)


def run_cnn(data: TrainData, **changes: Any) -> list[Tensor]:
    return parameters(fit(settings(epochs=2, **changes), small_cnn, data).networks)


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"method": "coteaching-minus"}, ValueError, "method must be one of standard, "),
    ({"method": 3}, TypeError, "method must be a str, got int"),
    ({"forget_rate": 1.0}, ValueError, "forget_rate"),
    ({"forget_rate": True}, TypeError, "forget_rate"),
    ({"co_lambda": float("nan")}, ValueError, "co_lambda"),
    ({"lr": 0}, ValueError, "lr must be finite and above 0"),
    ({"lr": float("inf")}, ValueError, "lr must be finite"),
    ({"lr": 10**400}, ValueError, "lr must be finite and above 0, got inf"),  # which no float can hold
    ({"weight_decay": -(10**400)}, ValueError, "weight_decay must be finite and at least 0, got -inf"),
    ({"weight_decay": -1e-4}, ValueError, "weight_decay must be finite and at least 0"),
    ({"epochs": 0}, ValueError, "epochs must be at least 1, got 0"),
    ({"epochs": 1, "recipe": "published"}, ValueError, "epochs must be at least 2"),
    ({"epochs": 2.0}, TypeError, "epochs must be an int, got float"),
    ({"batch_size": 0}, ValueError, "batch_size must be at least 1"),
    ({"batch_size": True}, TypeError, "batch_size must be an int, got bool"),
    ({"ramp_epochs": -1}, ValueError, "ramp_epochs must be at least 0"),
    ({"decay_start": -1}, ValueError, "decay_start must be at least 0"),
    ({"seed": -1}, ValueError, "seed must be at least 0"),
    ({"seed": 2**63}, ValueError, "seed must be under"),
    ({"optimizer": "adamw"}, ValueError, "optimizer must be one of adam, sgd, got 'adamw'"),
    ({"recipe": "mine"}, ValueError, "recipe must be one of paper, published"),
    ({"augment": "mixup"}, ValueError, "augment must be one of none, crop-flip"),
    ({"precision": "int8"}, ValueError, "precision must be one of float32"),
    ({"device": "tpu"}, ValueError, "device must be auto, cpu, cuda or cuda:N, got 'tpu'"),
    ({"device": 0}, TypeError, "device must be a str"),
]


@pytest.mark.parametrize(("changes", "error", "message"), WRONG, ids=[str(case[0]) for case in WRONG])
def test_a_wrong_setting_is_named(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message.replace("(", r"\(")):
        settings(**changes)


def test_settings_take_the_plain_types_of_their_values() -> None:
    made = TrainSettings(forget_rate=np.float64(0.5), lr=1, epochs=np.int64(10), device=torch.device("cpu"))  # type: ignore[arg-type]
    assert [type(value) for value in (made.forget_rate, made.lr, made.epochs, made.device)] == [float, float, int, str]
    assert made.decay_start == 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a GPU that is not there")
def test_a_gpu_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="device: 'cuda:1' asks for a GPU"):
        run(device="cuda:1")


def broken_data(**changes: Any) -> TrainData:
    data = blobs(20)
    return TrainData(**{"inputs": data.inputs, "labels": data.labels, **changes})


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"inputs": np.zeros((20, 6))}, TypeError, "inputs must be a tensor"),
        ({"inputs": torch.zeros(20, 6, dtype=torch.bool)}, TypeError, "inputs must be uint8, floating"),
        ({"inputs": torch.zeros(0, 6), "labels": torch.zeros(0, dtype=torch.int64)}, ValueError, "at least one sample"),
        ({"labels": torch.zeros(20)}, TypeError, "labels must be int64, got torch.float32"),
        ({"labels": torch.zeros(19, dtype=torch.int64)}, ValueError, r"labels must be of shape \(20,\)"),
        ({"clean_labels": torch.zeros(20, 1, dtype=torch.int64)}, ValueError, "clean_labels must be of shape"),
        ({"input_scale": 10**400}, ValueError, "input_scale must be finite, got"),
    ],
)
def test_wrong_data_are_named(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        broken_data(**changes)


def test_data_that_do_not_go_with_the_networks_are_named_before_anything_is_written(tmp_path: Path) -> None:
    good, output = blobs(20), tmp_path / "run"
    high = TrainData(good.inputs, good.labels + CLASSES)
    wide = EvalData(torch.zeros(3, 7), torch.zeros(3, dtype=torch.int64))
    for changes, message in (
        ({"train": high}, r"training labels must lie in 0 … 3, as the networks have 4 outputs, got 4 … 7"),
        ({"train": TrainData(good.inputs, good.labels, good.labels - 1)}, "clean labels must lie in 0 … 3"),
        ({"test": wide}, r"networks do not take the test inputs of shape \(7,\)"),
        ({"val": wide}, r"networks do not take the validation inputs of shape \(7,\)"),
        ({"networks": nn.Flatten(0)}, "networks: method 'jocor' trains two networks, got 1"),
        ({"networks": (small_mlp(),) * 2}, "networks must be two modules, got the same one twice"),
        ({"networks": lambda: nn.Flatten(0)}, r"networks must map 2 samples to logits \(2, C\), got \(12,\)"),
        ({"networks": (small_mlp(), nn.Linear(6, 3))}, "networks must have the same number of outputs, got"),
        ({"networks": nn.Flatten}, "networks have no parameter that requires a gradient"),
        (
            {"settings": settings(augment="crop-flip")},
            r"augment: crop-flip needs images .* got inputs of shape \[N, 6\]",
        ),
        ({"resume": True, "output": None}, "resume needs the output folder"),
    ):
        arguments: dict[str, Any] = {"settings": settings(), "networks": small_mlp, "train": good, "output": output}
        arguments.update(changes)
        with pytest.raises(ValueError, match=message):
            fit(arguments.pop("settings"), arguments.pop("networks"), arguments.pop("train"), **arguments)
    for networks in (3, (small_mlp(), 3), lambda: 3):
        with pytest.raises(TypeError, match=r"networks must be .*, got int"):
            fit(settings(), networks, good, output=output)  # type: ignore[arg-type]
    assert not output.exists()


def test_two_epochs_of_mnist_with_half_of_the_labels_wrong(data_root: Path) -> None:
    """The paper's smallest setting: 468 steps an epoch, all 10,000 test images, and well on the way to its 96 %."""
    try:
        mnist = load_dataset("mnist", data_root)
    except DataError as error:
        pytest.skip(str(error))
    noisy = corrupt(mnist.train_labels, symmetric(10, 0.5), seed=0)
    inputs, labels, truth = map(torch.from_numpy, (mnist.train_inputs, noisy, mnist.train_labels))
    test = EvalData(torch.from_numpy(mnist.test_inputs), torch.from_numpy(mnist.test_labels))
    steps: list[int] = []
    result = fit(
        TrainSettings(forget_rate=0.5, co_lambda=0.95, epochs=2, device="cpu"),
        lambda: mlp(784, 10),
        TrainData(inputs, labels, truth),
        test=test,
        on_step=lambda epoch, step, of: steps.append(of),
    )
    assert steps == [468] * 936
    assert result.metrics[-1]["test_accuracy"] > 0.9
    assert result.metrics[-1]["label_precision"] > 0.54  # of 90 % kept, half of all being right
    counted = result.metrics[-1]["test_accuracy"] * 20_000
    assert counted == pytest.approx(round(counted), abs=1e-6)


def test_networks_that_start_alike_are_warned_of() -> None:
    network = small_mlp()
    twin = small_mlp()
    twin.load_state_dict(network.state_dict())
    with pytest.warns(UserWarning, match="networks start with the same weights"):
        fit(settings(epochs=1), (network, twin), blobs(20))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(epochs=1)
