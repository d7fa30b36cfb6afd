"""The networks of the paper and of torchvision, and the first part of case 24."""

from __future__ import annotations

import importlib.util
import re
import sys

import numpy as np
import pytest
import torch
from torch import nn

from jocor_fast.models.networks import GrayToRGB, build_model, cnn, mlp
from jocor_fast.models.pretrained import Weights

needs_torchvision = pytest.mark.skipif(
    importlib.util.find_spec("torchvision") is None, reason="torchvision is not installed"
)


def num_parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def weighted_layers(network: nn.Module) -> dict[str, torch.Tensor]:
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    return {name: layer.weight for name, layer in network.named_modules() if isinstance(layer, kinds)}


def test_parameter_counts_of_the_paper():
    assert num_parameters(mlp(784, 10)) == 203_530
    assert num_parameters(cnn(10)) == 518_150
    assert num_parameters(cnn(100)) == 541_280
    assert num_parameters(build_model("mlp", (28, 28), 10)) == 203_530
    assert num_parameters(build_model("cnn", (3, 32, 32), 100)) == 541_280


def test_cnn_has_the_layers_of_the_paper():
    layers = [type(layer).__name__ for layer in cnn(10)]
    assert layers == [*["Conv2d", "BatchNorm2d", "ReLU"] * 2, "MaxPool2d"] * 3 + ["Flatten", "Linear"]
    assert [layer.out_channels for layer in cnn(10) if isinstance(layer, nn.Conv2d)] == [64, 64, 128, 128, 196, 16]
    assert {layer.momentum for layer in cnn(10) if isinstance(layer, nn.BatchNorm2d)} == {0.1}


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("mlp", (64,)),
        ("mlp", (8, 8)),
        ("mlp", (3, 32, 32)),
        ("cnn", (3, 32, 32)),
        ("cnn", (28, 28)),
        ("cnn", (1, 28, 28)),
        ("cnn", (8, 8)),
        ("cnn", (3, 9, 31)),
        ("cnn", (4, 16, 16)),
    ],
)
def test_networks_turn_samples_into_logits(name: str, shape: tuple[int, ...]):
    logits = build_model(name, shape, 7)(torch.rand(5, *shape))
    assert logits.shape == (5, 7)
    assert logits.isfinite().all()


@needs_torchvision
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("resnet18", (3, 32, 32)),
        ("shufflenet_v2_x0_5", (28, 28)),
        ("shufflenet_v2_x0_5", (1, 28, 28)),
        ("googlenet", (3, 32, 32)),  # has auxiliary outputs in training unless told otherwise
    ],
)
def test_torchvision_classifiers_by_name(name: str, shape: tuple[int, ...]):
    network = build_model(name, shape, 7)
    assert network.training
    assert all(layer.training for layer in network.modules())
    assert network(torch.rand(2, *shape)).shape == (2, 7)


@needs_torchvision
@pytest.mark.parametrize(
    ("name", "weights"), [("googlenet", "GoogLeNet_Weights"), ("inception_v3", "Inception_V3_Weights")]
)
def test_inputs_are_scaled_as_torchvisions_weights_expect(name: str, weights: str, monkeypatch: pytest.MonkeyPatch):
    from torchvision import models

    state = models.get_model(name, aux_logits=True, init_weights=False).state_dict()
    monkeypatch.setattr(getattr(models, weights), "get_state_dict", lambda *_, **__: state)
    theirs = models.get_model(name, weights="DEFAULT").eval()
    ours = build_model(name, (3, 80, 80), 1000, weights=Weights("a file", name, state)).eval()
    images, seen = torch.randn(2, 3, 80, 80), []
    for network in (ours, theirs):
        first = next(layer for layer in network.modules() if isinstance(layer, nn.Conv2d))
        first.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        network(images)
    torch.testing.assert_close(*seen)
    assert not torch.allclose(seen[0], images)


@needs_torchvision
def test_a_gray_image_is_the_colour_image_of_three_equal_channels():
    gray = build_model("shufflenet_v2_x0_5", (32, 32), 5).eval()
    images = torch.rand(2, 32, 32)
    torch.testing.assert_close(gray(images), gray[1](torch.stack([images] * 3, dim=1)))
    torch.testing.assert_close(gray(images[:, None]), gray(images))


