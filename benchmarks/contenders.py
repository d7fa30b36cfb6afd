"""The contenders of the benches: each computes the same piece of work from the same inputs.

A contender prepares a step for a case (compiles it, captures it in a graph); the step goes from the inputs to the loss,
the gradients or the choice. What is timed is checked first: `assert_agrees` compares its results with the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import jocor_fast as jf
from cases import (
    ARGSORT,
    COMPILED,
    COMPILED_TO_GRAPH,
    EAGER,
    IN_GRAPH,
    KERNELS_ALONE,
    OURS,
    PUBLISHED,
    TOPK,
    Case,
    Work,
)
from inputs import CO_LAMBDA, Inputs
from jocor_fast import _C

Loss = Callable[[Tensor, Tensor, Tensor, int], Tensor]


def published(logits1: Tensor, logits2: Tensor, target: Tensor, kept: int) -> Tensor:
    """As the paper's published code computes it: two kl_div of softmaxes, rows ranked by argsort on the host."""
    logits1, logits2 = as_autocast_does(logits1), as_autocast_does(logits2)

    def divergence(logits: Tensor, soft_targets: Tensor) -> Tensor:
        terms = F.kl_div(F.log_softmax(logits, dim=1), F.softmax(soft_targets, dim=1), reduction="none")
        return terms.sum(dim=1)

    supervised1 = F.cross_entropy(logits1, target, reduction="none") * (1 - CO_LAMBDA)
    supervised2 = F.cross_entropy(logits2, target, reduction="none") * (1 - CO_LAMBDA)
    agreement = divergence(logits1, logits2) + divergence(logits2, logits1)
    per_sample = (supervised1 + supervised2 + CO_LAMBDA * agreement).cpu()
    order = np.argsort(per_sample.detach().numpy())
    return per_sample[torch.from_numpy(order[:kept])].mean()


def eager(logits1: Tensor, logits2: Tensor, target: Tensor, kept: int) -> Tensor:
    """The plain formula, each softmax computed once, and torch.topk without sorting: what a careful user writes."""
    logits1, logits2 = as_autocast_does(logits1), as_autocast_does(logits2)
    log_p, log_q = F.log_softmax(logits1, dim=1), F.log_softmax(logits2, dim=1)
    supervised = F.nll_loss(log_p, target, reduction="none") + F.nll_loss(log_q, target, reduction="none")
    agreement = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(dim=1)
    per_sample = (1 - CO_LAMBDA) * supervised + CO_LAMBDA * agreement
    return torch.topk(per_sample, kept, largest=False, sorted=False).values.mean()


def as_autocast_does(logits: Tensor) -> Tensor:
    """Half-precision logits become float32 for a loss; ours reads them as they are, and computes in float32 too."""
    return logits.float() if logits.dtype.itemsize == 2 else logits


def ours(logits1: Tensor, logits2: Tensor, target: Tensor, kept: int) -> Tensor:
    """The public function."""
    return jf.jocor_loss(logits1, logits2, target, co_lambda=CO_LAMBDA, num_keep=kept).loss


# --- steps ------------------------------------------------------------------------------------------------------------


class Result(NamedTuple):
    """What a step computes; None for what it does not."""

    loss: Tensor | None = None
    gradient1: Tensor | None = None
    gradient2: Tensor | None = None
    selected: Tensor | None = None  # bool [B], or the kept rows' numbers in any order


Step = Callable[[], Result]
Prepare = Callable[[Inputs, Work], Step]


def through_autograd(loss: Loss) -> Prepare:
    def prepare(inputs: Inputs, work: Work) -> Step:
        logits = (inputs.logits1, inputs.logits2)

        def forward() -> Result:
            return Result(loss(*logits, inputs.target, inputs.kept))

        def forward_and_backward() -> Result:
            value = loss(*logits, inputs.target, inputs.kept)
            return Result(value, *torch.autograd.grad(value, logits))

        return forward if work == "forward" else forward_and_backward

    return prepare


def compiled(inputs: Inputs, work: Work) -> Step:
    # For this shape alone: by torch's default a second one would be compiled for any number of rows, and be slower.
    return through_autograd(torch.compile(eager, dynamic=False))(inputs, work)


def compiled_to_graph(inputs: Inputs, work: Work) -> Step:
    step = through_autograd(torch.compile(eager, dynamic=False, mode="reduce-overhead"))(inputs, work)

    def one() -> Result:
        torch.compiler.cudagraph_mark_step_begin()  # the results of the step before may be overwritten
        return step()

    return one


