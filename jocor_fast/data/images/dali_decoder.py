"""Decoding, resizing and normalising by NVIDIA DALI, on the GPU or the CPU from one definition.

The pipeline is fed the bytes that our threads have read, in the trainer's order. DALI's own reader (`fn.readers.file`)
was left: it shuffles within a buffer, takes its list of files once, and a file that cannot be decoded or is not there
breaks the whole pipeline.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from jocor_fast.data.images.decoder import Loaded, Settle
from jocor_fast.data.images.image_file import BadImage, PlainJpeg, as_ppm, decode_by_pillow, decoding, read_image
from jocor_fast.data.images.preprocessing import Box, Draw, Preprocessing
from jocor_fast.machine import usable_cores

try:
    import nvidia.dali.fn as fn
    from nvidia.dali import Pipeline, pipeline_def, types
except (ImportError, OSError, RuntimeError) as error:
    raise ImportError(f"DALI cannot be imported ({error})") from error

IN_FLIGHT = 2  # batches that DALI works on at a time
# For the GPU's JPEG engines: their share of the images, the rest of which its cores decode, and what they make room for
# at the start. Not measured.
JPEG_ENGINES = {"hw_decoder_load": 0.9, "preallocate_width_hint": 1024, "preallocate_height_hint": 1024}
_WHOLE = Box(0.0, 0.0, 1.0, 1.0)


class EncodedImage(NamedTuple):
    """A file that DALI decodes, and the part of the image that becomes the input."""

    path: str
    data: np.ndarray
    box: Box


class DaliDecoder:
    """Stores images normalised: float32 on the CPU, float16 on a GPU."""

    def __init__(self, preprocessing: Preprocessing, device: torch.device, batch_size: int) -> None:
        self.preprocessing = preprocessing
        self.device = device
        self.batch_size = batch_size
        self._pipeline: Pipeline | None = None
        self._in_flight: deque[Loaded] = deque()
        self._refused: set[str] = set()  # paths of batches that DALI refused: Pillow decodes them from then on

    def load(self, path: str, where: Draw) -> EncodedImage:
        """The bytes of a file, or of one that holds the pixels that Pillow makes of it."""
        image = read_image(path)
        if isinstance(image, PlainJpeg):
            if path not in self._refused:
                return EncodedImage(path, image.data, self.preprocessing.box(image.height, image.width, where))
            image = decode_by_pillow(image.data)
        height, width, _ = image.shape
        return EncodedImage(path, as_ppm(image), self.preprocessing.box(height, width, where))

    def decode(self, batches: Iterable[Loaded], settle: Settle) -> Generator[tuple[list[int], Tensor]]:
        self._drain()
        waiting = iter(batches)
        while True:
            while len(self._in_flight) < IN_FLIGHT and (loaded := next(waiting, None)) is not None:
                self._submit(loaded)
            if not self._in_flight:
                return
            samples = self._in_flight[0].samples
            try:
                stored = self._result()
            except RuntimeError:
                yield from self._one_by_one(settle)
            else:
                yield samples, stored

    def network_input(self, stored: Tensor) -> Tensor:
        """Normalised float32 [B, 3, crop, crop], channels last."""
        return stored.float()

    def _submit(self, loaded: Loaded) -> None:
        """Start a batch; DALI works on it in its own threads."""
        if self._pipeline is None:
            self._pipeline = self._built()
        _feed(self._pipeline, loaded.items)
        self._in_flight.append(loaded)

    def _result(self) -> Tensor:
        """The oldest batch that was started; waits for it. RuntimeError where an image in some batch was refused."""
        assert self._pipeline is not None
        if self.device.type == "cuda":
            # Bound to the stream of the training: the memory is reused only after its work there.
            (images,) = self._pipeline.share_outputs(cuda_stream=torch.cuda.current_stream(self.device))
        else:
            (images,) = self._pipeline.share_outputs()
        stored = torch.from_dlpack(images.as_tensor())
        self._pipeline.release_outputs()
        self._in_flight.popleft()
        return stored.permute(0, 3, 1, 2)

    def _one_by_one(self, settle: Settle) -> Generator[tuple[list[int], Tensor]]:
        """After an error, which breaks the pipeline: the batches that were in it, each alone in a new one.

        The one with the fault is decoded by Pillow as a whole: DALI does not say which of its images it refused.
        """
        batches = list(self._in_flight)
        for loaded in batches:
            self._reset()
            self._submit(loaded)
            try:
                stored = self._result()
            except RuntimeError:
                self._reset()
                self._refused.update(item.path for item in loaded.items)
                loaded = settle(loaded.samples, [_by_pillow(item) for item in loaded.items])
                if not loaded.samples:
                    continue
                self._submit(loaded)
                stored = self._result()
            yield loaded.samples, stored

    def _drain(self) -> None:
        """Throw away what was started and never fetched, as when an epoch was left half-way."""
        try:
            while self._in_flight:
                self._result()
        except RuntimeError:
            self._reset()

    def _reset(self) -> None:
        self._pipeline = None
        self._in_flight.clear()

    def _built(self) -> Pipeline:
        """The pipeline, warm: DALI's first run starts as many batches as it has places for, so it gets dummies."""
        on_gpu = self.device.type == "cuda"
        pipeline = _pipeline(
            self.preprocessing,
            "mixed" if on_gpu else "cpu",
            batch_size=self.batch_size,
            num_threads=usable_cores(),
            device_id=(self.device.index or 0) if on_gpu else None,
            prefetch_queue_depth=IN_FLIGHT,
        )
        pipeline.build()
        dummy = [EncodedImage("", as_ppm(np.zeros((8, 8, 3), np.uint8)), _WHOLE)]
        for _ in range(IN_FLIGHT - 1):
            _feed(pipeline, dummy, start=False)
        _feed(pipeline, dummy)
        for _ in range(IN_FLIGHT):
            pipeline.share_outputs()
            pipeline.release_outputs()
        return pipeline


