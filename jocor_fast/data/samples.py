"""What a run trains and evaluates on, and where its inputs come from.

Those in memory are here, image files in `data.images.source`, a torch Dataset in `data.torch_dataset`.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from jocor_fast import arguments
from jocor_fast.data.images.bad_files import BadFiles
from jocor_fast.data.sparse import first_not_finite, is_sparse, take_rows, without_zeros
from jocor_fast.tensor_arguments import check_readable

SAMPLES_LOOKED_AT = 100
LARGE_INPUTS = 10.0  # root mean square; the networks' weights begin as is right for some 1


@runtime_checkable
class InputFiles(Protocol):
    """Inputs that are read while training, from files mostly: opened when the device of a run is known."""

    def __len__(self) -> int: ...

    @property
    def checksum(self) -> str:
        """What tells them from others, such as of their names in order: others behind the same labels are others."""
        ...

    def subset(self, ids: np.ndarray) -> InputFiles:
        """The samples with these numbers, in this order."""
        ...

    def open(self, device: torch.device, batch_size: int, *, training: bool) -> InputSource:
        """The inputs on a device, in batches of at most `batch_size`.

        Where `training`, every batch is full: a bad file's place goes to another sample; else bad ones are left out.
        """
        ...


@dataclass(frozen=True, eq=False)
class Samples:
    """N samples to train or to evaluate on; sample i keeps its number i through every shuffling.

    Attributes:
        inputs: [N, ...], N ≥ 1: uint8 (a network gets `inputs · input_scale` in float32), floating (it gets float32),
            int32 or int64 (it gets them as they are: token numbers), sparse rows (`data.sparse`); or files.
        labels: int64 [N], 0 … C−1: those to train on, which may be wrong, or to evaluate by.
        clean_labels: int64 [N], the truth about labels to train on, None where it is unknown.
        input_scale: factor for uint8 inputs.
        keep_rate: the share in (0, 1] of the samples, those that the networks give the smallest loss, over which
            accuracy is taken; less than 1 where the labels are noisy, to take it over those that are
            presumably right (paper, section 4.1).

    Raises (when made):
        TypeError, ValueError: an attribute is of another type, dtype or shape.
    """

    inputs: Tensor | InputFiles
    labels: Tensor
    clean_labels: Tensor | None = None
    input_scale: float = 1 / 255
    keep_rate: float = 1.0

    def __post_init__(self) -> None:
        check_inputs("inputs", self.inputs)
        for name in ("labels", "clean_labels"):
            _check_labels(name, getattr(self, name), len(self.inputs))
        if not math.isfinite(arguments.as_real("input_scale", self.input_scale)):
            raise ValueError(f"input_scale must be finite, got {self.input_scale}")
        if not 0 < arguments.as_real("keep_rate", self.keep_rate) <= 1:
            raise ValueError(f"keep_rate must lie in (0, 1], got {self.keep_rate}")

    def __len__(self) -> int:
        return len(self.labels)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs in memory and labels as arrays, which share their values; TypeError for files."""
        if not isinstance(self.inputs, Tensor):
            raise TypeError(f"inputs must be a tensor, got {type(self.inputs).__name__}")
        return self.inputs.numpy(), self.labels.numpy()

    def subset(self, ids: np.ndarray) -> Samples:
        """Return the samples with these numbers, in ascending order; all of them share their inputs with these."""
        rows, inputs = torch.from_numpy(ids), self.inputs
        if len(ids) < len(self):
            if not isinstance(inputs, Tensor):
                inputs = inputs.subset(ids)
            else:
                inputs = take_rows(inputs, rows) if is_sparse(inputs) else inputs[rows]
        clean = None if self.clean_labels is None else self.clean_labels[rows]
        return replace(self, inputs=inputs, labels=self.labels[rows], clean_labels=clean)

    def open(self, device: torch.device, batch_size: int, *, training: bool = False) -> InputSource:
        """Return the inputs on a device; files come in batches of at most `batch_size`, as for `InputFiles.open`."""
        if isinstance(self.inputs, Tensor):
            if is_sparse(self.inputs):
                return SparseInputs(self.inputs, device)
            return ResidentInputs(self.inputs, self.input_scale, device)
        return self.inputs.open(device, batch_size, training=training)


