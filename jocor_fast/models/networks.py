"""The networks: the paper's MLP and 7-layer CNN, and any torchvision classifier by name.

PyTorch (or torchvision) draws the initial weights from the global generator. The two networks of a method are built one
after the other under one seed, so they differ in every convolution and linear weight.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from types import ModuleType

import torch
from torch import Tensor, nn

from jocor_fast.arguments import at_least
from jocor_fast.errors import ArgumentTypeError, ArgumentValueError, did_you_mean
from jocor_fast.models.pretrained import Weights, load_weights

PAPER_MODELS = ("mlp", "cnn")

# The paper prints 196 for the last; its "Dense 256" needs 16 (4·4·16).
_CNN_CHANNELS = ((64, 64), (128, 128), (196, 16))


def mlp(in_features: int, num_classes: int, hidden: int = 256) -> nn.Sequential:
    """Build the paper's network for MNIST: one hidden layer with ReLU; 784-256-10 has 203,530 parameters.

    Args:
        in_features: numbers in a sample; inputs of any shape [B, ...] are flattened.
        num_classes: C.
        hidden: width of the hidden layer.

    Returns:
        A module from [B, ...] to logits [B, C].

    Raises:
        TypeError, ValueError: an argument is not an int ≥ 1.
    """
    in_features, hidden = at_least("in_features", in_features, 1), at_least("hidden", hidden, 1)
    num_classes = at_least("num_classes", num_classes, 1)
    return nn.Sequential(nn.Flatten(), nn.Linear(in_features, hidden), nn.ReLU(), nn.Linear(hidden, num_classes))


def cnn(num_classes: int, *, in_channels: int = 3, image_size: tuple[int, int] = (32, 32)) -> nn.Sequential:
    """Build the paper's 7-layer network for CIFAR: 518,150 parameters at C = 10, 541,280 at C = 100.

    Three blocks of [3×3 convolution, BatchNorm, ReLU] twice and 2×2 max-pooling, of 64, 64, 128, 128, 196 and 16
    channels, then a dense layer.

    Args:
        num_classes: C.
        in_channels: 3 for colour, 1 for gray.
        image_size: height and width, at least 8 each; they set the width of the dense layer (256 at 32×32).

    Returns:
        A module from [B, in_channels, H, W] to logits [B, C].

    Raises:
        TypeError, ValueError: an argument has the wrong type or is too small.
    """
    num_classes, channels = at_least("num_classes", num_classes, 1), at_least("in_channels", in_channels, 1)
    height, width = (at_least("image_size", size, 1) for size in image_size)
    if height < 8 or width < 8:
        raise ArgumentValueError("image_size", f"must be at least 8×8 for the cnn, got {height}×{width}")
    layers: list[nn.Module] = []
    for block in _CNN_CHANNELS:
        for out_channels in block:
            layers += [nn.Conv2d(channels, out_channels, 3, padding=1), nn.BatchNorm2d(out_channels), nn.ReLU()]
            channels = out_channels
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * (height // 8) * (width // 8), num_classes))


class GrayToRGB(nn.Module):
    """Repeat gray images [B, H, W] or [B, 1, H, W] as colour images [B, 3, H, W] (a view, no copy)."""

    def forward(self, images: Tensor) -> Tensor:
        if images.dim() == 3:
            images = images.unsqueeze(1)
        return images.expand(-1, 3, -1, -1)


def build_model(
    name: str, input_shape: Sequence[int], num_classes: int, *, weights: Weights | None = None
) -> nn.Module:
    """Build a network by name, for samples of a shape.

    The cnn takes gray images as one channel. torchvision's classifiers take three: a gray image is repeated in each.

    Args:
        name: "mlp", "cnn", or a torchvision classifier such as "resnet18".
        input_shape: of one sample: (H, W) gray, (C, H, W) colour, (D,) features (mlp only).
        num_classes: C.
        weights: initial weights (`pretrained.read_weights`); a last layer for other classes keeps its random ones,
            as does every layer without `weights`.

    Returns:
        A module from [B, *input_shape] to logits [B, C].

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: the name is unknown, the network cannot take such samples, or torchvision is not installed.
    """
    if not isinstance(name, str):
        raise ArgumentTypeError("model", f"must be a str, got {type(name).__name__}")
    if not isinstance(input_shape, Iterable):
        raise ArgumentTypeError("input_shape", f"must be a sequence of ints, got {type(input_shape).__name__}")
    shape = tuple(at_least("input_shape", size, 1) for size in input_shape)
    num_classes = at_least("num_classes", num_classes, 1)
    network = _drawn(name, shape, num_classes)
    if weights is not None:
        load_weights(_without_gray(network), weights)
    return network


def build_encoder(name: str, input_shape: Sequence[int], weights: Weights) -> nn.Module:
    """Build a network without its last layer, with weights that a file holds.

    Args:
        name, input_shape: as for `build_model`.
        weights: of all layers but the last, which is not looked for.

    Returns:
        A module in evaluation mode, from [B, *input_shape] to what the last layer takes, [B, D].

    Raises:
        ValueError: as for `build_model`; the network does not end in a linear layer; the weights are another network's.
    """
    network = _drawn(name, tuple(input_shape), 2)
    place, last = list(network.named_modules())[-1]
    if not isinstance(last, nn.Linear):
        problem = (
            f"must end in a linear layer, of whose inputs features are made, got {name!r} with {type(last).__name__}"
        )
        raise ArgumentValueError("model", problem)
    network.set_submodule(place, nn.Identity())
    load_weights(_without_gray(network), weights, whole=True)
    return network.eval()


def _without_gray(network: nn.Module) -> nn.Module:
    """Return the network that torchvision built, within what `_torchvision_classifier` returns."""
    return network[1] if isinstance(network, nn.Sequential) and isinstance(network[0], GrayToRGB) else network


def _drawn(name: str, shape: tuple[int, ...], num_classes: int) -> nn.Module:
    if not shape:
        raise ArgumentValueError("input_shape", "must name at least one dimension, got ()")
    if name == "mlp":
        return mlp(torch.Size(shape).numel(), num_classes)
    classifiers = None if name == "cnn" else _torchvision_models(name)
    if len(shape) not in (2, 3):
        raise ArgumentValueError("model", f"{name!r} takes images [H, W] or [C, H, W], got samples of shape {shape}")
    if classifiers is not None:
        return _torchvision_classifier(classifiers, name, shape, num_classes)
    if len(shape) == 2:
        return nn.Sequential(nn.Unflatten(1, (1, shape[0])), *cnn(num_classes, in_channels=1, image_size=shape))
    return cnn(num_classes, in_channels=shape[0], image_size=(shape[1], shape[2]))


def _torchvision_models(name: str) -> ModuleType:
    """Return `torchvision.models` if it has a classifier of this name."""
    try:
        from torchvision import models
    except (ImportError, OSError, RuntimeError) as error:  # the last two: a torchvision built against another torch
        raise ArgumentValueError(
            "model",
            f"must be mlp or cnn where torchvision cannot be imported ({error}), got {name!r}: "
            "pip install torchvision brings one that fits this torch",
        ) from error
    names = models.list_models(module=models)
    if name not in names:
        hint = did_you_mean(name, [*PAPER_MODELS, *names])
        raise ArgumentValueError(
            "model", f"must be mlp, cnn or a torchvision classifier such as resnet18, got {name!r}{hint}"
        )
    return models


def _torchvision_classifier(models: ModuleType, name: str, shape: tuple[int, ...], num_classes: int) -> nn.Module:
    channels, (height, width) = (shape[0] if len(shape) == 3 else 1), shape[-2:]
    if channels not in (1, 3):
        raise ArgumentValueError("model", f"{name!r} takes images of 1 or 3 channels, got samples of shape {shape}")
    options: dict[str, object] = {}
    if name in ("googlenet", "inception_v3"):
        # Their auxiliary heads return tuples in training; their own initialisation takes ten seconds. torchvision's
        # weights expect inputs in [-1, 1], which it makes of ImageNet's normalisation where it loads them itself.
        options = {"aux_logits": False, "init_weights": False, "transform_input": True}
    elif name.startswith("vit_"):
        options = {"image_size": height}
    elif name.startswith("maxvit"):
        options = {"input_size": (height, width)}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            network = models.get_model(name, weights=None, num_classes=num_classes, **options)
        _redraw_constant_weights(network)
        network = network if channels == 3 else nn.Sequential(GrayToRGB(), network)
        network.eval()  # one that cannot take such samples fails here, before any training
        with torch.no_grad():
            network(torch.zeros(1, *shape))
        network.train()
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ArgumentValueError("model", f"{name!r} does not take samples of shape {shape}: {reason}") from error
    return network


def _redraw_constant_weights(network: nn.Module) -> None:
    """Redraw layers whose initial weights are all equal, such as the heads of vision transformers, which start at zero.

    They would be the same in both networks.
    """
    for layer in network.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)) and bool((layer.weight == layer.weight.flatten()[0]).all()):
            layer.reset_parameters()
