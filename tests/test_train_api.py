"""`jf.train`: one's own networks and arrays, in ten lines."""

from __future__ import annotations

import inspect
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits, load_wine
from sklearn.preprocessing import scale
from torch import Tensor, nn

import jocor_fast as jf
from engine_cases import (
    CLASSES,
    blobs,
    held_out,
    pair_of,
    parameters,
    same_bits,
    small_cnn,
    small_mlp,
    small_tanh,
    without_timings,
)
from jocor_fast.errors import RunError

QUICK: dict[str, Any] = {"forget_rate": 0.4, "epochs": 3, "ramp_epochs": 2, "batch_size": 16, "device": "cpu"}


def arrays(count: int = 70) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    data = blobs(count)
    assert data.clean_labels is not None
    return data.inputs.numpy(), data.labels.numpy(), data.clean_labels.numpy()


def test_the_signature_is_the_published_one() -> None:
    parameters = inspect.signature(jf.train).parameters
    published = [
        "networks",
        "train_data",
        "test_data",
        "val_data",
        "clean_labels",
        "method",
        "forget_rate",
        "co_lambda",
        "ramp_epochs",
        "epochs",
        "batch_size",
        "lr",
        "recipe",
        "seed",
        "device",
        "precision",
        "output",
        "resume",
    ]
    assert list(parameters)[: len(published)] == published
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    assert defaults["forget_rate"] is inspect.Parameter.empty
    assert (defaults["method"], defaults["co_lambda"], defaults["epochs"], defaults["lr"]) == ("jocor", 0.9, 200, 1e-3)
    kinds = {name: parameter.kind for name, parameter in parameters.items()}
    assert kinds.pop("method_options") is inspect.Parameter.VAR_KEYWORD
    assert {name for name, kind in kinds.items() if kind is not inspect.Parameter.KEYWORD_ONLY} == {
        "networks",
        "train_data",
    }


