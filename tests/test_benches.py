"""The benches themselves: what they count, that wrong contenders are noticed, and the form of what they write."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import plot  # noqa: E402
from cases import ARGSORT, EAGER, KERNELS_ALONE, OURS, PUBLISHED, TOPK, Case, Shape, cases_of  # noqa: E402
from contenders import Result, assert_agrees, contenders_of, expected_result  # noqa: E402
from inputs import make_inputs  # noqa: E402
from interleave import measure  # noqa: E402
from tables import csv_text  # noqa: E402
from timing import CpuClock  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
UNCOMPILED = (PUBLISHED, EAGER, OURS, KERNELS_ALONE)


@pytest.mark.parametrize(
    ("dtype", "work", "expected"),
    [
        # two matrices of 8·10 numbers; a label, four statistics, a loss and a mark for each of 8 rows
        (torch.float32, "forward", 2 * 320 + 8 * (8 + 16 + 5)),
        (torch.bfloat16, "rows alone", 2 * 160 + 8 * (8 + 16 + 5)),
        # 4 rows of both are read, with their labels and statistics; the marks; both gradients are written
        (torch.float32, "gradient alone", 2 * 160 + 2 * 320 + 8 + 4 * (8 + 16)),
        (torch.float32, "selection", 8 * 5),
    ],
)
def test_bytes_that_must_be_moved(dtype: torch.dtype, work: str, expected: int) -> None:
    assert Case(Shape(8, 10), dtype, work).bytes_moved == expected


def test_every_case_has_ours_among_its_contenders_and_the_gpu_has_all_seven_shapes() -> None:
    for device in ("cpu", "cuda"):
        assert all(OURS in contenders_of(case, device) for case in cases_of(device))
    shapes = {str(case.shape) for case in cases_of("cuda") if case.work == "forward + backward"}
    assert shapes == {"128x10", "64x14", "256x100", "4096x10", "1024x1000", "4096x1000", "65536x1000"}
    assert len(set(map(str, cases_of("cuda")))) == len(cases_of("cuda"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("work", ["forward", "forward + backward", "gradient alone", "selection"])
def test_contenders_agree_with_the_reference(dtype: torch.dtype, work: str) -> None:
    case = Case(Shape(64, 1 if work == "selection" else 14), dtype, work, (*UNCOMPILED, TOPK, ARGSORT))
    inputs = make_inputs(case, "cpu")
    for name, prepare in contenders_of(case, "cpu").items():
        assert_agrees(name, prepare(inputs, work)(), expected_result(inputs, case))


def test_a_contender_that_computes_something_else_is_named() -> None:
    inputs = make_inputs(case := Case(Shape(64, 14), torch.float32, "forward + backward"), "cpu")
    expected = expected_result(inputs, case)
    with pytest.raises(AssertionError, match=r"^slow: loss is 1\.0e-04"):
        assert_agrees("slow", Result(expected.loss * 1.0001), expected)
    with pytest.raises(AssertionError, match=r"^slow: the choice"):
        assert_agrees("slow", Result(selected=~expected.selected), expected)


def test_a_measured_case_becomes_lines_of_a_csv_and_a_picture(tmp_path: Path) -> None:
    case = Case(Shape(16, 3), torch.float32, "forward + backward", UNCOMPILED)
    rows = [figures.as_row() for figures in measure(case, "cpu", CpuClock(), seconds=0)]
    comment, *lines = csv_text(rows, ["a machine"]).splitlines()
    assert comment == "# a machine"
    read = list(csv.DictReader(lines))
    assert [row["contender"] for row in read] == list(UNCOMPILED)
    for row in read:
        assert (row["shape"], row["dtype"], row["cache"], row["gpu_us"]) == ("16x3", "float32", "warm", "")
        low, _, high = row["wall_us_quartiles"].partition("–")
        assert 0 < float(low) <= float(row["wall_us"]) <= float(high)
        assert float(row["gb_per_s"]) == pytest.approx(case.bytes_moved / float(row["wall_us"]) / 1e3, rel=2e-3)
    plot.draw_figures(rows, tmp_path / "picture.png", "a machine")
    assert (tmp_path / "picture.png").stat().st_size > 1000
