"""Arrays inside pickles, rebuilt by hand.

NumPy's own constructors trust a pickle: a damaged state of a dtype changes that type for the whole process, or ends it
by a segmentation fault. The stand-ins below take the same calls, check what they are given, and make arrays of numbers
and strings only, also of strings that are Python objects, as pandas has them.
"""

from __future__ import annotations

import math
import pickle
import re
from typing import IO, Any

import numpy as np


class PickledDtype:
    """Stands in for `numpy.dtype`: numbers, bools, strings of a fixed width, and objects."""

    def __init__(self, code: str | bytes, align: object = False, copy: object = False) -> None:
        """Take what `numpy.dtype` reduces to, such as ("i8", False, True)."""
        self.code = _text(code)
        if not re.fullmatch(r"b1|[iu][1248]|f[248]|[US][0-9]{1,6}|O8?", self.code):
            raise ValueError(f"it has an array of type {self.code!r}, not of numbers or strings")
        self.dtype = np.dtype(self.code)

    def __setstate__(self, state: Any) -> None:
        """Take the byte order; the rest of the state belongs to types that are not taken."""
        order = _text(state[1])
        if order not in ("<", ">", "|", "="):
            raise ValueError(f"it has an array of byte order {order!r}")
        self.dtype = np.dtype(order + self.code)


class PickledArray:
    """Stands in for `numpy.ndarray`; `array` is the array itself, a view of the pickle's bytes (read-only)."""

    array: np.ndarray

    def __setstate__(self, state: Any) -> None:
        """Take (version, shape, dtype, whether in Fortran's order, bytes)."""
        _, shape, dtype, fortran, content = state
        self.array = _array(content, dtype, shape, "F" if fortran else "C")


def rebuild(subtype: Any, shape: Any, code: Any) -> PickledArray:
    """Stands in for `numpy._core.multiarray._reconstruct`: an array whose state follows."""
    return PickledArray()


def from_buffer(content: Any, dtype: Any, shape: Any, order: Any) -> PickledArray:
    """Stands in for `numpy._core.numeric._frombuffer` of pickle protocol 5."""
    pickled = PickledArray()
    pickled.array = _array(content, dtype, shape, "F" if order == "F" else "C")
    return pickled


# NumPy 2 renamed numpy.core to numpy._core.
STAND_INS: dict[str, Any] = {
    "numpy.dtype": PickledDtype,
    "numpy.ndarray": PickledArray,
    **{f"numpy.{core}.multiarray._reconstruct": rebuild for core in ("core", "_core")},
    **{f"numpy.{core}.numeric._frombuffer": from_buffer for core in ("core", "_core")},
}


def unwrapped(value: Any) -> Any:
    """The read-only array of a `PickledArray`; anything else as it is."""
    return getattr(value, "array", None) if isinstance(value, PickledArray) else value


class _Unpickler(pickle.Unpickler):
    """Rebuilds arrays and plain Python values, and calls nothing else that a file names."""

    def find_class(self, module: str, name: str) -> Any:
        full_name = f"{module}.{name}"
        if full_name == "_codecs.encode":
            return _latin1_bytes
        if full_name not in STAND_INS:
            raise pickle.UnpicklingError(f"it names {full_name}, which is not loaded")
        return STAND_INS[full_name]


def unpickled(file: IO[bytes], encoding: str = "ASCII") -> Any:
    """Return what a pickle holds, of arrays (`PickledArray`) and plain Python values; an error of any kind else."""
    return _Unpickler(file, encoding=encoding).load()


def _latin1_bytes(text: str, encoding: str) -> bytes:
    """The one way in which pickles of protocol 2 write bytes."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it encodes bytes as {encoding!r}, not 'latin1'")
    return text.encode("latin1")


def _array(content: Any, pickled: Any, shape: Any, order: Any) -> np.ndarray:
    if not isinstance(pickled, PickledDtype) or not isinstance(content, (bytes, bytearray, list)):
        raise ValueError("it has an array that is not of numbers or strings")
    if not isinstance(shape, tuple) or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError("it has an array without a shape")
    if pickled.dtype.hasobject != isinstance(content, list):
        raise ValueError(f"it has an array of {pickled.dtype} that is written as one of another type")
    if len(content) != math.prod(shape) * (1 if isinstance(content, list) else pickled.dtype.itemsize) or not content:
        raise ValueError(f"it has an array of {len(content)} bytes for the shape {list(shape)} of {pickled.dtype}")
    if isinstance(content, list):
        if not all(value is None or type(value) in (str, int, float, bool) for value in content):
            raise ValueError("it has an array of Python objects that are not numbers or strings")
        array = np.empty(len(content), object)
        array[:] = content
    else:
        array = np.frombuffer(content, pickled.dtype)
    return array.reshape(shape, order=order)


def _text(value: Any) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)
