"""How the losses behave inside autograd: derivatives, what is saved, what is refused, what stays untouched."""

import pytest
import torch
from torch.autograd import forward_ad

import jocor_fast
import jocor_fast.reference
from loss_cases import LAYOUTS, assert_close, everywhere, oracle, random_logits, with_every_float_type

PAIR_LOSSES = ["jocor_loss", "joint_loss", "coteaching_loss", "decoupling_loss"]


def loss_of(loss, name, z1, z2, target):
    """The 0-d loss that a function of the library makes of a batch, or [B]."""
    settings = {"num_keep": 4} if name in ("jocor_loss", "coteaching_loss") else {}
    result = getattr(loss, name)(z1, z2, target, **settings)
    return result if name == "joint_loss" else result.loss


@everywhere
@pytest.mark.parametrize("co_lambda", [0.0, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("classes", [1, 2, 5, 17])
def test_gradcheck(loss, device, co_lambda, classes):
    z1, z2, target = random_logits(4, classes, torch.float64, device)

    def rows(logits1, logits2):
        return loss.joint_loss(logits1, logits2, target, co_lambda=co_lambda)

    def mean(logits1, logits2):
        return loss.jocor_loss(logits1, logits2, target, co_lambda=co_lambda, num_keep=2).loss

    assert torch.autograd.gradcheck(rows, (z1, z2), check_undefined_grad=True, check_batched_grad=False)
    assert torch.autograd.gradcheck(mean, (z1, z2))


@everywhere
@with_every_float_type
@pytest.mark.parametrize("frozen", [0, 1])
def test_frozen_network_gets_no_gradient(loss, device, dtype, frozen):
    z1, z2, target = random_logits(20, 10, dtype, device)
    expected = oracle(z1, z2, target, 0.9)
    expected_gradient = (expected.gradient1, expected.gradient2)[1 - frozen]
    logits = [z1, z2]
    logits[frozen] = logits[frozen].detach()
    for value in (
        loss.joint_loss(*logits, target).sum() / 20,
        loss.jocor_loss(*logits, target, num_keep=20).loss,
    ):
        (gradient,) = torch.autograd.grad(value, logits[1 - frozen])
        assert_close(gradient, expected_gradient / 20)
        assert logits[frozen].grad is None


@everywhere
def test_only_the_gradient_that_is_asked_for(loss, device):
    z1, z2, target = random_logits(20, 10, device=device)
    both = torch.autograd.grad(loss.jocor_loss(z1, z2, target, num_keep=9).loss, (z1, z2))
    for network in (0, 1):
        (alone,) = torch.autograd.grad(loss.jocor_loss(z1, z2, target, num_keep=9).loss, (z1, z2)[network])
        assert torch.equal(alone, both[network])


@everywhere
def test_nothing_is_recorded_where_nothing_needs_a_gradient(loss, device):
    z1, z2, target = random_logits(20, 10, device=device)
    tracked = loss.jocor_loss(z1, z2, target, num_keep=9)
    with torch.no_grad():
        untracked = loss.jocor_loss(z1, z2, target, num_keep=9)
        assert not loss.joint_loss(z1, z2, target).requires_grad
    detached = loss.jocor_loss(z1.detach(), z2.detach(), target, num_keep=9)
    for out in (untracked, detached):
        assert not any(tensor.requires_grad for tensor in out)
        assert all(torch.equal(one, other) for one, other in zip(out, tracked, strict=True))


@everywhere
@with_every_float_type
def test_one_tensor_as_both_logits_gets_both_gradients(loss, device, dtype):
    z, _, target = random_logits(20, 10, dtype, device)
    expected = oracle(z, z, target, 0.5)
    (gradient,) = torch.autograd.grad(loss.joint_loss(z, z, target, co_lambda=0.5).sum(), z)
    assert_close(gradient, expected.gradient1 + expected.gradient2)


@everywhere
def test_gradients_scale_with_grad_output(loss, device):
    z1, z2, target = random_logits(20, 10, device=device)
    once = torch.autograd.grad(loss.jocor_loss(z1, z2, target, num_keep=9).loss, (z1, z2))
    scaled = torch.autograd.grad(-4 * loss.jocor_loss(z1, z2, target, num_keep=9).loss, (z1, z2))
    for gradient, gradient_scaled in zip(once, scaled, strict=True):
        assert torch.equal(-4 * gradient, gradient_scaled)  # a power of two: exact


@everywhere
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_layout_of_grad_output_does_not_matter(loss, device, dtype):
    z1, z2, target = random_logits(12, 10, dtype, device)
    weights = torch.randn(12, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    for view in (torch.stack([weights, weights * 0], dim=1)[:, 0], weights[:1].expand(12), weights[3:4].expand(12)):
        gradients = torch.autograd.grad(loss.joint_loss(z1, z2, target), (z1, z2), view)
        contiguous = torch.autograd.grad(loss.joint_loss(z1, z2, target), (z1, z2), view.contiguous())
        assert all(torch.equal(one, other) for one, other in zip(gradients, contiguous, strict=True))


@everywhere
def test_gradients_flow_to_what_the_logits_were_made_from(loss, device):
    """Through two linear layers, as in training; the logits are not leaves and lie next to each other in memory."""
    features = torch.randn(16, 5, generator=torch.Generator().manual_seed(0)).to(device)
    layer = torch.nn.Linear(5, 2 * 3).to(device)
    target = torch.arange(16, device=device) % 3
    z1, z2 = layer(features).unflatten(1, (2, 3)).unbind(1)
    loss.jocor_loss(z1, z2, target, num_keep=8).loss.backward()
    expected = oracle(z1, z2, target, 0.9)
    selected = loss.jocor_loss(z1, z2, target, num_keep=8).selected.cpu().numpy()
    bias_gradient = [(gradient * selected[:, None] / 8).sum(0) for gradient in (expected.gradient1, expected.gradient2)]
    assert_close(layer.bias.grad.view(2, 3), bias_gradient)


def gradients_by_torch_ops(z1, z2, target, upstream, num_keep):
    """The derivative of the operator itself, which computes gradients in the backward pass."""
    value = torch.ops.jocor_fast.jocor_loss(z1, z2, target, None, 0.9, None, num_keep, None, False)[0]
    return torch.autograd.grad(value, (z1, z2), torch.tensor(upstream, dtype=value.dtype))


@pytest.mark.parametrize("upstream", [1.0, -3.0, float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(20, 10), (7, 1), (33, 100), (400, 100)])
def test_gradients_computed_with_the_loss_are_those_of_the_backward_pass(shape, dtype, upstream):
    """On plain CPU tensors up to 32,768 logits; rows that are not selected get zeros for any upstream gradient."""
    z1, z2, target = random_logits(*shape, dtype)
    with torch.no_grad():
        z1[0, -1] = -float("inf") if shape[1] > 1 else 0.0
        z2[1] = float("nan")
    value = jocor_fast.jocor_loss(z1, z2, target, num_keep=5).loss
    gradients = torch.autograd.grad(value, (z1, z2), torch.tensor(upstream, dtype=dtype))
    if upstream == 1.0:
        assert all(map(torch.equal, gradients, gradients_by_torch_ops(z1, z2, target, upstream, 5)))
    elif upstream == -3.0:
        torch.testing.assert_close(gradients, gradients_by_torch_ops(z1, z2, target, upstream, 5))
    assert all((gradient == 0).all(dim=1).sum() >= shape[0] - 5 for gradient in gradients)


def test_gradients_asked_for_twice_share_no_memory():
    z1, z2, target = random_logits(20, 10)
    value = jocor_fast.jocor_loss(z1, z2, target, num_keep=9).loss
    first = torch.autograd.grad(value, (z1, z2), retain_graph=True)
    kept = [gradient.clone() for gradient in first]
    for gradient in first:
        gradient.zero_()
    assert all(map(torch.equal, torch.autograd.grad(value, (z1, z2)), kept))


def test_a_tensor_that_a_hook_keeps_is_not_handed_out_as_the_gradient():
    z1, z2, target = random_logits(20, 10)
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: packed.append(saved) or saved, lambda saved: saved):
        value = jocor_fast.jocor_loss(z1, z2, target, num_keep=9).loss
    gradients = torch.autograd.grad(value, (z1, z2))
    assert {gradient.data_ptr() for gradient in gradients}.isdisjoint(saved.data_ptr() for saved in packed)


# --- what is refused --------------------------------------------------------------------------------------------------


@everywhere
@pytest.mark.parametrize("changed", ["logits1", "logits2", "target"])
@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_input_changed_in_place_before_backward_is_an_error(loss, device, changed, name):
    z1, z2, target = random_logits(8, 3, device=device)
    inputs = {"logits1": z1 * 1, "logits2": z2 * 1, "target": target.clone()}
    value = loss_of(loss, name, *inputs.values()).sum()
    inputs[changed].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", PAIR_LOSSES)
@pytest.mark.parametrize("with_respect_to", ["both", "one", "grad_output"])
def test_second_derivative_is_refused(device, name, with_respect_to):
    """Not dropped in silence: a gradient penalty would train on something else."""
    z1, z2, target = random_logits(8, 3, device=device)
    if with_respect_to == "one":
        z2 = z2.detach()
    value = loss_of(jocor_fast, name, z1, z2, target)
    grad_output = torch.ones_like(value).requires_grad_(with_respect_to == "grad_output")
    (gradient,) = torch.autograd.grad(value, z1, grad_output, create_graph=True)
    with pytest.raises(RuntimeError, match="twice"):
        gradient.square().sum().backward()


@everywhere
@pytest.mark.parametrize("name", PAIR_LOSSES)
@pytest.mark.parametrize("needs_gradient", [False, True])
@pytest.mark.filterwarnings("ignore:.*jit.script:FutureWarning")  # torch's own
def test_forward_mode_is_refused(loss, device, name, needs_gradient):
    """Not answered by a derivative of 0."""
    z1, z2, target = random_logits(8, 3, device=device)
    z1 = z1 if needs_gradient else z1.detach()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(z1, torch.ones_like(z1))
        for logits in ((dual, z2.detach()), (z2.detach(), dual)):
            with pytest.raises(RuntimeError, match="jvp"):
                loss_of(loss, name, *logits, target)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("co_lambda", [0.0, 0.5, 1.0])
def test_second_derivative_of_the_reference(device, co_lambda):
    z1, z2, target = random_logits(3, 4, torch.float64, device)

    def mean(logits1, logits2):
        return jocor_fast.reference.jocor_loss(logits1, logits2, target, co_lambda=co_lambda, num_keep=2).loss

    assert torch.autograd.gradgradcheck(mean, (z1, z2))


@everywhere
def test_outputs_may_be_changed_in_place(loss, device):
    """As those of torch's losses: weights and masks are often applied in place."""
    z1, z2, target = random_logits(8, 3, device=device)
    expected = torch.autograd.grad((loss.joint_loss(z1, z2, target) * 2).sum(), (z1, z2))
    losses = loss.joint_loss(z1, z2, target)
    losses *= 2
    assert all(map(torch.equal, torch.autograd.grad(losses.sum(), (z1, z2)), expected))
    expected = torch.autograd.grad(loss.jocor_loss(z1, z2, target, num_keep=4).loss, (z1, z2))
    out = loss.jocor_loss(z1, z2, target, num_keep=4)
    out.per_sample.zero_()
    assert all(map(torch.equal, torch.autograd.grad(out.loss, (z1, z2)), expected))


@everywhere
@pytest.mark.parametrize("name", [*PAIR_LOSSES, "forward_corrected_loss"])
def test_hooks_on_saved_tensors_may_hand_them_back_at_any_address_with_other_strides(loss, device, name):
    """As those do that pack what is kept for the backward pass; between the values lies what must not be read."""

    def with_gaps(saved):
        gaps = torch.full_like(saved, torch.nan) if saved.is_floating_point() else torch.zeros_like(saved)
        return torch.stack([saved, gaps], dim=-1)[..., 0]

    def gradients(unpack):
        z1, z2, target = random_logits(8, 3, device=device)
        with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, unpack):
            if name == "forward_corrected_loss":
                value = loss.forward_corrected_loss(z1, target, 0.7 * torch.eye(3) + 0.1)
            else:
                value = loss_of(loss, name, z1, z2, target).sum()
        return torch.autograd.grad(value, (z1,) if name == "forward_corrected_loss" else (z1, z2))

    expected = gradients(lambda saved: saved)
    assert all(gradient.isfinite().all() for gradient in expected)
    for unpack in (with_gaps, LAYOUTS["misaligned"]):  # where a GPU cannot load a row of statistics
        assert all(map(torch.equal, gradients(unpack), expected))


# --- what stays untouched ---------------------------------------------------------------------------------------------


@everywhere
@with_every_float_type
@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs_are_not_written_to(loss, device, dtype, layout):
    z1, z2, target = random_logits(9, 10, dtype, device)
    z1, z2 = (LAYOUTS[layout](z.detach()).requires_grad_() for z in (z1, z2))
    num_keep = torch.tensor(4, device=device)
    inputs = (z1, z2, target, num_keep)
    before = [x.detach().clone() for x in inputs]
    versions = [x._version for x in inputs]
    loss.jocor_loss(z1, z2, target, num_keep=num_keep, ignore_index=0).loss.backward()
    loss.joint_loss(z1, z2, target).sum().backward()
    assert all(map(torch.equal, inputs, before))
    assert [x._version for x in inputs] == versions


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("ignore_index", [None, 2])
def test_module_equals_the_function(device, ignore_index):
    z1, z2, target = random_logits(20, 5, device=device)
    module = jocor_fast.JoCoRLoss(co_lambda=0.7, ignore_index=ignore_index)
    for keep in ({"forget_rate": 0.4}, {"num_keep": 3}):
        out = module(z1, z2, target, **keep)
        expected = jocor_fast.jocor_loss(z1, z2, target, co_lambda=0.7, ignore_index=ignore_index, **keep)
        assert all(map(torch.equal, out, expected))
    assert not list(module.parameters())
    assert repr(module) == f"JoCoRLoss(co_lambda=0.7, ignore_index={ignore_index})"
    assert jocor_fast.JoCoRLoss().co_lambda == 0.9
