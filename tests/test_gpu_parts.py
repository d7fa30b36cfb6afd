"""`make gpu` with parts that need no GPU: budgets, failures, skipped items, the files, and what ends it at once."""

from __future__ import annotations

import argparse
import copy
import csv
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from children import PATIENCE, python

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import training_runs  # noqa: E402
from gpu import bars, measure, prove, records, report, run  # noqa: E402
from gpu.records import Outcome, Part  # noqa: E402
from gpu.run import PARTS, TOGETHER, run_part  # noqa: E402

FACTS = {
    "card": "A card",
    "driver": "1.2",
    "clocks": {"start": "1980 MHz, 2619 MHz"},
    "torch": "2.11",
    "jocor_fast": "0.1.0",
}
ROW = {
    "shape": "128x10", "dtype": "float32", "work": "forward", "cache": "warm", "contender": "jocor_fast",
    "gpu_us": 4.0, "wall_us": 20.0, "share_of_copy": 0.1,
}  # fmt: skip


def fake(code: str, budget: float = PATIENCE, name: str = "fake") -> Part:
    return Part(name, budget, "", ("-c", f"from gpu import records\n{code}"))


def measured(*items: records.Item) -> bars.Measured:
    return bars.Measured.of([Outcome(PARTS["train"], "done", 60.0, 60.0, list(items))])


def test_a_part_that_ends_in_time_is_done_and_its_items_are_kept() -> None:
    outcome = run_part(fake("records.plan(['a', 'b'])\nrecords.done('a', x=1)\nrecords.done('b')\nprint('said')"))
    assert (outcome.status, outcome.skipped, outcome.output) == ("done", [], "said\n")
    assert outcome.items == [{"item": "a", "x": 1}, {"item": "b"}]


