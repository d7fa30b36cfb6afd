"""Part "tests": the tests that are marked gpu, each recorded as it ends; what tells most comes first."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from gpu import records

ROOT = Path(__file__).resolve().parents[2]
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


def files_that_cannot_be_imported() -> list[Path]:
    """Those with property tests, where Hypothesis is missing."""
    if importlib.util.find_spec("hypothesis") is not None:
        return []
    return [path for path in (ROOT / "tests").glob("test_*.py") if "from hypothesis import" in path.read_text()]


def main(folder: Path = ROOT / "tests") -> int:
    left_out = files_that_cannot_be_imported()
    if left_out:
        print("without Hypothesis, left out:", *(path.name for path in left_out))
    arguments = ["-m", "gpu", "-q", "--tb=short", "-p", "no:cacheprovider", f"--rootdir={ROOT}", str(folder)]
    # else one file that cannot be imported would keep every test of every other from running
    arguments += ["--continue-on-collection-errors", *(f"--ignore={path}" for path in left_out)]
    return int(pytest.main(arguments, plugins=[Recorder()]))


if __name__ == "__main__":
    sys.exit(main())
