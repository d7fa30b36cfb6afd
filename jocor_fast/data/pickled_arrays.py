"""Arrays inside pickles, rebuilt by hand.

NumPy's own constructors trust a pickle: a damaged state of a dtype changes that type for the whole process, or ends it
by a segmentation fault. The stand-ins below take the same calls, check what they are given, and make arrays of numbers
and strings only.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np


class PickledDtype:
    """Stands in for `numpy.dtype`: numbers, bools and strings of a fixed width."""

    def __init__(self, code: str | bytes, align: object = False, copy: object = False) -> None:
        """Take what `numpy.dtype` reduces to, such as ("i8", False, True)."""
        self.code = _text(code)
        if not re.fullmatch(r"b1|[iu][1248]|f[248]|[US][0-9]{1,6}", self.code):
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


def _array(content: Any, pickled: Any, shape: Any, order: Any) -> np.ndarray:
    if not isinstance(pickled, PickledDtype) or not isinstance(content, (bytes, bytearray)):
        raise ValueError("it has an array that is not of numbers or strings")
    if not isinstance(shape, tuple) or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError("it has an array without a shape")
    if len(content) != math.prod(shape) * pickled.dtype.itemsize or not content:
        raise ValueError(f"it has an array of {len(content)} bytes for the shape {list(shape)} of {pickled.dtype}")
    return np.frombuffer(content, pickled.dtype).reshape(shape, order=order)


def _text(value: Any) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)
