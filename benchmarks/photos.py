"""Photographs that nobody took: JPEGs of the size, the detail and so the cost of decoding of real ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from jocor_fast.data.images.prepare import prepared_jpeg
from jocor_fast.data.images.preprocessing import Preparation
from jocor_fast.data.images.source import ImageFiles

ORIGINAL = (800, 600)  # height, width: about what the images of Clothing1M have
QUALITY = 90


def write_photos(folder: Path, count: int, *, distinct: int = 24, prepared: bool = False) -> ImageFiles:
    """`count` files, copies of `distinct` images; where `prepared`, as `jocor-fast prepare` leaves them."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    names = [f"{number:05d}.jpg" for number in range(count)]
    for number in range(min(distinct, count)):
        image = pink_noise(*ORIGINAL, generator)
        if prepared:
            data = prepared_jpeg(image, Preparation((256, 256), QUALITY))
            (folder / names[number]).write_bytes(data)
        else:
            Image.fromarray(image).save(folder / names[number], quality=QUALITY)
    for number in range(distinct, count):
        (folder / names[number]).write_bytes((folder / names[number % distinct]).read_bytes())
    return ImageFiles(folder, names)


def pink_noise(height: int, width: int, generator: np.random.Generator) -> np.ndarray:
    """uint8 [height, width, 3] whose amplitude falls with the frequency, as in photographs: 60 to 70 kB at 600×800."""
    total = np.zeros((height, width, 3), np.float32)
    cells = 4
    while cells <= max(height, width):
        coarse = generator.normal(size=(cells, cells, 3)).astype(np.float32)
        for channel in range(3):
            layer = Image.fromarray(coarse[..., channel]).resize((width, height), Image.Resampling.BICUBIC)
            total[..., channel] += np.asarray(layer) / cells**0.9
        cells *= 2
    return np.clip(128 + 55 * total / total.std(), 0, 255).astype(np.uint8)