LEAVES_A_CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
records.done("a child", pid=child.pid)
"""


def ends(pid: int) -> bool:
    """Whether it does before the child of LEAVES_A_CHILD would by itself."""
    latest = time.monotonic() + 30
    while time.monotonic() < latest:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":  # it has ended, and nobody has waited for it
            return True
        time.sleep(0.05)
    return False


def test_a_part_is_killed_at_its_budget_with_all_that_it_started_and_what_it_skipped_is_named() -> None:
    code = f"import time\nrecords.plan(['a child', 'b'])\n{LEAVES_A_CHILD}\ntime.sleep(60)"
    outcome = run_part(fake(code, budget=4.0))
    assert (outcome.status, outcome.skipped) == ("ended at its budget", ["b"])
    (item,) = outcome.items
    assert ends(item["pid"])


def test_what_a_part_leaves_running_ends_with_it() -> None:
    outcome = run_part(fake(LEAVES_A_CHILD))
    assert outcome.status == "done"
    (item,) = outcome.items
    assert ends(item["pid"])


def test_a_line_that_was_torn_by_the_kill_is_ignored() -> None:
    outcome = run_part(
        fake("import os\nrecords.plan(['a'])\nopen(os.environ[records.VARIABLE], 'a').write('{\"item\": \"a')")
    )
    assert (outcome.items, outcome.skipped) == ([], ["a"])


def test_a_failing_part_does_not_stop_the_others_and_is_told(tmp_path: Path) -> None:
    parts = [fake("raise SystemExit('it broke')", name="first"), fake("records.done('a')", name="second")]
    outcomes = run.run_parts(parts, copy.deepcopy(FACTS), tmp_path)
    assert [outcome.status for outcome in outcomes] == ["failed", "done"]
    summary = (tmp_path / "summary.txt").read_text()
    assert "it broke" in summary
    assert summary.count("not measured") == len(bars.BARS)


def test_what_a_part_leaves_of_its_budget_is_there_for_those_that_follow(tmp_path: Path) -> None:
    parts = [fake("import time\ntime.sleep(1)", budget, name) for name, budget in (("first", 60.0), ("second", 0.5))]
    outcomes = run.run_parts(parts, copy.deepcopy(FACTS), tmp_path)
    assert [outcome.status for outcome in outcomes] == ["done", "done"]
    assert outcomes[1].budget == pytest.approx(60.5 - outcomes[0].seconds)


def test_there_are_at_most_six_files_and_the_card_stands_in_each(tmp_path: Path) -> None:
    rows = [{**ROW, "work": work} for work in ("forward", "forward + backward")]
    tested = [{"item": "t.py::one", "outcome": "passed"}, {"item": "t.py::two", "outcome": "failed", "message": "no"}]
    curve = [{"epoch": number, "test_accuracy": accuracy} for number, accuracy in ((1, 0.5), (2, None), (3, 0.9))]
    outcomes = [
        Outcome(PARTS["tests"], "ended at its budget", 60.0, 60.0, tested, ["t.py::three"], "log\n"),
        Outcome(PARTS["bench-short"], "done", 60.0, 70.0, [{"item": "a case", "rows": rows}]),
        Outcome(PARTS["train"], "done", 50.0, 60.0, [{"item": bars.MNIST, "curve": curve}]),
    ]
    report.write(tmp_path, dict(FACTS), outcomes)
    report.draw(tmp_path, dict(FACTS), outcomes)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(report.FILES)
    assert len(report.FILES) <= 6
    for name in report.FILES:
        assert name.endswith(".png") or "A card" in (tmp_path / name).read_text(), name
    assert (tmp_path / "log.txt").read_text().endswith("=== train: done after 50.0 s\n")
    assert "after 60.0 s\nlog\n" in (tmp_path / "log.txt").read_text()
    summary = (tmp_path / "summary.txt").read_text()
    assert "1 good, 1 bad, first t.py::two" in summary
    assert "skipped: t.py::three" in summary
    lines = (tmp_path / "bench.csv").read_text().splitlines()
    assert lines[0].startswith("# card A card; driver 1.2; torch 2.11; jocor_fast 0.1.0; clocks at start 1980 MHz")
    assert [row["gpu_us"] for row in csv.DictReader(lines[1:])] == ["4.0", "4.0"]
    parts = json.loads((tmp_path / "results.json").read_text())["parts"]
    assert (parts[0]["part"]["name"], parts[0]["items"], parts[0]["skipped"]) == ("tests", tested, ["t.py::three"])


def test_a_bar_is_met_or_not_or_not_measured() -> None:
    verdicts = {line["what"]: line for line in bars.verdicts(measured({"item": "case", "rows": [ROW]}))}
    first = verdicts["128×10 float32, forward and selection, GPU time"]
    assert (first["figure"], first["verdict"]) == (4.0, "met")
    slow = measured({"item": "case", "rows": [{**ROW, "gpu_us": 5.1}]})
    assert bars.verdicts(slow)[0]["verdict"] == "not met"
    assert verdicts["128×10 float32, backward, GPU time"]["verdict"] == "not measured"


def test_a_ratio_is_theirs_over_ours_in_the_same_case() -> None:
    rows = [
        {**ROW, "work": "forward + backward", "contender": name, "wall_us": wall}
        for name, wall in (("jocor_fast", 10.0), ("torch.compile", 35.0), ("published formula", 100.0))
    ]
    verdicts = {line["what"]: line for line in bars.verdicts(measured({"item": "case", "rows": rows}))}
    assert verdicts["the same, torch.compile over ours"]["figure"] == 3.5
    published = verdicts["128×10 float32, forward + backward, wall: published formula over ours"]
    assert (published["figure"], published["verdict"]) == (10.0, "not met")


def test_a_run_on_other_data_or_of_fewer_epochs_does_not_count_for_a_bar() -> None:
    whole = {"item": bars.MNIST, "data": "mnist", "epochs": 200, "seconds": 7.0}
    for item, figure in ((whole, 7.0), ({**whole, "data": "digits"}, None), ({**whole, "epochs": 150}, None)):
        (line,) = [line for line in bars.verdicts(measured(item)) if line["bar"] == "≤ 8 s"]
        assert line["figure"] == figure


def test_five_runs_at_once_count_where_they_trained_on_mnist() -> None:
    for data, figure in (("mnist", 1.8), ("digits", None)):
        item = {"item": bars.AT_ONCE, "data": data, "epochs": 200, "ratio": 1.8}
        (line,) = [line for line in bars.verdicts(measured(item)) if "at once" in line["what"]]
        assert line["figure"] == figure


def test_an_item_that_fails_is_reported_and_does_not_cost_the_others() -> None:
    code = """
