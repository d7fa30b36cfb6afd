"""The compiled operators inside torch's machinery: opcheck, torch.compile, autocast, inference mode, fake tensors."""

import shutil

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import jocor_fast
from loss_cases import FLOAT_TYPES, assert_close, dtype_name, operator_samples, oracle, random_logits

on_every_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
OPERATORS = sorted({name.split("::")[1] for name in torch._C._dispatch_get_all_op_names() if "jocor_fast::" in name})


def test_the_library_has_the_operators_that_are_tested():
    assert OPERATORS == [
        "coteaching_loss",
        "forward_corrected_loss",
        "forward_corrected_loss_backward",
        "jocor_loss",
        "joint_loss",
        "joint_loss_backward",
        "linear_joint_loss",
        "linear_joint_loss_backward",
        # "perceptron_…", "rows_…" and "sparse_…" are of CPU tensors alone: test_engine_paired.py, test_sparse_linear.py
        "perceptron_gradients",
        "robust_loss",
        "robust_loss_backward",
        "rows_without_zeros",
        "select_small_loss",
        "sparse_adam_catch_up_",
        "sparse_adam_step_",
        "sparse_linear",
        "sparse_linear_gradient",
        "sparse_rows",
    ]


@on_every_device
@pytest.mark.parametrize("name", [name for name in OPERATORS if not name.startswith(("perceptron", "rows", "sparse"))])
def test_opcheck(name, device):
    operator = getattr(torch.ops.jocor_fast, name).default
    for sample in operator_samples(name, device):
        torch.library.opcheck(operator, sample)


# --- torch.compile ----------------------------------------------------------------------------------------------------


def step(z1, z2, target, num_keep):
    """A step as users write it: arithmetic before and after the loss, every function of the library inside."""
    out = jocor_fast.jocor_loss(z1 * 2, z2 + 1, target, co_lambda=0.7, num_keep=num_keep)
    rated = jocor_fast.jocor_loss(z1, z2, target, forget_rate=0.25, ignore_index=0)
    rows = jocor_fast.joint_loss(z1, z2, target, co_lambda=0.3)
    chosen = jocor_fast.select_small_loss(rows.detach(), num_keep, eligible=target > 0)
    exchanged = jocor_fast.coteaching_loss(z1, z2, target, num_keep=num_keep)
    among = jocor_fast.coteaching_loss(z1, z2, target, forget_rate=0.25, disagreement=True, ignore_index=0)
    differing = jocor_fast.decoupling_loss(z1, z2, target)
    matrix = torch.full((z1.shape[1], z1.shape[1]), 1 / z1.shape[1], device=z1.device)
    corrected = jocor_fast.forward_corrected_loss(
        z1, target, matrix * 0.5 + torch.eye(len(matrix), device=z1.device) / 2
    )
    sieved = jocor_fast.cores_loss(z1, target, ignore_index=0)
    robust = jocor_fast.gce_loss(z1, target) + jocor_fast.sce_loss(z2, target, reduction="none").sum()
    robust = robust + jocor_fast.nce_rce_loss(z2, target, ignore_index=0) + sieved.loss
    total = out.loss + rated.loss + (rows * chosen).sum() + exchanged.loss + among.loss + differing.loss + corrected
    return (
        total + robust,
        exchanged.selected1,
        among.selected2,
        differing.selected,
        sieved.selected,
        out.selected,
        rated.num_selected,
        rated.num_nonfinite,
        chosen,
    )


def check_step(compiled, z1, z2, target, num_keep):
    results, expected = compiled(z1, z2, target, num_keep), step(z1, z2, target, num_keep)
    gradients, expected_gradients = (torch.autograd.grad(each[0], (z1, z2)) for each in (results, expected))
    torch.testing.assert_close(results, expected)
    torch.testing.assert_close(gradients, expected_gradients)


@on_every_device
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_whole_with_any_batch_and_number_of_classes(device, backend):
    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend=backend)
    for rows, classes, k in ((12, 5, 4), (7, 9, 3), (64, 10, 30), (130, 40, 64)):
        check_step(compiled, *random_logits(rows, classes, device=device), k)
    check_step(compiled, *random_logits(12, 5, device=device), torch.tensor(4, device=device))


@on_every_device
def test_one_graph_serves_every_shape_and_number_to_keep(device):
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(
        lambda z1, z2, target, k: jocor_fast.jocor_loss(z1, z2, target, num_keep=k).loss,
        fullgraph=True,
        dynamic=True,
        backend=counter,
    )
    for rows, classes, k in ((12, 5, 4), (7, 9, 3), (64, 10, 30), (130, 40, 64)):
        inputs = random_logits(rows, classes, device=device)
        assert torch.equal(compiled(*inputs, k), jocor_fast.jocor_loss(*inputs, num_keep=k).loss)
    assert counter.frame_count == 1


@on_every_device
@pytest.mark.skipif(shutil.which("g++") is None, reason="the default backend compiles C++ and finds no g++")
def test_compiled_by_the_default_backend(device):
    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, dynamic=True)
    for rows, classes, k in ((12, 5, 4), (64, 10, 30)):
        check_step(compiled, *random_logits(rows, classes, device=device), k)