def test_gray_to_rgb_copies_nothing():
    images = torch.rand(2, 4, 5)
    colour = GrayToRGB()(images)
    assert colour.shape == (2, 3, 4, 5)
    assert colour.data_ptr() == images.data_ptr()


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("mlp", (784,)),
        ("cnn", (3, 32, 32)),
        ("cnn", (28, 28)),
        pytest.param("resnet18", (3, 32, 32), marks=needs_torchvision),
    ],
)
def test_case_24_two_networks_of_one_seed_differ_in_every_weight(name: str, shape: tuple[int, ...]):
    torch.manual_seed(0)
    first, second = weighted_layers(build_model(name, shape, 10)), weighted_layers(build_model(name, shape, 10))
    assert len(first) >= 2
    assert {layer for layer in first if torch.equal(first[layer], second[layer])} == set()
    torch.manual_seed(0)
    again = weighted_layers(build_model(name, shape, 10))
    assert all(torch.equal(first[layer], again[layer]) for layer in first)


@needs_torchvision
def test_case_24_a_head_that_torchvision_starts_at_zero_is_drawn():
    network = build_model("vit_b_32", (3, 32, 32), 7)  # which torchvision makes for 224×224 unless told otherwise
    assert network.heads.head.weight.std() > 0.01
    assert network(torch.rand(2, 3, 32, 32)).std(dim=0).max() > 0


@needs_torchvision
@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("cnn", (64,), r"takes images \[H, W\] or \[C, H, W\], got samples of shape \(64,\)"),
        ("resnet18", (64,), r"takes images \[H, W\] or \[C, H, W\]"),
        ("resnet18", (2, 3, 32, 32), r"takes images \[H, W\] or \[C, H, W\]"),
        ("resnet18", (4, 32, 32), "1 or 3 channels"),
        ("cnn", (7, 28), "at least 8×8 for the cnn, got 7×28"),
        ("alexnet", (3, 32, 32), r"model 'alexnet' does not take samples of shape \(3, 32, 32\): .*too small"),
        ("vit_b_16", (3, 28, 28), "model 'vit_b_16' does not take samples .*patch size"),
        ("maxvit_t", (3, 32, 32), "model 'maxvit_t' does not take samples .*partition size"),
        ("mlp", (), "input_shape must name at least one dimension"),
        ("mlp", (0, 3), "input_shape must be at least 1, got 0"),
        ("resnet19", (3, 32, 32), r"torchvision classifier such as resnet18, got 'resnet19' \(did you mean resnet18"),
        ("fasterrcnn_resnet50_fpn", (3, 32, 32), "torchvision classifier such as resnet18, got 'fasterrcnn"),
        ("", (3, 32, 32), "model must be mlp, cnn or a torchvision classifier"),
        ("CNN", (3, 32, 32), "got 'CNN'"),
    ],
)
def test_a_network_that_cannot_be_is_one_sentence(name: str, shape: tuple[int, ...], message: str):
    with pytest.raises(ValueError, match=message) as raised:
        build_model(name, shape, 10)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, (8, 8), 10), "model must be a str, got int"),
        (("mlp", (8.0, 8), 10), "input_shape must be an int, got float"),
        (("mlp", (True, 8), 10), "input_shape must be an int, got bool"),
        (("mlp", 64, 10), "input_shape must be a sequence of ints, got int"),
        (("mlp", (8, 8), "10"), "num_classes must be an int, got str"),
        (("cnn", (8, 8), True), "num_classes must be an int, got bool"),
    ],
)
def test_arguments_of_a_wrong_type_are_named(arguments: tuple[object, ...], message: str):
    with pytest.raises(TypeError, match=message):
        build_model(*arguments)


def test_numpy_integers_are_integers():
    assert num_parameters(mlp(np.int64(784), np.int32(10), np.uint16(256))) == 203_530
    assert num_parameters(build_model("cnn", np.array([3, 32, 32]), np.int64(10))) == 518_150


@pytest.mark.parametrize("num_classes", [0, -1])
def test_there_is_at_least_one_class(num_classes: int):
    for build in (lambda: mlp(4, num_classes), lambda: cnn(num_classes)):
        with pytest.raises(ValueError, match=f"num_classes must be at least 1, got {num_classes}"):
            build()


def test_without_torchvision_one_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ValueError, match=re.escape("got 'resnet18': pip install torchvision")) as raised:
        build_model("resnet18", (3, 32, 32), 10)
    assert "\n" not in str(raised.value)
    assert num_parameters(build_model("cnn", (3, 32, 32), 10)) == 518_150
