"""The benches themselves: what they count, that wrong contenders are noticed, and the form of what they write."""

from __future__ import annotations

import csv
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import balanced_ramp  # noqa: E402
import compare  # noqa: E402
import plot  # noqa: E402
from cases import ARGSORT, COMPILED, EAGER, KERNELS_ALONE, OURS, PUBLISHED, TOPK, Case, Shape, cases_of  # noqa: E402
from contenders import Result, assert_agrees, contenders_of, expected_result, in_graph  # noqa: E402
from inputs import make_inputs, number_to_keep  # noqa: E402
from interleave import measure  # noqa: E402
from step_rungs import BFLOAT16, IN_MEMORY, LAUNCHED, OUR_LOSS, PUBLISHED_STEP, RUNGS, Task, rungs_of, tasks_of  # noqa: E402
from steps import Figures, covered  # noqa: E402
from steps import measure as measure_steps  # noqa: E402
from steps import table as steps_table  # noqa: E402
from tables import csv_text  # noqa: E402
from timing import CpuClock, GpuClock  # noqa: E402

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


def test_the_rows_kept_are_about_half_and_end_at_a_gap() -> None:
    for rows in (10, 128):
        assert number_to_keep(torch.rand(rows)) == rows // 2
    losses = torch.arange(4096.0)
    losses[2050:] += 0.5
    assert number_to_keep(losses[torch.randperm(4096)]) == 2050


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("work", ["forward", "forward + backward", "gradient alone", "selection"])
def test_contenders_agree_with_the_reference(dtype: torch.dtype, work: str) -> None:
    case = Case(Shape(64, 1 if work == "selection" else 14), dtype, work, (*UNCOMPILED, TOPK, ARGSORT))
    inputs = make_inputs(case, "cpu")
    for name, prepare in contenders_of(case, "cpu").items():
        assert_agrees(name, prepare(inputs, work)(), expected_result(inputs, case))


def test_a_recorded_contender_leaves_no_autograd_graph_on_the_inputs_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its nodes would take every other contender's backward pass to the stream of the recording and back."""
    cuda = MagicMock()
    monkeypatch.setattr(torch, "cuda", cuda)
    inputs = make_inputs(Case(Shape(128, 10), torch.float32, "forward + backward"), "cpu")
    replay = in_graph(inputs, "forward + backward")
    loss = replay().loss
    assert cuda.CUDAGraph.return_value.replay.called
    assert loss is not None
    assert loss.grad_fn is None


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
    others = [{**row, "work": "forward"} for row in rows]
    plot.draw_figures(others, tmp_path / "empty.png", "a machine")  # by a filter of pytest's, nothing that it shows
    assert not (tmp_path / "empty.png").exists()


def test_a_contender_measures_in_a_process_of_its_own_that_is_stopped_between_its_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compare, "TURN_SECONDS", 0.0)
    monkeypatch.setattr(compare, "SETTINGS", compare.SETTINGS[:1])
    with compare.started({}, (OURS,)) as (contender,):
        assert len(contender.measure("16x3")) > 1
        assert os.WIFSTOPPED(os.waitpid(contender.process.pid, os.WUNTRACED)[1])
        contender.process.kill()
        with pytest.raises(RuntimeError, match="jocor_fast, 1 thread: its process has ended with -9"):
            contender.measure("16x3")


def test_each_contender_counts_with_its_fastest_setting_and_the_readmes_say_so(tmp_path: Path) -> None:
    one, _, spinning = compare.SETTINGS
    slow, fast = {"8x2": [3e-4] * 3}, {"8x2": [1e-4] * 3}
    times = [(OURS, one, fast), (OURS, spinning, slow), (EAGER, one, {"8x2": [9e-4] * 3}), (EAGER, spinning, slow),
             (COMPILED, one, slow), (PUBLISHED, one, slow)]  # fmt: skip
    figures = compare.figures_of([compare.Contender(*who, MagicMock(), taken) for *who, taken in times], "8x2")
    assert (figures[OURS]["setting"], figures[EAGER]["setting"]) == ("1 thread", "2 threads, active")
    assert figures[EAGER]["over_ours"] == pytest.approx(3.0)
    assert figures[EAGER]["settings"]["1 thread"]["median"] == 9e-4
    document = {"allocators": {"as it comes": {"environment": {}, "seconds": {"8x2": figures}}}}
    assert "| 8x2 | 100 (100–100), 1.0×, 1 thread | 300 (300–300), 3.0×, 2 threads, active |" in compare.table(
        document["allocators"]
    )
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    (tmp_path / "README.md").write_text("| the same, 8×2 | old |\n| the same, 9×2 | old |\n")
    (results / "README.md").write_text("before\n<!-- python benchmarks/compare.py --readme -->\nold\n<!-- -->\nafter\n")
    compare.update_readmes(document, tmp_path)
    assert (tmp_path / "README.md").read_text() == (
        "| the same, 8×2 | 100 µs: 3.0× eager PyTorch, 3.0× `torch.compile`, 3.0× the published formula |\n"
        "| the same, 9×2 | old |\n"
    )
    text = (results / "README.md").read_text()
    assert "old" not in text
    assert "| 8×2 | 100 µs | 3.0× | 3.0× | 3.0× |\n<!-- -->\nafter\n" in text


