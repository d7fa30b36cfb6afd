"""Each planted fault makes its test fail: the tests of the kernels can fail, and would for such a fault."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from host_build import HERE, compile_all, link, precompile
from mutants import MUTANTS, plant


@pytest.fixture(scope="module")
def outcomes(host_objects: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What became of the test of each fault, by the fault's name."""
    unoptimised = ["-O0", "-Wno-error"]
    precompiled = precompile(tmp_path_factory.mktemp("header"), unoptimised)

    def build(name: str) -> Path:
        folder = tmp_path_factory.mktemp("fault")
        csrc, compiled = plant(MUTANTS[name], folder), MUTANTS[name].compiled
        source = csrc / "cuda" / f"{compiled}.cu"
        changed = compile_all([source], folder, csrc=csrc, flags=unoptimised, precompiled=precompiled)
        others = [path for source, path in host_objects.items() if source != compiled]
        return link([*changed, *others], folder / "libkernels.so", ["-shared"])

    with ThreadPoolExecutor(2) as pool:
        libraries = list(pool.map(build, MUTANTS))
    return dict(zip(MUTANTS, outcomes_of(libraries, list(MUTANTS)), strict=True))


def outcomes_of(libraries: Sequence[Path], names: Sequence[str]) -> list[str]:
    lines = "".join(f"{library}\t{name}\n" for library, name in zip(libraries, names, strict=True))
    command = [sys.executable, str(HERE / "mutants.py")]
    done = subprocess.run(command, input=lines, stdout=subprocess.PIPE, text=True, check=True, timeout=280)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_noticed(outcomes: dict[str, str], name: str) -> None:
    assert outcomes[name], f"{name}: its test passes with the fault in it"
    assert "ImportError" not in outcomes[name]
    assert "OSError" not in outcomes[name]


def test_the_same_tests_pass_without_a_fault(host_objects: dict[str, Path], tmp_path: Path) -> None:
    library = link(list(host_objects.values()), tmp_path / "libkernels.so", ["-shared"])
    names = list({mutant.test: name for name, mutant in MUTANTS.items()}.values())  # each test once
    assert outcomes_of([library] * len(names), names) == [""] * len(names)
