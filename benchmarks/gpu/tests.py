"""Part "tests": the tests that are marked gpu, each recorded as it ends; what tells most comes first."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from gpu import records

ROOT = Path(__file__).resolve().parents[2]
MARKS = re.compile(r"\bmark\.gpu\b|\beverywhere\b")
MESSAGE_CHARACTERS = 3000
# What exists on a GPU alone, then the compiled functions, then what compiles for minutes, and the reference, which runs
# on torch's own kernels.
ORDER = ("GPU alone", "compiled-cuda", "", "test_compile", "reference-cuda")


def place(node: str) -> int:
    """Where in the order a test stands."""
    file = node.partition("::")[0]
    if "test_compile" in file or "torch_compile" in node:
        return ORDER.index("test_compile")
    if file.rpartition("/")[2].startswith(("test_cuda", "test_gpu")):
        return ORDER.index("GPU alone")
    return next((ORDER.index(name) for name in ("compiled-cuda", "reference-cuda") if name in node), ORDER.index(""))


class Recorder:
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: place(item.nodeid))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:  # such as a file that imports what this machine lacks
            records.done(report.nodeid, outcome="failed", message=str(report.longrepr)[-MESSAGE_CHARACTERS:])

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        records.plan(item.nodeid for item in session.items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            message = "" if report.passed else str(report.longrepr)[-MESSAGE_CHARACTERS:]
            records.done(report.nodeid, outcome=report.outcome, seconds=round(report.duration, 3), message=message)


def files_with_tests(folder: Path) -> tuple[list[Path], list[Path]]:
    """The files that mark tests gpu, themselves or by `everywhere` (loss_cases.py); and those left out of them.

    All others together take longer to collect than these, and whatever package they want would have to be here.
    """
    marked = [path for path in sorted(folder.glob("test_*.py")) if MARKS.search(path.read_text())]
    if importlib.util.find_spec("hypothesis") is not None:
        return marked, []
    left_out = [path for path in marked if "from hypothesis import" in path.read_text()]
    return [path for path in marked if path not in left_out], left_out


def main(folder: Path = ROOT / "tests") -> int:
    files, left_out = files_with_tests(folder)
    if left_out:
        print("without Hypothesis, left out:", *(path.name for path in left_out))
    arguments = ["-m", "gpu", "-q", "--tb=short", "-p", "no:cacheprovider", f"--rootdir={ROOT}", str(folder)]
    arguments += [f"--ignore={path}" for path in folder.rglob("test_*.py") if path not in files]
    # else one file that cannot be imported would keep every test of every other from running
    return int(pytest.main([*arguments, "--continue-on-collection-errors"], plugins=[Recorder()]))


if __name__ == "__main__":
    sys.exit(main())
