"""Load the compiled kernels, and tell torch.compile what shapes the operators return."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from jocor_fast.arguments import check_tensor

_BUILD_FILE = Path(__file__).with_name("_build.json")
_REBUILD = "rebuild it with `pip install --no-build-isolation --force-reinstall --no-deps .` in its source folder"


def _read_build() -> dict[str, Any]:
    """Return what the build recorded of itself; raise ImportError if there is none, or for another torch."""
    try:
        build: dict[str, Any] = json.loads(_BUILD_FILE.read_text())
    except FileNotFoundError:
        installed = _installed_elsewhere()
        if installed is None:
            raise ImportError(f"jocor_fast has not been compiled: {_REBUILD}") from None
        raise ImportError(
            f"jocor_fast has not been compiled in {_BUILD_FILE.parents[1]}, which shadows the package installed in "
            f"{installed}: start Python in another folder"
        ) from None
    if build["torch"] != torch.__version__:
        raise ImportError(
            f"jocor_fast was compiled against torch {build['torch']} and torch {torch.__version__} is running: "
            f"{_REBUILD}"
        )
    return build


def _installed_elsewhere() -> Path | None:
    """Where else Python would find the package, compiled; None where it would not."""
    here = _BUILD_FILE.parents[1]
    places = (Path(entry) for entry in sys.path)
    return next((place for place in places if place != here and (place / "jocor_fast/_build.json").is_file()), None)


_BUILD = _read_build()

try:
    from jocor_fast import _C  # only after the check above: another torch fails with a missing symbol
except ImportError as error:
    raise ImportError(f"jocor_fast's compiled part cannot be loaded ({error}): {_REBUILD}") from error


def build_info() -> dict[str, Any]:
    """Return what this build is: a dict for bug reports and result files.

    Keys: version, torch (compiled against), compiler, cuda (toolkit's release, or None), cuda_architectures (list of
    str), cpu_instruction_sets (list of str: those compiled in, the one in use first), reason (why there is no CUDA, or
    None).
    """
    in_use = _C.cpu_instruction_set()
    compiled = _C.cpu_instruction_sets()
    return {
        **{key: _BUILD[key] for key in ("version", "torch", "compiler", "cuda", "cuda_architectures")},
        "cpu_instruction_sets": [in_use, *(name for name in compiled if name != in_use)],
        "reason": _BUILD["reason"],
    }


def operator(name: str) -> Callable[..., Any]:
    """Return an operator of torch.ops.jocor_fast as a function of its positional arguments.

    It calls the operator past its Python front, which torch.compile cannot follow: while that traces, the function goes
    through torch.ops. Errors of the arguments' kind are found where the operator fails, not before each call; torch's
    own words for them name no argument. The function raises:
        TypeError: an argument is not a tensor, or one that is not dense.
        RuntimeError: this build has no kernels for the tensors' device; a transform of torch.func wants a derivative;
            whatever else the operator says.
    """
    return partial(_call, getattr(torch.ops.jocor_fast, name).default, getattr(_C.operators, name))


def _call(traced: Any, eager: Any, *arguments: Any) -> Any:
    if is_compiling():
        return traced(*arguments)
    try:
        return eager(*arguments)
    except (RuntimeError, TypeError) as error:
        for parameter, value in zip(traced._schema.arguments, arguments, strict=True):
            _check_argument(parameter, value)
        if "functorch" in str(error):
            raise RuntimeError(
                "the loss cannot be differentiated by the transforms of torch.func (grad, vjp, jvp …): backward() and "
                "torch.autograd.grad are accepted"
            ) from None
        raise


def _check_argument(parameter: torch.Argument, value: Any) -> None:
    """Raise the error of a value that no operator takes for this parameter of its schema."""
    if isinstance(parameter.type, torch.TensorType) or (
        value is not None and str(parameter.type) == "Optional[Tensor]"
    ):
        check_tensor(parameter.name, value)
        _check_device(value.device.type)


def _check_device(kind: str) -> None:
    if kind == "cuda" and not _C.has_cuda:
        raise RuntimeError(
            f"this build of jocor_fast has no CUDA kernels ({_BUILD['reason']}): {_REBUILD}, with a CUDA build of "
            "torch and a CUDA toolkit of the same major version"
        )
    if kind not in ("cpu", "cuda", "meta"):
        raise RuntimeError(f"jocor_fast has kernels for cpu and cuda tensors, not for {kind}")


def _real(logits: Tensor) -> torch.dtype:
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


def _loss_and_rows(logits: Tensor, *, choices: int) -> tuple[Tensor, ...]:
    """Return the loss, the rows' losses and masks of each choice, their counts and the non-finite's; statistics."""
    rows, real = logits.shape[0], _real(logits)
    return (
        logits.new_empty((), dtype=real),
        *(logits.new_empty((rows,), dtype=real) for _ in range(choices)),
        *(logits.new_empty((rows,), dtype=torch.bool) for _ in range(choices)),
        *(logits.new_empty((), dtype=torch.int64) for _ in range(choices + 1)),
        logits.new_empty((rows, 4), dtype=real),
    )


@torch.library.register_fake("jocor_fast::jocor_loss")
def _(logits1: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return _loss_and_rows(logits1, choices=1)


@torch.library.register_fake("jocor_fast::coteaching_loss")
def _(logits1: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return _loss_and_rows(logits1, choices=2)


@torch.library.register_fake("jocor_fast::joint_loss")
def _(logits1: Tensor, logits2: Tensor, target: Tensor, *settings: Any) -> tuple[Tensor, Tensor]:
    rows, real = logits1.shape[0], _real(logits1)
    return logits1.new_empty((rows,), dtype=real), logits1.new_empty((rows, 4), dtype=real)


@torch.library.register_fake("jocor_fast::forward_corrected_loss")
def _(logits: Tensor, target: Tensor, log_transition_t: Tensor, mean: bool) -> tuple[Tensor, ...]:
    rows, real = logits.shape[0], _real(logits)
    return (
        logits.new_empty(() if mean else (rows,), dtype=real),
        logits.new_empty((rows,) if mean else (0,), dtype=real),
        logits.new_empty((), dtype=torch.int64),
        logits.new_empty((rows, 4), dtype=real) if logits.is_cpu else logits.new_empty((rows,), dtype=torch.bool),
    )


@torch.library.register_fake("jocor_fast::forward_corrected_loss_backward")
def _(grad: Tensor, logits: Tensor, *rest: Any) -> Tensor:
    return logits.new_empty(tuple(logits.shape))


@torch.library.register_fake("jocor_fast::select_small_loss")
def _(losses: Tensor, *settings: Any) -> Tensor:
    return losses.new_empty((losses.shape[0],), dtype=torch.bool)


@torch.library.register_fake("jocor_fast::joint_loss_backward")
def _(grad: Tensor, logits1: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    needs_grad1, needs_grad2 = rest[-2:]
    whole, none = tuple(logits1.shape), (0,)
    return logits1.new_empty(whole if needs_grad1 else none), logits1.new_empty(whole if needs_grad2 else none)
