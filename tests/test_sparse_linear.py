"""The operators on sparse rows against dense float64, for every instruction set of the build, and deferred Adam."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import Tensor

from children import python
from jocor_fast._extension import compiled
from jocor_fast.data.sparse import csr_inputs, csr_tensor, take_rows, without_zeros
from jocor_fast.engine import sparse_perceptrons
from jocor_fast.engine.optimizer import DeferringAdam, FusedAdam
from jocor_fast.engine.sparse_perceptrons import FirstGradient

needs_kernels = pytest.mark.skipif(compiled is None, reason="compiled kernels are hidden")
IN_ANOTHER_PROCESS = """
import sys
import test_sparse_linear as tests

if tests.compiled.cpu_instruction_set() != sys.argv[1]:
    sys.exit(3)
tests.test_values_and_gradients_are_those_of_dense_rows()
tests.test_deferred_adam_is_adam()
"""
# Tiles of each instruction set, whole and in part: 16 outputs are one unit.
WIDTHS = (16, 48, 128, 144, 256, 288, 512)


def sparse_rows(rows: int, inputs: int, seed: int = 0) -> Tensor:
    """Rows with 0 … 40 % of the columns; the first and the last are empty, one column is in every other row."""
    generator = np.random.default_rng(seed)
    dense = generator.normal(size=(rows, inputs)) * (
        generator.random((rows, inputs)) < 0.4 * generator.random((rows, 1))
    )
    dense[1:-1, inputs // 2] = 1.5
    dense[[0, -1]] = 0
    return csr_inputs(scipy.sparse.csr_matrix(dense), "rows")


def parts(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return rows.crow_indices(), rows.col_indices(), rows.values()


def check_values_and_gradients(linear, gradient) -> None:
    for width in WIDTHS:
        for rows, inputs in ((1, 1), (2, 7), (33, 300)):
            batch, draw = sparse_rows(rows, inputs), torch.Generator().manual_seed(width)
            weight, bias = torch.randn(inputs, width, generator=draw), torch.randn(width, generator=draw)
            dense = batch.to_dense().double()
            wanted = bias.double() + dense @ weight.double()
            torch.testing.assert_close(linear(*parts(batch), weight, bias).double(), wanted, rtol=1e-5, atol=1e-5)

            chosen = torch.arange(0, rows, 2).flip(0)
            grad = torch.randn(len(chosen), width, generator=draw)
            columns, values = gradient(*parts(batch), chosen, grad, inputs)
            assert len(columns.unique()) == len(columns)
            assert set(dense[chosen].abs().sum(0).nonzero().flatten().tolist()) <= set(columns.tolist())
            found = torch.zeros(inputs, width, dtype=torch.float64).index_copy_(0, columns, values.double())
            torch.testing.assert_close(found, dense[chosen].T @ grad.double(), rtol=1e-5, atol=1e-5)


def test_values_and_gradients_are_those_of_dense_rows() -> None:
    check_values_and_gradients(sparse_perceptrons.sparse_linear, sparse_perceptrons.sparse_linear_gradient)


def test_plain_torch_gives_the_same_values_and_gradients() -> None:
    check_values_and_gradients(sparse_perceptrons._plain_linear, sparse_perceptrons._plain_gradient)


class FirstWeight:
    """A `SparsePerceptrons` of nothing but its first weight."""

    def __init__(self, start: Tensor) -> None:
        self.first_weight = torch.nn.Parameter(start.clone())
        self.parameters = [self.first_weight]
        self.first_gradient: FirstGradient | None = None

    def adam(self) -> DeferringAdam:
        return DeferringAdam(self)  # type: ignore[arg-type]


@needs_kernels
def test_deferred_adam_is_adam() -> None:
    inputs, width, draw = 60, 48, torch.Generator().manual_seed(3)
    start = 0.1 * torch.randn(inputs, width, generator=draw)
    dense, now, later = torch.nn.Parameter(start.clone()), FirstWeight(start), FirstWeight(start)
    plain, at_once, deferred = FusedAdam([dense]), now.adam(), later.adam()
    exact = start.double(), torch.zeros_like(start).double(), torch.zeros_like(start).double()
    for step in range(1, 401):
        lr, beta1 = (1e-3, 0.9) if step < 200 else (5e-4, 0.1)
        rows = torch.randperm(inputs // 2 if step % 50 else inputs - 5, generator=draw)[: 3 if step % 40 else 0]
        gradient = torch.randn(len(rows), width, generator=draw) * 10.0 ** -(step % 9)
        whole = torch.zeros(inputs, width).index_copy_(0, rows, gradient)
        dense.grad = whole
        one_each = csr_tensor(torch.arange(len(rows) + 1).int(), rows.int(), torch.ones(len(rows)), inputs)
        for first in (now, later):
            first.first_gradient = FirstGradient(one_each, torch.arange(len(rows)), gradient)
        for optimizer in (plain, at_once, deferred):
            optimizer.step(lr=lr, beta1=beta1, skip=torch.tensor(float(step == 7)))
        at_once.catch_up()
        if step == 7:
            continue
        value, mean, square = exact
        mean.mul_(beta1).add_(whole.double(), alpha=1 - beta1)
        square.mul_(0.999).add_(whole.double() ** 2, alpha=1 - 0.999)
        count = step - (step > 7)
        root = (square / (1 - 0.999**count)).sqrt() + 1e-8
        value -= lr * (mean / (1 - beta1**count)) / root
    assert not torch.equal(now.first_weight, later.first_weight)
    deferred.catch_up()
    assert torch.equal(now.first_weight, later.first_weight)
    assert torch.equal(later.first_weight[-5:], start[-5:])  # which never had a gradient
    torch.testing.assert_close(later.first_weight.detach().double(), exact[0], rtol=0, atol=2e-6)
    ours, torchs = ((parameter.detach() - exact[0]).abs().max() for parameter in (later.first_weight, dense))
    assert ours < 2 * torchs


@needs_kernels
def test_adam_takes_up_the_state_of_a_weight_with_less_padding() -> None:
    first = FirstWeight(torch.ones(5, 48))
    adam = first.adam()
    older = {"moments": [torch.ones(5, 32)], "squares": [torch.full((5, 32), 2.0)], "steps": [torch.tensor(3.0)]}
    counts = {"rows": [torch.full((5,), 3, dtype=torch.int32) for _ in range(2)], "rates": [torch.ones(3, 3).double()]}
    adam.load_state_dict({**older, **counts})
    for kept, number in ((adam.moments[0], 1.0), (adam.squares[0], 2.0)):
        assert (kept[:, :32] == number).all()
        assert not kept[:, 32:].any()
    assert len(adam.state_dict()["rates"][0]) == 3


@needs_kernels
@pytest.mark.parametrize("instruction_set", ["portable", "avx2", "avx512"])
def test_every_instruction_set_gives_these_values(instruction_set: str) -> None:
    if instruction_set not in compiled.cpu_instruction_sets():
        pytest.skip(f"{instruction_set} is not compiled in")
    ran = python("-c", IN_ANOTHER_PROCESS, instruction_set, JOCOR_FAST_CPU_ISA=instruction_set)
    if ran.returncode == 3:
        pytest.skip(f"this processor has no {instruction_set}")
    assert ran.returncode == 0, ran.stderr


@needs_kernels
# 256 columns are six tiles: thirteen threads share the rows too, and a weight of 3,000 rows is shared by rows alone.
@pytest.mark.parametrize(("number", "inputs"), [(2, 900), (3, 900), (13, 900), (3, 3000)])
def test_threads_change_no_bit(number: int, inputs: int) -> None:
    batch, weight = sparse_rows(200, inputs), torch.randn(inputs, 256)
    grad, rows = torch.randn(200, 256), torch.arange(200)

    def results() -> list[Tensor]:
        first = FirstWeight(weight)
        adam = first.adam()
        columns, values = sparse_perceptrons.sparse_linear_gradient(*parts(batch), rows, grad, inputs)
        for lr, kept in ((1e-3, 200), (1e-2, 9), (1e-3, 1)):
            first.first_gradient = FirstGradient(batch, rows[:kept], grad[:kept])
            adam.step(lr=lr, beta1=0.9)
            adam.catch_up(batch)
        output = sparse_perceptrons.sparse_linear(*parts(batch), first.first_weight.detach(), torch.zeros(256))
        return [columns, values, first.first_weight.detach(), output]

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = results()
        torch.set_num_threads(number)
        together = results()
    finally:
        torch.set_num_threads(threads)
    assert all(map(torch.equal, alone, together))


def adam_state(inputs: int) -> tuple[Tensor, ...]:
    """Weight, moments, squares, seen, current and steps, as the operators take them, after no step of one."""
    counts = (torch.zeros(inputs, dtype=torch.int32) for _ in range(2))
    return *(torch.zeros(inputs, 16) for _ in range(3)), *counts, torch.ones(1, 3, dtype=torch.float64)


@needs_kernels
def test_wrong_arguments_end_in_a_sentence() -> None:
    batch = sparse_rows(5, 20)
    starts, columns, values = parts(batch)
    weight, bias = torch.zeros(20, 16), torch.zeros(16)
    linear, gradient = torch.ops.jocor_fast.sparse_linear, torch.ops.jocor_fast.sparse_linear_gradient
    with pytest.raises(ValueError, match=r"weight must have a multiple of 16 columns, got 17"):
        linear(starts, columns, values, torch.zeros(20, 17), bias)
    with pytest.raises(ValueError, match=r"columns must lie in \[0, 19\)"):
        linear(starts, torch.full_like(columns, 19), values, weight[:19], bias)
    with pytest.raises(ValueError, match=r"columns must lie in \[0, 20\)"):
        linear(starts, torch.full_like(columns, -1), values, weight, bias)
    with pytest.raises(ValueError, match="starts must ascend from 0 to the number of columns"):
        linear(starts.flip(0), columns, values, weight, bias)
    with pytest.raises(TypeError, match="columns must be of type Int"):
        linear(starts, columns.long(), values, weight, bias)
    with pytest.raises(ValueError, match=r"bias must have shape \[16\]"):
        linear(starts, columns, values, weight, bias[:8])
    with pytest.raises(ValueError, match=r"rows must lie in \[0, 5\), got 5"):
        gradient(starts, columns, values, torch.tensor([5]), torch.zeros(1, 16), 20)
    with pytest.raises(ValueError, match=r"rows must lie in \[0, 5\), got -1"):
        torch.ops.jocor_fast.sparse_rows(starts, columns, values, torch.tensor([-1]))
    with pytest.raises(ValueError, match="starts must ascend from 0 to the number of columns"):
        torch.ops.jocor_fast.sparse_rows(starts + len(columns), columns, values, torch.tensor([4]))
    with pytest.raises(TypeError, match="inputs must be uint8 or float32, got float64"):
        torch.ops.jocor_fast.rows_without_zeros(torch.zeros(2, 3).double(), 1.0)
    step, due = torch.ops.jocor_fast.sparse_adam_step_, torch.ops.jocor_fast.sparse_adam_catch_up_
    state = adam_state(20)
    with pytest.raises(ValueError, match=r"seen must lie in \[0, 1\], the steps so far"):
        due(*state[:3], state[3] - 1, *state[4:], None, 0.999, 1e-8)
    with pytest.raises(ValueError, match=r"rows must lie in \[0, 20\)"):
        due(*state, torch.tensor([20], dtype=torch.int32), 0.999, 1e-8)
    with pytest.raises(ValueError, match="grad must have 16 columns, got 32"):
        step(*state, *parts(batch), torch.tensor([1]), torch.zeros(1, 32), 0.999, 1e-8)


@needs_kernels
def test_operators_pass_torch_s_checks() -> None:
    batch, ops = sparse_rows(5, 20), torch.ops.jocor_fast
    torch.library.opcheck(ops.sparse_linear.default, (*parts(batch), torch.randn(20, 16), torch.randn(16)))
    arguments = (*parts(batch), torch.tensor([3, 1]), torch.randn(2, 16), 20)
    torch.library.opcheck(ops.sparse_linear_gradient.default, arguments)
    in_place = ("test_schema", "test_faketensor")
    step = (*adam_state(20), *arguments[:-1], 0.999, 1e-8)
    torch.library.opcheck(ops.sparse_adam_step_.default, step, test_utils=in_place)
    caught_up = (*adam_state(20), torch.tensor([3, 1], dtype=torch.int32), 0.999, 1e-8)
    torch.library.opcheck(ops.sparse_adam_catch_up_.default, caught_up, test_utils=in_place)
    torch.library.opcheck(ops.sparse_rows.default, (*parts(batch), torch.tensor([3, 1])))
    torch.library.opcheck(ops.rows_without_zeros.default, (batch.to_dense(), 1.0))


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_dense_rows_lose_their_zeros(dtype: torch.dtype) -> None:
    dense = torch.randint(0, 4, (70, 31), generator=torch.Generator().manual_seed(0)).to(dtype)
    dense[[0, -1]] = 0
    rows = without_zeros(dense, 1 / 255)
    assert rows.values().numel() == dense.count_nonzero()
    assert torch.equal(rows.to_dense(), dense.float() * (torch.tensor(1 / 255) if dtype == torch.uint8 else 1))
    assert torch.equal(without_zeros(dense[:0], 1.0).crow_indices(), torch.zeros(1, dtype=torch.int32))


def test_rows_are_taken_in_any_order() -> None:
    matrix = sparse_rows(9, 12)
    for rows in ([], [0], [8, 3, 3, 0, 5]):
        taken = take_rows(matrix, torch.tensor(rows, dtype=torch.int64))
        assert torch.equal(taken.to_dense(), matrix.to_dense()[rows])
