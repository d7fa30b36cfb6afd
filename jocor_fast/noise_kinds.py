"""A kind of label noise and its rate, as experiments name them."""

from __future__ import annotations

from dataclasses import dataclass

from jocor_fast.arguments import as_real
from jocor_fast.errors import ArgumentValueError
from jocor_fast.files.names import number_in_name

NOISE_KINDS = ("symmetric", "symmetric-inclusive", "pairflip", "asymmetric", "asymmetric-published", "clean")
REAL_NOISE = "real"


def check_rate(rate: float) -> float:
    """Return the share of labels to flip: a float in [0, 1)."""
    value = as_real("rate", rate)
    if not 0 <= value < 1:  # NaN fails every comparison
        raise ArgumentValueError("rate", f"must lie in [0, 1), got {rate}")
    return value


@dataclass(frozen=True)
class Noise:
    """A kind of label noise, as `--noise` takes it, and its nominal rate in [0, 1).

    Kind "real" with rate None: nothing is added, the data set's own labels are wrong in part.
    """

    kind: str
    rate: float | None

    @property
    def name(self) -> str:
        """Such as "symmetric-0.5": in folders, and for `jocor-fast reproduce --noise`."""
        return self.kind if self.rate is None else f"{self.kind}-{number_in_name(self.rate)}"

    @property
    def title(self) -> str:
        """As the paper heads its panels: "Symmetry-50%"."""
        families = {
            "symmetric": "Symmetry",
            "asymmetric": "Asymmetry",
            "asymmetric-published": "Asymmetry",
            "pairflip": "Pair flip",
            REAL_NOISE: "Real noise",
        }
        family = families.get(self.kind, self.kind)
        return family if self.rate is None else f"{family}-{100 * self.rate:.0f}%"
