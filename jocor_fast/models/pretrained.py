"""Initial weights (`--pretrained`): from a file, or those that torchvision downloads."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jocor_fast.arguments import is_tensor
from jocor_fast.data.arrays import read_saved, user_path
from jocor_fast.errors import ArgumentValueError, DataError, did_you_mean

if TYPE_CHECKING:
    from torch import Tensor, nn

DEFAULT = "default"
# The keys under which training scripts keep a network's weights; our own files nest the first and the last.
_WRAPPERS = ("training", "state_dict", "model", "networks")
_PARALLEL = "module."  # DataParallel's prefix of every name
_DENSENET = re.compile(r"(denselayer\d+\.(?:norm|conv))\.(\d\.)")  # norm.1 in torchvision's files, norm1 in its code
ACCEPTED = (
    "accepted are files that torch.save wrote of a network's state_dict(), or of a dict with one as state_dict or "
    "model, and a run's checkpoint.pt or best.pt"
)


@dataclass(frozen=True)
class Weights:
    """Weights by their names in `state_dict()`.

    Attributes:
        source: where they come from, for messages.
        model: the network that they are for.
    """

    source: str
    model: str
    by_name: Mapping[str, Tensor]


def read_weights(source: str, model: str) -> Weights:
    """Read the weights in a file, without running code from it.

    Args:
        source: a file that `torch.save` wrote, of a state dict or of a dict that holds one; or "default" for
            torchvision's default weights, downloaded unless torch's cache has them.
        model: the network, as `build_model` takes it.

    Raises:
        ValueError: there are no default weights for the model, or they cannot be downloaded.
        DataError: the file is absent, broken, or holds no weights.
    """
    if source == DEFAULT:
        return Weights(f"torchvision's weights for {model}", model, _torchvision_weights(model))
    try:
        return Weights(source, model, _weights_in(user_path(source)))
    except DataError as error:
        raise DataError(f"{error}; {ACCEPTED}", "pretrained") from None


def _weights_in(path: Path) -> Mapping[str, Tensor]:
    content = read_saved(path, "a file of weights")
    for name in _WRAPPERS:
        if isinstance(content, dict) and name in content:
            content = content[name]
    if isinstance(content, list) and content:  # of a run: the first of its networks
        content = content[0]
    if not isinstance(content, dict) or not content or not all(map(_is_weight, content.values())):
        raise DataError(f"{path} holds no weights by name, as a network's state_dict() does")
    return {_DENSENET.sub(r"\1\2", str(name).removeprefix(_PARALLEL)): value for name, value in content.items()}


def _is_weight(value: Any) -> bool:
    """Whether a network's weight can be copied from it: it is dense, real, not quantised, and has values."""
    import torch

    plain = is_tensor(value) and value.layout == torch.strided and value.device.type == "cpu"
    return plain and not (value.is_complex() or value.is_quantized)


def load_weights(network: nn.Module, weights: Weights, *, whole: bool = False) -> None:
    """Copy the weights into a network; a layer of another shape (the last, for other classes) keeps its random weights.

    Args:
        whole: whether every layer must have the right shape.

    Raises:
        ValueError: weights of the network are missing, or none is of the right shape.
    """
    given = weights.by_name
    # BatchNorm's counters of batches are of no use here, and older files lack them.
    state = {name: value for name, value in network.state_dict().items() if name in given or not _is_counter(name)}
    wanted = f"must hold the weights of {weights.model}, got {weights.source}"
    missing = [name for name in state if name not in given]
    if missing:
        raise ArgumentValueError("pretrained", f"{wanted}, which has no {missing[0]}")
    differing = [name for name, value in state.items() if given[name].shape != value.shape]
    if differing and whole:
        shapes = f"{list(given[differing[0]].shape)}, not {list(state[differing[0]].shape)}"
        raise ArgumentValueError("pretrained", f"{wanted}, whose {differing[0]} is of shape {shapes}")
    other_shape = {name.rpartition(".")[0] for name in differing}
    fitting = {name: given[name] for name in state if name.rpartition(".")[0] not in other_shape}
    if not fitting:
        raise ArgumentValueError("pretrained", f"{wanted}, which has no layer of the right shape")
    network.load_state_dict(fitting, strict=False)


def _is_counter(name: str) -> bool:
    return name.endswith(".num_batches_tracked")


def _torchvision_weights(model: str) -> Mapping[str, Tensor]:
    from torchvision import models

    names = models.list_models(module=models)
    if model not in names:
        why = f"torchvision has no weights for it{did_you_mean(model, names)}"
        raise ArgumentValueError("pretrained", f"must be a file for model {model!r}: {why}")
    weights = models.get_model_weights(model).DEFAULT
    try:
        loaded: dict[str, Any] = weights.get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError) as error:  # no network, or a corrupt download
        file = os.path.basename(weights.url)
        raise ArgumentValueError(
            "pretrained",
            f"must be a file where {weights.url} cannot be downloaded ({error}): put it into torch's cache, or give "
            f"the path of {file}; without a download, `jocor-fast train` learns from your data alone, and "
            "`jocor-fast audit RUN` finds wrong labels by that run",
        ) from error
    return loaded
