"""Which library decodes the images of a run."""

from __future__ import annotations

import importlib

import torch

from jocor_fast.data.dataset import DataError

LOADERS = ("dali", "torchvision")
FASTER_ON_CPU = "the faster one, see benchmarks/results/loader_cpu.md"


def choose_loader(asked: str, device: torch.device) -> tuple[str, str]:
    """The loader of a run, and why it is this one.

    Args:
        asked: "dali"; "torchvision" (Pillow and torch, as its transforms do it; always there); or "auto".
        device: of the run.

    Raises:
        DataError: DALI was asked for and cannot be imported.
    """
    if asked == "torchvision":
        return asked, ""
    try:
        importlib.import_module("jocor_fast.data.dali_decoder")
    except ImportError as error:
        sentence = f"{error}: pip install 'jocor-fast[dali]'"
        if asked == "dali":
            raise DataError(f"loader must be torchvision where {sentence}") from None
        return "torchvision", sentence
    if asked == "dali":
        return asked, ""
    return "dali", FASTER_ON_CPU if device.type == "cpu" else "it decodes on the GPU"
