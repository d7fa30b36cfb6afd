"""A torch Dataset as a run's source of inputs: worker processes read its samples in the trainer's order.

What the transforms of a sample draw at random follows from the run's seed, the epoch and the batch alone: it is
the same with any number of workers, and in a run that was killed and resumed.
"""

from __future__ import annotations

import contextlib
import random
import signal
import traceback
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from jocor_fast.data.images.bad_files import BadFiles
from jocor_fast.data.samples import Batch, InputSource, as_network_input, check_inputs
from jocor_fast.errors import DataError
from jocor_fast.machine import derived_seed


class Request(NamedTuple):
    """A batch to read."""

    samples: list[int]
    seed: int  # of whatever is drawn at random for it


class Fault(NamedTuple):
    """Why a batch could not be read. A value, since an exception would come out of a worker in words of its own."""

    message: str
    traceback: str


class _TracebackOfWorker(Exception):
    """Where in the data set's own code an error arose; shown above ours as its cause."""


@dataclass(frozen=True, eq=False)
class DatasetInputs:
    """Inputs that a map-style torch Dataset gives one by one: item i, or the first part of a tuple, is sample i.

    Attributes:
        name: of the argument, for messages.
        dataset: a `torch.utils.data.Dataset` with a length.
        num_workers: processes that read, 0: this one.
        seed: of what transforms draw at random.
    """

    name: str
    dataset: Dataset[Any]
    num_workers: int
    seed: int

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    @property
    def checksum(self) -> str:
        """Kind and length: what tells data sets apart without reading them."""
        return f"{len(self)} of {type(self.dataset).__name__}"

    def subset(self, ids: np.ndarray) -> DatasetInputs:
        return replace(self, dataset=Subset(self.dataset, ids.tolist()))

    def open(self, device: torch.device, batch_size: int, *, training: bool) -> InputSource:
        return DatasetSource(self, device, keeps_workers=training)

    def first(self, count: int = 2) -> Tensor:
        """The first samples as they are stored, read in this process."""
        return _whole(self[self.request(list(range(min(count, len(self)))), epoch=0)])

    def request(self, samples: list[int], epoch: int) -> Request:
        return Request(samples, derived_seed(self.seed, 4, epoch, samples[0]))

    def __getitem__(self, request: Request) -> Tensor | Fault:
        """The samples [B, ...] of a request, or why they cannot be had; runs in a worker."""
        sample = request.samples[0]
        try:
            with _seeded(request.seed):
                items = []
                for sample in request.samples:
                    items.append(self.dataset[sample])
        except Exception as error:  # whatever the data set's own code raises
            message = f"{self.name}: sample {sample} cannot be had: {type(error).__name__}: {error}"
            return Fault(message, traceback.format_exc())
        try:
            tensors = [self._tensor(sample, item) for sample, item in zip(request.samples, items, strict=True)]
            return torch.stack(tensors)
        except DataError as error:
            return Fault(str(error), "")
        except RuntimeError:
            shapes = " and ".join(sorted({str(tuple(tensor.shape)) for tensor in tensors}))
            return Fault(f"{self.name}: samples of a batch must be of one shape, got {shapes}", "")

    def _tensor(self, sample: int, item: Any) -> Tensor:
        if isinstance(item, (tuple, list)) and item:
            item = item[0]  # of (input, label)
        name = f"{self.name}: sample {sample}"
        if not isinstance(item, (Tensor, np.ndarray)):
            hint = "; let its transforms end in a tensor" if hasattr(item, "convert") else ""  # a Pillow image
            raise DataError(f"{name} must be a tensor or an array, got {type(item).__name__}{hint}")
        try:
            tensor = torch.as_tensor(item)
            check_inputs(name, tensor[None])
        except TypeError as error:  # of numbers that networks, or torch, do not take
            raise DataError(str(error) if str(error).startswith(name) else f"{name}: {error}") from None
        return tensor.detach().cpu()


class DatasetSource:
    """The `InputSource` of a torch Dataset."""

    reads_files = True
    bad_files: BadFiles | None = None

    def __init__(self, inputs: DatasetInputs, device: torch.device, *, keeps_workers: bool) -> None:
        """Where `keeps_workers`, they live as long as the source, else as long as a pass over it."""
        self.inputs = inputs
        self.device = device
        self._requests: list[Request] = []  # of the pass under way; the loader reads this list anew for each
        self._loader: DataLoader[Any] = DataLoader(
            inputs,  # type: ignore[arg-type]
            batch_size=None,
            sampler=self._requests,
            num_workers=inputs.num_workers,
            generator=torch.Generator(),  # or each pass would draw from the generator of the run's dropout
            pin_memory=device.type == "cuda",
            worker_init_fn=_leave_signals_to_the_run,
            persistent_workers=keeps_workers and inputs.num_workers > 0,
        )
        self._first = inputs.first().to(device)

    def __len__(self) -> int:
        return len(self.inputs)

    def first(self, count: int = 2) -> Tensor:
        if count > len(self._first):
            self._first = self.inputs.first(count).to(self.device)
        return self.network_input(self._first[:count])

    def batches(self, order: Tensor, batch_size: int, epoch: int = 0) -> Generator[Batch]:
        groups = order.split(batch_size)
        self._requests[:] = [self.inputs.request(group.tolist(), epoch) for group in order.cpu().split(batch_size)]
        for samples, read in zip(groups, self._loader, strict=True):
            yield Batch(samples, _whole(read).to(self.device, non_blocking=True))

    def network_input(self, stored: Tensor) -> Tensor:
        return as_network_input(stored, 1 / 255)

    def close(self) -> None:
        # The loader's own end of its workers; those that live when Python ends are killed, and torch reports each.
        del self._loader


def _whole(read: Tensor | Fault) -> Tensor:
    """The batch; DataError where it could not be read."""
    if isinstance(read, Tensor):
        return read
    error = DataError(read.message)
    raise error from (_TracebackOfWorker(read.traceback) if read.traceback else None)


def _leave_signals_to_the_run(worker: int) -> None:
    """Let a worker outlive what is sent to the whole process group: the run answers it, then ends its workers.

    It does that by SIGTERM where they do not end by themselves; the second signal ends them.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: signal.signal(signal.SIGTERM, signal.SIG_DFL))


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """The generators that transforms draw from (torch's, NumPy's and Python's), seeded within, then as before."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002 - what transforms of others draw from
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002
