"""One or two multi-layer perceptrons on sparse rows, whose first layer reads the stored entries alone.

Dense inputs with many zeros, as MNIST's, are made sparse for them where a run begins: with 19 % of the numbers not 0 an
epoch takes 0.33 s instead of 0.62 (benchmarks/mnist_epoch.py). Their share decides, not a timing: sums have another
order, and the bits of a run must not depend on what else the machine does.

What an input's number is multiplied with is contiguous in the storage of the first weights, those of both networks next
to each other: [D, width]. A step reads and changes the D's rows of the batch's columns alone: the gradient is a sparse
tensor of these rows, or is left to the optimiser, which defers the updates of all others (`optimizer.DeferringAdam`). A
state_dict has the weights as ever, [H, D].
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jocor_fast._extension import compiled, cpu_operator
from jocor_fast.data.samples import InputSource, ResidentInputs, SparseInputs
from jocor_fast.data.sparse import as_dense, is_sparse
from jocor_fast.engine.paired_mlp import PairedMLP

WIDTH_UNIT = 16  # of the kernels, see csrc/sparse_linear.h: a cache line of 64 bytes
MOST_FILLED = 0.5  # of dense inputs that are not 0: there dense products take a quarter longer (mnist_epoch.py)
MOST_ENTRIES = 2**27  # that are not 0, of eight bytes each next to the dense inputs


class FirstGradient(NamedTuple):
    """The gradient of the first weight, as what it is the product of."""

    inputs: Tensor  # sparse rows [B, D]
    rows: Tensor  # int64 [R], those of them that have a gradient
    outputs: Tensor  # [R, width], that of their outputs

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """As the operators take it."""
        return *_parts(self.inputs), self.rows, self.outputs


class SparsePerceptrons(PairedMLP):
    """The `NetworkGroup` of one or two equal stacks of Linear and ReLU layers for sparse rows, see `fits`.

    Attributes:
        first_weight: [D, width], which `parameters` begin with. Where gradients are taken, its .grad is a sparse tensor
            of some of its rows, unless `stores_gradient` is False: then it is `first_gradient`.
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        first = next(layer for layer in networks[0].modules() if isinstance(layer, nn.Linear))
        self._outputs = len(networks) * first.out_features
        # An odd number of cache lines: by an even one, the same columns of many rows share few places of a cache.
        width = (self._outputs + WIDTH_UNIT - 1) // WIDTH_UNIT // 2 * 2 + 1
        self._first = torch.zeros(first.in_features, width * WIDTH_UNIT)
        super().__init__(networks)
        self._first_width = self._first.shape[1]
        self.stores_gradient = True
        self.first_gradient: FirstGradient | None = None
        self.first_weight = nn.Parameter(self._first)  # of the same memory
        self.parameters.insert(0, self.first_weight)

    @staticmethod
    def fits_sparse(networks: Sequence[nn.Module], inputs: Tensor) -> bool:
        """Return whether the networks are such perceptrons, on the CPU, for sparse inputs like these dense ones."""
        return PairedMLP.fits(networks, inputs, count=min(len(networks), 2))

    def _weight_shape(self, layer: int, linear: nn.Linear) -> tuple[int, ...]:
        networks, outputs, inputs = super()._weight_shape(layer, linear)
        return networks, outputs, inputs if layer else 0

    def _placement(self) -> Iterator[tuple[Tensor, Tensor]]:
        places = self._first[:, : self._outputs].unflatten(1, (len(self._linears[0]), -1)).permute(1, 2, 0)
        of_first = {linear.weight: place for linear, place in zip(self._linears[0], places, strict=True)}
        for parameter, place in super()._placement():
            yield parameter, of_first.get(parameter, place)

    def _first_layer(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        width = self._first.shape[1]
        bias = self._biases[0].as_strided((width,), (1,))  # with the zeros that follow the block
        if is_sparse(inputs):
            outputs = sparse_linear(*_parts(inputs), self._first, bias)
        else:  # to evaluate on
            outputs = torch.addmm(bias, inputs.flatten(1), self._first)
        networks, hidden = self._biases[0].shape[::2]
        return inputs, outputs.as_strided((networks, len(outputs), hidden), (hidden, width, 1))

    def _first_gradient(self, gradient: Tensor, joined: Tensor, first: Tensor, rows: Tensor) -> None:
        self.first_gradient = FirstGradient(first, rows, joined)
        if not self.stores_gradient:
            return
        inputs, width = self._first.shape
        columns, values = sparse_linear_gradient(*self.first_gradient.parts, inputs)
        self.first_weight.grad = torch.sparse_coo_tensor(columns[None], values, (inputs, width), check_invariants=False)

    def release(self) -> None:
        super().release()
        self.first_weight.grad = self.first_gradient = None


def sparse_where_it_pays(source: InputSource, networks: Sequence[nn.Module]) -> InputSource:
    """Return a source of sparse rows in place of dense ones, where such perceptrons read it sooner; else the source."""
    if (
        not isinstance(source, ResidentInputs)
        or source.stored.dtype not in (torch.uint8, torch.float32)
        or compiled is None
        or compiled.cpu_instruction_set() == "portable"
        or not SparsePerceptrons.fits_sparse(networks, source.first())
        or torch.count_nonzero(source.stored) > min(MOST_FILLED * source.stored.numel(), MOST_ENTRIES)
    ):
        return source
    return SparseInputs.of(source)


def logits_of(networks: Sequence[nn.Module], *, sparse: bool) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """Return a function from inputs, sparse or not, to the logits of each network, which stay as they are."""
    first = next((layer for network in networks for layer in network.modules() if isinstance(layer, nn.Linear)), None)
    if sparse and first is not None and SparsePerceptrons.fits_sparse(networks, torch.empty(1, first.in_features)):
        return SparsePerceptrons(copy.deepcopy(networks)).logits
    return lambda inputs: tuple(network(as_dense(inputs)) for network in networks)


def _parts(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return rows.crow_indices(), rows.col_indices(), rows.values()


def _plain_linear(starts: Tensor, columns: Tensor, values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    sums = F.embedding_bag(columns, weight, starts, mode="sum", per_sample_weights=values, include_last_offset=True)
    return sums + bias


def _plain_gradient(
    starts: Tensor, columns: Tensor, values: Tensor, rows: Tensor, grad: Tensor, inputs: int
) -> tuple[Tensor, Tensor]:
    count = len(starts) - 1
    lengths = starts.diff()
    of_row = grad.new_zeros(count, grad.shape[1]).index_copy_(0, rows, grad)
    found, place = columns.unique(return_inverse=True)
    products = of_row.repeat_interleave(lengths, dim=0).mul_(values[:, None])
    return found.long(), grad.new_zeros(len(found), grad.shape[1]).index_add_(0, place, products)


# csrc/sparse_linear.cpp says what they take and return.
sparse_linear = cpu_operator("sparse_linear", _plain_linear)
sparse_linear_gradient = cpu_operator("sparse_linear_gradient", _plain_gradient)
