"""Build the extension, then run the tests that are marked gpu, each recorded as it ends.

python -m gpu.prove build|tests|sanitizer
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpu import records
from gpu.device import ROOT

TESTS = ROOT / "tests"
SANITIZER = TESTS / "test_sanitizer.py"  # a part of its own: its tools take as long as they take
MARKS = re.compile(r"\bmark\.gpu\b|\beverywhere\b")  # the second is of loss_cases.py
# What exists on a GPU alone, then the compiled functions, then the rest, then what compiles for minutes, and last the
# reference, which runs on torch's own kernels. The first pattern that fits counts.
RANKS = {"torch_compile|test_compile": 3, "^[^:]*test_(cuda|gpu)": 0, "compiled-cuda": 1, "reference-cuda": 4, "": 2}


def build() -> records.Item:
    """`python setup.py build_ext --inplace`, then what the build says of itself."""
    environ = {"MAX_JOBS": str(len(os.sched_getaffinity(0))), **os.environ}
    subprocess.run([sys.executable, "setup.py", "build_ext", "--inplace"], cwd=ROOT, env=environ, check=True)
    built: records.Item = json.loads((ROOT / "jocor_fast" / "_build.json").read_text())
    return {"ok": built["cuda"] is not None, **built}


def rank(node: str) -> int:
    return next(number for pattern, number in RANKS.items() if re.search(pattern, node))


class Recorder:
    """Sort the tests, the most telling first, and record each as it ends."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: rank(item.nodeid))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        records.plan(item.nodeid for item in session.items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:  # such as a file that imports a package this machine lacks
            self.record(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self.record(report, seconds=round(report.duration, 3))

    def record(self, report: pytest.CollectReport | pytest.TestReport, **fields: float) -> None:
        message = "" if report.passed else str(report.longrepr)[-3000:]
        records.done(report.nodeid, outcome=report.outcome, message=message, **fields)


def files_with_tests(folder: Path) -> list[Path]:
    """Return the files that mark tests gpu. The others take longer to collect, and may import what is not installed."""
    files = (path for path in sorted(folder.glob("test_*.py")) if path != SANITIZER)
    return [path for path in files if MARKS.search(path.read_text())]


def run_tests(files: Sequence[Path]) -> int:
    options = ["-m", "gpu", "-q", "--tb=short", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    return int(pytest.main([*options, *map(str, files)], plugins=[Recorder()]))


def main(part: str) -> int:
    if part == "build":
        return records.work_through({"build": build})
    return run_tests([SANITIZER] if part == "sanitizer" else files_with_tests(TESTS))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
