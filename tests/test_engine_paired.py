"""Two perceptrons trained as one: the results of plain modules, and only where the structure allows it."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from engine_cases import CLASSES, blobs, fit, pair_of, parameters, same_bits, settings, small_mlp
from jocor_fast._extension import compiled
from jocor_fast.engine import paired_mlp
from jocor_fast.engine.networks import SeparateNetworks
from jocor_fast.engine.paired_mlp import PairedMLP
from jocor_fast.losses import jocor_loss


def deep_mlp() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, CLASSES))


def pair(build: Callable[[], nn.Module] = deep_mlp) -> tuple[nn.Module, nn.Module]:
    return pair_of(build)


def batch(rows: int = 20) -> tuple[Tensor, Tensor]:
    data = blobs(rows, (2, 3))
    return data.inputs * (1 / 255), data.labels


def gradients(networks: tuple[nn.Module, ...], inputs: Tensor, labels: Tensor, num_keep: int) -> list[Tensor]:
    """What plain modules under autograd get."""
    group = SeparateNetworks(networks)
    group.backward(jocor_loss(*group.logits(inputs), labels, num_keep=num_keep).loss)
    return [parameter.grad for network in networks for parameter in network.parameters()]  # type: ignore[misc]


def gradients_of_pair(group: PairedMLP) -> list[Tensor]:
    """The pair's gradients, in the order of the modules' parameters."""
    layers = list(zip(group._weight_gradients, group._bias_gradients, strict=True))
    return [part for index in range(2) for weight, bias in layers for part in (weight[index], bias[index, 0])]


@pytest.mark.parametrize("num_keep", [1, 7, 20])
def test_logits_and_gradients_are_those_of_the_modules(num_keep: int) -> None:
    inputs, labels = batch()
    expected = gradients(pair(), inputs, labels, num_keep)
    networks = pair()
    plain_logits = [network(inputs) for network in networks]
    group = PairedMLP(networks)
    for _ in range(2):  # the second pass finds the buffers dirty
        logits = group.logits(inputs)
        for mine, theirs in zip(logits, plain_logits, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
        group.backward(jocor_loss(*logits, labels, num_keep=num_keep).loss)
        for mine, theirs in zip(gradients_of_pair(group), expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_a_batch_without_a_single_selected_row_has_zero_gradients() -> None:
    inputs, labels = batch(4)
    group = PairedMLP(pair())
    group.backward(jocor_loss(*group.logits(inputs), labels, num_keep=4).loss)
    logits = group.logits(torch.full_like(inputs, torch.nan))
    group.backward(jocor_loss(*logits, labels, num_keep=4).loss)
    assert all(not gradient.any() for gradient in gradients_of_pair(group))


def test_a_row_that_is_not_a_number_leaves_the_weights_finite() -> None:
    """Plain modules would add 0 · NaN for it, though the loss gives it a gradient of exactly zero."""
    inputs, labels = batch()
    inputs[3] = torch.nan
    group = PairedMLP(pair())
    group.backward(jocor_loss(*group.logits(inputs), labels, num_keep=20).loss)
    finite = gradients_of_pair(group)
    assert all(gradient.isfinite().all() for gradient in finite)
    keep = torch.arange(20) != 3
    expected = gradients(pair(), inputs[keep], labels[keep], 19)
    for mine, theirs in zip(finite, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_in_use_the_modules_are_the_pair_and_afterwards_they_stand_alone() -> None:
    inputs, _ = batch()
    networks = pair()
    identities = [id(parameter) for network in networks for parameter in network.parameters()]
    group = PairedMLP(networks)
    group.parameters[0].data.mul_(1.5)
    with torch.no_grad():
        for logits, network in zip(group.logits(inputs), networks, strict=True):
            torch.testing.assert_close(logits, network(inputs), rtol=1e-5, atol=1e-6)
    group.release()
    values = parameters(networks)
    group.parameters[0].data.zero_()
    assert same_bits(values, parameters(networks))
    assert identities == [id(parameter) for network in networks for parameter in network.parameters()]
    for value in networks[0].state_dict().values():  # a file of them holds their numbers, and no other network's
        assert value.untyped_storage().nbytes() == 4 * value.numel()
    copy.deepcopy(networks[1])(inputs).sum().backward()


def test_fit_trains_the_parameters_that_the_caller_holds() -> None:
    networks = pair(small_mlp)
    held = [parameter for network in networks for parameter in network.parameters()]
    before = [parameter.detach().clone() for parameter in held]
    fit(settings(epochs=1), networks, blobs(40))
    assert not any(torch.equal(old, new) for old, new in zip(before, held, strict=True))
    assert all(parameter.grad is None and parameter.is_leaf for parameter in held)


class OwnLinear(nn.Linear):
    """A layer that may compute anything."""


def with_hook() -> nn.Sequential:
    network = deep_mlp()
    network[3].register_forward_hook(lambda module, inputs, output: output * 2)
    return network


def with_gradient_hook() -> nn.Sequential:
    network = deep_mlp()
    network[3].weight.register_hook(lambda gradient: gradient * 2)
    return network


def with_own_forward() -> nn.Sequential:
    network = deep_mlp()
    network[2].forward = torch.sigmoid
    return network


def with_shared_layer() -> nn.Sequential:
    square = nn.Linear(6, 6)
    return nn.Sequential(square, nn.ReLU(), square, nn.ReLU(), nn.Linear(6, CLASSES))


def pruned() -> nn.Sequential:
    network = deep_mlp()
    prune.l1_unstructured(network[1], "weight", 0.5)
    return network


def normed() -> nn.Sequential:
    network = deep_mlp()
    parametrizations.weight_norm(network[1])
    return network


OTHERS: dict[str, Callable[[], nn.Module]] = {
    "one layer": lambda: nn.Sequential(nn.Linear(6, CLASSES)),
    "dropout": lambda: nn.Sequential(nn.Linear(6, 9), nn.Dropout(), nn.Linear(9, CLASSES)),
    "no bias": lambda: nn.Sequential(nn.Linear(6, 9, bias=False), nn.ReLU(), nn.Linear(9, CLASSES)),
    "no activation": lambda: nn.Sequential(nn.Linear(6, 9), nn.Linear(9, CLASSES)),
    "activation last": lambda: nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, CLASSES), nn.ReLU()),
    "float64": lambda: deep_mlp().double(),
    "own layer": lambda: nn.Sequential(OwnLinear(6, 9), nn.ReLU(), nn.Linear(9, CLASSES)),
    "own module": lambda: nn.ModuleDict({"a": deep_mlp()}),
    "hook": with_hook,
    "gradient hook": with_gradient_hook,
    "own forward": with_own_forward,
    "shared layer": with_shared_layer,
    "pruned": pruned,
    "weight norm": normed,
}


@pytest.mark.parametrize("build", OTHERS.values(), ids=OTHERS)
def test_other_structures_are_not_paired(build: Callable[[], nn.Module]) -> None:
    assert PairedMLP.fits(pair(), torch.zeros(2, 6))
    assert not PairedMLP.fits(pair(build), torch.zeros(2, 6))


def test_what_else_keeps_networks_from_being_paired() -> None:
    one, other = pair()
    wider = nn.Sequential(nn.Linear(6, 11), nn.ReLU(), nn.Linear(11, CLASSES))
    narrow = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, CLASSES))
    tied = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), narrow[2])
    flat, images, tokens = torch.zeros(2, 6), torch.zeros(2, 2, 3), torch.zeros(2, 6, dtype=torch.int64)
    assert not PairedMLP.fits((one,), flat)
    assert not PairedMLP.fits((wider, narrow), flat)
    assert not PairedMLP.fits((tied, narrow), flat)
    assert not PairedMLP.fits((one, other), tokens)
    assert PairedMLP.fits((one, other), images)
    without_flatten = (copy.deepcopy(narrow), narrow)
    assert PairedMLP.fits(without_flatten, flat)
    assert not PairedMLP.fits(without_flatten, images)  # Linear works on the last dimension of those


def test_a_gradient_hook_of_the_caller_is_heeded() -> None:
    """Such networks train separately, with the hook at work."""
    networks = pair(small_mlp)
    networks[0][1].weight.register_hook(torch.zeros_like)
    before = networks[0][1].weight.clone()
    fit(settings(epochs=1), networks, blobs(40))
    assert torch.equal(before, networks[0][1].weight)


def of_layer(networks: int, rows: int, hidden: int, outputs: int) -> list[Tensor]:
    """What the backward pass of a layer takes, its inputs with gaps between their rows."""
    draw = torch.Generator().manual_seed(rows)
    apart = torch.randn(rows, networks * hidden + 3, generator=draw)
    inputs = apart[:, : networks * hidden].unflatten(1, (networks, hidden)).transpose(0, 1).relu()
    gradient = torch.randn(networks, rows, outputs, generator=draw)
    weight = torch.randn(networks, outputs, hidden, generator=draw)
    into = [torch.full_like(weight, 7.0), torch.full((networks, 1, outputs), 7.0)]
    return [gradient, inputs, weight, *into]


@pytest.mark.parametrize("operator", [paired_mlp.perceptron_gradients, paired_mlp._plain_gradients])
@pytest.mark.parametrize("without", [0, 1, 5, 12])
@pytest.mark.parametrize("networks", [1, 2])
def test_a_layer_s_gradients_are_those_of_float64(
    operator: Callable[..., tuple[Tensor, Tensor]], without: int, networks: int
) -> None:
    rows, hidden, width = 12, 5, 5 * networks + 6
    given = of_layer(networks, rows, hidden, 3)
    given[0][:, rows - without :] = 0.0
    if without == 5:
        given[0][-1, 2] = 0.0
        given[0][-1, 3] = torch.tensor([0.0, torch.nan, 0.0])
        given[1][0, 4, 1] = torch.nan
    found, joined = operator(*given, width)
    assert found.tolist() == [row for row in range(rows - without) if given[0][:, row].ne(0).any()]
    gradient, inputs, weight = (tensor.double() for tensor in given[:3])
    of_inputs = torch.where(inputs <= 0, 0.0, gradient @ weight)[:, found].transpose(0, 1).flatten(1)
    wanted = torch.cat([of_inputs, of_inputs.new_zeros(len(found), 6)], 1)
    inputs = inputs[:, found].transpose(1, 2)
    sums = (inputs @ gradient[:, found]).transpose(1, 2), gradient[:, found].sum(1, keepdim=True)
    for mine, theirs in zip((joined, *given[3:]), (wanted, *sums), strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.skipif(compiled is None, reason="compiled kernels are hidden")
def test_a_layer_s_gradients_pass_torch_s_checks_and_refuse_other_shapes() -> None:
    given = of_layer(2, 9, 5, 3)
    torch.library.opcheck(torch.ops.jocor_fast.perceptron_gradients.default, (*given, 10))
    with pytest.raises(ValueError, match="width must be at least 10, got 9"):
        paired_mlp.perceptron_gradients(*given, 9)
    for place in range(len(given)):
        for wrong, error in ((given[place][:, :, :2], ValueError), (given[place].double(), TypeError)):
            changed = [*given[:place], wrong, *given[place + 1 :]]
            with pytest.raises(error, match=r"must (have shape|be float32)"):
                paired_mlp.perceptron_gradients(*changed, 10)
    with pytest.raises(ValueError, match="gradient and inputs must have 3 dimensions"):
        paired_mlp.perceptron_gradients(given[0][0], *given[1:], 10)
