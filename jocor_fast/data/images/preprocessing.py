"""From an image to what a network takes: which box of it becomes the input, and how that is normalised.

Resizing and cropping are one operation: a box of the image, in fractions of its sides, is resized to the crop's size,
which gives the same pixels as resizing the whole image and cropping that (the filter looks beyond the box).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from jocor_fast.errors import ArgumentValueError

if TYPE_CHECKING:
    import numpy as np

CROP = 224
SMALLEST_CROP = 8  # cnn halves it three times

# Mean and standard deviation of R, G and B in [0, 1].
NORMALISATIONS: Mapping[str, tuple[tuple[float, float, float], tuple[float, float, float]]] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),  # torchvision's, which its weights were trained with
    "clothing1m": ((0.6959, 0.6537, 0.6371), (0.3113, 0.3192, 0.3214)),  # of the data set, in other code for it
}


class Draw(NamedTuple):
    """Where an image is cropped, 0 … 1 from top and left, and whether it is mirrored."""

    top: float
    left: float
    mirrored: bool


CENTRE = Draw(0.5, 0.5, False)


class Box(NamedTuple):
    """A part of an image in fractions of its height and width; it is mirrored where right is less than left."""

    top: float
    left: float
    bottom: float
    right: float


@dataclass(frozen=True)
class Preprocessing:
    """What is done to every image of a run.

    Attributes:
        resize: (height, width) to squash to, or the length of the short side.
        crop: side of the square that is cut out of that, at most as long as its short side.
        augment: crop training images at random and mirror them at even odds, instead of taking the centre.
        normalisation: a key of `NORMALISATIONS`.
    """

    resize: tuple[int, int] | int = 256
    crop: int = CROP
    augment: bool = False
    normalisation: str = "imagenet"

    def at_size(self, crop: int) -> Preprocessing:
        """Return the same with another crop, of images resized to as much more than that as before."""
        if crop < SMALLEST_CROP:
            raise ArgumentValueError("image_size", f"must be at least {SMALLEST_CROP}, got {crop}")
        height, width = (self.resize, self.resize) if isinstance(self.resize, int) else self.resize
        height, width = round(height * crop / self.crop), round(width * crop / self.crop)
        return replace(self, resize=height if isinstance(self.resize, int) else (height, width), crop=crop)

    @property
    def mean(self) -> tuple[float, float, float]:
        """Of R, G and B in [0, 1]."""
        return NORMALISATIONS[self.normalisation][0]

    @property
    def std(self) -> tuple[float, float, float]:
        """Of R, G and B in [0, 1]."""
        return NORMALISATIONS[self.normalisation][1]

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Height and width that an image is resized to; the longer side rounds down, as in torchvision."""
        if not isinstance(self.resize, int):
            return self.resize
        short, long = sorted((height, width))
        longer = self.resize * long // short
        return (self.resize, longer) if height <= width else (longer, self.resize)

    def offset(self, height: int, width: int, draw: Draw = CENTRE) -> tuple[int, int]:
        """Top and left of the crop in the resized image [height, width]; halves round up."""
        return int((height - self.crop) * draw.top + 0.5), int((width - self.crop) * draw.left + 0.5)

    def box(self, height: int, width: int, draw: Draw = CENTRE) -> Box:
        """The part of an image [height, width] that becomes the input."""
        resized_height, resized_width = self.resized(height, width)
        top, left = self.offset(resized_height, resized_width, draw)
        near, far = left / resized_width, (left + self.crop) / resized_width
        if draw.mirrored:
            near, far = far, near
        return Box(top / resized_height, near, (top + self.crop) / resized_height, far)

    def draws(self, count: int, *, seed: int, epoch: int) -> np.ndarray:
        """float32 [count, 3]: what `draw` reads for each image of the data set in an epoch, whatever their order."""
        import numpy as np

        generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, epoch])))
        return generator.random((count, 3), np.float32)


def draw(row: np.ndarray) -> Draw:
    """The draw of one image, from its row of `Preprocessing.draws`."""
    top, left, side = row.tolist()
    return Draw(top, left, side < 0.5)


@dataclass(frozen=True)
class Preparation:
    """What `prepare` makes of every image, once.

    Attributes:
        resize: (height, width) to squash to, or the length of the short side (images that are smaller stay so).
        quality: of the JPEG, 1 … 95.
    """

    resize: tuple[int, int] | int
    quality: int = 90