def broken(): raise ValueError("no")
raise SystemExit(records.work_through({"a": dict, "b": broken, "c": lambda: {"ok": False}, "d": lambda: {"x": 1}}))
"""
    outcome = run_part(fake(code))
    assert outcome.items == [{"item": "a"}, {"item": "b", "error": "ValueError: no"}, {"item": "c", "ok": False},
                             {"item": "d", "x": 1}]  # fmt: skip
    assert outcome.status == "failed"
    assert report.result(outcome) == "2 good, 2 bad, first b"


def test_a_training_run_that_fails_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_runs, "TRAIN", (sys.executable, "-c", "raise SystemExit(1)"))
    item = training_runs.train(training_runs.Run("a run", "digits", PATIENCE, ()), tmp_path)
    assert item == {"data": "digits", "ok": False, "epochs": 0}
    assert records.failed(item)


def test_steps_a_second_leave_the_first_epochs_out() -> None:
    epoch = {"epoch": 1, "seconds": 1.0, "eval_seconds": 0.5, "test_accuracy": 0.5, "samples_per_second": 1280.0}
    figures = training_runs.figures([{**epoch, "samples_per_second": 1.0}] * 2 + [epoch] * 9, 128)
    assert (figures["epochs"], figures["seconds"], figures["steps_per_second"]) == (11, 16.5, 10.0)


def test_every_part_that_measures_lists_its_items_without_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It imports whatever it needs, and names what it plans."""
    monkeypatch.setattr(measure, "GpuClock", lambda: None)
    monkeypatch.delenv("JOCOR_FAST_DATA", raising=False)
    assert [run.data for run in measure.short_runs(tmp_path)] == ["digits", "noise", "digits", "noise"]
    planned = {"short": measure.bench(full=False), "full": measure.bench(full=True), "steps": measure.steps(),
               "dali": measure.dali(tmp_path)}  # fmt: skip
    assert (
        {bars.MEMORY, "copy", "128x10 float32 forward + backward"} <= planned["short"].keys() <= planned["full"].keys()
    )
    assert bars.AT_ONCE in planned["steps"]
    assert planned["dali"].keys() == {bars.DALI_ALONE, bars.DALI_AND_RESNETS}
    with pytest.raises(SystemExit, match="CIFAR-10 is not in"):
        measure.cifar(1)


def test_the_parts_that_go_together_take_six_minutes() -> None:
    assert sum(part.budget for part in run.parts_named(TOGETHER)) == 360


def test_what_a_gpu_alone_can_tell_is_tested_first_and_the_reference_last() -> None:
    nodes = ["test_selection.py::test[reference-cuda]", "test_compile.py::test_opcheck[cuda]",
             "test_selection.py::test[compiled-cuda]", "test_cuda.py::test_capture",
             "test_cuda.py::test_torch_compile_captures"]  # fmt: skip
    assert sorted(nodes, key=prove.rank) == [nodes[3], nodes[2], nodes[1], nodes[4], nodes[0]]


def test_a_file_that_cannot_be_imported_is_told_and_costs_the_tests_of_no_other(tmp_path: Path) -> None:
    """A machine with a GPU has torch and pytest; whether it has all that the tests import, nobody knows before."""
    marked = "import pytest\n@pytest.mark.gpu\ndef test_it(): pass\ndef test_other(): raise ValueError\n"
    (tmp_path / "test_broken.py").write_text(f"import a_package_that_is_not_here\n{marked}")
    (tmp_path / "test_whole.py").write_text(marked)
    (tmp_path / "test_without_a_gpu.py").write_text("import a_package_that_is_not_here\n")  # is left alone
    code = f"""
from pathlib import Path
from gpu import prove
raise SystemExit(prove.run_tests(prove.files_with_tests(Path({str(tmp_path)!r}))))
"""
    outcome = run_part(fake(code, budget=60))
    items = [(item["item"].rpartition("/")[2], item["outcome"]) for item in outcome.items]
    assert (items, outcome.status) == ([("test_broken.py", "failed"), ("test_whole.py::test_it", "passed")], "failed")
    assert "a_package_that_is_not_here" in outcome.items[0]["message"]


