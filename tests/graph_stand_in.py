"""A stand-in for `torch.cuda`'s streams and graphs on CPU tensors.

A recording here is what it is on a GPU: the operators that run, with the tensors that they read and wrote, and every
number that came from the host as it was then. Nothing that existed before is changed by it. A replay runs those
operators on those tensors. What a GPU forbids while recording fails, and what waits for a GPU warns where torch would.
An operator that reads what another stream wrote or changed, without having waited for it, fails as well; on the CPU
autograd runs both backward passes on the current stream, so that this concerns the forward passes.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# What a GPU would have to be waited for: numbers that come to the host, and results whose shape depends on values.
WAITING = {
    "aten::_local_scalar_dense",
    "aten::item",
    "aten::is_nonzero",
    "aten::equal",
    "aten::nonzero",
    "jocor_fast::perceptron_gradients",  # how many rows it returns, the host reads
    "aten::masked_select",
    "aten::_unique2",
}


def name_of(func: Any) -> str:
    """Such as "aten::add"."""
    return str(func.overloadpacket._qualified_op_name)


def tensors_in(*values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class Stream:
    """A queue; `seen` says of every queue how much of it has been waited for."""

    def __init__(self) -> None:
        self.given = 0
        self.seen: dict[Stream, int] = {}

    def wait_stream(self, other: Stream) -> None:
        for stream, count in {**other.seen, other: other.given}.items():
            self.seen[stream] = max(count, self.seen.get(stream, 0))

    def has_seen(self, other: Stream, count: int) -> bool:
        return other is self or self.seen.get(other, 0) >= count


class _WarnsOfWaits(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if name_of(func) in WAITING:
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        return func(*args, **(kwargs or {}))


class Graph:
    """A recording."""

    def __init__(self, cuda: StandIn) -> None:
        self.cuda = cuda
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.generators: list[torch.Generator] = []
        self.replays = 0

    def register_generator_state(self, generator: torch.Generator) -> None:
        warnings.warn("register_generator_state() is deprecated", stacklevel=1)  # as torch 2.14 has it
        self.generators.append(generator)

    def names(self) -> list[str]:
        return [name_of(func) for func, *_ in self.calls]

    @torch.no_grad()
    def replay(self) -> None:
        self.replays += 1
        self.cuda.launches.append(self)
        for func, args, kwargs, outputs in self.calls:
            again = func(*args, **kwargs)
            for old, new in zip(tensors_in(outputs), tensors_in(again), strict=True):
                if address(old) != address(new):
                    old.copy_(new)


class _Recording(TorchDispatchMode):
    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph
        self.before: dict[int, tuple[Tensor, torch.UntypedStorage]] = {}
        self.written: dict[int, tuple[Stream, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if name_of(func) in WAITING:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nand a second line")
        generator = kwargs.get("generator")
        if generator is not None and generator._cdata not in {each._cdata for each in self.graph.generators}:
            raise RuntimeError("a generator draws that is not registered with the graph")
        stream = self.graph.cuda.current
        for tensor in tensors_in(args, kwargs):
            writer = self.written.get(address(tensor))
            if writer is None and address(tensor) not in self.before:
                self.before[address(tensor)] = (tensor, tensor.untyped_storage().clone())
            assert writer is None or stream.has_seen(*writer), f"{name_of(func)} reads what it has not waited for"
        outputs = func(*args, **kwargs)
        stream.given += 1
        made = [tensor for tensor in tensors_in(outputs) if address(tensor) not in self.before]
        changed = [value for value, of in zip(args, func._schema.arguments, strict=False) if of.is_write]
        for tensor in tensors_in(made, changed):
            self.written[address(tensor)] = (stream, stream.given)
        self.graph.calls.append((func, args, kwargs, outputs))
        return outputs

    def undo(self) -> None:
        for tensor, content in self.before.values():
            tensor.untyped_storage().copy_(content)


class Event:
    def __init__(self, cuda: StandIn, blocking: bool) -> None:
        self.cuda = cuda

    def record(self) -> None:
        self.cuda.ahead += 1

    def synchronize(self) -> None:
        self.cuda.most_ahead = max(self.cuda.most_ahead, self.cuda.ahead)
        self.cuda.ahead -= 1


class StandIn:
    """The part of `torch.cuda` that captured steps use, and a record of what was done.

    Attributes:
        recorded: the graphs, in order; launches: the graph of every replay.
        pools: the pool of each graph; streams: those in use.
        held: the generators of recordings that failed, which draw no more until one with them ends (torch 2.11).
    """

    def __init__(self) -> None:
        self.current = Stream()
        self.streams: list[Stream] = []
        self.recorded: list[Graph] = []
        self.launches: list[Graph] = []
        self.pools: list[Any] = []
        self.held: set[int] = set()
        self.ahead = self.most_ahead = self.synchronized = 0
        self.guarded = False
        self._watch: _WarnsOfWaits | None = None

    def Stream(self, device: torch.device) -> Stream:
        self.streams.append(Stream())
        return self.streams[-1]

    def Event(self, *, blocking: bool) -> Event:
        return Event(self, blocking)

    def CUDAGraph(self) -> Graph:
        return Graph(self)

    def graph_pool_handle(self) -> object:
        return object()

    @contextlib.contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        self.guarded, outside = True, self.guarded
        yield
        self.guarded = outside

    def current_stream(self, device: torch.device | None = None) -> Stream:
        assert device is not None or self.guarded, "the current device may be another one"
        return self.current

    def synchronize(self) -> None:
        self.synchronized += 1

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        outside, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = outside

    @contextlib.contextmanager
    def graph(self, graph: Graph, *, pool: object, stream: Stream, capture_error_mode: str) -> Iterator[None]:
        assert self.current is stream, "libraries are set up on the stream that records"
        recording = _Recording(graph)
        self.ahead = 0  # torch.cuda.graph waits for all that was launched
        states = [(each, each.get_state()) for each in (*graph.generators, torch.default_generator)]
        self.held |= (known := {each._cdata for each, _ in states})
        try:
            with recording:
                yield
        except RuntimeError:
            raise RuntimeError("the capture was invalidated")  # noqa: B904 - as the end of a real one does
        finally:
            recording.undo()
            for generator, state in states:
                generator.set_state(state)
        for other in self.streams:
            assert stream.has_seen(other, other.given), "a stream was not joined"
        self.held -= known
        self.recorded.append(graph)
        self.pools.append(pool)

    def get_sync_debug_mode(self) -> str:
        return "default" if self._watch is None else "warn"

    def set_sync_debug_mode(self, mode: str) -> None:
        if mode == "warn":
            warnings.warn("Synchronization debug mode is a prototype feature and does not yet …", stacklevel=1)
            self._watch = _WarnsOfWaits()
            self._watch.__enter__()
        elif self._watch is not None:
            self._watch.__exit__(None, None, None)
            self._watch = None
