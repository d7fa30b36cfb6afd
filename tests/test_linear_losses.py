"""The pair's losses from hidden states: those of the logits, without the logits of all rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import jocor_fast as jf
from jocor_fast import _linear_operators, linear_losses
from loss_cases import FLOAT_TYPES, dtype_name, everywhere

KINDS: list[dict[str, Any]] = [{"forget_rate": 0.4}, {"num_keep": 5}, {"num_keep": torch.tensor(9)}]


@pytest.fixture(params=[5, 512], ids=["tiles", "one tile"])
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many tiles the 11 classes are in, where the logits are not kept."""
    monkeypatch.setattr(_linear_operators, "TILE_CLASSES", {"cpu": request.param, "cuda": request.param})
    return 3 if request.param == 5 else 1


in_tiles = pytest.mark.usefixtures("tiles")
on_one_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def pair(
    rows: int = 40, classes: int = 11, dtype: torch.dtype = torch.float64, device: str = "cpu", bias: bool = True
) -> dict[str, Any]:
    """Arguments of both functions, of networks with 13 and 17 features, which want gradients."""
    generator = torch.Generator().manual_seed(1)

    def drawn(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64).to(device, dtype).requires_grad_()

    made = {"hidden1": drawn(rows, 13), "weight1": drawn(classes, 13), "hidden2": drawn(rows, 17)}
    made |= {"weight2": drawn(classes, 17), "target": torch.randint(classes, (rows,), generator=generator).to(device)}
    return made | ({"bias1": drawn(classes), "bias2": drawn(classes)} if bias else {})


def logits_of(given: dict[str, Any]) -> tuple[Tensor, Tensor]:
    return (
        functional.linear(given["hidden1"], given["weight1"], given.get("bias1")),
        functional.linear(given["hidden2"], given["weight2"], given.get("bias2")),
    )


def gradients(given: dict[str, Any]) -> dict[str, Tensor | None]:
    return {name: value.grad for name, value in given.items() if value is not None and value.is_floating_point()}


def assert_same(mine: dict[str, Any], theirs: dict[str, Any], **tolerances: float) -> None:
    for name, gradient in gradients(theirs).items():
        torch.testing.assert_close(mine[name].grad, gradient, **tolerances)


@in_tiles
@everywhere
@pytest.mark.parametrize("chunk_rows", [None, 1, 7, 1000])
@pytest.mark.parametrize("ignore_index", [None, 3])
@pytest.mark.parametrize("kind", KINDS, ids=["rate", "number", "tensor"])
def test_value_selection_and_gradients_are_those_of_the_logits(
    loss: Any, device: str, chunk_rows: int | None, ignore_index: int | None, kind: dict[str, Any]
) -> None:
    kind = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in kind.items()}
    how = {"co_lambda": 0.7, "ignore_index": ignore_index, **kind}
    mine, theirs = pair(device=device), pair(device=device)
    out = loss.linear_jocor_loss(**mine, **how, chunk_rows=chunk_rows)
    expected = jf.reference.jocor_loss(*logits_of(theirs), theirs["target"], **how)
    torch.testing.assert_close(tuple(out), tuple(expected), rtol=0, atol=1e-12)
    (3 * out.loss).backward()
    (3 * expected.loss).backward()
    assert_same(mine, theirs, rtol=0, atol=1e-12)


@in_tiles
@everywhere
@pytest.mark.parametrize("chunk_rows", [None, 7])
def test_rows_are_those_of_the_logits(loss: Any, device: str, chunk_rows: int | None) -> None:
    mine, theirs = pair(device=device, bias=False), pair(device=device, bias=False)
    rows = loss.linear_joint_loss(**mine, co_lambda=0.3, ignore_index=2, chunk_rows=chunk_rows)
    expected = jf.reference.joint_loss(*logits_of(theirs), theirs["target"], co_lambda=0.3, ignore_index=2)
    torch.testing.assert_close(rows, expected, rtol=0, atol=1e-12)
    factors = torch.arange(40, device=device)
    (rows * factors).sum().backward()
    (expected * factors).sum().backward()
    assert_same(mine, theirs, rtol=0, atol=1e-11)


