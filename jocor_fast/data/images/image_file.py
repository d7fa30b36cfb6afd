"""One image file, read: most are JPEGs that every decoder turns into the same pixels; Pillow decodes the rest.

Decoders differ in what they make of CMYK, of palettes, 16 bits or transparency, and in what they still take for an
image. So there is one rule for all loaders: what is not a plain JPEG is decoded by Pillow, which also says what cannot
be decoded at all.
"""

from __future__ import annotations

import functools
import io
import os
import stat
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageFile, ImageOps, PngImagePlugin

from jocor_fast.data.images.decoder import IMAGE_SUFFIXES
from jocor_fast.errors import DataError

_TEXT_SUFFIXES = (".txt", ".json", ".xml", ".csv")  # often one for each image
_NOT_DECODED = ("EPS", "MPEG")  # by Pillow alone

# An image takes three bytes a pixel, in each of the threads that read.
MOST_PIXELS, PIXELS_VARIABLE = 2**28, "JOCOR_FAST_MAX_PIXELS"
# Pillow's limits hold for the whole process, which is the command's: `import jocor_fast` does not come here.
Image.MAX_IMAGE_PIXELS = None
PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY

_FRAMES = (0xC0, 0xC1, 0xC2)  # baseline, extended, progressive
_OTHER_FRAMES = frozenset(range(0xC3, 0xD0)) - {0xC4, 0xC8, 0xCC}  # lossless and arithmetic ones
_START_OF_SCAN, _EXIF, _ADOBE = 0xDA, 0xE1, 0xEE
_ADOBE_YCC = 1
_ORIENTATION = 0x0112
_TURNED = frozenset({5, 6, 7, 8})  # orientations that swap height and width
_MOST_BYTES = 2**31 - 2**12  # that one call reads
_SIXTEEN_BITS = frozenset({"I", "I;16", "I;16B", "I;16L"})


class BadImage(Exception):
    """A file that holds no image that can be decoded; the message is the reason."""


class PlainJpeg(NamedTuple):
    """A JPEG that every decoder takes.

    Attributes:
        data: uint8 [n], the file.
        height, width: once the image is turned by its EXIF orientation.
    """

    data: np.ndarray
    height: int
    width: int


class _Decoding(threading.local):
    """Which file a thread reads."""

    path: str = ""


decoding = _Decoding()


def warning_of_pillow(message: str, source: str) -> str | None:
    """Return what Pillow warns of with the file that this thread reads; None where `source` is another package's."""
    if Path(Image.__file__).parent not in Path(source).parents:
        return None
    return f"{decoding.path}: {message} (Pillow); the image is used"


@functools.cache
def most_pixels() -> int:
    """Return how many pixels an image may have; DataError where the environment says it with no whole number."""
    told = os.environ.get(PIXELS_VARIABLE)
    if told is None:
        return MOST_PIXELS
    if not told.isdecimal():
        raise DataError(f"${PIXELS_VARIABLE} must be a whole number, got {told!r}")
    return int(told)


def is_image(path: str) -> bool:
    """Tell whether a file is an image, by its name or else its first bytes; whether it is whole shows in decoding."""
    name = path.lower()
    if name.endswith(IMAGE_SUFFIXES):
        return True
    if name.endswith(_TEXT_SUFFIXES) or not os.path.isfile(path):
        return False
    decoding.path = path
    try:
        with Image.open(path) as image:
            return not isinstance(image, ImageFile.StubImageFile) and image.format not in _NOT_DECODED
    except Exception:  # of all kinds, as in `decode_by_pillow`
        return False


def read_image(path: str | Path) -> PlainJpeg | np.ndarray:
    """A file as a plain JPEG, or as the pixels uint8 [H, W, 3] that Pillow decodes it to.

    Raises:
        BadImage: it is missing, unreadable, or no image that can be decoded to its end.
    """
    data = read_bytes(path)
    size = _plain_jpeg_size(data)
    if size is None:
        return decode_by_pillow(data)
    _check_size(*size)
    return PlainJpeg(np.frombuffer(data, np.uint8), *size)


