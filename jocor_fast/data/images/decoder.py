"""The interface of what decodes image files for a run: `pillow_decoder` and `dali_decoder`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from jocor_fast.data.images.preprocessing import Draw

LOADERS = ("dali", "pillow")
# Taken for images without a look into them, since there may be a million.
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


class Loaded(NamedTuple):
    """Images of a batch that could be read, with their numbers; `items` are the decoder's."""

    samples: list[int]
    items: list[Any]


Settle = Callable[[Sequence[int], Sequence[Any]], Loaded]  # sample numbers, items or BadImage


class Decoder(Protocol):
    """Turns files into the inputs of a network."""

    def load(self, path: str, where: Draw) -> Any:
        """What `decode` takes of a file; called in threads. BadImage where it cannot be decoded."""
        ...

    def decode(self, batches: Iterable[Loaded], settle: Settle) -> Generator[tuple[list[int], Tensor]]:
        """Images [B, 3, crop, crop] on the device, channels last, batch by batch.

        An image that turns out to be bad only here is taken out of its batch by `settle`, as in reading.
        """
        ...

    def network_input(self, stored: Tensor) -> Tensor:
        """Normalised float32, of what `decode` gave."""
        ...
