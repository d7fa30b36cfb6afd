"""Checks of the arguments, shared by the compiled functions and the reference.

Each check returns the value to compute with (a Python float or int), raises TypeError for a wrong type and ValueError
for a wrong value, and passes the usual value after one type test: the whole loss takes about 30 µs on a small batch.
A float parameter accepts an int, an int parameter a NumPy integer; neither accepts a bool. Nothing here needs torch:
checks of tensors are in `tensor_arguments`.
"""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from jocor_fast.errors import ArgumentTypeError, ArgumentValueError

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import TypeIs

_ROW_SUM_TOLERANCE = 1e-5  # of the rows of a transition matrix, which may be rounded to float32
_INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def check_co_lambda(co_lambda: float) -> float:
    """Return λ, the weight of the agreement between the networks: a float in [0, 1]."""
    if type(co_lambda) is float and 0.0 <= co_lambda <= 1.0:
        return co_lambda
    return in_unit_interval("co_lambda", co_lambda)


def check_forget_rate(forget_rate: float) -> float:
    """Return τ, the share of the rows to drop: a float in [0, 1)."""
    if type(forget_rate) is float and 0.0 <= forget_rate < 1.0:
        return forget_rate
    return check_fraction("forget_rate", forget_rate)


def check_fraction(name: str, value: float) -> float:
    """Return a float in [0, 1)."""
    number = as_real(name, value)
    if not 0 <= number < 1:  # NaN fails the comparison
        raise ArgumentValueError(name, f"must lie in [0, 1), got {value!r}")
    return number


def check_positive_part(name: str, value: float) -> float:
    """Return a float in (0, 1]."""
    number = as_real(name, value)
    if not 0 < number <= 1:
        raise ArgumentValueError(name, f"must lie in (0, 1], got {value!r}")
    return number


def check_ignore_index(ignore_index: int | None) -> int | None:
    """Return the label of the rows to ignore: an int that fits in 64 bits, or None."""
    if ignore_index is None:
        return None
    if type(ignore_index) is int and _INT64_MIN <= ignore_index <= INT64_MAX:
        return ignore_index
    return in_64_bits("ignore_index", as_integer("ignore_index", ignore_index))


def check_label_smoothing(label_smoothing: float) -> float:
    """Return ε, the part of a target that is spread over the classes: a float in [0, 1]."""
    return in_unit_interval("label_smoothing", label_smoothing)


def check_batch_size(batch_size: int) -> int:
    """Return the number of rows of a batch: an int >= 0."""
    return in_64_bits("batch_size", at_least("batch_size", batch_size, 0))


def check_rounding(rounding: str) -> str:
    """Return how R·n becomes a whole number of rows: "ceil" (the paper) or "floor" (the published code)."""
    return rounding if rounding in ("ceil", "floor") else check_choice("rounding", rounding, ("ceil", "floor"))


def check_choice(name: str, value: Any, accepted: Collection[str]) -> str:
    """Return one of the accepted strings."""
    if not isinstance(value, str):
        raise ArgumentTypeError(name, f"must be a str, got {type(value).__name__}")
    if value not in accepted:
        raise ArgumentValueError(name, f"must be one of {', '.join(accepted)}, got {value!r}")
    return value


def check_switch(name: str, value: Any) -> bool:
    """Return a bool from Python's or NumPy's, and from no other type."""
    if type(value) is bool:
        return value
    if (type(value).__module__, type(value).__name__) not in (("numpy", "bool"), ("numpy", "bool_")):
        raise ArgumentTypeError(name, f"must be a bool, got {type(value).__name__}")
    return bool(value)


def check_reduction(reduction: str) -> str:
    """Return "mean" or "none"."""
    if reduction in ("mean", "none"):
        return reduction
    error = ValueError if isinstance(reduction, str) else TypeError
    raise error(f"reduction must be 'mean' or 'none', got {reduction!r}")


def is_tensor(value: Any) -> TypeIs[Tensor]:
    """Return whether a value is a tensor: not where nothing has imported torch yet, which this does not either."""
    torch = sys.modules.get("torch")
    return isinstance(value, getattr(torch, "Tensor", ()))


def as_real(name: str, value: Any) -> float:
    """Return the number as a float, infinite beyond the largest one; raise TypeError unless it is a real number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ArgumentTypeError(name, f"must be a float, got {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:  # of an int or a fraction
        number: Any = value
        return math.inf if number > 0 else -math.inf


def in_unit_interval(name: str, value: Any) -> float:
    """Return the number as a float in [0, 1]."""
    number = as_real(name, value)
    if not 0 <= number <= 1:  # NaN fails the comparison
        raise ArgumentValueError(name, f"must lie in [0, 1], got {value!r}")
    return number


def not_negative(name: str, value: Any) -> float:
    """Return the number as a finite float of at least 0."""
    number = as_real(name, value)
    if not 0 <= number < math.inf:
        raise ArgumentValueError(name, f"must be finite and at least 0, got {number}")
    return number


def not_negative_int(name: str, value: Any) -> int:
    """Return the number as a Python int of at least 0."""
    return at_least(name, value, 0)


def positive_int(name: str, value: Any) -> int:
    """Return the number as a Python int of at least 1."""
    return at_least(name, value, 1)


def above_zero(name: str, value: Any) -> float:
    """Return the number as a finite float above 0."""
    number = as_real(name, value)
    if not 0 < number < math.inf:
        raise ArgumentValueError(name, f"must be finite and above 0, got {number}")
    return number


def as_integer(name: str, value: Any) -> int:
    """Return the number as a Python int; raise TypeError unless its type is of whole numbers."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ArgumentTypeError(name, f"must be an int, got {type(value).__name__}")
    return int(value)


def check_distributions(name: str, matrix: Any) -> None:
    """Raise ValueError unless every row of a float64 matrix, an array or a tensor on the CPU, is a distribution."""
    least = float(matrix.min())
    if not least >= 0:  # NaN fails the comparison
        raise ArgumentValueError(name, f"must have entries of at least 0, got {least:g}")
    sums = matrix.sum(1)
    if not max(1 - float(sums.min()), float(sums.max()) - 1) <= _ROW_SUM_TOLERANCE:
        worst = int(abs(sums - 1).argmax())
        raise ArgumentValueError(name, f"must have rows that sum to 1, got {float(sums[worst]):.6g} in row {worst}")


def at_least(name: str, value: Any, least: int, where: str = "") -> int:
    """Return the number as a Python int; raise ValueError if it is less, `where` being when that holds."""
    whole = as_integer(name, value)
    if whole < least:
        raise ArgumentValueError(name, f"must be at least {least}{where}, got {whole}")
    return whole


def in_64_bits(name: str, value: int) -> int:
    """Return an int that fits in 64 bits; raise ValueError for another."""
    if not _INT64_MIN <= value <= INT64_MAX:
        raise ArgumentValueError(name, f"must fit in 64 bits, got {value}")
    return value
