"""What exists on a GPU alone: capture and replay, no waiting for the device, streams, devices, sizes past 2^31.

Values, edges, arguments, selection, repeats and torch.compile on a GPU are tested where they are tested on the CPU, by
tests that take the device as a parameter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import jocor_fast
from loss_cases import assert_close, oracle, random_logits

pytestmark = pytest.mark.gpu

TABLE = (Path(__file__).parents[1] / "csrc" / "cuda" / "row_mapping.h").read_text()
(IN_ONE_BLOCK,) = (int(rows) for rows in re.findall(r"\bkOneBlockRows = (\d+);", TABLE))
IN_A_CLUSTER = IN_ONE_BLOCK + 500
# One launch for rows and selection, and two that are linked, of which the second is a block or a cluster; a row in part
# of a warp, in a warp, in a block.
SHAPES = [(128, 10), (64, 100), (IN_ONE_BLOCK, 10), (IN_A_CLUSTER, 10), (300, 1000), (40, 3000)]


def loss_and_gradients(z1: Tensor, z2: Tensor, target: Tensor, num_keep: Tensor | int) -> list[Tensor]:
    out = jocor_fast.jocor_loss(z1, z2, target, num_keep=num_keep)
    return [*out, *torch.autograd.grad(out.loss, (z1, z2))]


def captured(work: Callable[[], list[Tensor]]) -> tuple[torch.cuda.CUDAGraph, list[Tensor]]:
    """The work as a graph, captured on a side stream after it was run there."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        results = work()
    return graph, results


