"""The machine of a run: its device, cores and random generators, and their description in summary.json."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from jocor_fast.errors import ArgumentValueError

if TYPE_CHECKING:
    import torch

LAUNCHED_BY = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun sets, and srun scripts by hand


def resolve_device(name: str) -> torch.device:
    """Return the device of a run.

    "auto" is the current CUDA device where torch sees one (with ROCm: an AMD GPU), else the CPU.

    Raises:
        ValueError: torch does not see this CUDA device.
    """
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        raise ArgumentValueError("device", f"must be cpu where torch sees no GPU, got {name!r}")
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= count:
        raise ArgumentValueError("device", f"must be among the {count} GPUs that torch sees, got {name!r}")
    return torch.device("cuda", index)


def usable_cores() -> int:
    """Return how many cores this process may use; processes that torchrun started on this machine share them evenly."""
    known = hasattr(os, "sched_getaffinity")  # on Linux
    cores = len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE") or 1))


def launched_together() -> int:
    """Return how many processes torchrun has started with this one, by its environment; 1 without it."""
    if not all(os.environ.get(name) for name in LAUNCHED_BY):
        return 1
    return int(os.environ["WORLD_SIZE"])


def is_main_process() -> bool:
    """Return whether this process writes on the screen: the first of those that were launched together."""
    return launched_together() == 1 or os.environ["RANK"] == "0"


@contextlib.contextmanager
def own_threads(number: int | None) -> Iterator[None]:
    """Let torch use so many threads on the CPU; None: as many as before."""
    import torch

    before = torch.get_num_threads()
    if number is not None:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def seeded_generators(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators, on the CPU and on the run's device, and restore them afterwards.

    Initial weights and dropout draw from them. NumPy's and Python's generators are left alone.
    """
    import torch

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        seed_generators(seed, device)
        yield


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed torch's global generators, on the CPU and on the run's device."""
    import torch

    torch.default_generator.manual_seed(seed)  # torch.manual_seed would reach the generators of all GPUs
    if device.type == "cuda":
        torch.cuda.default_generators[device.index].manual_seed(seed)


def derived_seed(seed: int, *purpose: int) -> int:
    """Derive a seed for another purpose, in [0, 2⁶³), by NumPy's SeedSequence, the same on every platform."""
    import numpy as np

    (word,) = np.random.SeedSequence([seed, *purpose]).generate_state(1, np.uint64)
    return int(word >> np.uint64(1))


@contextlib.contextmanager
def own_modes(device: torch.device) -> Iterator[None]:
    """Enable gradients and the run's own precision, whatever no_grad, inference_mode or autocast the caller is in.

    New tensors are float32, as inputs are, whatever torch.set_default_dtype says.

    On the CPU, denormal numbers (in float32 those below 1.2e-38) count as 0, in the threads that torch uses then:
    Adam's moments decay to them where a gradient stays 0, and get no further, and on an Intel Xeon an epoch takes up to
    twice as long on them (benchmarks/mnist_epoch.py --denormals).

    Autocast's cache is off: it keeps cast weights until the outermost context ends, and later steps would compute with
    the weights of the first.
    """
    import torch

    autocast = torch.autocast(device.type, enabled=False, cache_enabled=False)
    default = torch.get_default_dtype()
    flushed = flushes_denormals()
    torch.set_default_dtype(torch.float32)
    flush_denormals(True)
    try:
        with torch.inference_mode(False), torch.enable_grad(), autocast:
            yield
    finally:
        torch.set_default_dtype(default)
        flush_denormals(flushed)


def flushes_denormals() -> bool:
    """Return whether this thread takes denormal numbers as 0."""
    import torch

    return (torch.tensor([torch.finfo(torch.float32).tiny], device="cpu") / 2).item() == 0.0


def flush_denormals(on: bool) -> None:
    """Have this thread, and those with which it computes on the CPU, take denormal numbers as 0, or not.

    Where nothing is compiled, it reaches the threads that torch starts afterwards alone, which begin as this one is.
    """
    import numpy as np
    import torch

    from jocor_fast._extension import compiled

    for dtype in (np.float32, np.float64):  # kept by NumPy, which may warn (1.26) where it first asks afterwards
        np.finfo(dtype)
    (torch if compiled is None else compiled).set_flush_denormal(on)


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Return what summary.json holds under "environment"."""
    import torch

    from jocor_fast._extension import build_info

    build = build_info()
    return {
        "jocor_fast": build["version"],
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "cpu_instruction_set": next(iter(build["cpu_instruction_sets"]), None),  # None: nothing is compiled
        "cuda": build["cuda"],
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "tf32": {
            "matmul": torch.backends.cuda.matmul.fp32_precision == "tf32",
            "convolutions": torch.backends.cudnn.conv.fp32_precision == "tf32",  # type: ignore[attr-defined]
        },
    }
