"""The networks of a run: where they come from, how their modes are kept, and how a step passes through them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from jocor_fast.data.sparse import as_dense

NetworkSource = nn.Module | Sequence[nn.Module] | Callable[[], nn.Module]


class NetworkGroup(Protocol):
    """All networks of a run as the training step sees them: one batch in, the logits of each out, and back."""

    parameters: list[Tensor]  # what the optimiser updates; `backward` leaves the gradients in their .grad

    def logits(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """[B, C] of each network. Where gradients are recorded, one `backward` belongs to each call."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Differentiate the 0-d loss of the latest logits; earlier gradients are replaced, not added to."""
        ...

    def release(self) -> None:
        """Hand the networks back as ordinary modules without gradients."""
        ...


class SideStream:
    """A second CUDA stream. What `concurrently` encloses runs at the same time as what the current one is given."""

    def __init__(self, cuda: Any, device: torch.device) -> None:
        """`cuda` is `torch.cuda`, or what stands in for it."""
        self._cuda = cuda
        self._device = device
        self._stream = cuda.Stream(device)

    def fork(self) -> None:
        """Let what is enclosed start after all that the current stream has been given so far."""
        self._stream.wait_stream(self._cuda.current_stream(self._device))

    def concurrently(self) -> contextlib.AbstractContextManager[None]:
        context: contextlib.AbstractContextManager[None] = self._cuda.stream(self._stream)
        return context

    def join(self) -> None:
        """Let the current stream go on after all that has been enclosed."""
        self._cuda.current_stream(self._device).wait_stream(self._stream)


class SeparateNetworks:
    """Any networks: each runs by itself, autograd does the rest.

    Attributes:
        side: where the second network runs, at the same time as the first; None: after it. Autograd takes each
            network's backward pass to the stream of its forward pass, and joins them. The random numbers of both are
            drawn in their order.
        apart: whether they share nothing; else both would change the statistics of the same BatchNorm at a time.
    """

    def __init__(self, networks: Sequence[nn.Module], *, channels_last: bool = False, compiled: bool = False) -> None:
        """Where `channels_last`, weights and inputs of convolutions are laid out so; the values stay.

        Where `compiled`, torch.compile runs the networks; the modules themselves stay as they are.
        """
        self.side: SideStream | None = None
        self.channels_last = channels_last
        if channels_last:
            for network in networks:
                network.to(memory_format=torch.channels_last)
        self.networks = tuple(networks)
        self._calls = tuple(torch.compile(network) for network in networks) if compiled else self.networks
        tensors = [tensor for network in networks for tensor in (*network.parameters(), *network.buffers())]
        self.apart = len(set(tensors)) == len(tensors)
        distinct = dict.fromkeys(parameter for network in networks for parameter in network.parameters())
        self.parameters: list[Tensor] = [parameter for parameter in distinct if parameter.requires_grad]
        if not self.parameters:
            raise ValueError("networks have no parameter that requires a gradient")

    def logits(self, inputs: Tensor) -> tuple[Tensor, ...]:
        inputs = self._laid_out(inputs)
        if self.side is None or len(self.networks) == 1:
            return tuple(call(inputs) for call in self._calls)
        self.side.fork()
        first = self._calls[0](inputs)
        with self.side.concurrently():
            second = self._calls[1](inputs)
        self.side.join()
        return first, second

    def backward(self, loss: Tensor) -> None:
        self._drop_gradients()
        loss.backward()

    def release(self) -> None:
        self._drop_gradients()

    def _laid_out(self, inputs: Tensor) -> Tensor:
        return inputs.contiguous(memory_format=torch.channels_last) if self.channels_last else as_dense(inputs)

    def _drop_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None


class DistributedNetworks(SeparateNetworks):
    """The same in each of several processes: torch's DistributedDataParallel averages the gradients.

    Both networks are one module to it: its buckets travel while either network's backward pass is running. It copies
    weights and buffers (BatchNorm's statistics, which each process takes of its own rows) from the first process.
    """

    def __init__(
        self, networks: Sequence[nn.Module], sample: Tensor, *, channels_last: bool = False, compiled: bool = False
    ) -> None:
        """`sample` is a batch as the networks take it, to find parameters that get no gradient."""
        super().__init__(networks, channels_last=channels_last, compiled=compiled)
        unused = self._leaves_parameters_out(sample)
        self._together = DistributedDataParallel(
            _Together(self.networks, self._calls), gradient_as_bucket_view=True, find_unused_parameters=unused
        )

    def logits(self, inputs: Tensor) -> tuple[Tensor, ...]:
        if not torch.is_grad_enabled():
            return super().logits(inputs)
        logits: tuple[Tensor, ...] = self._together(self._laid_out(inputs))
        return logits

    def _leaves_parameters_out(self, sample: Tensor) -> bool:
        with evaluating(self.networks):
            total = torch.stack([logits.float().sum() for logits in super().logits(sample)]).sum()
        return any(gradient is None for gradient in torch.autograd.grad(total, self.parameters, allow_unused=True))


