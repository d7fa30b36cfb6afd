"""Random crops and mirror images, on the device, without waiting for it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from jocor_fast.engine.processes import ALONE, Processes
from jocor_fast.errors import ArgumentValueError

PADDING = 4


def check_images(inputs: Tensor) -> None:
    """Raise ValueError where the inputs [N, ...] of a run are no images."""
    if inputs.dim() not in (3, 4):
        shape = ", ".join(["N", *map(str, inputs.shape[1:])])
        raise ArgumentValueError(
            "augment",
            f"must be none for inputs that are no images [N, H, W] or [N, channels, H, W], got crop-flip and [{shape}]",
        )


def crop_flip(images: Tensor, generator: torch.Generator, processes: Processes = ALONE) -> Tensor:
    """Pad each image with zeros by `PADDING`, crop it to its size at a random place, and mirror it at even odds.

    Args:
        images: [B, H, W] or [B, channels, H, W], any dtype.
        generator: on the images' device.
        processes: those that have a share of the batch each. All draw for the whole batch, and take what is for theirs.

    Returns:
        A new tensor of the same shape and dtype. (Ours; the usual augmentation of CIFAR. The paper uses none.)
    """
    batch, height, width = images.shape[0], images.shape[-2], images.shape[-1]
    device = images.device
    padded = F.pad(images, [PADDING] * 4).view(batch, -1, height + 2 * PADDING, width + 2 * PADDING)
    whole = batch * processes.count
    places = torch.randint(2 * PADDING + 1, (2, whole, 1), generator=generator, device=device)
    top, left = map(processes.share_of, places)
    mirrored = processes.share_of(torch.randint(2, (whole, 1), generator=generator, device=device)).bool()
    rows = top + torch.arange(height, device=device)
    columns = torch.arange(width, device=device)
    columns = left + torch.where(mirrored, columns.flip(0), columns)
    sample = torch.arange(batch, device=device)[:, None, None, None]
    channel = torch.arange(padded.shape[1], device=device)[:, None, None]
    return padded[sample, channel, rows[:, None, :, None], columns[:, None, None, :]].view_as(images)
