"""Predictions by the networks of a checkpoint, of images and arrays treated as its training data were.

What that takes stands in the checkpoint itself, under "input": the network's name, the shape and kind of its inputs,
how images become them, and what the classes are called.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from jocor_fast.data.arrays import read_array, split_key, user_path
from jocor_fast.data.dataset import Dataset
from jocor_fast.data.images.image_file import BadImage, decode_by_pillow, read_bytes
from jocor_fast.data.images.pillow_decoder import PillowDecoder
from jocor_fast.data.images.preprocessing import CENTRE, Preprocessing
from jocor_fast.data.memory.npz import as_inputs, read_sparse
from jocor_fast.engine.networks import NetworkSource, build_networks
from jocor_fast.errors import DataError, RunError
from jocor_fast.files.names import CHECKPOINT
from jocor_fast.models.networks import build_model
from jocor_fast.runs.folder import read_weights


def describe_input(dataset: Dataset, model: str | None) -> dict[str, Any]:
    """What a checkpoint holds under "input", for networks named `model` that are trained on a data set."""
    samples, files = dataset.train, dataset.files
    described = {"model": model, "classes": list(dataset.class_names), "shape": list(dataset.input_shape)}
    if files is None:
        assert isinstance(samples.inputs, Tensor)
        kind = str(samples.inputs.dtype).removeprefix("torch.")
        return described | {"kind": kind, "scale": samples.input_scale}
    size, normalisation = files.preprocessing.resize, files.preprocessing.normalisation
    resize = size if isinstance(size, int) else list(size)
    return described | {"kind": "files", "resize": resize, "normalisation": normalisation}


def networks_of(
    checkpoint: Path,
    described: Mapping[str, Any] | None,
    states: Sequence[Mapping[str, Any]],
    device: torch.device,
    source: NetworkSource | None = None,
) -> tuple[nn.Module, ...]:
    """Return the networks of a checkpoint with their weights, on a device, in evaluation mode.

    Args:
        checkpoint: where it lies, for messages.
        described: what it holds under "input".
        states: the weights of each network.
        device: of the networks.
        source: the networks, or what builds one; None: the checkpoint says which they are.

    Raises:
        RunError: it does not say, or they cannot be built, or are others.
    """
    if source is None and described is None:
        raise RunError(
            f"{checkpoint} does not say which networks it is of: it is from before predict, or of networks that "
            "were handed to jocor_fast.train",
            "CHECKPOINT",
        )
    with _building(checkpoint):
        if source is not None:
            networks = build_networks(source, len(states), "of the run", device)
        else:
            assert described is not None
            shape, count = tuple(described["shape"]), len(described["classes"])
            networks = tuple(build_model(described["model"], shape, count) for _ in states)
        for network, state in zip(networks, states, strict=True):
            network.load_state_dict(state)
            network.to(device).eval()
        return networks


@contextlib.contextmanager
def _building(checkpoint: Path) -> Iterator[None]:
    """Make a RunError of whatever is raised: there is no torchvision here, or what it says of itself is not true."""
    try:
        yield
    except Exception as error:
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise RunError(f"the networks of {checkpoint} cannot be built: {kind}{error}", "CHECKPOINT") from error


@dataclass(frozen=True, eq=False)
class Predictor:
    """The networks of a checkpoint, ready to predict.

    Attributes:
        networks: in evaluation mode, on the device: two, or one.
        classes: what the classes 0 … C−1 are called.
        shape: of one input.
        kind: "uint8" or "float32" for data in memory, "files" for image files.
        scale: factor for uint8 inputs.
        decoder: what makes inputs of image files, where the networks were trained on such.
    """

    networks: tuple[nn.Module, ...]
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    kind: str
    scale: float
    decoder: PillowDecoder | None
    device: torch.device

    @staticmethod
    def load(checkpoint: Path, device: torch.device) -> Predictor:
        """Read checkpoint.pt, best.pt or the folder of a run.

        Raises:
            RunError: it is absent, damaged, or says nothing of its networks and inputs (`jocor_fast.train` was given
                networks that only their owner can build), or they cannot be built.
        """
        described, states = read_weights(checkpoint / CHECKPOINT if checkpoint.is_dir() else checkpoint)
        networks = networks_of(checkpoint, described, states, device)
        assert described is not None  # else there would be no networks
        with _building(checkpoint):
            shape, classes = tuple(described["shape"]), tuple(described["classes"])
            decoder, scale = None, described.get("scale", 1.0)
            if described["kind"] == "files":
                resize = described["resize"] if isinstance(described["resize"], int) else tuple(described["resize"])
                how = Preprocessing(resize, crop=shape[-1], normalisation=described["normalisation"])
                decoder = PillowDecoder(how, device)
            return Predictor(networks, classes, shape, described["kind"], scale, decoder, device)

    def image(self, path: Path) -> Tensor:
        """An image file as an input, float32: decoded, turned by its EXIF orientation, prepared as in training.

        For networks that were trained on files it is resized and cropped. How the arrays of other data sets were
        made from images is unknown: for networks trained on those it must have their size, and be gray if they were.

        Raises:
            BadImage: it cannot be decoded, or is of another size or in colour.
            DataError: the networks take no images.
        """
        if self.decoder is not None:
            pixels = self.decoder.load(str(path), CENTRE).permute(2, 0, 1).unsqueeze(0)
            return self.decoder.network_input(pixels.to(self.device))[0]
        gray = len(self.shape) == 2
        if self.kind != "uint8" or not (gray or (len(self.shape) == 3 and self.shape[0] == 3)):
            raise DataError(f"{path}: these networks take {self._wanted()}, not images")
        rgb = decode_by_pillow(read_bytes(path))
        coloured = bool((rgb != rgb[..., :1]).any())  # gray images are often saved as RGB
        if rgb.shape[:2] != self.shape[-2:] or (gray and coloured):
            kind, wanted = ("a colour" if coloured else "a gray"), ("gray" if gray else "colour")
            raise BadImage(
                f"it is {kind} image of {_size(rgb.shape)}, and these networks were trained on arrays of "
                f"{wanted} images of {_size(self.shape[-2:])}"
            )
        values = rgb.astype(np.float32) / 255
        return torch.from_numpy(values[..., 0] if gray else values.transpose(2, 0, 1)).contiguous()

    def array(self, spec: str) -> Tensor:
        """The inputs in FILE.npy or FILE.npz:KEY, float32 [n, ...]; one input alone is one of n = 1.

        Of FILE.npz alone, which scipy.sparse.save_npz wrote, they are sparse (`data.sparse`).

        Raises:
            DataError: the file cannot be read, or holds inputs of another shape or kind.
        """
        if split_key(spec)[1] is None and spec.lower().endswith(".npz"):
            sparse = read_sparse(user_path(spec), or_key=True)
            if self.kind != "float32" or sparse.shape[1:] != self.shape:
                raise DataError(f"{spec} holds {list(sparse.shape)} of float32, these networks take {self._wanted()}")
            return sparse
        array = read_array(spec, "PATH")
        if array.shape == self.shape:
            array = array[None]
        inputs = as_inputs(array, spec)
        if inputs.dtype != self.kind or inputs.shape[1:] != self.shape:
            raise DataError(f"{spec} holds {list(array.shape)} of {array.dtype}, these networks take {self._wanted()}")
        return torch.from_numpy(inputs.astype(np.float32)) * (self.scale if self.kind == "uint8" else 1.0)

    @torch.inference_mode()
    def probabilities(self, inputs: Tensor, network: int | None) -> np.ndarray:
        """float32 [n, C] of network 0 or 1, or of the mean of all for None."""
        inputs = inputs.to(self.device)
        chosen = self.networks if network is None else (self.networks[network],)
        result = torch.stack([module(inputs).float().softmax(1) for module in chosen]).mean(0)
        return result.cpu().numpy()

    def _wanted(self) -> str:
        return "images" if self.kind == "files" else f"arrays [n, {', '.join(map(str, self.shape))}] of {self.kind}"


def _size(shape: Sequence[int]) -> str:
    """Height and width, as people say the size of an image."""
    return f"{shape[1]}×{shape[0]}"