def test_a_gpu_is_kept_busy_until_all_is_enqueued_though_its_clock_was_low_at_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that has been idle runs at a sixth of its clock; a delay counted in those cycles would be over too soon."""
    gpu = SimpleNamespace(hertz=345e6, now=0.0, delays=[])

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.at = 0.0

        def record(self) -> None:
            self.at = gpu.now

        def synchronize(self) -> None:
            gpu.hertz = 1980e6  # it has had work

        def elapsed_time(self, end: Event) -> float:
            return 1e3 * (end.at - self.at)

    def sleep(cycles: int) -> None:
        gpu.delays.append(cycles / gpu.hertz)
        gpu.now += gpu.delays[-1]

    properties = SimpleNamespace(L2_cache_size=0, clock_rate=1_980_000)
    monkeypatch.setattr(torch, "zeros", lambda size, device: torch.empty(size))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: properties)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", sleep)
    (sample,) = GpuClock().samples(lambda: time.sleep(0.003), "warm")
    assert sample.host is not None
    assert gpu.delays[-1] > sample.host


TINY = Task("tiny", "mlp", (6,), 4, 8, 40, 5)


@pytest.mark.parametrize("rung", [PUBLISHED_STEP, IN_MEMORY, OUR_LOSS, LAUNCHED])
def test_a_rung_launches_as_many_steps_as_asked_for_and_trains(rung: str) -> None:
    way = RUNGS[rung](TINY, torch.device("cpu"))
    networks = way.state.networks if rung == LAUNCHED else way.networks  # type: ignore[attr-defined]
    before = [parameter.clone() for network in networks for parameter in network.parameters()]
    told: list[int] = []
    for steps in (3, 9):  # into the second and the third epoch of five steps
        way.run(steps, told.append)
    assert told == [1, 2, 3, *range(1, 10)]
    after = [parameter for network in networks for parameter in network.parameters()]
    assert not any(map(torch.equal, before, after))


def test_a_cpu_has_the_rungs_that_need_no_gpu_and_is_given_less_to_do() -> None:
    assert rungs_of("cpu") == [PUBLISHED_STEP, IN_MEMORY, OUR_LOSS, LAUNCHED]
    assert rungs_of("cuda")[-1] == BFLOAT16
    for small, large in zip(tasks_of("cpu"), tasks_of("cuda"), strict=True):
        assert (small.name, small.model, small.shape) == (large.name, large.model, large.shape)
        assert small.steps * small.batch < large.steps * large.batch


def test_figures_of_a_rung_and_their_table() -> None:
    figures = measure_steps(TINY, IN_MEMORY, torch.device("cpu"), seconds=0.05)
    assert figures.gpu_share is None
    assert figures.host_us == pytest.approx(1e6 / figures.steps_per_second)
    lines = steps_table(
        [
            Figures("A", 8, PUBLISHED_STEP, 100, 10_000, 0.05),
            Figures("A", 8, IN_MEMORY, 1234, 20.2, 0.987),
            Figures("B", 8, PUBLISHED_STEP, 50, 20_000, None),
        ]
    ).splitlines()[2:]
    assert lines == [
        f"| A, batch 8: {PUBLISHED_STEP} | 100 (1.0×) | 10,000 | 5 % |",
        f"| A, batch 8: {IN_MEMORY} | 1,234 (12.3×) | 20 | 99 % |",
        f"| B, batch 8: {PUBLISHED_STEP} | 50.00 (1.0×) | 20,000 |  |",
    ]


def test_kernels_that_overlap_count_once() -> None:
    assert covered([(0, 2), (1, 3), (1, 2), (5, 6)]) == 4


def test_the_balanced_ramp_is_compared_on_seeds_that_have_both_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(balanced_ramp, "FOLDER", tmp_path)
    figures = {
        (False, 1): (0.80, 0.0),
        (True, 1): (0.90, 0.15),
        (False, 2): (0.90, 0.2),
        (True, 2): (0.89, 0.1),
        (True, 3): (0.1, 0),
    }
    rows = [
        {
            "data": "mnist-symmetric-0.8",
            "tau": "0.8",
            "balanced_ramp": balanced,
            "seed": seed,
            "test_accuracy": accuracy,
            "least_share_of_a_class": share,
        }
        for (balanced, seed), (accuracy, share) in figures.items()
    ]
    balanced_ramp.write(rows)
    written = (tmp_path / "balanced-ramp.md").read_text()
    line = "| mnist-symmetric-0.8 | 0.8 | 85.00 ± 7.07 (0.0) | 89.50 ± 0.71 (10.0) | +10.00, -1.00 |"
    assert line in written
    assert len((tmp_path / "runs.csv").read_text().splitlines()) == 2 + len(rows)


def test_the_balanced_ramp_is_compared_on_cells_of_experiments_at_their_forget_rate(tmp_path: Path) -> None:
    lines = list(balanced_ramp.compared(list(balanced_ramp.DATA)))
    assert [line.name for line in lines if line.adaptive] == ["mnist-symmetric-0.8", "fashion-mnist-symmetric-0.8"]
    for line in lines:
        with_it, without = (line.run(balanced, 1, tmp_path) for balanced in (True, False))
        assert with_it.settings == {**without.settings, "balanced_ramp": True}
        assert with_it.folder != without.folder