def test_a_line_an_epoch_is_logged_for_who_wants_to_see_it(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs, labels, _ = arrays()
    jf.train(small_mlp, (inputs, labels), **QUICK)
    assert (caplog.messages, *capsys.readouterr()) == ([], "", "")
    with caplog.at_level("INFO", "jocor_fast"):
        jf.train(small_tanh, (inputs, labels), method="f-correction", **QUICK)
    assert [line.partition("  ")[0] for line in caplog.messages] == [
        *(f"first stage: epoch {epoch}/3" for epoch in (1, 2, 3)),
        *(f"epoch {epoch}/3" for epoch in (1, 2, 3)),
    ]


def test_ten_lines_train_ones_own_networks_and_arrays() -> None:
    """Half of the digits' labels are drawn anew; the networks are modules of any kind."""

    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(64, 128), nn.Linear(128, 10)

        def forward(self, images: Tensor) -> Tensor:
            return self.last(torch.relu(self.first(images)))

    images, labels = load_digits(return_X_y=True)
    images = images / 16
    noisy = jf.noise.corrupt(labels, jf.noise.symmetric(10, 0.5), seed=0)
    torch.manual_seed(0)
    networks = (Mine(), Mine())
    run = jf.train(
        networks,
        (images[:1437], noisy[:1437]),
        test_data=(images[1437:], labels[1437:]),
        clean_labels=labels[:1437],
        forget_rate=0.5,
        epochs=25,
        batch_size=32,
    )
    assert run.networks == networks
    assert run.summary["status"] == "finished"
    assert run.metrics[-1]["test_accuracy"] > 0.7
    assert run.metrics[-1]["label_precision"] > 0.8
    assert run.summary["realised_noise_rate"] == pytest.approx((noisy[:1437] != labels[:1437]).mean())


def test_every_sample_keeps_its_number() -> None:
    """Inputs, noisy and true labels stay together: only then do small losses tell the wrong labels from the right."""

    class Noting(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            if torch.is_grad_enabled():
                seen.append((1000 * inputs[:, 2]).round().long())
            return super().forward(inputs)

    seen: list[Tensor] = []
    clean = np.arange(64) % 2
    noisy = np.where(np.arange(64) % 5 == 0, 1 - clean, clean)
    inputs = np.stack([clean, 1 - clean, np.arange(64) / 1000], axis=1)
    options = {**QUICK, "forget_rate": 0.5, "co_lambda": 0.0, "epochs": 20, "ramp_epochs": 10, "lr": 0.05}
    run = jf.train((Noting(3, 2), nn.Linear(3, 2)), (inputs, noisy), clean_labels=clean, **options)
    epochs = torch.cat(seen).view(20, 64)
    assert all(epoch.sort().values.equal(torch.arange(64)) for epoch in epochs)
    assert not torch.equal(epochs[0], epochs[1])
    assert run.metrics[0]["label_precision"] < 1.0
    assert run.metrics[-1]["label_precision"] == 1.0


def test_modules_are_trained_in_place_from_the_weights_they_have() -> None:
    inputs, labels, _ = arrays()
    networks = pair_of(small_mlp)
    once = jf.train(networks, (inputs, labels), **QUICK)
    assert all(mine is theirs for mine, theirs in zip(once.networks, networks, strict=True))
    weights = networks[0][1].weight.clone()
    jf.train(networks, (inputs, labels), **{**QUICK, "lr": 1e-9})
    torch.testing.assert_close(networks[0][1].weight, weights, rtol=0, atol=1e-6)  # it went on from there


def test_a_function_is_called_once_a_network_under_the_seed() -> None:
    inputs, labels, _ = arrays()
    calls: list[nn.Module] = []

    def build() -> nn.Module:
        calls.append(small_tanh())
        return calls[-1]

    runs = [jf.train(build, (inputs, labels), **QUICK, seed=seed) for seed in (1, 1, 2)]
    assert len(calls) == 6
    assert runs[0].networks == tuple(calls[:2])
    weights = [list(run.networks[0].state_dict().values()) for run in runs]
    assert same_bits(weights[0], weights[1])
    assert not same_bits(weights[0], weights[2])
    single = jf.train(build, (inputs, labels), method="standard", **QUICK)
    assert len(single.networks) == 1


def scaled(inputs: np.ndarray) -> Tensor:
    """What the networks get of uint8 inputs."""
    return torch.tensor(inputs).float() * np.float32(1 / 255)


@pytest.mark.parametrize(
    "convert",
    [
        lambda inputs, labels: (torch.tensor(inputs), torch.tensor(labels)),
        lambda inputs, labels: [inputs, labels[:, None]],
        lambda inputs, labels: (inputs, labels.tolist()),
        lambda inputs, labels: ([torch.tensor(row) for row in inputs], list(torch.tensor(labels))),
        lambda inputs, labels: (inputs, labels.astype(np.uint8)),
        lambda inputs, labels: (inputs, labels.astype(np.float64)),
        lambda inputs, labels: (inputs[::-1][::-1], torch.from_numpy(labels).to(torch.int16)),
        lambda inputs, labels: ((inputs.astype(np.float32) * np.float32(1 / 255)).tolist(), labels),
        lambda inputs, labels: ((inputs.astype(np.float32) * np.float32(1 / 255)).astype(">f4"), labels.astype(">i4")),
        lambda inputs, labels: (scaled(inputs).numpy().astype(np.longdouble), labels),
        lambda inputs, labels: ([row.requires_grad_() for row in scaled(inputs)], labels),
    ],
    ids=[
        *("tensors", "(N, 1)", "list", "lists of tensors", "uint8", "whole floats", "negative strides"),
        *("nested lists", "big-endian", "long doubles", "tensors that need a gradient"),
    ],
)
def test_arrays_of_every_kind_train_alike(convert: Any) -> None:
    inputs, labels, _ = arrays()
    inputs.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = jf.train(small_mlp, (inputs, labels), **QUICK)
        converted = jf.train(small_mlp, convert(inputs, labels), **QUICK)
    assert without_timings(converted.metrics) == without_timings(expected.metrics)


def test_all_sets_are_used_for_what_they_are(tmp_path: Path) -> None:
    inputs, labels, clean = arrays()
    test, val = held_out(33), held_out(20, seed=8)
    run = jf.train(
        small_mlp,
        (inputs, labels),
        test_data=(test.inputs, test.labels),
        val_data=(val.inputs.numpy(), val.labels.numpy()),
        clean_labels=clean,
        output=tmp_path,
        **QUICK,
    )
    assert (tmp_path / "best.pt").exists()
    for field, data in (("test_accuracy", test), ("val_accuracy", val)):
        shares = [(net(data.inputs / 255).argmax(1) == data.labels).double().mean().item() for net in run.networks]
        assert run.metrics[-1][field] == pytest.approx(sum(shares) / 2)
    again = jf.train(
        small_mlp,
        (inputs, labels),
        test_data=(test.inputs, test.labels),
        val_data=(val.inputs.numpy(), val.labels.numpy()),
        clean_labels=clean,
        output=str(tmp_path),
        resume=True,
        **QUICK,
    )
    assert again.metrics == run.metrics


def test_batches_are_capped_and_beta1_falls_apart_from_the_recipe(tmp_path: Path) -> None:
    inputs, labels, _ = arrays()
    plain = jf.train(small_mlp, (inputs, labels), **QUICK)
    capped = jf.train(small_mlp, (inputs, labels), max_batches=2, output=tmp_path, **QUICK)
    assert (plain.history.seen.sum(), capped.history.seen.sum()) == (3 * 4 * 16, 3 * 2 * 16)
    stored = json.loads((tmp_path / "config.json").read_text())["settings"]
    assert (stored["max_batches"], stored["beta1_after"]) == (2, None)
    with pytest.raises(RunError, match=r"settings: max_batches \(then 2, now 3\), beta1_after \(then None, now 0.5\)"):
        jf.train(small_mlp, (inputs, labels), max_batches=3, beta1_after=0.5, output=tmp_path, resume=True, **QUICK)
    slower = {**QUICK, "epochs": 5}  # the learning rate falls after epoch 2, and β1 in it
    as_before, lower = (jf.train(small_mlp, (inputs, labels), beta1_after=b, **slower).metrics for b in (None, 0.1))
    same = [a["train_loss"] == b["train_loss"] for a, b in zip(as_before, lower, strict=True)]
    assert same == [True, False, False, False, False]
    for wrong, sentence in (
        ({"max_batches": 0}, "max_batches must be at least 1"),
        ({"beta1_after": 1}, "beta1_after must"),
    ):
        with pytest.raises(ValueError, match=sentence):
            jf.train(small_mlp, (inputs, labels), **QUICK, **wrong)


@pytest.mark.parametrize(
    ("changes", "most"),
    [
        ({}, "40"),
        ({"ramp_epochs": 3}, "40"),
        ({"ramp_epochs": 4}, "30"),
        ({"ramp_epochs": 4, "recipe": "published", "epochs": 4}, "40"),  # it trains three, and ramps one epoch faster
        ({"ramp_epochs": 5, "recipe": "published", "epochs": 4}, "30"),
        ({"ramp_epochs": 4, "forget_rate": 0.0}, "0"),
        ({"ramp_epochs": 4, "method": "standard"}, "0"),
    ],
)
def test_a_run_shorter_than_its_ramp_is_warned_of_with_what_it_comes_to(changes: dict[str, Any], most: str) -> None:
    inputs, labels, _ = arrays()
    asked = {**QUICK, **changes}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = jf.train(small_mlp, (inputs, labels), **asked)
    assert f"{100 * (1 - run.metrics[-1]['keep_rate']):.3g}" == most
    said = [str(warning.message) for warning in caught]
    assert [warning.filename for warning in caught] == [__file__] * len(caught)
    expected = (
        f"the ramp of {asked['ramp_epochs']} epochs is longer than the run of {len(run.metrics)}: at most {most} % of "
        "a batch are left out, not the forget rate's 40 %; more epochs or a shorter ramp come to it"
    )
    assert said == ([expected] if most == "30" else [])


def test_a_class_that_is_absent_keeps_its_output() -> None:
    """Labels 0, 1 and 3 of four outputs are classes, not a numbering with a gap."""
    inputs, labels, _ = arrays()
    labels = np.where(labels == 2, 3, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for networks in (small_mlp, pair_of(small_mlp)):
            run = jf.train(networks, (inputs, labels), **{**QUICK, "epochs": 60, "lr": 0.02})
    answers = run.networks[0](torch.from_numpy(inputs) / 255).argmax(1)
    assert 3 in answers
    assert 2 not in answers


def test_strings_and_gaps_are_numbered_in_sorted_order_and_said(tmp_path: Path) -> None:
    inputs, labels, clean = arrays()
    expected = jf.train(small_mlp, (inputs, labels), clean_labels=clean, **QUICK)
    for number, names in enumerate((["ant", "bee", "cat", "dog"], [-5, 0, 7, 900], [1, 2, 3, 4])):
        table = np.array(names)
        output = tmp_path / str(number)
        with pytest.warns(UserWarning, match=rf"numbered in sorted order: {names[0]} → 0, {names[1]} → 1"):
            run = jf.train(small_mlp, (inputs, table[labels]), clean_labels=table[clean], output=output, **QUICK)
        assert without_timings(run.metrics) == without_timings(expected.metrics)
        assert json.loads((output / "config.json").read_text())["label_table"] == [str(name) for name in names]


def test_inputs_that_are_not_finite_are_warned_of_and_left_to_networks_that_replace_them() -> None:
    inputs, labels = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3
    inputs[7, 2] = torch.nan
    options: dict[str, Any] = {"forget_rate": 0.5, "ramp_epochs": 0, "epochs": 1, "batch_size": 8}
    for network, status in ((nn.Linear, "diverged"), (Replacing, "finished")):
        with pytest.warns(UserWarning, match="train_data: a number in sample 7 is not finite: "):
            run = jf.train(lambda: network(6, 3), (inputs, labels), **options)  # noqa: B023 - called at once
        assert run.summary["status"] == status


def test_features_that_nobody_scaled_are_warned_of_as_on_the_command_line() -> None:
    """Case 56."""
    wine = load_wine()
    sentence = "floats from 0.13 to 1680 reach the networks .*: give each feature mean 0 and deviation 1$"
    with pytest.warns(UserWarning, match=f"train_data: {sentence}"):
        jf.train(lambda: nn.Linear(13, 3), (wine.data, wine.target), forget_rate=0.2, epochs=1, ramp_epochs=1)
    with pytest.warns(UserWarning, match=f"X: {sentence}"):
        jf.JoCoRClassifier(epochs=2).fit(wine.data, wine.target)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jf.JoCoRClassifier(epochs=2).fit(scale(wine.data), wine.target)


class Replacing(nn.Linear):
    """A linear model of the numbers that there are."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs.nan_to_num())


def test_what_a_config_of_a_call_says(tmp_path: Path) -> None:
    inputs, labels, _ = arrays()
    jf.train(small_mlp, (inputs, labels), output=tmp_path, **QUICK)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["settings"]["decay_start"] == 1  # 0.4 · 3, rounded down
    assert (config["sources"]["epochs"], config["sources"]["lr"]) == ("flag", "default")


class AuxiliaryHead(nn.Module):
    """Gives a pair in training mode, as torchvision's Inception and GoogLeNet do."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.auxiliary = nn.Linear(6, CLASSES), nn.Linear(6, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        logits: Tensor = self.head(inputs)
        return (logits, self.auxiliary(inputs)) if self.training else logits


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"train_data": np.zeros((3, 6))}, TypeError, r"train_data must be a pair \(inputs, labels\), got ndarray"),
    (
        {"train_data": (np.zeros((4, 6)), [0, 1, 2])},
        ValueError,
        "train_data must have one label for each of its 4 inputs",
    ),
    ({"train_data": (np.array([["a"]]), [0])}, TypeError, "train_data: inputs must be numbers, got <U1"),
    ({"train_data": (np.zeros((2, 6), bool), [0, 1])}, TypeError, "train_data: inputs must be uint8, floating"),
    ({"train_data": ([[1, 2], [3]], [0, 1])}, ValueError, "train_data: inputs must have one shape, got parts of diff"),
    ({"train_data": ([torch.zeros(2), torch.zeros(3)], [0, 1])}, ValueError, "train_data: inputs must have one shape"),
    ({"train_data": (np.zeros((0, 6)), [])}, ValueError, "train_data: inputs must be of shape .* at least one sample"),
    ({"train_data": (np.zeros((2, 6)), [0.5, 1])}, ValueError, "train_data: labels must be whole numbers"),
    (
        {"train_data": (np.zeros((4, 6)), np.eye(4))},
        ValueError,
        r"train_data: labels must have shape \(N,\) or \(N, 1\)",
    ),
    ({"train_data": (torch.eye(6).to_sparse(), [0] * 6)}, TypeError, "train_data: inputs must be a dense tensor"),
    ({"train_data": (np.zeros((2, 6)), torch.zeros(2, device="meta"))}, TypeError, "train_data: labels must hold num"),
    (
        {"train_data": (np.zeros((2, 6)), torch.eye(2).to_sparse())},
        TypeError,
        "train_data: labels must be a dense tens",
    ),
    (
        {"train_data": (torch.zeros(2, 6, device="meta"), [0, 1])},
        TypeError,
        "train_data: inputs must hold numbers, got",
    ),
    ({"test_data": (np.zeros((2, 6)), [0, 1], 3)}, TypeError, "test_data must be a pair"),
    ({"test_data": (np.zeros((2, 5), np.uint8), [0, 1])}, ValueError, "networks do not take the test inputs"),
    ({"clean_labels": [0, 1]}, ValueError, "clean_labels must have one label for each of its 70 inputs, got 2"),
    ({"networks": small_mlp()}, ValueError, "networks: method 'jocor' trains two networks, got 1"),
    ({"networks": "mlp"}, TypeError, "networks must be"),
    ({"networks": lambda: nn.LazyLinear(CLASSES)}, ValueError, "networks must have values in all .* weight has none"),
    ({"networks": lambda: nn.Linear(6, CLASSES, device="meta")}, ValueError, "networks must have values in all"),
    ({"networks": AuxiliaryHead}, TypeError, "networks must give logits .* in training mode .* got tuple"),
    ({"method": "standard", "networks": (small_mlp(), small_mlp())}, ValueError, "trains one network, got 2"),
    ({"forget_rate": 1.0}, ValueError, "forget_rate"),
    ({"output": 3}, TypeError, "output must be a str, a path or None, got int"),
    ({"output": ""}, ValueError, "output must name a folder, got ''"),  # the current one is "."
    ({"resume": "no"}, TypeError, "resume must be a bool, got str"),
    ({"precision": "float8"}, ValueError, "precision must be one of"),
    ({"threads": 2000}, ValueError, "threads must be at most 1024, got 2000"),
    (
        {"train_data": (torch.stack([torch.eye(6)] * 3).to_sparse_csr(), [0] * 3)},
        ValueError,
        r"must be of shape \[N, D\]",
    ),
]


