"""Each planted fault makes its test fail: the tests of the kernels can fail, and would for such a fault."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from host_build import HERE, compile_all, link
from mutants import MUTANTS, plant


def run_test(library: Path, name: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(HERE / "mutants.py"), str(library), name]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def outcomes(host_objects: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the test of each fault printed, by the fault's name; two at a time."""

    def try_out(name: str) -> str:
        folder = tmp_path_factory.mktemp("fault")
        csrc = plant(MUTANTS[name], folder)
        compiled = MUTANTS[name].compiled
        changed = compile_all([csrc / "cuda" / f"{compiled}.cu"], folder, csrc=csrc, flags=["-O0", "-Wno-error"])
        others = [path for source, path in host_objects.items() if source != compiled]
        try:
            done = run_test(link([*changed, *others], folder / "libkernels.so", ["-shared"]), name)
        except subprocess.TimeoutExpired:
            return "it never ended"
        return "" if done.returncode == 0 else done.stderr or f"exit status {done.returncode}"

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(MUTANTS, pool.map(try_out, MUTANTS), strict=True))


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_noticed(outcomes: dict[str, str], name: str) -> None:
    assert outcomes[name], f"{name}: its test passes with the fault in it"
    assert "ImportError" not in outcomes[name]
    assert "OSError" not in outcomes[name]


def test_the_same_tests_pass_without_a_fault(host_objects: dict[str, Path], tmp_path: Path) -> None:
    library = link(list(host_objects.values()), tmp_path / "libkernels.so", ["-shared"])
    command = "import sys, pathlib, mutants as m; k = m.HostKernels(pathlib.Path(sys.argv[1])); " + (
        "[(m.test(k), k.set_limits(), k.take_launches()) for m in m.MUTANTS.values()]"
    )
    subprocess.run([sys.executable, "-c", command, str(library)], cwd=HERE, check=True, timeout=60)