# --- capture and replay -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "classes"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_replay_follows_new_inputs_and_a_new_number_to_keep(rows: int, classes: int, dtype: torch.dtype) -> None:
    z1, z2, target = random_logits(rows, classes, dtype, "cuda")
    num_keep = torch.tensor(rows // 2, device="cuda")
    graph, results = captured(lambda: loss_and_gradients(z1, z2, target, num_keep))
    for seed, k in ((1, rows // 2), (2, 1), (3, rows), (4, rows // 3)):
        fresh = random_logits(rows, classes, dtype, "cuda", seed=seed)
        with torch.no_grad():
            for held, new in zip((z1, z2, target), fresh, strict=True):
                held.copy_(new)
        num_keep.fill_(k)
        graph.replay()
        expected = loss_and_gradients(*fresh, k)
        assert results[3].item() == k
        assert all(map(torch.equal, results, expected))


def test_a_rate_is_counted_anew_in_every_replay() -> None:
    """Of the eligible rows, whose number changes with the labels."""
    z1, z2, target = random_logits(200, 10, device="cuda")
    graph, (selected, count) = captured(
        lambda: list(jocor_fast.jocor_loss(z1, z2, target, forget_rate=0.25, ignore_index=-100)[2:4])
    )
    for ignored in (0, 40, 199):
        target.copy_(random_logits(200, 10, device="cuda")[2])
        target[:ignored] = -100
        graph.replay()
        assert count.item() == selected.sum().item() == jocor_fast.num_keep(200 - ignored, 0.25)
        assert not selected[:ignored].any()


def test_the_choice_among_differing_rows_follows_a_rate_on_the_device() -> None:
    z1, z2, target = random_logits(200, 10, device="cuda")
    rate = torch.tensor(0.0, dtype=torch.float64, device="cuda")

    def work() -> list[Tensor]:
        out = jocor_fast.coteaching_loss(z1, z2, target, forget_rate=rate, disagreement=True)
        return [*out, *torch.autograd.grad(out.loss, (z1, z2))]

    graph, results = captured(work)
    for seed, tau in ((1, 0.5), (2, 0.2), (3, 0.9)):
        fresh = random_logits(200, 10, device="cuda", seed=seed)
        with torch.no_grad():
            for held, new in zip((z1, z2, target), fresh, strict=True):
                held.copy_(new)
        rate.fill_(tau)
        graph.replay()
        out = jocor_fast.coteaching_loss(*fresh, forget_rate=tau, disagreement=True)
        assert all(map(torch.equal, results, [*out, *torch.autograd.grad(out.loss, fresh[:2])]))


def pair_of_networks() -> tuple[torch.nn.ModuleList, torch.optim.Optimizer]:
    torch.manual_seed(0)
    networks = torch.nn.ModuleList(
        torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)) for _ in range(2)
    ).cuda()
    return networks, torch.optim.Adam(networks.parameters(), lr=1e-2, capturable=True)


def one_step(
    networks: torch.nn.ModuleList, optimizer: torch.optim.Optimizer, inputs: Tensor, labels: Tensor, num_keep: Tensor
) -> Tensor:
    optimizer.zero_grad(set_to_none=True)
    out = jocor_fast.jocor_loss(networks[0](inputs), networks[1](inputs), labels, num_keep=num_keep)
    out.loss.backward()
    optimizer.step()
    return out.loss.detach()


@pytest.fixture
def batches() -> list[tuple[Tensor, Tensor, int]]:
    generator = torch.Generator("cuda").manual_seed(0)
    return [
        (
            torch.randn(128, 20, generator=generator, device="cuda"),
            torch.randint(10, (128,), generator=generator, device="cuda"),
            128 - 10 * number,
        )
        for number in range(8)
    ]


def test_a_captured_step_trains_as_the_eager_one(batches: list[tuple[Tensor, Tensor, int]]) -> None:
    networks, optimizer = pair_of_networks()
    eager_losses = []
    for inputs, labels, k in batches:
        eager_losses.append(one_step(networks, optimizer, inputs, labels, torch.tensor(k, device="cuda")))
    expected = torch.nn.utils.parameters_to_vector(networks.parameters()).detach()

    networks, optimizer = pair_of_networks()
    start = [parameter.detach().clone() for parameter in networks.parameters()]
    held_inputs, held_labels, num_keep = (x.clone() for x in (*batches[0][:2], torch.tensor(1, device="cuda")))
    graph, (loss,) = captured(lambda: [one_step(networks, optimizer, held_inputs, held_labels, num_keep)])
    with torch.no_grad():  # the steps before the capture are undone
        for parameter, value in zip(networks.parameters(), start, strict=True):
            parameter.copy_(value)
        for state in optimizer.state.values():
            for tensor in state.values():
                tensor.zero_()
    losses = []
    for inputs, labels, k in batches:
        held_inputs.copy_(inputs)
        held_labels.copy_(labels)
        num_keep.fill_(k)
        graph.replay()
        losses.append(loss.clone())
    close = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(torch.stack(losses), torch.stack(eager_losses), **close)
    parameters = torch.nn.utils.parameters_to_vector(networks.parameters()).detach()
    torch.testing.assert_close(parameters, expected, **close)
    assert torch.stack(losses).unique().numel() == len(losses)


@pytest.mark.parametrize("rows", [IN_ONE_BLOCK, IN_A_CLUSTER])
def test_many_replays_give_the_same_bits(rows: int) -> None:
    """Two linked launches: a selection that did not wait for the rows would read those of the replay before."""
    inputs = [random_logits(rows, 10, device="cuda", seed=seed) for seed in (0, 1)]
    held = [x.detach().clone() for x in inputs[0]]
    graph, results = captured(lambda: list(jocor_fast.jocor_loss(*held, num_keep=2500)))
    expected = [list(jocor_fast.jocor_loss(*(x.detach() for x in each), num_keep=2500)) for each in inputs]
    for number in range(100):
        for tensor, new in zip(held, inputs[number % 2], strict=True):
            tensor.copy_(new.detach())
        graph.replay()
        assert all(map(torch.equal, results, expected[number % 2])), number


def test_torch_compile_puts_the_loss_into_its_own_graphs() -> None:
    torch._dynamo.reset()

    def step(z1: Tensor, z2: Tensor, target: Tensor, num_keep: Tensor) -> Tensor:
        return jocor_fast.jocor_loss(z1 * 2, z2, target, num_keep=num_keep).loss

    compiled = torch.compile(step, fullgraph=True, mode="reduce-overhead")
    for seed, k in ((0, 64), (1, 64), (2, 20), (3, 128)):
        inputs = random_logits(128, 10, device="cuda", seed=seed)
        num_keep = torch.tensor(k, device="cuda")
        value = compiled(*inputs, num_keep)
        gradients = [gradient.clone() for gradient in torch.autograd.grad(value, inputs[:2])]
        expected = step(*inputs, num_keep)
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(gradients, list(torch.autograd.grad(expected, inputs[:2])))


# --- nothing waits for the device -------------------------------------------------------------------------------------


@pytest.fixture
def waiting_is_an_error() -> Iterator[None]:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def test_waiting_is_noticed(waiting_is_an_error: None) -> None:
    with pytest.raises(RuntimeError, match="synchroniz"):
        torch.ones(3, device="cuda").sum().item()


@pytest.mark.parametrize(("rows", "classes"), SHAPES)
@pytest.mark.parametrize("keep", ["forget_rate", "number", "tensor"])
def test_no_function_of_the_loss_waits_for_the_device(
    rows: int, classes: int, keep: str, request: pytest.FixtureRequest
) -> None:
    z1, z2, target = random_logits(rows, classes, device="cuda")
    target[0] = classes  # no class: a row that is counted, not an error
    eligible = target > 0
    settings = {
        "forget_rate": {"forget_rate": 0.2},
        "number": {"num_keep": rows // 2},
        "tensor": {"num_keep": torch.tensor(rows // 2, device="cuda")},
    }[keep]
    weights, matrix = torch.ones(rows, device="cuda"), torch.eye(classes, device="cuda")
    request.getfixturevalue("waiting_is_an_error")
    for ignore_index in (None, 1):
        out = jocor_fast.jocor_loss(z1, z2, target, ignore_index=ignore_index, **settings)
        torch.autograd.grad(out.loss, (z1, z2))
        for disagreement in (False, True):
            exchanged = jocor_fast.coteaching_loss(
                z1, z2, target, disagreement=disagreement, ignore_index=ignore_index, **settings
            )
            torch.autograd.grad(exchanged.loss, (z1, z2))
        torch.autograd.grad(jocor_fast.decoupling_loss(z1, z2, target, ignore_index=ignore_index).loss, (z1, z2))
        losses = jocor_fast.joint_loss(z1, z2, target, ignore_index=ignore_index)
        torch.autograd.grad(losses, (z1, z2), weights)
    torch.autograd.grad(jocor_fast.forward_corrected_loss(z1, target, matrix), z1)
    if "num_keep" in settings:
        jocor_fast.select_small_loss(losses.detach(), settings["num_keep"], eligible=eligible)


def test_a_training_step_does_not_wait_for_the_device(
    batches: list[tuple[Tensor, Tensor, int]], request: pytest.FixtureRequest
) -> None:
    networks, optimizer = pair_of_networks()
    num_keep = torch.tensor(100, device="cuda")
    one_step(networks, optimizer, *batches[0][:2], num_keep)  # libraries are loaded, and the optimiser has its state
    request.getfixturevalue("waiting_is_an_error")
    for inputs, labels, _ in batches:
        one_step(networks, optimizer, inputs, labels, num_keep)


# --- streams and devices ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "classes"), SHAPES)
def test_kernels_run_on_the_current_stream(rows: int, classes: int) -> None:
    """The inputs are written there after a delay; a kernel on another stream would read what was there before."""
    fresh = random_logits(rows, classes, device="cuda")
    expected = loss_and_gradients(*fresh, rows // 2)
    held = [torch.zeros_like(x).requires_grad_(x.requires_grad) for x in fresh]
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        with torch.no_grad():
            for tensor, new in zip(held, fresh, strict=True):
                tensor.copy_(new)
        results = loss_and_gradients(*held, rows // 2)
    side.synchronize()
    assert all(map(torch.equal, results, expected))


@pytest.mark.parametrize(("rows", "classes"), SHAPES)
def test_tensors_on_a_second_device_while_the_first_is_current(rows: int, classes: int) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs a second GPU")
    expected = loss_and_gradients(*random_logits(rows, classes, device="cuda:0"), rows // 2)
    with torch.cuda.device(0):
        results = loss_and_gradients(*random_logits(rows, classes, device="cuda:1"), rows // 2)
        assert torch.cuda.current_device() == 0
    for result, right in zip(results, expected, strict=True):
        assert result.device == torch.device("cuda:1")
        assert torch.equal(result.cpu(), right.cpu())


def test_logits_on_two_devices_are_refused() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs a second GPU")
    z1, z2, target = random_logits(8, 3, device="cuda:0")
    with pytest.raises(ValueError, match="logits2"):
        jocor_fast.joint_loss(z1, z2.detach().to("cuda:1"), target)


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "classes"), [(70_000, 31_000), (2**22, 520)])
def test_more_logits_than_32_bits_count(rows: int, classes: int) -> None:
    """Both matrices pass 2^31 logits; the rows at both ends are compared with the same rows alone."""
    needed = 4 * rows * classes * 2 + (2 << 30)
    if torch.cuda.mem_get_info()[0] < needed:
        pytest.skip(f"needs {needed >> 30} GiB of the GPU's memory")
    generator = torch.Generator("cuda").manual_seed(0)
    z1, z2 = (
        torch.empty(rows, classes, dtype=torch.bfloat16, device="cuda").normal_(generator=generator).requires_grad_()
        for _ in range(2)
    )
    target = torch.randint(classes, (rows,), generator=generator, device="cuda")
    out = jocor_fast.jocor_loss(z1, z2, target, num_keep=rows)
    gradients = torch.autograd.grad(out.loss, (z1, z2))
    for part in (slice(0, 3), slice(rows - 3, rows)):
        ends = [z.detach()[part].clone().requires_grad_() for z in (z1, z2)]
        expected = oracle(*ends, target[part], 0.9)
        assert_close(out.per_sample[part], expected.losses)
        losses = jocor_fast.joint_loss(*ends, target[part])
        alone = torch.autograd.grad(losses, ends, torch.full((3,), 1 / rows, device="cuda"))
        for gradient, right in zip(gradients, alone, strict=True):
            torch.testing.assert_close(gradient[part], right, rtol=2.0**-7, atol=0)