def read_bytes(path: str | Path) -> bytearray:
    """The bytes of a file; BadImage where it is missing, unreadable, empty, too large, or a device or a pipe."""
    decoding.path = os.fspath(path)
    try:
        with open(path, "rb", buffering=0, opener=_open_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise BadImage("not a regular file")
            if status.st_size > _MOST_BYTES:
                raise BadImage(f"{status.st_size:,} bytes are too many for an image")
            data = bytearray(status.st_size)
            del data[file.readinto(data) or 0 :]
    except OSError as error:
        raise BadImage((error.strerror or str(error)).lower()) from None
    if not data:
        raise BadImage("the file is empty")
    return data


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a pipe at once, without waiting for a writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def decode_by_pillow(data: Any) -> np.ndarray:
    """uint8 [H, W, 3], as `convert("RGB")` has it, turned by the EXIF orientation; 16 bits are scaled by 1/257.

    Raises:
        BadImage: Pillow cannot decode it to its end.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            _check_size(image.height, image.width)
            image.load()
            ImageOps.exif_transpose(image, in_place=True)
            if image.mode in _SIXTEEN_BITS:
                gray = np.asarray(image).astype(np.float64) / 257
                eight_bits = np.clip(np.rint(gray), 0, 255).astype(np.uint8)
                return np.repeat(eight_bits[:, :, None], 3, axis=2)
            return np.array(image if image.mode == "RGB" else image.convert("RGB"))
    except (MemoryError, DataError, BadImage):
        raise
    except Exception as error:  # Pillow's plugins let all kinds through: OSError, SyntaxError, struct.error …
        if isinstance(error, Image.UnidentifiedImageError):
            raise BadImage("not an image of a known format") from None
        raise BadImage(str(error) or type(error).__name__) from None


def _check_size(height: int, width: int) -> None:
    if height * width > most_pixels():
        raise BadImage(f"{width}×{height} is more than {most_pixels():,} pixels; ${PIXELS_VARIABLE} raises the limit")


def as_ppm(pixels: np.ndarray) -> np.ndarray:
    """Pixels uint8 [H, W, 3] as a file that needs no decoding, uint8 [n], for decoders that take files alone."""
    height, width, _ = pixels.shape
    return np.frombuffer(b"P6 %d %d 255\n" % (width, height) + pixels.tobytes(), np.uint8)


def _plain_jpeg_size(data: bytearray) -> tuple[int, int] | None:
    """Height and width of a plain JPEG, of the segments before its first scan; None where it is not one.

    Plain: gray or YCbCr, 8 bits, Huffman-coded, and not truncated: it ends as a JPEG ends.
    """
    if data[:2] != b"\xff\xd8" or data[-2:] != b"\xff\xd9":
        return None
    place, end = 2, len(data)
    size: tuple[int, int] | None = None
    turned = False
    while place + 10 < end and data[place] == 0xFF:
        marker, length = data[place + 1], data[place + 2] << 8 | data[place + 3]
        if marker in _FRAMES:
            bits, components = data[place + 4], data[place + 9]
            if bits != 8 or components not in (1, 3) or (components == 3 and data[place + 10] == ord("R")):
                return None
            size = data[place + 5] << 8 | data[place + 6], data[place + 7] << 8 | data[place + 8]
        elif marker == _START_OF_SCAN:
            if size is None or 0 in size:
                return None
            return size[::-1] if turned else size
        elif marker == _EXIF and data[place + 4 : place + 10] == b"Exif\0\0":
            turned = _exif_orientation(data[place + 4 : place + 2 + length]) in _TURNED
        elif (
            marker == _ADOBE and data[place + 4 : place + 9] == b"Adobe" and data[place + 15] != _ADOBE_YCC
        ) or marker in _OTHER_FRAMES:
            return None
        place += 2 + length
    return None


def _exif_orientation(segment: bytearray) -> int:
    exif = Image.Exif()
    try:
        exif.load(bytes(segment))
        return int(exif.get(_ORIENTATION, 1))
    except Exception:  # broken metadata of an image that may be fine: as decoders do, take it as it lies
        return 1