@pytest.mark.parametrize(("changes", "error", "message"), WRONG, ids=[case[2][:40] for case in WRONG])
def test_a_wrong_argument_is_named(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    inputs, labels, _ = arrays()
    arguments: dict[str, Any] = {"networks": small_mlp, "train_data": (inputs, labels), **QUICK, **changes}
    with pytest.raises(error, match=message):
        jf.train(arguments.pop("networks"), arguments.pop("train_data"), **arguments)


@pytest.mark.filterwarnings("ignore:labels are numbered in sorted order")
@pytest.mark.parametrize(
    ("networks", "error", "message"),
    [
        ([], ValueError, "trains two networks, got 0"),
        (5, TypeError, "networks must be a module, a pair"),
        (lambda: 3, TypeError, "networks must be of torch.nn.Module, got int"),
    ],
)
def test_what_are_no_networks_is_said_so_where_labels_have_gaps_too(
    networks: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        jf.train(networks, (np.zeros((4, 6)), [0, 2, 0, 2]), **QUICK)


def test_sets_that_reach_the_networks_on_another_scale_are_warned_of() -> None:
    inputs = np.random.default_rng(0).integers(0, 256, (40, 6), dtype=np.uint8)
    labels = np.arange(40) % CLASSES
    sentence = (
        "test_data: inputs are torch.float32 and those of train_data torch.uint8: uint8 reaches the networks divided"
    )
    with pytest.warns(UserWarning, match=sentence):
        jf.train(small_mlp, (inputs, labels), test_data=(inputs.astype(np.float32), labels), **QUICK)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jf.train(
            small_mlp, (inputs, labels), test_data=(inputs[:8].astype(np.int64).astype(np.uint8), labels[:8]), **QUICK
        )
        jf.train(small_mlp, (inputs / 255, labels), val_data=(np.float16(inputs), labels), **QUICK)


def test_home_is_found_in_the_folder_to_audit_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    inputs, labels, _ = arrays()
    jf.train(small_mlp, (inputs, labels), **QUICK, output="~/run")
    assert (jf.audit("~/run").given == labels).all()


def test_more_classes_than_outputs_are_an_error() -> None:
    inputs, _, _ = arrays()
    with (
        pytest.warns(UserWarning, match="numbered in sorted order"),
        pytest.raises(ValueError, match="must lie in 0 … 3, as the networks have 4 outputs"),
    ):
        jf.train(small_mlp, (inputs, np.arange(70) % (CLASSES + 1) + 1), **QUICK)


def test_the_forget_rate_must_be_given() -> None:
    inputs, labels, _ = arrays()
    with pytest.raises(TypeError, match="forget_rate"):
        jf.train(small_mlp, (inputs, labels))  # type: ignore[call-arg]


def test_images_train_with_batchnorm_and_dropout() -> None:
    data = blobs(40, (3, 8, 8))
    run = jf.train(small_cnn, (data.inputs, data.labels), **QUICK)
    assert run.summary["status"] == "finished"
    assert not any(network.training for network in run.networks)


def momentum(parameters: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def test_a_run_reads_back_from_its_folder(tmp_path: Path) -> None:
    """With an optimiser of one's own, interrupted and resumed: what it keeps is in the checkpoint."""
    inputs, labels, clean = arrays()
    seen: list[dict[str, Any]] = []

    def note(line: dict[str, Any]) -> None:
        seen.append(line)
        if len(seen) == 2:
            raise KeyboardInterrupt

    own: dict[str, Any] = {**QUICK, "optimizer": momentum, "class_names": list("abcd"), "clean_labels": clean}
    whole = jf.train(small_mlp, (inputs, labels), **own)
    with pytest.raises(KeyboardInterrupt):
        jf.train(small_mlp, (inputs, labels), output=tmp_path / "run", on_epoch=note, **own)
    run = jf.train(small_mlp, (inputs, labels), output=tmp_path / "run", on_epoch=note, resume=True, **own)
    assert seen == run.metrics
    assert same_bits(parameters(run.networks), parameters(whole.networks))
    again = jf.load_run(tmp_path / "run", networks=small_mlp)
    assert same_bits(parameters(again.networks), parameters(run.networks))
    assert (again.metrics, again.summary, again.settings) == (run.metrics, run.summary, run.settings)
    assert again.settings["optimizer"] == "function momentum"
    np.testing.assert_array_equal(jf.audit(again).score, jf.audit(run).score)
    assert not any(network.training for network in again.networks)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["label_table"] == list("abcd")


def test_an_optimiser_of_ones_own_takes_its_rates_from_the_schedule() -> None:
    """Its own rate, 0.1, falls in the proportion in which `lr` would."""
    inputs, labels, _ = arrays()
    built: list[torch.optim.Optimizer] = []

    def build(parameters: list[Tensor]) -> torch.optim.Optimizer:
        built.append(momentum(parameters))
        return built[0]

    rates: list[float] = []
    run = jf.train(
        small_mlp,
        (inputs, labels),
        **QUICK,
        lr=0.01,
        optimizer=build,
        on_epoch=lambda line: rates.append(built[0].param_groups[0]["lr"]),
    )
    assert rates == pytest.approx([10 * line["lr"] for line in run.metrics])
    assert rates[0] == pytest.approx(0.1)
    assert rates[-1] < rates[0]
    assert [tuple(p.shape) for p in built[0].param_groups[0]["params"]] == [  # of the modules, not of a flat block
        tuple(p.shape) for network in run.networks for p in network.parameters()
    ]


@pytest.mark.parametrize(
    ("wrong", "error", "sentence"),
    [
        ({"optimizer": "lion"}, ValueError, "optimizer must be one of adam, sgd, got 'lion'"),
        ({"optimizer": lambda parameters: None}, TypeError, "optimizer must be a function that returns a torch.optim"),
        ({"optimizer": momentum, "weight_decay": 0.1}, ValueError, "weight_decay must be left out with a function"),
        ({"on_epoch": 3}, TypeError, "on_epoch must be a function"),
        ({"class_names": "abcd"}, TypeError, "class_names must be a sequence of str"),
        ({"class_names": ["a"]}, ValueError, "class_names must hold a name for each of the networks' 4 outputs, got 1"),
    ],
)
def test_what_the_further_arguments_must_be(wrong: dict[str, Any], error: type[Exception], sentence: str) -> None:
    inputs, labels, _ = arrays()
    with pytest.raises(error, match=f"^{sentence}"):
        jf.train(small_mlp, (inputs, labels), **QUICK, **wrong)


def test_a_run_of_networks_that_only_their_owner_can_build_says_so(tmp_path: Path) -> None:
    inputs, labels, _ = arrays()
    jf.train(small_mlp, (inputs, labels), output=tmp_path / "run", **QUICK)
    with pytest.raises(RunError, match="does not say which networks it is of"):
        jf.load_run(tmp_path / "run")
    with pytest.raises(RunError, match=r"the networks of .* cannot be built"):
        jf.load_run(tmp_path / "run", networks=small_cnn)
    with pytest.raises(RunError, match="is not the folder of a run"):
        jf.load_run(tmp_path)


def test_what_a_caller_makes_of_an_epochs_line_stays_the_callers(tmp_path: Path) -> None:
    """Of what a checkpoint holds nothing may be of a type that is not read back."""
    inputs, labels, _ = arrays()

    def note(line: dict[str, Any]) -> None:
        line["own"] = np.float64(1.0)
        line["selected_share_per_class"].clear()

    own: dict[str, Any] = {**QUICK, "output": tmp_path / "run", "epochs": 3}
    run = jf.train(small_mlp, (inputs, labels), on_epoch=note, **own)
    assert all("own" not in line and line["selected_share_per_class"] for line in run.metrics)
    assert jf.load_run(tmp_path / "run", networks=small_mlp).metrics == run.metrics


def test_networks_are_left_as_they_were_where_class_weights_do_not_fit_them() -> None:
    inputs, labels, _ = arrays()
    networks = small_mlp(), small_mlp()
    sizes = [parameter.untyped_storage().nbytes() for network in networks for parameter in network.parameters()]
    with pytest.raises(ValueError, match=f"class_weights must be a number for each of the {CLASSES} classes"):
        jf.train(networks, (inputs, labels), class_weights=[1.0] * (CLASSES - 1), **QUICK)
    after = [parameter.untyped_storage().nbytes() for network in networks for parameter in network.parameters()]
    assert after == sizes