@in_tiles
@pytest.mark.parametrize("dtype", FLOAT_TYPES[:3], ids=dtype_name)
@pytest.mark.parametrize("chunk_rows", [None, 3])
def test_other_types_are_as_exact_as_the_plain_way(dtype: torch.dtype, chunk_rows: int | None) -> None:
    """Against float64: no more than twice the error of the plain way, and gradients in the types of their tensors."""
    exact, mine, plain = pair(), pair(dtype=dtype), pair(dtype=dtype)
    for given in (mine, plain):  # the same numbers, rounded
        assert all(torch.equal(given[name], exact[name].to(dtype)) for name in gradients(given))
    for name in gradients(exact):
        exact[name] = mine[name].detach().double().requires_grad_()
    num_keep = 20
    jf.reference.jocor_loss(*logits_of(exact), exact["target"], num_keep=num_keep).loss.backward()
    jf.jocor_loss(*logits_of(plain), plain["target"], num_keep=num_keep).loss.backward()
    jf.linear_jocor_loss(**mine, num_keep=num_keep, chunk_rows=chunk_rows).loss.backward()
    for name, right in gradients(exact).items():
        assert mine[name].grad.dtype == dtype
        errors = [(given[name].grad.double() - right).abs().max().item() for given in (mine, plain)]
        assert errors[0] <= 2 * errors[1] + torch.finfo(dtype).eps * right.abs().max().item()


def rows_read_by_gemms(work: Callable[[], Any]) -> list[int]:
    """Rows of hidden states or logit gradients in each matrix product that runs."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        work()
    rows = []
    for event in profile.events():
        if event.name in ("aten::mm", "aten::addmm", "aten::addmm_"):
            sizes = {size for shape in event.input_shapes if len(shape) == 2 for size in shape}
            rows += sizes - {11, 13, 17, 5, 1}  # classes, features and the classes of a tile
    return rows


@pytest.mark.parametrize("chunk_rows", [None, 7])
def test_the_backward_pass_multiplies_selected_rows_alone(chunk_rows: int | None, tiles: int) -> None:
    given = pair(rows=41)
    out = jf.linear_jocor_loss(**given, num_keep=16, chunk_rows=chunk_rows)
    rows = rows_read_by_gemms(out.loss.backward)
    assert sum(rows) == 16 * (6 * tiles if chunk_rows else 4)  # logits again, and of each network two gradients
    assert max(rows) == (chunk_rows or 16)


@pytest.mark.parametrize("chunk_rows", [None, 7])
def test_the_logits_of_a_chunk_are_all_that_there_is(chunk_rows: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they are not kept; some classes of some rows."""
    monkeypatch.setattr(linear_losses, "KEPT_BYTES", 0)
    monkeypatch.setattr(linear_losses, "CHUNK_ROWS", {"cpu": 64})
    rows = rows_read_by_gemms(lambda: jf.linear_jocor_loss(**pair(rows=100), forget_rate=0.5, chunk_rows=chunk_rows))
    assert (max(rows), sum(rows)) == (chunk_rows or 64, 200)


