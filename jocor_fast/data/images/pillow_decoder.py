"""Decoding by Pillow and resizing by torch, as torchvision's transforms do, in the threads that read.

torchvision's own JPEG decoder, somewhat faster, was left: it is deprecated and about to go.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from jocor_fast.data.images.decoder import Loaded, Settle
from jocor_fast.data.images.image_file import decode_by_pillow, read_bytes
from jocor_fast.data.images.preprocessing import Draw, Preprocessing


class PillowDecoder:
    """Stores images as uint8, which are normalised on the device."""

    def __init__(self, preprocessing: Preprocessing, device: torch.device) -> None:
        self.preprocessing = preprocessing
        self.device = device
        self.mean = 255 * torch.tensor(preprocessing.mean, device=device)[:, None, None]
        self.std = 255 * torch.tensor(preprocessing.std, device=device)[:, None, None]

    def load(self, path: str, where: Draw) -> Tensor:
        """uint8 [crop, crop, 3]."""
        pixels = torch.from_numpy(decode_by_pillow(read_bytes(path))).permute(2, 0, 1)
        height, width = self.preprocessing.resized(*pixels.shape[1:])
        if (height, width) != pixels.shape[1:]:
            # On uint8 in channels-last order torch has vector code that takes a fifth of the time of Pillow's.
            pixels = F.interpolate(pixels[None], size=(height, width), mode="bilinear", antialias=True)[0]
        crop = self.preprocessing.crop
        top, left = self.preprocessing.offset(height, width, where)
        cut = pixels[:, top : top + crop, left : left + crop].permute(1, 2, 0)
        return (cut.flip(1) if where.mirrored else cut).contiguous()

    def decode(self, batches: Iterable[Loaded], settle: Settle) -> Generator[tuple[list[int], Tensor]]:
        pinned = self.device.type == "cuda"
        for samples, images in batches:
            stored = torch.empty((len(images), *images[0].shape), dtype=torch.uint8, pin_memory=pinned)
            torch.stack(images, out=stored)
            yield samples, stored.to(self.device, non_blocking=True).permute(0, 3, 1, 2)

    def network_input(self, stored: Tensor) -> Tensor:
        """Normalised float32 [B, 3, crop, crop], channels last."""
        return stored.float().sub_(self.mean).div_(self.std)
