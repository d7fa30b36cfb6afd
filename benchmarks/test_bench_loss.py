"""pytest-benchmark over shapes × contenders (`make bench`)."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from contenders import CONTENDERS, SHAPES, Inputs, Shape, assert_agree, make_inputs


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def case(request: pytest.FixtureRequest) -> tuple[Shape, Inputs]:
    inputs = make_inputs(request.param)
    assert_agree(inputs)
    return request.param, inputs


@pytest.mark.parametrize("contender", CONTENDERS)
def test_forward_and_backward(benchmark: BenchmarkFixture, case: tuple[Shape, Inputs], contender: str) -> None:
    shape, inputs = case
    benchmark.group = str(shape)
    benchmark(CONTENDERS[contender], inputs)
