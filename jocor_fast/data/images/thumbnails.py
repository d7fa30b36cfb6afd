"""Training samples as small pictures that can stand in a page."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
from PIL import Image

from jocor_fast.data.images.image_file import BadImage, decode_by_pillow, read_bytes

LARGEST_SIDE = 96  # pixels; what is smaller stays as it is, for the browser to enlarge


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether samples of this shape can be shown: gray [H, W] or [1, H, W], colour [3, H, W]."""
    return len(shape) == 2 or (len(shape) == 3 and shape[0] in (1, 3))


def data_uri(sample: np.ndarray, scale: float) -> str:
    """A sample, whose values times `scale` lie in [0, 1], as the address of a picture that holds the picture itself.

    Floats that leave [0, 1] (normalised images) are stretched to it.
    """
    values = sample.astype(np.float64) * scale
    low, high = float(values.min()), float(values.max())
    if low < 0 or high > 1:
        values = (values - low) / max(high - low, 1e-12)
    pixels = np.rint(255 * values).astype(np.uint8)
    if pixels.ndim == 3:
        pixels = pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)
    return picture_uri(Image.fromarray(pixels))


def picture_uri(image: Image.Image) -> str:
    """A Pillow image the same way: losslessly while it is small, else as a JPEG of at most 96 pixels a side."""
    kind = "png"
    if max(image.size) > LARGEST_SIDE:
        kind = "jpeg"
        image = image.convert("RGB")
        image.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    buffer = io.BytesIO()
    image.save(buffer, kind, optimize=True)
    return _uri(kind, buffer.getvalue())


def image_file_uri(path: Path) -> str | None:
    """An image file the same way, decoded as for training; None where it cannot be."""
    try:
        return picture_uri(Image.fromarray(decode_by_pillow(read_bytes(path))))
    except BadImage:
        return None


def file_uri(path: Path) -> str:
    """A .png file the same way, as it is."""
    return _uri("png", path.read_bytes())


def _uri(kind: str, data: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
