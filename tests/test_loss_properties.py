"""Any shapes, values, labels and layouts that Hypothesis can think of, against the oracle."""

import numpy as np
import pytest
import torch

from loss_cases import BROADCASTS, INTEGER_TYPES, LAYOUTS, assert_close, everywhere, oracle, row_scale, select

hypothesis = pytest.importorskip("hypothesis")
hnp = pytest.importorskip("hypothesis.extra.numpy")
assume, given, st = hypothesis.assume, hypothesis.given, hypothesis.strategies
INF, NAN = float("inf"), float("nan")
# The oracle's exponentials are exact to 1e-16; float32 logits beyond 1e30 would overflow in differences of two.
ORDINARY = st.floats(-30, 30, width=16)
EXTREME = st.sampled_from([0.0, -0.0, 1e-30, -1e-40, 87.0, 88.75, -88.75, 104.0, -104.0, 1e4, -1e4, 1e30, -1e30])
BROKEN = st.sampled_from([NAN, INF, -INF])


@st.composite
def batches(draw, elements, max_rows=70, max_classes=70):
    """float32 logits of both networks and labels, some of them -100; rows often repeat."""
    classes = draw(st.integers(1, max_classes))
    distinct = draw(st.integers(0, 4))
    rows = draw(st.integers(0, max_rows)) if distinct else 0
    stored = draw(hnp.arrays(np.float32, (distinct, 2, classes), elements=elements, fill=draw(st.just(elements))))
    choice = draw(hnp.arrays(np.int64, rows, elements=st.integers(0, max(distinct - 1, 0))))
    logits = stored[choice].reshape(rows, 2, classes)
    ignored = st.sampled_from([-100]) if draw(st.booleans()) else st.nothing()
    target = draw(hnp.arrays(np.int64, rows, elements=st.integers(0, classes - 1) | ignored))
    return torch.from_numpy(logits[:, 0].copy()), torch.from_numpy(logits[:, 1].copy()), torch.from_numpy(target)


def a_ruled_out_class_is_about_to_underflow(z1: torch.Tensor, z2: torch.Tensor) -> bool:
    """A class that is -inf in one network and so improbable in the other that float32 may or may not make it 0.

    At 0 the class counts as ruled out by both and the loss is finite, else it is infinite; float64 cannot tell which.
    """
    for masked, other in ((z1, z2), (z2, z1)):
        log_probability = torch.log_softmax(other.detach().double(), 1)
        if (masked.isneginf() & ~other.isneginf() & (log_probability < -80)).any():
            return True
    return False


CO_LAMBDAS = st.sampled_from([0.0, 0.9, 1.0]) | st.floats(1e-9, 1)


@everywhere
@given(batch=batches(ORDINARY | EXTREME | BROKEN), co_lambda=CO_LAMBDAS, forget_rate=st.floats(0, 1, exclude_max=True))
def test_mean_and_gradients(loss, device, batch, co_lambda, forget_rate):
    assume(not a_ruled_out_class_is_about_to_underflow(*batch[:2]))
    z1, z2, target = (x.to(device) for x in batch)
    z1, z2 = z1.requires_grad_(), z2.requires_grad_()
    out = loss.jocor_loss(z1, z2, target, co_lambda=co_lambda, forget_rate=forget_rate, ignore_index=-100)
    gradient1, gradient2 = torch.autograd.grad(out.loss, (z1, z2))
    expected = oracle(z1, z2, target, co_lambda, ignore_index=-100)
    finite = np.isfinite(expected.losses)
    per_sample, selected = out.per_sample.cpu().numpy(), out.selected.cpu().numpy()

    np.testing.assert_array_equal(np.isfinite(per_sample), finite)
    assert_close(out.per_sample[torch.from_numpy(finite)], expected.losses[finite])
    k = loss.num_keep(int(expected.eligible.sum()), forget_rate)
    np.testing.assert_array_equal(selected, select(per_sample, k, expected.eligible))
    assert out.num_selected.item() == selected.sum() == min(k, (finite & expected.eligible).sum())
    assert out.num_nonfinite.item() == (expected.eligible & ~finite).sum()
    mean = expected.losses[selected].mean() if selected.any() else 0.0
    assert_close(out.loss, mean)
    weight = selected[:, None] / max(1, selected.sum())
    assert_close(gradient1, weight * expected.gradient1, row_scale(expected))
    assert_close(gradient2, weight * expected.gradient2, row_scale(expected))
    assert not gradient1.cpu().numpy()[~selected].any()
    assert not gradient2.cpu().numpy()[~selected].any()


@everywhere
@given(
    batch=batches(ORDINARY, max_rows=12, max_classes=40),
    layouts=st.tuples(st.sampled_from(sorted(LAYOUTS)), st.sampled_from(sorted(LAYOUTS))),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
    label_type=st.sampled_from(INTEGER_TYPES),
    label_step=st.integers(1, 3),
    data=st.data(),
)
def test_layouts_and_types(loss, device, batch, layouts, dtype, label_type, label_step, data):
    z1, z2 = (z.to(device, dtype) for z in batch[:2])
    if len(z1) and data.draw(st.booleans()):
        z1 = BROADCASTS[data.draw(st.sampled_from(sorted(BROADCASTS)))](z1)
    view1, view2 = (LAYOUTS[layout](z).requires_grad_() for layout, z in zip(layouts, (z1, z2), strict=True))
    target = batch[2].clamp(min=0).to(label_type).repeat_interleave(label_step).to(device)[::label_step]
    co_lambda = data.draw(CO_LAMBDAS)
    losses = loss.joint_loss(view1, view2, target, co_lambda=co_lambda)
    gradient1, gradient2 = torch.autograd.grad(losses, (view1, view2), torch.ones_like(losses))
    expected = oracle(view1, view2, target, co_lambda)
    assert_close(losses, expected.losses)
    assert_close(gradient1, expected.gradient1, row_scale(expected))
    assert_close(gradient2, expected.gradient2, row_scale(expected))


@everywhere
@given(
    losses=hnp.arrays(
        np.float32,
        st.integers(0, 70),
        elements=st.one_of(
            st.floats(width=32), st.sampled_from([0.0, -0.0, 1.0, 1.0 + 2**-23, 1e-45, -1e-45, NAN, INF, -INF])
        ),
    ),
    data=st.data(),
)
def test_the_choice_among_any_losses(loss, device, losses, data):
    rows = len(losses)
    num_keep = data.draw(st.integers(1, rows + 3))
    eligible = data.draw(st.none() | hnp.arrays(np.bool_, rows))
    mask = None if eligible is None else torch.from_numpy(eligible).to(device)
    expected = select(losses, num_keep, eligible)
    for numbers in (torch.from_numpy(losses).to(device), torch.from_numpy(losses).to(device).double()):
        np.testing.assert_array_equal(loss.select_small_loss(numbers, num_keep, eligible=mask).cpu().numpy(), expected)