@in_tiles
@pytest.mark.parametrize("chunk_rows", [None, 7])
def test_the_way_of_a_gpu_which_counts_nothing(chunk_rows: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes as many rows as may be selected; those that are not add nothing, also where they are not finite."""
    monkeypatch.setattr(_linear_operators, "_may_count", lambda tensor: False)
    mine, theirs = pair(), pair()
    for given in (mine, theirs):
        given["hidden1"].data[3] = torch.nan
        given["target"][5:] = -100  # fewer are eligible than num_keep says
    out = jf.linear_jocor_loss(**mine, num_keep=10, ignore_index=-100, chunk_rows=chunk_rows)
    assert (out.num_selected, out.num_nonfinite) == (4, 1)
    out.loss.backward()
    selected = out.selected
    chosen = {name: value[selected] if len(value) == 40 else value for name, value in theirs.items()}
    jf.joint_loss(*logits_of(chosen), chosen["target"]).mean().backward()
    assert_same(mine, theirs, rtol=0, atol=1e-12)


@in_tiles
@pytest.mark.parametrize("chunk_rows", [None, 7])
def test_rows_that_are_not_finite_add_nothing(chunk_rows: int | None) -> None:
    given = pair()
    given["hidden2"].data[3] = torch.inf
    rows = jf.linear_joint_loss(**given, chunk_rows=chunk_rows)
    assert not rows[3].isfinite()
    rows.sum().backward()
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients(given).values())
    assert given["hidden1"].grad[3].abs().sum() == 0


@in_tiles
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=dtype_name)
@pytest.mark.parametrize("ruled_out", [[1, 7, 8], [5, 6, 7, 8, 9], [10]])
@pytest.mark.parametrize("by", [("bias1", "bias2"), ("bias1",), ("bias2",)])
def test_classes_that_a_network_rules_out(dtype: torch.dtype, ruled_out: list[int], by: tuple[str, ...]) -> None:
    """Also all of a tile, and where the other network gives them no probability that is above zero."""
    found = []
    for linear in (True, False):
        given = pair(dtype=dtype)
        for name in ("bias1", "bias2"):
            given[name].data[ruled_out] = -torch.inf if name in by else -1e5
        if linear:
            rows = jf.linear_joint_loss(**given, chunk_rows=9, co_lambda=0.4)
        else:
            rows = jf.joint_loss(*logits_of(given), given["target"], co_lambda=0.4)
        rows.sum().backward()
        found.append((rows.detach(), gradients(given)))
    (rows, gradient), (plain, plain_gradient) = found
    assert torch.equal(rows.isfinite(), plain.isfinite())
    assert rows.isfinite().any()
    finite = rows.isfinite()
    torch.testing.assert_close(rows[finite], plain[finite])
    torch.testing.assert_close(gradient, plain_gradient)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int64])
def test_labels_of_fewer_numbers_than_a_tile_has_classes(dtype: torch.dtype) -> None:
    mine, theirs = pair(classes=300), pair(classes=300)
    for given in (mine, theirs):
        given["target"] %= 100
    rows = jf.linear_joint_loss(**{**mine, "target": mine["target"].to(dtype)}, chunk_rows=9)
    expected = jf.joint_loss(*logits_of(theirs), theirs["target"])
    torch.testing.assert_close(rows, expected)
    rows.sum().backward()
    expected.sum().backward()
    assert_same(mine, theirs)


@in_tiles
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=dtype_name)
def test_logits_ten_thousand_apart(dtype: torch.dtype) -> None:
    mine, theirs = pair(dtype=dtype), pair(dtype=dtype)
    for given in (mine, theirs):
        given["bias1"].data[::2] += 10_000
        given["bias2"].data[::3] -= 10_000
    rows = jf.linear_joint_loss(**mine, chunk_rows=9, co_lambda=0.4)
    expected = jf.joint_loss(*logits_of(theirs), theirs["target"], co_lambda=0.4)
    rounded = 10_000 * torch.finfo(dtype).eps  # of a logit
    torch.testing.assert_close(rows, expected, rtol=rounded, atol=8 * rounded)
    rows.sum().backward()
    expected.sum().backward()
    assert_same(mine, theirs, rtol=rounded, atol=8 * rounded)


def test_what_wants_no_gradient_gets_none() -> None:
    given = pair()
    for name in ("hidden1", "weight1", "bias1", "weight2"):
        given[name].requires_grad_(False)
    jf.linear_jocor_loss(**given, forget_rate=0.5).loss.backward()
    assert {name for name, gradient in gradients(given).items() if gradient is not None} == {"hidden2", "bias2"}
    with torch.no_grad():
        assert not jf.linear_jocor_loss(**given, forget_rate=0.5).loss.requires_grad


@in_tiles
@pytest.mark.parametrize("chunk_rows", [None, 7])
def test_both_networks_may_share_a_last_layer_and_gradients_accumulate(chunk_rows: int | None) -> None:
    """Also with an embedding that the hidden states come from."""
    generator = torch.Generator().manual_seed(2)
    tokens, target = (torch.randint(11, (30,), generator=generator) for _ in range(2))
    start = torch.randn(11, 8, generator=generator, dtype=torch.float64)
    found = []
    for linear in (True, False):
        weight = start.clone().requires_grad_()
        for _ in range(2):
            hidden1, hidden2 = functional.embedding(tokens, weight).tanh(), functional.embedding(tokens, weight).sin()
            if linear:
                out = jf.linear_jocor_loss(
                    hidden1, weight, hidden2, weight, target, forget_rate=0.3, chunk_rows=chunk_rows
                )
            else:
                out = jf.jocor_loss(hidden1 @ weight.t(), hidden2 @ weight.t(), target, forget_rate=0.3)
            out.loss.backward()
        found.append(weight.grad)
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


@in_tiles
@on_one_device
@pytest.mark.parametrize("kept_bytes", [0, linear_losses.KEPT_BYTES], ids=["chunks", "kept"])
def test_compiled_whole_with_any_batch(device: str, kept_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_losses, "KEPT_BYTES", kept_bytes)
    torch._dynamo.reset()

    def step(num_keep: int, **given: Tensor) -> Tensor:
        out = jf.linear_jocor_loss(**given, num_keep=num_keep)  # type: ignore[arg-type]
        rated = jf.linear_jocor_loss(**given, forget_rate=0.3, ignore_index=1)  # type: ignore[arg-type]
        rows = jf.linear_joint_loss(**given)  # type: ignore[arg-type]
        return out.loss + rated.loss + rows.mean()

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (40, 70, 9):
        mine, theirs = pair(rows, device=device), pair(rows, device=device)
        ours, plain = compiled(5, **mine), step(5, **theirs)
        torch.testing.assert_close(ours, plain)
        ours.backward()
        plain.backward()
        assert_same(mine, theirs)


@on_one_device
def test_autocast_casts_as_linear_does(device: str) -> None:
    mine, theirs = pair(dtype=torch.float32, device=device), pair(dtype=torch.float32, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        out = jf.linear_jocor_loss(**mine, num_keep=20)
        expected = jf.jocor_loss(*logits_of(theirs), theirs["target"], num_keep=20)
    assert out.loss.dtype == torch.float32
    torch.testing.assert_close(out.per_sample, expected.per_sample, rtol=1e-6, atol=1e-6)
    out.loss.backward()
    expected.loss.backward()
    assert mine["weight1"].grad.dtype == torch.float32
    assert_same(mine, theirs, rtol=0.02, atol=1e-3)


def test_no_rows() -> None:
    given = pair(rows=0)
    out = jf.linear_jocor_loss(**given, forget_rate=0.5)
    out.loss.backward()
    assert (out.loss, out.num_selected) == (0, 0)
    assert all(gradient is not None and not gradient.any() for gradient in gradients(given).values())


def test_inputs_that_change_before_the_backward_pass_and_second_derivatives_are_refused() -> None:
    given = pair()
    out = jf.linear_jocor_loss(**given, forget_rate=0.5)
    with torch.no_grad():
        given["weight1"] += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.loss.backward()
    given = pair()
    out = jf.linear_jocor_loss(**given, forget_rate=0.5)
    (first,) = torch.autograd.grad(out.loss, given["weight1"], create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
        first.sum().backward()


@pytest.mark.parametrize(
    ("changes", "error", "sentence"),
    [
        ({"hidden1": torch.zeros(40)}, ValueError, r"hidden1 must have shape \[batch, features\], got \[40\]"),
        ({"hidden1": [1.0]}, TypeError, "hidden1 must be a tensor, got list"),
        ({"hidden1": torch.zeros(40, 13, dtype=torch.int32)}, TypeError, "hidden1 must be of type float16, .*int32"),
        ({"hidden2": torch.zeros(3, 17).double()}, ValueError, "hidden2 must have 40 rows like hidden1, got 3"),
        ({"weight1": torch.zeros(11, 9)}, ValueError, r"weight1 must have shape \[classes, 13\], got \[11, 9\]"),
        ({"weight2": torch.zeros(12, 17).double()}, ValueError, "weight2 must have 11 rows like weight1, got 12"),
        ({"weight2": torch.zeros(11, 17)}, TypeError, "weight2 must be of type float64 like hidden1, got float32"),
        ({"bias1": torch.zeros(12).double()}, ValueError, r"bias1 must have shape \[11\], got \[12\]"),
        ({"target": torch.zeros(39).long()}, ValueError, r"target must have shape \[40\] like the rows of hidden1"),
        ({"target": torch.zeros(40)}, TypeError, "target must be of an integer type, got float32"),
        (
            {"target": torch.arange(40) // 20 * 11},
            ValueError,
            r"target must hold labels in \[0, 11\), got 11 in row 20",
        ),
        ({"hidden2": torch.zeros(40, 17, device="meta").double()}, ValueError, "hidden2 must be on cpu like hidden1"),
        ({"chunk_rows": 0}, ValueError, "chunk_rows must be at least 1, got 0"),
        ({"chunk_rows": 2.0}, TypeError, "chunk_rows must be an int, got float"),
        ({"co_lambda": 2.0}, ValueError, r"co_lambda must lie in \[0, 1\], got 2.0"),
        ({"num_keep": 3}, TypeError, "exactly one of forget_rate and num_keep must be given, got both"),
    ],
)
@pytest.mark.parametrize("loss", [jf, jf.reference], ids=["compiled", "reference"])
def test_wrong_arguments_are_one_sentence(
    loss: Any, changes: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=f"^{sentence}"):
        loss.linear_jocor_loss(**{"chunk_rows": 7, **pair(), "forget_rate": 0.5, **changes})