@pipeline_def
def _pipeline(preprocessing: Preprocessing, decoding: str) -> Any:
    """Decode, cut the box out and resize it, normalise: [B, crop, crop, 3], which permuted is channels last.

    `decoding` "mixed" is by the GPU's JPEG engines; "cpu" by libjpeg-turbo, set to give Pillow's pixels.
    """
    files = fn.external_source(name="files", dtype=types.UINT8, ndim=1)
    starts = fn.external_source(name="starts", dtype=types.FLOAT, ndim=1)
    ends = fn.external_source(name="ends", dtype=types.FLOAT, ndim=1)
    engines: dict[str, Any] = JPEG_ENGINES if decoding == "mixed" else {}
    images = fn.decoders.image(files, device=decoding, output_type=types.RGB, jpeg_fancy_upsampling=True, **engines)
    images = fn.resize(
        images,
        size=(preprocessing.crop, preprocessing.crop),
        roi_start=starts,
        roi_end=ends,  # before the start: mirrored
        roi_relative=True,
        interp_type=types.INTERP_TRIANGULAR,  # Pillow's and torchvision's "bilinear" with antialiasing
    )
    return fn.crop_mirror_normalize(
        images,
        dtype=types.FLOAT if decoding == "cpu" else types.FLOAT16,
        output_layout="HWC",
        mean=[255 * value for value in preprocessing.mean],
        std=[255 * value for value in preprocessing.std],
    )


def _feed(pipeline: Pipeline, images: list[EncodedImage], *, start: bool = True) -> None:
    boxes = np.array([image.box for image in images], np.float32)
    pipeline.feed_input("files", [image.data for image in images])
    pipeline.feed_input("starts", boxes[:, :2].copy())
    pipeline.feed_input("ends", boxes[:, 2:].copy())
    if start:
        pipeline.schedule_run()


def _by_pillow(image: EncodedImage) -> EncodedImage | BadImage:
    """The same image, for a decoder that refused it."""
    decoding.path = image.path
    try:
        return image._replace(data=as_ppm(decode_by_pillow(image.data)))
    except BadImage as error:
        return error
