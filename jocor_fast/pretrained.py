"""Weights to start from (`--pretrained`): a file of one's own, or those that torchvision downloads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .data import DataError
from .data.arrays import reading, user_path

DEFAULT = "default"
_WRAPPERS = ("state_dict", "model", "networks")  # under which training scripts, ours too, keep a network's weights
_PARALLEL = "module."  # what DataParallel puts before every name

Weights = Mapping[str, Tensor]


def read_weights(source: str, model: str) -> Weights:
    """The weights by name; no code in a file is run.

    Args:
        source: a file that `torch.save` wrote, of a state dict or of a dict that holds one; or "default" for those that
            torchvision calls so, which are downloaded where they are not in torch's cache.
        model: the network, as `build_model` takes it.

    Raises:
        ValueError: there are no default weights for the model, or they cannot be downloaded.
        DataError: the file is absent, broken, or holds no weights.
    """
    if source == DEFAULT:
        return _torchvision_weights(model)
    path = user_path(source)
    with reading(path, "a file of weights"):
        content = torch.load(path, map_location="cpu", weights_only=True)
    for name in _WRAPPERS:
        if isinstance(content, dict) and name in content:
            content = content[name]
    if isinstance(content, list) and content:  # best.pt of a run: the first of its networks
        content = content[0]
    if not isinstance(content, dict) or not content or not all(isinstance(value, Tensor) for value in content.values()):
        raise DataError(f"{path} holds no weights by name, as a network's state_dict() does")
    return {str(name).removeprefix(_PARALLEL): value for name, value in content.items()}


def load_weights(network: nn.Module, weights: Weights) -> None:
    """Copy the weights into a network; a layer of another shape (the last, for other classes) stays as it was drawn.

    Raises:
        ValueError: weights of the network are missing, or none is of the right shape.
    """
    state = network.state_dict()
    missing = [name for name in state if name not in weights]
    if missing:
        raise ValueError(f"pretrained: there is no {missing[0]} among the weights, so they are of another network")
    other_shape = {name.rpartition(".")[0] for name, value in state.items() if weights[name].shape != value.shape}
    fitting = {name: weights[name] for name in state if name.rpartition(".")[0] not in other_shape}
    if not fitting:
        raise ValueError("pretrained: the weights are of another network, no layer has the shape of its own")
    network.load_state_dict(fitting, strict=False)


def _torchvision_weights(model: str) -> Weights:
    from torchvision import models

    if model not in models.list_models(module=models):
        raise ValueError(f"pretrained must be a file for model {model!r}: torchvision has no weights for it")
    weights = models.get_model_weights(model).DEFAULT
    try:
        loaded: dict[str, Any] = weights.get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError) as error:  # no network; a download that is not what it should be
        file = os.path.basename(weights.url)
        raise ValueError(
            f"pretrained: {weights.url} cannot be downloaded ({error}); put it into torch's cache, or give the path of "
            f"{file}"
        ) from error
    return loaded