def test_only_files_that_mark_tests_gpu_are_collected_and_none_of_those_is_missed() -> None:
    """Another one that imports what is not on the machine would be a failure, of a test that does not run there."""
    folder = ROOT / "tests"
    files = prove.files_with_tests(folder)
    names = {path.name for path in files}
    assert {"test_cuda.py", "test_gpu_training.py", "test_selection.py"} <= names
    assert not {"test_report.py", "test_image_loading.py", "test_estimator.py", "test_sanitizer.py"} & names
    # the marker stands in a test file, or in the one module that shares it, under the name that is looked for
    shared = [path for path in folder.rglob("*.py") if "mark.gpu" in path.read_text()]
    shared = sorted(set(shared) - {*files, prove.SANITIZER})
    assert shared == [folder / "loss_cases.py"]
    assert (
        shared[0].read_text().partition("everywhere = pytest.mark.parametrize(")[2].count("marks=pytest.mark.gpu") == 2
    )


def test_without_matplotlib_there_are_no_pictures_and_all_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The summary comes after them, and is what a loan of a GPU that ends there has to show."""
    monkeypatch.setitem(sys.modules, "plot", None)
    monkeypatch.setattr(run, "facts", lambda: copy.deepcopy(FACTS))
    monkeypatch.setitem(PARTS, "build", fake(f"records.done('case', rows=[{ROW}])"))
    assert run.main(["--output", str(tmp_path), "--parts", "build"]) == 0
    printed = capsys.readouterr().out
    assert "there are no pictures: ModuleNotFoundError" in printed
    assert printed.endswith((tmp_path / "summary.txt").read_text())
    assert {path.name for path in tmp_path.iterdir()} == {"results.json", "bench.csv", "log.txt", "summary.txt"}


def test_parts_of_a_second_call_do_not_write_over_the_results_of_the_first() -> None:
    together = run.default_folder(FACTS, run.parts_named(TOGETHER))
    assert together.name.startswith("gpu-a-card-")
    assert run.default_folder(FACTS, [PARTS["bench-full"]]).name == f"{together.name}-bench-full"


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_gpu_leaves_the_packages_on_pythonpath_where_they_are_found(tmp_path: Path) -> None:
    """As DALI is, unpacked on a machine that reaches no registry; other targets have an environment of their own."""
    told = tmp_path / "python"
    told.write_text('#!/bin/sh\necho "$PYTHONPATH" "$@"\n')
    told.chmod(0o755)
    command = ["make", "--silent", "gpu", f"PYTHON={told}", "PARTS=dali build"]
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}/with a blank:/more"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout == f"{tmp_path}/with a blank:/more benchmarks/gpu/run.py --parts dali build\n"


def test_parts_that_are_not_known_are_wrong_use() -> None:
    assert [part.name for part in run.parts_named("train build")] == ["train", "build"]
    with pytest.raises(argparse.ArgumentTypeError, match="got 'biuld'"):
        run.parts_named("biuld,train")


def test_without_a_gpu_it_ends_in_one_sentence(tmp_path: Path) -> None:
    done = python(str(ROOT / "benchmarks/gpu/run.py"), "--output", str(tmp_path / "results"), CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "The parts need a CUDA GPU, and torch sees none.\n"
    assert not (tmp_path / "results").exists()


def test_without_nvcc_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu.device import NotHere, toolkit

    monkeypatch.setenv("FORCE_CPU", "1")
    with pytest.raises(NotHere, match=r"^The parts need nvcc, and there is none to use: FORCE_CPU=1\.$"):
        toolkit()
