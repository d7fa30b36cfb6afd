"""Two multi-layer perceptrons of one shape, trained on the CPU as if they were one network.

For inputs with many zeros, `sparse_perceptrons` has another first layer.

A step of the paper's MNIST setting is almost nothing but the products of the first layers with their input, and Adam.
Three things make it take little more than half of the time of two modules under autograd (MNIST, batch 128, half of the
rows kept, two cores: 1.1 to 1.3 s an epoch against 2.1 to 2.5, on a machine with other work to do):

- Each layer of both networks is one batched product, in which each core works on one network, whose weights stay in its
  cache. One product for both, [128, 784] · [784, 512], is as fast by itself, but MKL leaves the caches such that Adam
  takes three times as long after it: a third more for the step.
- The backward pass works on the rows that have a gradient, not on those that the method left out: a fifth less.
- Gradients are written into buffers that stay: no zeroing, no fresh pages, and the optimiser sees one flat tensor.

The result is that of the plain modules but for the order of float32 sums. On CUDA the number of rows would have to
come to the host, and the step is to be captured there: plain modules serve it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jocor_fast._extension import cpu_operator
from jocor_fast.data.sparse import as_dense

_ALIGNMENT = 16  # floats: each block starts on 64 bytes like a tensor of its own, for which products round the same way


class PairedMLP:
    """The `NetworkGroup` of two equal stacks of Linear and ReLU layers, see `fits`.

    While it is in use the modules' parameters are views of its storage, and the modules work as before; `release`
    gives them storage of their own again.
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        self._linears = list(zip(*(_linears(network) for network in networks), strict=True))
        shapes: list[tuple[int, ...]] = []
        for layer, (linear, *_) in enumerate(self._linears):
            shapes += [self._weight_shape(layer, linear), (len(networks), 1, linear.out_features)]
        flat, blocks = _aligned_blocks(shapes)
        flat_gradient, gradient_blocks = _aligned_blocks(shapes)
        self._weights, self._biases = blocks[::2], blocks[1::2]
        self._first_width = self._biases[0].numel()  # of the first outputs' gradients, a row
        self._weight_gradients, self._bias_gradients = gradient_blocks[::2], gradient_blocks[1::2]
        for parameter, block in self._placement():
            block.copy_(parameter.data)
            parameter.data = block
        parameters = nn.Parameter(flat)
        parameters.grad = flat_gradient
        self.parameters: list[Tensor] = [parameters]

    def _weight_shape(self, layer: int, linear: nn.Linear) -> tuple[int, ...]:
        """The shape of a layer's weights of all networks in the flat storage."""
        return len(self._linears[0]), linear.out_features, linear.in_features

    @staticmethod
    def fits(networks: Sequence[nn.Module], inputs: Tensor, *, count: int = 2) -> bool:
        """Return whether the networks are such a pair, on the CPU, for inputs [N, ...] that are or become float32.

        `count` is how many networks there must be.
        """
        if len(networks) != count or inputs.dtype not in (torch.uint8, torch.float32):
            return False
        stacks = [_linears(network, flat_input=inputs.dim() == 2) for network in networks]
        shapes = [[(linear.in_features, linear.out_features) for linear in stack] for stack in stacks]
        parameters = [parameter for stack in stacks for linear in stack for parameter in linear.parameters()]
        return (
            len(stacks[0]) >= 2
            and shapes.count(shapes[0]) == count
            and len(parameters) == 2 * count * len(stacks[0])  # each with a bias
            and len(set(parameters)) == len(parameters)  # nothing shared
            and all(p.requires_grad and p.dtype == torch.float32 and p.device.type == "cpu" for p in parameters)
            and not any(p._backward_hooks or p._post_accumulate_grad_hooks for p in parameters)
        )

    def logits(self, inputs: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            first, outputs = self._first_layer(inputs)
            layer_inputs = [first]
            for weight, bias in zip(self._weights[1:], self._biases[1:], strict=True):
                outputs = outputs.relu_()
                layer_inputs.append(outputs)
                outputs = torch.baddbmm(bias, outputs, weight.transpose(1, 2))
        if torch.is_grad_enabled():
            self._layer_inputs, self._logits = layer_inputs, outputs.requires_grad_()
        return outputs.unbind()

    def backward(self, loss: Tensor) -> None:
        (gradient,) = torch.autograd.grad(loss, self._logits)
        first, *hidden = self._layer_inputs
        networks, rows = len(gradient), None
        with torch.no_grad():
            for layer in reversed(range(1, len(self._weights))):
                inputs = hidden[layer - 1] if rows is None else hidden[layer - 1].index_select(1, rows)
                outputs = inputs.shape[2]
                width = self._first_width if layer == 1 else networks * outputs
                into = self._weight_gradients[layer], self._bias_gradients[layer]
                found, joined = perceptron_gradients(gradient, inputs, self._weights[layer], *into, width)
                rows = found if rows is None else rows[found]
                gradient = joined.as_strided((networks, len(joined), outputs), (outputs, width, 1))
            assert rows is not None
            torch.sum(gradient, 1, keepdim=True, out=self._bias_gradients[0])
            self._first_gradient(gradient, joined, first, rows)

    def _first_layer(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the gradient of the first weight needs of the inputs, and the outputs [networks, B, H]."""
        shared = as_dense(inputs).flatten(1).expand(len(self._linears[0]), -1, -1)  # [2, B, D] without a copy
        return shared, torch.baddbmm(self._biases[0], shared, self._weights[0].transpose(1, 2))

    def _first_gradient(self, gradient: Tensor, joined: Tensor, first: Tensor, rows: Tensor) -> None:
        """Set the gradient of the first weight: [networks, R, H] is that of the outputs in these rows.

        `joined` [R, width] is the same, the networks next to each other.
        """
        if len(rows) < first.shape[1]:
            first = first[0].index_select(0, rows).expand(len(first), -1, -1)
        torch.bmm(gradient.transpose(1, 2), first, out=self._weight_gradients[0])

    def release(self) -> None:
        for parameter, _ in self._placement():
            parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)

    def _placement(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Every parameter of the modules with its place in the storage."""
        for layer, pair in enumerate(self._linears):
            for index, linear in enumerate(pair):
                yield linear.weight, self._weights[layer][index]
                yield linear.bias, self._biases[layer][index, 0]


def _linears(network: nn.Module, *, flat_input: bool = True) -> list[nn.Linear]:
    """The Linear layers of a plain stack (Flatten, unless the input is flat), Linear, ReLU, Linear …; else []."""
    if type(network) is not nn.Sequential or is_altered(network):
        return []
    layers = list(network)
    if layers and type(layers[0]) is nn.Flatten and (layers[0].start_dim, layers[0].end_dim) == (1, -1):
        flatten = layers.pop(0)
        flat_input = not is_altered(flatten)
    linears = [layer for layer in layers[0::2] if isinstance(layer, nn.Linear) and type(layer) is nn.Linear]
    plain = (
        flat_input
        and len(layers) == 2 * len(linears) - 1
        and all(type(layer) is nn.ReLU for layer in layers[1::2])
        and not any(is_altered(layer) for layer in layers)
    )
    return linears if plain else []


def is_altered(module: nn.Module) -> bool:
    """Return whether its owner gave the module hooks, or a forward of its own."""
    attributes = vars(module)
    return "forward" in attributes or any(attributes[name] for name in attributes if name.endswith("_hooks"))


def _aligned_blocks(shapes: Sequence[tuple[int, ...]]) -> tuple[Tensor, list[Tensor]]:
    """A flat tensor of zeros, and blocks of these shapes in it, in order."""
    sizes = [torch.Size(shape) for shape in shapes]
    offsets = [0, *accumulate(-(-size.numel() // _ALIGNMENT) * _ALIGNMENT for size in sizes)]
    flat = torch.zeros(offsets[-1])
    return flat, [flat[at : at + size.numel()].view(size) for at, size in zip(offsets, sizes, strict=False)]


def _plain_gradients(
    gradient: Tensor, inputs: Tensor, weight: Tensor, weight_gradient: Tensor, bias_gradient: Tensor, width: int
) -> tuple[Tensor, Tensor]:
    rows = gradient.any(dim=(0, 2)).nonzero().flatten()
    if len(rows) < gradient.shape[1]:  # the sums over rows lose only zeros
        gradient, inputs = (of.index_select(1, rows) for of in (gradient, inputs))
    torch.bmm(gradient.transpose(1, 2), inputs, out=weight_gradient)
    torch.sum(gradient, 1, keepdim=True, out=bias_gradient)
    of_inputs = torch.ops.aten.threshold_backward(torch.bmm(gradient, weight), inputs, 0)
    joined = of_inputs.transpose(0, 1).flatten(1)
    return rows, F.pad(joined, (0, width - joined.shape[1]))


# csrc/perceptrons.cpp says what it takes and returns.
perceptron_gradients = cpu_operator("perceptron_gradients", _plain_gradients)