def in_graph(inputs: Inputs, work: Work) -> Step:
    """Ours, captured once and replayed."""
    step = through_autograd(ours)(inputs, work)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())  # which makes the inputs
    with torch.cuda.stream(side):
        step()  # autograd and the allocator are warm before the capture
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        result = step()
    # Autograd's graph would live on in the loss, and with it the logits' nodes, which remember the side stream: every
    # other contender's backward pass would go there and back.
    assert result.loss is not None
    result = result._replace(loss=result.loss.detach())

    def replay() -> Result:
        graph.replay()
        return result

    return replay


def kernels_alone(inputs: Inputs, work: Work) -> Step:
    """Our kernels called one by one: what is left of the time without autograd and the dispatcher."""
    logits = (inputs.logits1.detach(), inputs.logits2.detach(), inputs.target)

    def rows_and_selection() -> tuple[Tensor, Tensor]:
        per_sample, statistics = _C.joint_loss_forward(*logits, CO_LAMBDA)
        return statistics, _C.select_small_loss(per_sample, inputs.kept)

    def gradients(statistics: Tensor, selected: Tensor) -> Result:
        backward = _C.joint_loss_backward
        return Result(
            None, *backward(inputs.one, *logits, statistics, selected, inputs.num_selected, CO_LAMBDA), selected
        )

    def rows() -> Result:
        _C.joint_loss_forward(*logits, CO_LAMBDA)
        return Result()

    steps: dict[Work, Step] = {
        "forward": lambda: Result(selected=rows_and_selection()[1]),
        "forward + backward": lambda: gradients(*rows_and_selection()),
        "rows alone": rows,
        "gradient alone": lambda: gradients(inputs.statistics, inputs.selected),
        "selection": lambda: Result(selected=_C.select_small_loss(inputs.losses, inputs.kept)),
    }
    return steps[work]


def by_topk(inputs: Inputs, work: Work) -> Step:
    take = partial(torch.topk, inputs.losses, inputs.kept, largest=False, sorted=False)
    return lambda: Result(selected=take().indices)


def by_argsort(inputs: Inputs, work: Work) -> Step:
    return lambda: Result(selected=torch.argsort(inputs.losses, stable=True)[: inputs.kept])


PREPARED: dict[str, Prepare] = {
    PUBLISHED: through_autograd(published),
    EAGER: through_autograd(eager),
    COMPILED: compiled,
    COMPILED_TO_GRAPH: compiled_to_graph,
    OURS: through_autograd(ours),
    IN_GRAPH: in_graph,
    KERNELS_ALONE: kernels_alone,
}
ON_GPU_ALONE = (COMPILED_TO_GRAPH, IN_GRAPH)


def contenders_of(case: Case, device: str) -> dict[str, Prepare]:
    """By name, in the order of the tables; in `OURS`' place the kernel itself where a piece of work is one kernel."""
    if case.work == "selection":
        contenders: dict[str, Prepare] = {ARGSORT: by_argsort, TOPK: by_topk, OURS: kernels_alone}
    elif case.work in ("rows alone", "gradient alone"):
        contenders = {OURS: kernels_alone}
    else:
        contenders = {name: of for name, of in PREPARED.items() if device == "cuda" or name not in ON_GPU_ALONE}
    return {name: of for name, of in contenders.items() if not case.contenders or name in case.contenders}


# --- are they right? --------------------------------------------------------------------------------------------------


def expected_result(inputs: Inputs, case: Case) -> Result:
    """The reference's, in float64."""
    if case.work == "selection":
        return Result(selected=jf.reference.select_small_loss(inputs.losses, inputs.kept))
    z1, z2 = (z.detach().double().requires_grad_() for z in (inputs.logits1, inputs.logits2))
    out = jf.reference.jocor_loss(z1, z2, inputs.target, co_lambda=CO_LAMBDA, num_keep=inputs.kept)
    gradient1, gradient2 = torch.autograd.grad(out.loss, (z1, z2))
    return Result(out.loss, gradient1, gradient2, out.selected)


def assert_agrees(name: str, actual: Result, expected: Result) -> None:
    """AssertionError names the contender and what differs from the reference; half types: by their own rounding."""
    for what, value, right in zip(Result._fields, actual, expected, strict=True):
        if value is None or right is None:
            continue
        if what == "selected":
            mask = value if value.dtype == torch.bool else torch.zeros_like(right).index_fill_(0, value, True)
            assert torch.equal(mask, right), f"{name}: the choice is not the reference's"
            continue
        error = ((value.to(right.device) - right).abs().max() / right.abs().max()).item()
        allowed = 2.0**-8 if value.dtype == torch.bfloat16 else 1e-5
        assert error <= allowed, f"{name}: {what} is {error:.1e} of its largest entry away from the reference"