class _Together(nn.Module):
    """Networks side by side."""

    def __init__(self, networks: Sequence[nn.Module], calls: Sequence[Callable[[Tensor], Tensor]]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.calls = tuple(calls)  # the networks themselves, or compiled; a tuple hides them from torch

    def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(call(inputs) for call in self.calls)


def build_networks(source: NetworkSource, count: int, method: str, device: torch.device) -> tuple[nn.Module, ...]:
    """Return the networks of a run, on its device.

    Args:
        source: a module, a pair of them, or a function without arguments that builds one and is called `count` times.
        count: how many the method trains.
        method: its name, for messages.

    Raises:
        TypeError, ValueError: the source is something else, or holds another number of networks, or parameters without
            values.
    """
    if isinstance(source, nn.Module):
        networks: tuple[nn.Module, ...] = (source,)
    elif isinstance(source, Sequence):
        networks = tuple(source)
    elif callable(source):
        networks = tuple(source() for _ in range(count))
    else:
        raise TypeError(
            f"networks must be a module, a pair of modules or a function that builds one, got {type(source).__name__}"
        )
    for network in networks:
        if not isinstance(network, nn.Module):
            raise TypeError(f"networks must be of torch.nn.Module, got {type(network).__name__}")
        for name, parameter in network.named_parameters():
            if is_lazy(parameter) or parameter.is_meta:
                raise ValueError(
                    f"networks must have values in all parameters, and {name} has none: pass a sample through a "
                    "network with lazy layers, and build none on the device 'meta'"
                )
    if len(networks) != count:
        wanted = "one network" if count == 1 else "two networks"
        raise ValueError(
            f"networks: method {method!r} trains {wanted}, got {len(networks)} (a function that builds one always fits)"
        )
    if count == 2:
        if networks[0] is networks[1]:
            raise ValueError("networks must be two modules, got the same one twice")
        if _start_alike(*networks):
            warnings.warn(
                "networks start with the same weights: they learn the same and cannot correct each other", stacklevel=2
            )
    return tuple(network.to(device) for network in networks)


def probe_classes(networks: Sequence[nn.Module], inputs: Tensor, name: str) -> int:
    """Return C, found by passing a few inputs [n, ...] through each network; `name` is for messages.

    Raises:
        ValueError: a network does not take them, or gives no logits [n, C], or the two differ in C.
    """
    classes = set()
    for network in networks:
        try:
            with evaluating([network]), torch.no_grad():
                logits = network(inputs)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:  # what torch's layers raise of wrong shapes
            shape = tuple(inputs.shape[1:])
            raise ValueError(f"networks do not take the {name} of shape {shape} and {inputs.dtype}: {error}") from error
        if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != len(inputs):
            got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ValueError(f"networks must map {len(inputs)} samples to logits ({len(inputs)}, C), got {got}")
        classes.add(logits.shape[1])
    if len(classes) > 1:
        raise ValueError(f"networks must have the same number of outputs, got {' and '.join(map(str, classes))}")
    return int(classes.pop())


@contextlib.contextmanager
def evaluating(networks: Sequence[nn.Module]) -> Iterator[None]:
    """Set evaluation mode within; afterwards every module has its own mode again, frozen BatchNorm included."""
    modes = [(module, module.training) for network in networks for module in network.modules()]
    for network in networks:
        network.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def start_training(networks: Sequence[nn.Module]) -> None:
    """Training mode, unless a network is in it already: parts of it that its owner put in evaluation mode stay so."""
    for network in networks:
        if not network.training:
            network.train()


def check_single_rows(networks: Sequence[nn.Module], inputs: Tensor, why: str) -> None:
    """Raise ValueError where a network cannot train on one sample at a time: BatchNorm then has no variance.

    Args:
        networks: of a run, in training mode. They stay as they are, running statistics too.
        inputs: one sample [1, ...] as the networks take it.
        why: how a step comes to have one sample, for the message.
    """
    buffers = [(buffer, buffer.clone()) for network in networks for buffer in network.buffers()]
    with torch.no_grad(), torch.random.fork_rng(devices=[inputs.device] if inputs.is_cuda else []):  # dropout draws
        try:
            for network in networks:
                network(inputs)
        except ValueError as error:
            raise ValueError(
                f"batch_size: a step would have one sample ({why}), and the networks cannot be trained on one "
                f"({error}); give a larger batch size or more samples, or networks without BatchNorm"
            ) from error
        finally:
            for buffer, value in buffers:
                buffer.copy_(value)


def _start_alike(first: nn.Module, second: nn.Module) -> bool:
    pairs = list(zip(first.parameters(), second.parameters(), strict=False))
    same_shapes = all(a.shape == b.shape and a.device == b.device for a, b in pairs)
    return bool(pairs) and same_shapes and all(torch.equal(a, b) for a, b in pairs)
