"""Label noise: transition matrices, and labels drawn by them."""

from jocor_fast.noise.drawing import corrupt, expected_rate, realised_rate
from jocor_fast.noise.matrices import (
    asymmetric,
    check_transition,
    pairflip,
    read_transition,
    symmetric,
    transition_matrix,
)
from jocor_fast.noise_kinds import NOISE_KINDS

__all__ = [
    "NOISE_KINDS",
    "asymmetric",
    "check_transition",
    "corrupt",
    "expected_rate",
    "pairflip",
    "read_transition",
    "realised_rate",
    "symmetric",
    "transition_matrix",
]
