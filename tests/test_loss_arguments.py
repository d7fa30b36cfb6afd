"""What the loss and the selection refuse, and that the sentence names the argument."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

import jocor_fast
from loss_cases import dtype_name, everywhere, random_logits

FUNCTIONS = pytest.mark.parametrize("name", ["jocor_loss", "joint_loss"])


def call(loss, name, z1, z2, target, **settings):
    if name == "jocor_loss" and not {"num_keep", "forget_rate"} & settings.keys():
        settings["num_keep"] = 2
    return getattr(loss, name)(z1, z2, target, **settings)


# --- plain numbers ----------------------------------------------------------------------------------------------------


@everywhere
@FUNCTIONS
@pytest.mark.parametrize("co_lambda", [-0.1, 1.1, -1, 2, math.nan, math.inf, 10**400, np.float32(1.5)])
def test_co_lambda_outside_zero_to_one(loss, device, name, co_lambda):
    with pytest.raises(ValueError, match="co_lambda"):
        call(loss, name, *random_logits(4, 3, device=device), co_lambda=co_lambda)


@everywhere
@FUNCTIONS
@pytest.mark.parametrize("co_lambda", [True, np.bool_(True), "0.9", None, [0.9], 1j, torch.tensor(0.9)], ids=repr)
def test_co_lambda_that_is_no_number(loss, device, name, co_lambda):
    with pytest.raises(TypeError, match="co_lambda"):
        call(loss, name, *random_logits(4, 3, device=device), co_lambda=co_lambda)


@everywhere
@pytest.mark.parametrize("forget_rate", [-0.1, 1, 1.0, 2.5, math.nan, math.inf, -math.inf, 10**400])
def test_forget_rate_outside_zero_to_one(loss, device, forget_rate):
    with pytest.raises(ValueError, match="forget_rate"):
        loss.jocor_loss(*random_logits(4, 3, device=device), forget_rate=forget_rate)


@everywhere
@pytest.mark.parametrize("forget_rate", [False, "0.2", [0.2], 0.2j, torch.tensor(0.2)], ids=repr)
def test_forget_rate_that_is_no_number(loss, device, forget_rate):
    with pytest.raises(TypeError, match="forget_rate"):
        loss.jocor_loss(*random_logits(4, 3, device=device), forget_rate=forget_rate)


@everywhere
def test_exactly_one_of_forget_rate_and_num_keep(loss, device):
    inputs = random_logits(4, 3, device=device)
    for settings in ({}, {"forget_rate": 0.2, "num_keep": 2}, {"forget_rate": None, "num_keep": None}):
        with pytest.raises(TypeError, match="exactly one of forget_rate and num_keep"):
            loss.jocor_loss(*inputs, **settings)


@everywhere
@pytest.mark.parametrize("num_keep", [0, -1, -(2**40), 2**63, np.int64(0)], ids=repr)
def test_num_keep_below_one_or_beyond_64_bits(loss, device, num_keep):
    z1, z2, target = random_logits(4, 3, device=device)
    with pytest.raises(ValueError, match="num_keep"):
        loss.jocor_loss(z1, z2, target, num_keep=num_keep)
    with pytest.raises(ValueError, match="num_keep"):
        loss.select_small_loss(z1[:, 0], num_keep)


@everywhere
@pytest.mark.parametrize("num_keep", [2.0, True, "2", [2], np.float32(2)], ids=repr)
def test_num_keep_that_is_no_whole_number(loss, device, num_keep):
    z1, z2, target = random_logits(4, 3, device=device)
    with pytest.raises(TypeError, match="num_keep"):
        loss.jocor_loss(z1, z2, target, num_keep=num_keep)
    with pytest.raises(TypeError, match="num_keep"):
        loss.select_small_loss(z1[:, 0], num_keep)


@everywhere
@pytest.mark.parametrize(
    ("num_keep", "error"),
    [
        (torch.tensor(2, dtype=torch.int32), TypeError),
        (torch.tensor(2.0), TypeError),
        (torch.tensor(True), TypeError),
        (torch.tensor([2]), ValueError),
        (torch.tensor([[2, 2]]), ValueError),
        (torch.empty((), dtype=torch.int64, device="meta"), ValueError),
    ],
    ids=repr,
)
def test_num_keep_that_is_no_0d_int64_tensor_on_the_device_of_the_logits(loss, device, num_keep, error):
    z1, z2, target = random_logits(4, 3, device=device)
    num_keep = num_keep if num_keep.is_meta else num_keep.to(device)
    with pytest.raises(error, match="num_keep"):
        loss.jocor_loss(z1, z2, target, num_keep=num_keep)
    with pytest.raises(error, match="num_keep"):
        loss.select_small_loss(z1[:, 0], num_keep)


@everywhere
@pytest.mark.parametrize("num_keep", [0, -3])
def test_num_keep_below_one_in_a_tensor(loss, device, num_keep):
    """On CUDA the value is not looked at: nothing is selected."""
    z1, z2, target = random_logits(4, 3, device=device)
    num_keep = torch.tensor(num_keep, device=device)
    if device == "cpu":
        with pytest.raises(ValueError, match="num_keep"):
            loss.jocor_loss(z1, z2, target, num_keep=num_keep)
        with pytest.raises(ValueError, match="num_keep"):
            loss.select_small_loss(z1[:, 0], num_keep)
    else:
        out = loss.jocor_loss(z1, z2, target, num_keep=num_keep)
        assert (out.loss.item(), out.num_selected.item()) == (0, 0)
        assert not loss.select_small_loss(z1[:, 0], num_keep).any()


@everywhere
@FUNCTIONS
def test_ignore_index_of_another_type_or_size(loss, device, name):
    inputs = random_logits(4, 3, device=device)
    for ignore_index in (True, -100.0, "none", [0]):
        with pytest.raises(TypeError, match="ignore_index"):
            call(loss, name, *inputs, ignore_index=ignore_index)
    for ignore_index in (2**63, -(2**63) - 1):
        with pytest.raises(ValueError, match="ignore_index"):
            call(loss, name, *inputs, ignore_index=ignore_index)


@everywhere
def test_whole_and_numpy_numbers_are_accepted(loss, device):
    inputs = random_logits(8, 3, device=device)
    expected = loss.jocor_loss(*inputs, co_lambda=0.5, num_keep=4, ignore_index=1).loss
    for settings in (
        {"co_lambda": np.float32(0.5), "num_keep": np.int32(4), "ignore_index": np.int8(1)},
        {"co_lambda": Fraction(1, 2), "num_keep": np.uint64(4), "ignore_index": 1},
    ):
        assert torch.equal(loss.jocor_loss(*inputs, **settings).loss, expected)
    assert torch.equal(
        loss.jocor_loss(*inputs, co_lambda=1, forget_rate=0).loss,
        loss.jocor_loss(*inputs, co_lambda=1.0, forget_rate=0.0).loss,
    )
    rate = np.float64(0.5)
    assert loss.jocor_loss(*inputs, forget_rate=rate).num_selected == 4
    assert loss.select_small_loss(inputs[0].detach()[:, 0], np.int16(3)).sum() == 3


# --- tensors ----------------------------------------------------------------------------------------------------------


@everywhere
@FUNCTIONS
def test_what_is_no_tensor(loss, device, name):
    z1, z2, target = random_logits(4, 3, device=device)
    with pytest.raises(TypeError, match="logits1"):
        call(loss, name, z1.tolist(), z2, target)
    with pytest.raises(TypeError, match="logits2"):
        call(loss, name, z1, z2.detach().cpu().numpy(), target)
    with pytest.raises(TypeError, match="target"):
        call(loss, name, z1, z2, None)


@everywhere
@FUNCTIONS
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64, torch.float8_e5m2], ids=dtype_name)
def test_logits_of_a_type_that_is_not_computed(loss, device, name, dtype):
    z1, z2, target = random_logits(4, 3, device=device)
    with pytest.raises(TypeError, match="logits1"):
        call(loss, name, z1.detach().to(dtype), z2.detach().to(dtype), target)
    with pytest.raises(TypeError, match="logits2"):
        call(loss, name, z1, z2.detach().to(dtype), target)


@everywhere
@FUNCTIONS
def test_logits_of_different_types(loss, device, name):
    z1, z2, target = random_logits(4, 3, device=device)
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        with pytest.raises(
            TypeError, match=rf"^logits2 must be of type float32 like logits1, got {dtype_name(dtype)}$"
        ):
            call(loss, name, z1, z2.to(dtype), target)


@everywhere
@FUNCTIONS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bool, torch.complex64], ids=dtype_name)
def test_labels_that_are_no_integers(loss, device, name, dtype):
    z1, z2, target = random_logits(4, 3, device=device)
    with pytest.raises(TypeError, match="target"):
        call(loss, name, z1, z2, target.to(dtype))


@everywhere
@FUNCTIONS
@pytest.mark.parametrize("shape", [(3,), (4, 3, 1), (), (4, 0)])
def test_logits_that_are_no_matrix_with_a_class(loss, device, name, shape):
    z1, _, target = random_logits(4, 3, device=device)
    wrong = torch.zeros(shape, device=device)
    with pytest.raises(ValueError, match="logits1"):
        call(loss, name, wrong, wrong, target)
    with pytest.raises(ValueError, match="logits2"):
        call(loss, name, z1, wrong, target)


@everywhere
@FUNCTIONS
@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (1, 3), (4, 1), (3, 4)])
def test_logits_of_different_shapes(loss, device, name, shape):
    z1, _, target = random_logits(4, 3, device=device)
    with pytest.raises(ValueError, match=r"logits1.*logits2|logits2.*logits1"):
        call(loss, name, z1, torch.zeros(shape, device=device), target)


@everywhere
@FUNCTIONS
@pytest.mark.parametrize("shape", [(3,), (5,), (4, 1), (1, 4), (), (0,)])
def test_labels_of_the_wrong_shape(loss, device, name, shape):
    z1, z2, _ = random_logits(4, 3, device=device)
    with pytest.raises(ValueError, match="target"):
        call(loss, name, z1, z2, torch.zeros(shape, dtype=torch.long, device=device))


@everywhere
@FUNCTIONS
def test_tensors_on_different_devices(loss, device, name):
    z1, z2, target = random_logits(4, 3, device=device)
    elsewhere = "meta" if device == "cpu" else "cpu"
    with pytest.raises(ValueError, match="logits2"):
        call(loss, name, z1, z2.to(elsewhere), target)
    with pytest.raises(ValueError, match="target"):
        call(loss, name, z1, z2, target.to(elsewhere))


@everywhere
@FUNCTIONS
@pytest.mark.parametrize("kind", ["sparse_coo", "sparse_csr", "mkldnn", "quantized", "nested"])
@pytest.mark.filterwarnings("ignore")  # torch's, of tensors that are to come or to go
def test_a_tensor_that_is_not_dense_is_named(loss, device, name, kind):
    z1, z2, target = random_logits(4, 3)
    make = {
        "sparse_coo": torch.Tensor.to_sparse,
        "sparse_csr": torch.Tensor.to_sparse_csr,
        "mkldnn": torch.Tensor.to_mkldnn,
        "quantized": lambda z: torch.quantize_per_tensor(z, 0.1, 0, torch.qint8),
        "nested": lambda z: torch.nested.nested_tensor(list(z), layout=torch.jagged),
    }[kind]
    sentence = f"must be a dense tensor, got a {kind} one"
    with pytest.raises(TypeError, match=f"^logits1 {sentence}"):
        call(loss, name, make(z1), make(z2), target)
    with pytest.raises(TypeError, match=r"^losses must be a dense tensor, got a sparse_coo one"):
        loss.select_small_loss(z1[:, 0].to_sparse(), 2)
    with pytest.raises(TypeError, match=r"^target must be a dense tensor, got a sparse_coo one"):
        call(loss, name, z1, z2, target.to_sparse())
    with pytest.raises(TypeError, match=r"^logits must be a dense tensor, got a sparse_coo one"):
        loss.forward_corrected_loss(z1.to_sparse(), target, np.eye(3))


def test_a_transform_of_torch_func_is_told_what_is_accepted():
    z1, z2, target = random_logits(4, 3)
    for function in (
        lambda z: jocor_fast.jocor_loss(z, z2, target, num_keep=2).loss,
        lambda z: jocor_fast.joint_loss(z, z2, target).sum(),
        lambda z: jocor_fast.coteaching_loss(z, z2, target, num_keep=2).loss,
        lambda z: jocor_fast.decoupling_loss(z, z2, target).loss,
        lambda z: jocor_fast.forward_corrected_loss(z, target, np.eye(3)),
    ):
        with pytest.raises(RuntimeError, match=r"^the loss cannot be differentiated by .* of torch\.func"):
            torch.func.grad(function)(z1)


@everywhere
def test_selection_from_what_is_no_vector_of_losses(loss, device):
    for wrong in ([0.1, 0.2], np.zeros(2), None, torch.zeros(3, dtype=torch.long), torch.zeros(3, dtype=torch.bool)):
        wrong = wrong.to(device) if isinstance(wrong, torch.Tensor) else wrong
        with pytest.raises(TypeError, match="losses"):
            loss.select_small_loss(wrong, 1)
    for shape in ((), (2, 2), (3, 1)):
        with pytest.raises(ValueError, match="losses"):
            loss.select_small_loss(torch.zeros(shape, device=device), 1)


@everywhere
def test_selection_with_a_wrong_mask(loss, device):
    losses = torch.zeros(4, device=device)
    for wrong in ([True] * 4, torch.ones(4, dtype=torch.uint8), torch.ones(4)):
        wrong = wrong.to(device) if isinstance(wrong, torch.Tensor) else wrong
        with pytest.raises(TypeError, match="eligible"):
            loss.select_small_loss(losses, 1, eligible=wrong)
    for shape in ((3,), (4, 1), ()):
        with pytest.raises(ValueError, match="eligible"):
            loss.select_small_loss(losses, 1, eligible=torch.ones(shape, dtype=torch.bool, device=device))
    elsewhere = "meta" if device == "cpu" else "cpu"
    with pytest.raises(ValueError, match="eligible"):
        loss.select_small_loss(losses, 1, eligible=torch.ones(4, dtype=torch.bool, device=elsewhere))


WRONG = {
    "logits1 is a list": {"logits1": [[0.0]]},
    "logits1 of integers": {"logits1": torch.zeros(4, 3, dtype=torch.int64), "logits2": torch.zeros(4, 3).long()},
    "logits2 of another type": {"logits2": torch.zeros(4, 3, dtype=torch.float16)},
    "logits1 with one dimension": {"logits1": torch.zeros(4), "logits2": torch.zeros(4)},
    "no class": {"logits1": torch.zeros(4, 0), "logits2": torch.zeros(4, 0)},
    "logits2 of another shape": {"logits2": torch.zeros(4, 5)},
    "logits2 elsewhere": {"logits2": torch.zeros(4, 3, device="meta")},
    "labels of floats": {"target": torch.zeros(4)},
    "too few labels": {"target": torch.zeros(3, dtype=torch.int64)},
    "labels elsewhere": {"target": torch.zeros(4, dtype=torch.int64, device="meta")},
    "a label too high": {"target": torch.tensor([0, 1, 3, 7])},
    "a label too high among ignored ones": {"target": torch.tensor([-100, 1, 2**62, 7]), "ignore_index": -100},
    "an unsigned label past int64": {"target": torch.tensor([2**64 - 1, 0, 0, 0], dtype=torch.uint64)},
    "co_lambda": {"co_lambda": 1.5},
    "num_keep of a tensor": {"num_keep": torch.tensor(0)},
    "num_keep of a tensor elsewhere": {"num_keep": torch.tensor(1, device="meta")},
    "forget_rate": {"num_keep": None, "forget_rate": 1.5},
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_the_compiled_functions_and_the_reference_word_a_mistake_alike(wrong):
    arguments = {"logits1": torch.zeros(4, 3), "logits2": torch.zeros(4, 3), "target": torch.zeros(4).long()}
    arguments |= {"num_keep": 2, **WRONG[wrong]}
    said = []
    for loss in (jocor_fast, jocor_fast.reference):
        with pytest.raises((TypeError, ValueError), match=r"^\w+ must .*, got ") as raised:
            loss.jocor_loss(**arguments)
        said.append((isinstance(raised.value, TypeError), str(raised.value)))
    assert said[0] == said[1]


def test_forward_correction_and_the_selection_word_mistakes_alike_too():
    z, labels, eye, losses = torch.zeros(4, 3), torch.zeros(4).long(), torch.eye(3), torch.zeros(4)
    for name, arguments in (
        ("forward_corrected_loss", (z.long(), labels, eye)),
        ("forward_corrected_loss", (z[0], labels, eye)),
        ("forward_corrected_loss", (z, labels.float(), eye)),
        ("forward_corrected_loss", (z, labels[:2], eye)),
        ("forward_corrected_loss", (z, labels + 3, eye)),
        ("forward_corrected_loss", (z, labels, torch.eye(4))),
        ("select_small_loss", (losses.long(), 2)),
        ("select_small_loss", (z, 2)),
    ):
        said = []
        for loss in (jocor_fast, jocor_fast.reference):
            with pytest.raises((TypeError, ValueError), match=r"^\w+ must .*, got ") as raised:
                getattr(loss, name)(*arguments)
            said.append((isinstance(raised.value, TypeError), str(raised.value)))
        assert said[0] == said[1]


@everywhere
def test_settings_are_keywords_only(loss, device):
    inputs = random_logits(4, 3, device=device)
    for call_with_position in (
        lambda: loss.jocor_loss(*inputs, 0.9),
        lambda: loss.joint_loss(*inputs, 0.9),
        lambda: loss.select_small_loss(inputs[0][:, 0], 1, None),
        lambda: loss.num_keep(10, 0.2, "ceil"),
    ):
        with pytest.raises(TypeError, match="positional"):
            call_with_position()


@everywhere
def test_an_error_leaves_no_trace(loss, device):
    inputs = random_logits(4, 3, device=device)
    expected = loss.jocor_loss(*inputs, num_keep=2).loss
    with pytest.raises(ValueError, match="forget_rate"):
        loss.jocor_loss(*inputs, forget_rate=1.0)
    assert torch.equal(loss.jocor_loss(*inputs, num_keep=2).loss, expected)
