"""Each planted fault makes its test fail: the tests of the kernels can fail, and would for such a fault."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from host_build import HERE, compile_all, link, precompile
from mutants import NONE, TESTS, plant_all

from children import PATIENCE

COMPILED = ("rows_float32", "selection")  # what the tests of the faults run; the rest is linked as it is


@pytest.fixture(scope="module")
def outcomes(host_objects: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], str]:
    """What became of the test of a fault, by what was planted (the fault, or none) and by the fault's name."""
    folder = tmp_path_factory.mktemp("faults")
    csrc = plant_all(folder)
    flags = ["-O0", "-Wno-error"]
    sources = [csrc / "cuda" / f"{name}.cu" for name in COMPILED]
    changed = compile_all(sources, folder, csrc=csrc, flags=flags, precompiled=precompile(folder, flags))
    others = [path for source, path in host_objects.items() if source not in COMPILED]
    library = link([*changed, *others], folder / "libkernels.so", ["-shared"])
    each_test_once = {test: name for name, test in TESTS.items()}.values()
    asked = [*((name, name) for name in TESTS), *((NONE, name) for name in each_test_once)]
    lines = "".join(f"{planted}\t{name}\n" for planted, name in asked)
    command = [sys.executable, str(HERE / "mutants.py"), str(library)]
    done = subprocess.run(command, input=lines, stdout=subprocess.PIPE, text=True, check=True, timeout=PATIENCE)
    return dict(zip(asked, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("name", TESTS)
def test_a_planted_fault_is_noticed(outcomes: dict[tuple[str, str], str], name: str) -> None:
    said = outcomes[name, name]
    assert said, f"{name}: its test passes with the fault in it"
    assert "ImportError" not in said
    assert "OSError" not in said


def test_the_same_tests_pass_without_a_fault(outcomes: dict[tuple[str, str], str]) -> None:
    said = {name: text for (planted, name), text in outcomes.items() if planted == NONE}
    assert said
    assert not any(said.values()), said
