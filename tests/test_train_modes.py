"""What the caller has set for the process or the thread: a run computes alike, and leaves it as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import jocor_fast as jf
from engine_cases import CLASSES, blobs, parameters, same_bits, small_mlp, small_tanh, without_timings
from jocor_fast._extension import compiled
from jocor_fast.machine import flush_denormals, flushes_denormals, own_modes

QUICK: dict[str, Any] = {"forget_rate": 0.4, "epochs": 3, "ramp_epochs": 2, "batch_size": 16, "device": "cpu"}


def labelled() -> tuple[Tensor, Tensor]:
    samples = blobs(70)
    return samples.inputs, samples.labels


@pytest.mark.parametrize("network", [small_mlp, small_tanh])
def test_the_default_type_of_new_tensors_changes_nothing(network: Callable[[], nn.Module]) -> None:
    data = labelled()
    expected = jf.train(network, data, **QUICK)
    torch.set_default_dtype(torch.float64)
    try:
        run = jf.train(network, data, **QUICK)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert same_bits(parameters(run.networks), parameters(expected.networks))


@pytest.mark.parametrize(
    "mode",
    [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)],
    ids=["no_grad", "inference_mode", "autocast"],
)
@pytest.mark.parametrize(
    ("network", "precision"), [(small_mlp, "float32"), (small_tanh, "float32"), (small_tanh, "bfloat16")]
)
def test_the_mode_that_the_caller_is_in_changes_nothing(mode: Any, network: Any, precision: str) -> None:
    data = labelled()
    expected = jf.train(network, data, precision=precision, **QUICK)
    with mode():
        run = jf.train(network, data, precision=precision, **QUICK)
        assert torch.is_grad_enabled() == (mode not in (torch.no_grad, torch.inference_mode))
    assert without_timings(run.metrics) == without_timings(expected.metrics)


can_flush = pytest.mark.skipif(not torch.set_flush_denormal(False), reason="a processor that keeps denormal numbers")


def kept_denormals() -> int:
    """Return how many of many quotients below float32's smallest normal number are not 0, over torch's threads."""
    size = 1 if compiled is None else 1 << 18  # without the compiled part the calling thread alone is reached
    return int((torch.full((size,), torch.finfo(torch.float32).tiny) / 2).count_nonzero())


class NotesDenormals(nn.Linear):
    noted: ClassVar[list[int]] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.noted.append(kept_denormals())
        return super().forward(inputs)


@can_flush
@pytest.mark.parametrize("flushed", [False, True])
def test_a_run_takes_denormal_numbers_as_zero_and_leaves_the_threads_as_they_were(flushed: bool) -> None:
    data = labelled()
    NotesDenormals.noted.clear()
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert kept_denormals() > 0  # the threads exist before the run does
        flush_denormals(flushed)
        before = kept_denormals()
        jf.train(lambda: NotesDenormals(6, CLASSES), data, test_data=data, **QUICK)
        assert NotesDenormals.noted
        assert not any(NotesDenormals.noted)
        assert kept_denormals() == before
        assert flushes_denormals() == flushed
    finally:
        flush_denormals(False)
        torch.set_num_threads(threads)


@can_flush
@pytest.mark.skipif(compiled is None, reason="torch's own switch reaches the calling thread alone")
def test_threads_that_a_run_alone_has_asked_for_are_left_as_they_were() -> None:
    data = labelled()
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        jf.train(lambda: NotesDenormals(6, CLASSES), data, threads=3, **QUICK)
        torch.set_num_threads(3)
        assert kept_denormals() == 1 << 18
    finally:
        flush_denormals(False)
        torch.set_num_threads(threads)


@can_flush
def test_a_run_within_a_run_leaves_denormal_numbers_as_they_were() -> None:
    with own_modes(torch.device("cpu")):
        with own_modes(torch.device("cpu")):
            pass
        assert flushes_denormals()
        assert kept_denormals() == 0
    assert kept_denormals() > 0