def split_ids(samples: int, held_out: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids to train on and the `held_out` ids to validate on, drawn by the seed, both in ascending order."""
    # Seeded apart from the noise, which may be drawn with the same number: the two must not depend on each other.
    generator = np.random.RandomState(np.random.MT19937(np.random.SeedSequence([seed, 1])))
    order = generator.permutation(samples)
    return np.sort(order[held_out:]), np.sort(order[:held_out])


class Batch(NamedTuple):
    """Samples to train or evaluate on together."""

    samples: Tensor  # int64 [B], their numbers
    stored: Tensor  # [B, ...], for `InputSource.network_input`


class InputSource(Protocol):
    """Where a run's inputs come from; all tensors are on the run's device."""

    @property
    def reads_files(self) -> bool:
        """Whether its inputs are read anew for every batch.

        The source then does what `augment` asks for, and batches may hold other samples than the order says.
        """
        ...

    @property
    def bad_files(self) -> BadFiles | None:
        """Which of its files could not be read so far; None where it reads none, or ends the run at the first."""
        ...

    def __len__(self) -> int:
        """N, how many samples there are."""
        ...

    def first(self, count: int = 2) -> Tensor:
        """A few samples as the networks take them, to try them out."""
        ...

    def batches(self, order: Tensor, batch_size: int, epoch: int = 0) -> Generator[Batch]:
        """The samples with the numbers int64 [M] in `order`, batch by batch; the last one may be smaller.

        `epoch` picks the random crops of a source that makes them; 0, which is no epoch's number, has none. A source
        of files takes no larger batches than it was opened for.
        """
        ...

    def network_input(self, stored: Tensor) -> Tensor:
        """What a network takes, of a batch's `stored`."""
        ...

    def close(self) -> None:
        """End what reads for it; afterwards it has no batches. Generators of batches are closed before."""
        ...


class ResidentInputs:
    """The `InputSource` in memory: on the run's device, stored as the inputs came (uint8 stays uint8)."""

    reads_files = False
    bad_files: BadFiles | None = None

    def __init__(self, inputs: Tensor, scale: float, device: torch.device) -> None:
        kept = inputs if inputs.dtype in (torch.uint8, torch.int32, torch.int64) else inputs.float()
        self.stored = kept.to(device).contiguous()
        self.scale = scale
        self._factor = torch.tensor(scale, device=device)

    def __len__(self) -> int:
        return len(self.stored)

    def first(self, count: int = 2) -> Tensor:
        return self.network_input(self.stored[:count])

    def gather(self, rows: Tensor) -> Tensor:
        """The stored rows [B, ...] of the sample numbers int64 [B]."""
        return self.stored.index_select(0, rows)  # indexing with [rows] takes five times as long on the CPU

    def batches(self, order: Tensor, batch_size: int, epoch: int = 0) -> Generator[Batch]:
        for samples in order.split(batch_size):
            yield Batch(samples, self.gather(samples))

    def network_input(self, stored: Tensor) -> Tensor:
        if stored.dtype == torch.uint8 and stored.is_cuda:
            return stored * self._factor  # the same numbers by one kernel; on a CPU it takes longer
        return as_network_input(stored, self.scale)

    def close(self) -> None:
        pass


class SparseInputs:
    """The `InputSource` of sparse rows in memory. A batch's rows are sparse, which a `NetworkGroup` takes."""

    reads_files = False
    bad_files: BadFiles | None = None

    def __init__(self, inputs: Tensor, device: torch.device, *, made: bool = False) -> None:
        """`made`: whether they came dense."""
        self.stored = inputs.to(device)
        self.made = made

    @classmethod
    def of(cls, source: ResidentInputs) -> SparseInputs:
        """Return the inputs of a source on the CPU, [N, ...] in uint8 or float32, as rows [N, D] without their zeros.

        Raises:
            ValueError: 2³¹ of their numbers are not 0.
        """
        stored = source.stored
        return cls(without_zeros(stored.flatten(1), source.scale), stored.device, made=True)

    @property
    def filled(self) -> float:
        """The share of the numbers that are not 0."""
        return self.stored.values().numel() / self.stored.numel()

    def __len__(self) -> int:
        return len(self.stored)

    def first(self, count: int = 2) -> Tensor:
        """A few samples, dense."""
        return take_rows(self.stored, torch.arange(min(count, len(self)), device=self.stored.device)).to_dense()

    def batches(self, order: Tensor, batch_size: int, epoch: int = 0) -> Generator[Batch]:
        for samples in order.split(batch_size):
            yield Batch(samples, take_rows(self.stored, samples))

    def network_input(self, stored: Tensor) -> Tensor:
        return stored

    def close(self) -> None:
        pass


def as_network_input(stored: Tensor, scale: float) -> Tensor:
    """Stored rows as the networks take them: uint8 becomes scaled float32, other integers stay."""
    if stored.dtype == torch.uint8:
        return stored.float().mul_(scale)
    return stored.float() if stored.is_floating_point() else stored


def check_inputs(name: str, inputs: Tensor | InputFiles) -> None:
    """TypeError or ValueError, naming the argument, where these cannot be the inputs of a run."""
    if isinstance(inputs, InputFiles):
        return
    if not isinstance(inputs, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(inputs).__name__}")
    if is_sparse(inputs):  # as `csr_inputs` returns it
        return
    check_readable(name, inputs)
    if not (inputs.is_floating_point() or inputs.dtype in (torch.uint8, torch.int32, torch.int64)):
        raise TypeError(f"{name} must be uint8, floating, int32 or int64, got {inputs.dtype}")
    if inputs.dim() < 1 or len(inputs) == 0:
        raise ValueError(f"{name} must be of shape [N, ...] with at least one sample, got {tuple(inputs.shape)}")


def input_warnings(name: str, inputs: Tensor | InputFiles) -> list[str]:
    """Return what speaks against training on inputs as they are, a sentence each that begins with the name."""
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        return []
    found = []
    sparse = is_sparse(inputs)
    numbers = inputs.values() if sparse else inputs
    finite = numbers.isfinite()
    if not finite.all():
        sample = first_not_finite(inputs) if sparse else int(finite.reshape(len(inputs), -1).all(1).int().argmin())
        found.append(
            f"{name}: a number in sample {sample} is not finite: the run diverges unless the networks replace it, "
            "for times a gradient of zero it is not zero"
        )
    looked_at = int(inputs.crow_indices()[: SAMPLES_LOOKED_AT + 1][-1]) if sparse else SAMPLES_LOOKED_AT
    some = numbers[:looked_at][finite[:looked_at]].double()
    if not len(some) or some.square().mean().sqrt() <= LARGE_INPUTS:
        return found
    low, high, features = float(some.min()), float(some.max()), inputs.dim() == 2
    pixels = "" if features or low < 0 or high > 255 else ", or hold the pixels as uint8, which are divided by 255"
    found.append(
        f"{name}: floats from {low:g} to {high:g} reach the networks as they are, which learn little from numbers so "
        f"large: give {'each feature' if features else 'them'} mean 0 and deviation 1{pixels}"
    )
    return found


def _check_labels(name: str, labels: Tensor | None, count: int) -> None:
    if labels is None and name == "clean_labels":
        return
    if not isinstance(labels, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(labels).__name__}")
    if labels.dtype != torch.int64:
        raise TypeError(f"{name} must be int64, got {labels.dtype}")
    if labels.shape != (count,):
        raise ValueError(f"{name} must be of shape ({count},), one a sample, got {tuple(labels.shape)}")
