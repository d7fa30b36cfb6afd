"""Images in files as a run's source of inputs: read ahead by threads in the trainer's order, whatever decodes them.

A file that cannot be decoded ends no run: its place in a batch goes to the next good image of that batch (training), or
is left out (evaluation); the numbers of all others stay the same. Which files are bad is told by
`image_file` alone, and so does not depend on the loader.
"""

from __future__ import annotations

import importlib
import os
import zlib
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from jocor_fast.data.images.bad_files import BadFiles
from jocor_fast.data.images.decoder import Decoder, Loaded
from jocor_fast.data.images.image_file import BadImage
from jocor_fast.data.images.pillow_decoder import PillowDecoder
from jocor_fast.data.images.preprocessing import CENTRE, Draw, Preprocessing, draw
from jocor_fast.data.samples import Batch, InputSource
from jocor_fast.errors import ArgumentValueError, DataError
from jocor_fast.machine import usable_cores

FASTER_ON_CPU = "the faster one on a CPU, by a fifth where it was measured"
MOST_TRIED = 100  # where none of so many files can be read, the folder is wrong, not the files
BATCHES_AHEAD = 3  # that threads read while one is trained on


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Inputs in image files, in data-set order, and how they are read: the `InputFiles` of a data set of images.

    Attributes:
        folder: what the paths are relative to.
        paths: [N], as the data set's own lists have them.
        preprocessing: what becomes of each image.
        loader: one of `decoder.LOADERS`.
        bad_files: shared by all parts of a run.
        seed: of the random crops.
    """

    folder: Path
    paths: Sequence[str]
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    loader: str = "pillow"
    bad_files: BadFiles = field(default_factory=BadFiles)
    seed: int = 0

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def checksum(self) -> str:
        """Of the names of the files, in their order; of absolute paths without what all have in common."""
        names = list(map(os.path.normpath, self.paths))
        if all(map(os.path.isabs, names)):
            above = os.path.commonpath([min(names), max(names)])
            names = [name.removeprefix(above) for name in names]
        checksum = zlib.crc32(os.fsencode("\n".join(names)))
        return f"{len(names)} with checksum {checksum:08x}"

    def subset(self, ids: np.ndarray) -> ImageFiles:
        return replace(self, paths=[self.paths[i] for i in ids.tolist()])

    def open(self, device: torch.device, batch_size: int, *, training: bool) -> InputSource:
        decoder: Decoder
        if self.loader == "dali":
            from jocor_fast.data.images.dali_decoder import DaliDecoder  # an optional dependency

            decoder = DaliDecoder(self.preprocessing, device, batch_size)
        else:
            decoder = PillowDecoder(self.preprocessing, device)
        return ImageSource(self, decoder, device, training=training)


class ImageSource:
    """The `InputSource` of image files."""

    reads_files = True

    def __init__(self, files: ImageFiles, decoder: Decoder, device: torch.device, *, training: bool) -> None:
        self.files = files
        self.preprocessing = files.preprocessing
        self.bad_files = files.bad_files
        self.decoder = decoder
        self.device = device
        self.training = training
        self._threads = ThreadPoolExecutor(usable_cores(), thread_name_prefix="jocor-fast-read")
        self._first: Tensor | None = None

    def __len__(self) -> int:
        return len(self.files)

    def first(self, count: int = 2) -> Tensor:
        """The first images that can be read, as the networks take them."""
        if self._first is None or len(self._first) < count:
            readable = islice(self._readable(), max(count, 2))
            one_by_one = [Loaded([sample], [item]) for sample, item in readable]  # all have room
            with closing(self.decoder.decode(one_by_one, self._settle)) as decoded:
                self._first = self.decoder.network_input(torch.cat([stored for _, stored in decoded]))
        return self._first[:count]

    def batches(self, order: Tensor, batch_size: int, epoch: int = 0) -> Generator[Batch]:
        groups = [group.tolist() for group in order.cpu().split(batch_size)]
        draws = None
        if self.training and self.preprocessing.augment and epoch:
            draws = self.preprocessing.draws(len(self), seed=self.files.seed, epoch=epoch)

        def read(sample: int) -> Any:
            return self._load(sample, CENTRE if draws is None else draw(draws[sample]))

        with (
            closing(self._read_ahead(groups, read)) as loaded,
            closing(self.decoder.decode(loaded, self._settle)) as decoded,
        ):
            for samples, stored in decoded:
                yield Batch(torch.tensor(samples, device=self.device), stored)

    def network_input(self, stored: Tensor) -> Tensor:
        return self.decoder.network_input(stored)

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    def _read_ahead(self, groups: Sequence[list[int]], read: Callable[[int], Any]) -> Generator[Loaded]:
        """Batches in their order, each read while those before it are used; leaving off leaves nothing behind."""
        ahead: deque[tuple[list[int], list[Future[Any]]]] = deque()
        waiting = iter(groups)
        try:
            while True:
                while len(ahead) < BATCHES_AHEAD and (samples := next(waiting, None)) is not None:
                    ahead.append((samples, [self._threads.submit(read, sample) for sample in samples]))
                if not ahead:
                    return
                samples, futures = ahead.popleft()
                loaded = self._settle(samples, [future.result() for future in futures])
                if loaded.samples:
                    yield loaded
        finally:
            for _, futures in ahead:
                for future in futures:
                    future.cancel()

    def _load(self, sample: int, where: Draw) -> Any:
        """What the decoder takes of an image, or why it is bad, as a BadImage."""
        path = self.files.paths[sample]
        if path in self.bad_files:
            return BadImage(self.bad_files.reasons[path])
        try:
            return self.decoder.load(os.path.join(self.files.folder, path), where)
        except BadImage as error:
            return error

    def _without_bad(self, samples: Sequence[int], items: Sequence[Any]) -> Loaded:
        """The good images; the bad ones are reported, in their order."""
        good = Loaded([], [])
        for sample, item in zip(samples, items, strict=True):
            if isinstance(item, BadImage):
                self.bad_files.report(self.files.folder, self.files.paths[sample], str(item))
            else:
                good.samples.append(sample)
                good.items.append(item)
        return good

    def _settle(self, samples: Sequence[int], items: Sequence[Any]) -> Loaded:
        """Without the bad images; while training each place goes to the next good one of the batch, cyclically.

        A batch without a good image is filled with the first one of the data set that can be read.
        """
        good = self._without_bad(samples, items)
        if len(good.samples) == len(samples) or not self.training:
            return good
        if not good.samples:
            sample, item = next(self._readable())
            return Loaded([sample] * len(samples), [item] * len(items))
        places = [place for place, item in enumerate(items) if not isinstance(item, BadImage)]
        chosen = [bisect_left(places, place) % len(places) for place in range(len(items))]
        return Loaded([good.samples[i] for i in chosen], [good.items[i] for i in chosen])

    def _readable(self) -> Iterator[tuple[int, Any]]:
        """Images that can be read, until `MOST_TRIED` could not; DataError where there is none before.

        Files that are known to be bad are not tried again, and count for nothing.
        """
        known_bad, found, failed = len(self.bad_files), 0, 0
        for sample in spread(len(self)):
            item = self._load(sample, CENTRE)
            if self._without_bad([sample], [item]).samples:
                found += 1
                yield sample, item
                continue
            failed += 1
            if len(self.bad_files) - known_bad >= MOST_TRIED:
                break
        if not found:
            path = self.files.paths[0]
            raise none_readable(self.files.folder, failed, path, self.bad_files.reasons[path])


def choose_loader(asked: str, device: torch.device) -> tuple[str, str]:
    """The loader of a run, and why it is this one.

    Args:
        asked: "dali"; "pillow" (Pillow, and torch as torchvision's transforms use it; always there); or "auto".

    Raises:
        DataError: DALI was asked for and cannot be imported.
    """
    if asked == "pillow":
        return asked, ""
    try:
        importlib.import_module("jocor_fast.data.images.dali_decoder")
    except ImportError as error:
        sentence = f"{error}: pip install nvidia-dali-cuda130"
        if asked == "dali":
            raise ArgumentValueError("loader", f"must be pillow where {sentence}") from None
        return "pillow", sentence
    if asked == "dali":
        return asked, ""
    return "dali", FASTER_ON_CPU if device.type == "cpu" else "it decodes on the GPU"


def spread(count: int) -> Iterator[int]:
    """Yield the numbers 0 … count − 1, the first `MOST_TRIED` of them from all over: a whole class may be spoilt."""
    stride = max(1, count // MOST_TRIED)
    for first in range(stride):
        yield from range(first, count, stride)


def none_readable(folder: Path, tried: int, path: str, reason: str) -> DataError:
    """Return what ends a run, or another command, that finds no image to use; `path` is one of those tried."""
    return DataError(
        f"{folder}: none of {tried} images, tried all over the data set, can be read, the first of them is {path} "
        f"({reason})"
    )
