"""The processes of a run: one alone, or several under torchrun, which train copies of the same networks together.

Each takes every W-th row of a batch, and torch's DistributedDataParallel averages their gradients (`networks`). What
else has to agree between them goes through `Processes`: numbers of an epoch, when to stop, and the files, which
the first process alone reads and writes. Tensors on the device go through the process group that torch has for it
(NCCL, gloo); what the host alone needs goes through a gloo group of its own, and so waits for no device.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from jocor_fast.errors import ArgumentValueError, DataError, FailedElsewhere, RunError
from jocor_fast.machine import launched_together, resolve_device

T = TypeVar("T")

_GROUPS = itertools.count()  # those that this process has made

# The first process may estimate τ or load data for hours, while the others wait; one that is dead is seen at once.
CONTROL_TIMEOUT = timedelta(days=1)
# What gloo says, as a plain RuntimeError, when a process at the other end is no more.
_LOST = re.compile(r"gloo/|Connection (closed|reset) by peer")


@dataclass(eq=False)
class Processes:
    """Who takes part in a run.

    All of them must call the methods in the same order, but for what tells of a lost one; alone, each is what it is for
    one process.

    Attributes:
        rank: which one this is, from 0.
        count: W, how many there are.
        local_rank: which one it is of those on this machine.
        on_machine: how many of them run on this machine.
        control: the group for what the host alone needs; None if there is one process, or after they have parted.
    """

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    on_machine: int = 1
    control: dist.ProcessGroup | None = None

    @property
    def first(self) -> bool:
        """Whether this is the process that reads and writes files, and prints."""
        return self.rank == 0

    def share_of(self, rows: Tensor) -> Tensor:
        """This process's part of rows [n, ...] that all have: rank, rank + W, …"""
        return rows if self.count == 1 else rows[self.rank :: self.count]

    def gathered(self, tensor: Tensor) -> Tensor:
        """[W, ...]: a tensor of the same shape from each process, by rank; on the device, which nothing waits for."""
        if self.count == 1:
            return tensor[None]
        own = tensor.contiguous().flatten().view(torch.uint8)  # as bytes: gloo does not know every dtype
        everywhere = own.new_empty(self.count, own.numel())
        dist.all_gather(list(everywhere.unbind()), own)
        return everywhere.view(tensor.dtype).view(self.count, *tensor.shape)

    def total(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over the processes, in place, on the device."""
        if self.count > 1:
            dist.all_reduce(tensor)
        return tensor

    def average(self, tensor: Tensor) -> Tensor:
        """Take the mean of a tensor over the processes, in place, on the device."""
        return tensor if self.count == 1 else self.total(tensor).div_(self.count)

    def least(self, tensor: Tensor) -> Tensor:
        """Take the minimum of a tensor over the processes, in place, on the device."""
        if self.count > 1:
            dist.all_reduce(tensor, dist.ReduceOp.MIN)
        return tensor

    def copy_first(self, tensors: Iterator[Tensor]) -> None:
        """Give all processes the values that the first one's tensors have."""
        if self.count > 1:
            for tensor in tensors:
                values = tensor.contiguous()
                dist.broadcast(values, 0)
                if values is not tensor:
                    tensor.copy_(values)

    def any(self, condition: bool) -> bool:
        """Return whether a condition holds in any of the processes."""
        return any(self.objects(condition))

    def objects(self, value: T) -> list[T]:
        """Gather what each process gives, by rank; plain values or tensors on the CPU."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value, group=self.control)
        return values

    def from_first(self, make: Callable[[], T]) -> T:
        """Return in all processes what the first one makes; if it raises, the others raise FailedElsewhere."""
        if self.count == 1:
            return make()
        outcome: list[Any] = [None, None]
        error: Exception | None = None
        if self.first:
            try:
                outcome[0] = make()
            except Exception as caught:  # whatever it is, the others must not hang
                error, outcome[1] = caught, str(caught) or type(caught).__name__
        dist.broadcast_object_list(outcome, 0, group=self.control)
        if error is not None:
            raise error
        if outcome[1] is not None:
            raise FailedElsewhere(outcome[1])
        made: T = outcome[0]
        return made

    def run_on_local_rank_zero_first(self, make: Callable[[], T]) -> T:
        """Run `make` in every process: on each machine in one first, and then in the others, which find its files."""
        made: T | None = None
        for turn in (True, False):
            error: Exception | None = None
            if turn == (self.local_rank == 0):
                try:
                    made = make()
                except Exception as caught:  # the same
                    error = caught
            failures = [
                text
                for text in self.objects(None if error is None else str(error) or type(error).__name__)
                if text is not None
            ]
            if error is not None:
                raise error
            if failures:
                raise FailedElsewhere(failures[0])
        return made  # type: ignore[return-value]

    def check_agreement(self, given: Mapping[str, Any]) -> None:
        """Raise ValueError, in all processes, where they were not given the same; `given` has the same names in all."""
        others = self.objects(dict(given))
        different = [name for name in given if any(other[name] != others[0][name] for other in others)]
        if different:
            raise ValueError(
                f"processes must all be given the same settings and data, and differ in {', '.join(different)}"
            )

    def lost(self, error: BaseException) -> bool:
        """Return whether an error says that another process is gone or cannot be reached."""
        if self.count == 1 or isinstance(error, RunError) or not isinstance(error, RuntimeError):
            return False
        return isinstance(error, dist.DistError) or _LOST.search(str(error)) is not None

    def loss_in_words(self, error: BaseException, how_to_resume: str = "") -> str:
        """Return the sentence for an error that `lost` knows."""
        said = ""
        if isinstance(error, dist.DistError):  # NCCL's, which may mean something else
            said = f" ({str(error).strip().partition(chr(10))[0]})"
        gone = f"process {self.rank} of {self.count} has lost another one, which has ended or cannot be reached{said}"
        return f"{gone}; {how_to_resume}" if how_to_resume else gone


ALONE = Processes()


class SharedRequest:
    """A request that may reach any process at any moment, and that all of them answer at the same step.

    They agree on the CPU while the step runs, and no step waits for it; in return an answer is a step late.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._flag = torch.zeros(1, dtype=torch.int32)
        self._agreement: dist.Work | None = None

    def answered(self, received: bool) -> bool:
        """Return whether the request had reached any process one step ago; all of them ask before every step."""
        if self._processes.count == 1:
            return received
        answer = False
        if self._agreement is not None:
            self._agreement.wait()
            answer = bool(self._flag.item())
        self._flag.fill_(received)
        self._agreement = dist.all_reduce(self._flag, dist.ReduceOp.MAX, group=self._processes.control, async_op=True)
        return answer

    def settle(self) -> None:
        """Wait for the agreement that is still under way, before processes part; asked by all of them."""
        if self._agreement is not None:
            self._agreement.wait()
            self._agreement = None


@contextlib.contextmanager
def joined_processes(device: str) -> Iterator[Processes]:
    """Join the processes of this run; each has its GPU as torch's current device.

    A process group that the caller has made is used and left as it is.

    Raises:
        ValueError: the machine has fewer GPUs than processes, or `device` names one of them.
        RunError: the processes do not meet.
    """
    made_here = not dist.is_initialized()
    if made_here and launched_together() == 1:
        yield ALONE
        return
    on_gpu = resolve_device(device).type == "cuda"
    if made_here:
        _meet("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    processes = ALONE if dist.get_world_size() == 1 else _with_control()
    try:
        if on_gpu and made_here:
            _take_gpu(device, processes.local_rank, processes.on_machine)
        yield processes
    except (TypeError, ValueError) as error:
        if not isinstance(error, DataError):  # of wrong arguments, in all processes and before anything was begun
            _part(processes, everything=made_here)
        raise
    # After another error, skip the closing barrier: it could hang on a dead process.
    processes.objects(None)  # together: none closes its connections while another still speaks
    _part(processes, everything=made_here)


def _meet(backend: str) -> None:
    """Make torch's process group.

    Each group has keys of its own in the store through which the processes find each other: torch has the same ones for
    the next group, and for what torchrun starts again, which would then look for processes that are no more.
    """
    try:
        store, rank, count = _store()
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        own = dist.PrefixStore(f"jocor_fast/{attempt}/{next(_GROUPS)}", store)
        dist.init_process_group(backend, store=own, rank=rank, world_size=count)
    except RuntimeError as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise RunError(
            f"{os.environ['WORLD_SIZE']} processes were to meet at {where}, and did not: "
            f"{str(error).strip().partition(chr(10))[0]}"
        ) from error


@functools.cache
def _store() -> tuple[dist.Store, int, int]:
    """The store at MASTER_ADDR, this process's rank and how many there are; one a process, which may hold the port."""
    store, rank, count = next(dist.rendezvous("env://"))
    return store, rank, count


def _with_control() -> Processes:
    control = dist.new_group(backend="gloo", timeout=CONTROL_TIMEOUT)
    assert isinstance(control, dist.ProcessGroup)  # which only an outsider of the group does not get
    return Processes(dist.get_rank(), dist.get_world_size(), *_place(control), control)


def _part(processes: Processes, *, everything: bool) -> None:
    """Leave the groups, and end the threads of the one for the host.

    A thread of gloo's may still hold a tensor that it has sent. If it lets go of it while Python ends, it takes the
    lock of an interpreter that is no more, and the process aborts ("terminate called without an active exception"). A
    group's threads end when nothing holds the group any more, so the last reference goes here. DistributedDataParallel
    holds the other group for longer, but nothing has been sent there since.
    """
    group, processes.control = processes.control, None
    if everything:
        dist.destroy_process_group()
    elif group is not None:
        dist.destroy_process_group(group)
    del group  # which waits for its threads


def _place(control: dist.ProcessGroup) -> tuple[int, int]:
    """Which process of those on this machine this one is, and how many they are; torchrun says it."""
    if os.environ.get("LOCAL_RANK") and os.environ.get("LOCAL_WORLD_SIZE"):
        return int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    hosts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(hosts, socket.gethostname(), group=control)
    mine = [rank for rank, host in enumerate(hosts) if host == socket.gethostname()]
    return mine.index(dist.get_rank()), len(mine)


def _take_gpu(device: str, local_rank: int, on_machine: int) -> None:
    if on_machine > 1 and ":" in device:
        raise ArgumentValueError("device", f"must be cuda where {on_machine} processes need a GPU each, got {device!r}")
    if on_machine > torch.cuda.device_count():
        seen = torch.cuda.device_count()
        raise ArgumentValueError("device", f"must be cpu for {on_machine} processes where torch sees {seen} GPUs")
    if ":" not in device:
        torch.cuda.set_device(local_rank)