@on_every_device
def test_module_and_changing_rates_compile(device):
    torch._dynamo.reset()
    module = jocor_fast.JoCoRLoss(0.5, ignore_index=1)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    z1, z2, target = random_logits(20, 5, device=device)
    for rate in (0.0, 0.1, 0.25, 0.5):
        out, expected = compiled(z1, z2, target, forget_rate=rate), module(z1, z2, target, forget_rate=rate)
        torch.testing.assert_close(tuple(out), tuple(expected))


@on_every_device
def test_wrong_arguments_are_errors_when_compiled_too(device):
    torch._dynamo.reset()
    compiled = torch.compile(lambda *inputs: jocor_fast.joint_loss(*inputs, co_lambda=0.5), backend="aot_eager")
    z1, z2, target = random_logits(6, 3, device=device)
    with pytest.raises(Exception, match="target"):
        compiled(z1, z2, target[:-1])
    if device == "cpu":
        with pytest.raises(ValueError, match="target"):
            compiled(z1, z2, target + 3)


@on_every_device
def test_backward_passes_are_taken_by_compiled_autograd(device):
    """It takes no C++ function with an output that has no derivative, and ends in an assertion of torch's."""
    torch._dynamo.reset()
    inputs = random_logits(12, 5, device=device)
    expected = torch.autograd.grad(step(*inputs, 4)[0], inputs[:2])
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        gradients = torch.autograd.grad(step(*inputs, 4)[0], inputs[:2])
    torch.testing.assert_close(gradients, expected)


# --- fake tensors, autocast, inference mode ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOAT_TYPES, ids=dtype_name)
def test_fake_and_meta_tensors_have_the_outputs_of_real_ones(dtype):
    """Without torch.compile: memory estimates and exporters call the public functions on tensors without numbers."""
    real = random_logits(6, 5, dtype)
    expected = outputs_and_gradients(*real)
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(x.detach()).requires_grad_(x.requires_grad) for x in real]
    with mode:
        fake = outputs_and_gradients(*fakes)
    meta = outputs_and_gradients(*(x.detach().to("meta").requires_grad_(x.requires_grad) for x in real))
    for results in (fake, meta):
        assert [(x.shape, x.dtype) for x in results] == [(x.shape, x.dtype) for x in expected]


def outputs_and_gradients(z1, z2, target):
    out = jocor_fast.jocor_loss(z1, z2, target, num_keep=3)
    rows = jocor_fast.joint_loss(z1, z2, target)
    mask = jocor_fast.select_small_loss(rows.detach(), 2)
    exchanged = jocor_fast.coteaching_loss(z1, z2, target, num_keep=3)
    differing = jocor_fast.decoupling_loss(z1, z2, target)
    corrected = jocor_fast.forward_corrected_loss(z1, target, torch.eye(5, device=z1.device))
    total = out.loss + rows.sum() + exchanged.loss + differing.loss + corrected
    return [*out, rows, mask, *exchanged, *differing, corrected, *torch.autograd.grad(total, (z1, z2))]


@on_every_device
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast(device, dtype):
    """Layers give half-precision logits; the loss is float32, and float32 parameters get their gradients."""
    layers = [torch.nn.Linear(8, 5).to(device) for _ in range(2)]
    features = torch.randn(16, 8, generator=torch.Generator().manual_seed(0)).to(device)
    target = torch.arange(16, device=device) % 5
    with torch.autocast(device, dtype=dtype):
        z1, z2 = (layer(features) for layer in layers)
        assert z1.dtype == dtype
        out = jocor_fast.jocor_loss(z1, z2, target, num_keep=16)
        rows = jocor_fast.joint_loss(z1, z2, target)
        wide = jocor_fast.joint_loss(z1.double(), z2.double(), target)
    expected = oracle(z1, z2, target, 0.9)
    assert (out.loss.dtype, rows.dtype, wide.dtype) == (torch.float32, torch.float32, torch.float64)
    assert_close(out.per_sample, expected.losses)
    assert_close(rows, expected.losses)
    assert_close(wide, expected.losses)
    (out.loss * 1024).backward()  # as a gradient scaler does
    assert layers[0].weight.grad.dtype == torch.float32
    bias_gradient = expected.gradient1.mean(axis=0) * 1024
    torch.testing.assert_close(
        layers[0].bias.grad.double().cpu(), torch.from_numpy(bias_gradient), rtol=0.02, atol=0.02 * 1024 / 16
    )


@on_every_device
def test_inference_mode(device):
    z1, z2, target = random_logits(8, 5, device=device)
    expected = jocor_fast.jocor_loss(z1, z2, target, num_keep=3)
    with torch.inference_mode():
        out = jocor_fast.jocor_loss(z1, z2, target, num_keep=3)
        mask = jocor_fast.select_small_loss(jocor_fast.joint_loss(z1, z2, target), 3)
    assert all(map(torch.equal, out, expected))
    assert torch.equal(mask, expected.selected)
    assert not any(tensor.requires_grad for tensor in out)


@on_every_device
def test_tensors_made_in_inference_mode_are_accepted_outside(device):
    with torch.inference_mode():
        z1, z2, target = (x.detach().clone() for x in random_logits(8, 5, device=device))
    out = jocor_fast.jocor_loss(z1, z2, target, num_keep=3)
    assert out.selected.sum() == 3
