"""Settings, data and networks that are wrong, or do not go together: named before anything is written."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from engine_cases import CLASSES, blobs, fit, parameters, run, same_bits, settings, small_cnn, small_mlp
from jocor_fast.data.samples import Samples
from jocor_fast.engine.settings import TrainSettings

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
    with pytest.raises(ValueError, match="device must be cpu where torch sees no GPU, got 'cuda:1'"):
        run(device="cuda:1")


def broken_data(**changes: Any) -> Samples:
    data = blobs(20)
    return Samples(**{"inputs": data.inputs, "labels": data.labels, **changes})


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
    high = Samples(good.inputs, good.labels + CLASSES)
    wide = Samples(torch.zeros(3, 7), torch.zeros(3, dtype=torch.int64))
    for changes, message in (
        ({"train": high}, r"training labels must lie in 0 … 3, as the networks have 4 outputs, got 4 … 7"),
        ({"train": Samples(good.inputs, good.labels, good.labels - 1)}, "clean labels must lie in 0 … 3"),
        ({"test": wide}, r"networks do not take the test inputs of shape \(7,\)"),
        ({"val": wide}, r"networks do not take the validation inputs of shape \(7,\)"),
        ({"networks": nn.Flatten(0)}, "networks: method 'jocor' trains two networks, got 1"),
        ({"networks": (small_mlp(),) * 2}, "networks must be two modules, got the same one twice"),
        ({"networks": lambda: nn.Flatten(0)}, r"networks must map 2 samples to logits \(2, C\), got \(12,\)"),
        ({"networks": (small_mlp(), nn.Linear(6, 3))}, "networks must have the same number of outputs, got"),
        ({"networks": nn.Flatten}, "networks have no parameter that requires a gradient"),
        (
            {"settings": settings(augment="crop-flip")},
            r"augment must be none for inputs that are no images .* got crop-flip and \[N, 6\]",
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


def normalised() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, CLASSES))


@pytest.mark.parametrize(("samples", "changes"), [(20, {"batch_size": 1}), (1, {}), (20, {"method": "f-correction"})])
def test_steps_of_one_sample_that_batchnorm_cannot_take_are_named_before_anything_is_written(
    samples: int, changes: dict[str, Any], tmp_path: Path
) -> None:
    asked = settings(**{"batch_size": 1 if samples > 1 else 16, **changes})
    why = f"batch size {asked.batch_size}, training samples {samples}, processes 1"
    with pytest.raises(ValueError, match=rf"batch_size: a step would have one sample \({why}\), and .* larger batch"):
        fit(asked, normalised, blobs(samples), output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_last_batch_of_one_sample_is_no_step_and_batchnorm_trains() -> None:
    """Only whole batches are steps, under both recipes."""
    assert run(normalised, data=blobs(33), epochs=2).summary["status"] == "finished"


def test_networks_that_can_be_trained_on_one_sample_are_and_trying_it_changes_nothing() -> None:
    """BatchNorm over the pixels of one image, and dropout: the run is that of one that does not try."""

    def of_one(*, tries: bool) -> list[torch.Tensor]:
        with pytest.MonkeyPatch.context() as patch:
            if not tries:
                patch.setattr("jocor_fast.engine.state.check_single_rows", lambda *_: None)
            return parameters(fit(settings(batch_size=1, epochs=1), small_cnn, blobs(9, (3, 8, 8))).networks)

    assert same_bits(of_one(tries=True), of_one(tries=False))


def test_networks_that_start_alike_are_warned_of() -> None:
    network = small_mlp()
    twin = small_mlp()
    twin.load_state_dict(network.state_dict())
    with pytest.warns(UserWarning, match="networks start with the same weights"):
        fit(settings(epochs=1), (network, twin), blobs(20))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(epochs=1)
