"""A small case for every kernel: with real threads under ThreadSanitizer, with fibres under AddressSanitizer.

ThreadSanitizer stands in for a race checker: a barrier orders memory there, a shuffle does not. AddressSanitizer sees
arrays that end with their last element; the alignment check with it sees vectors at addresses that a device refuses.
Races are the same for every logit type, so float32 and float64 (its own layout of shared memory) stand for all there;
float16 differs from bfloat16 in two conversions only and is left to the other tests.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from host_build import CSRC, HERE, compile_all, compiler, link, precompile
from kernel_inputs import CXX_NAMES
from mutants import MUTANTS, Mutant, plant

RUNNERS = {"thread": "real_threads", "address": "fibres"}
DEFINES = {"thread": ["-DCUDA_ON_HOST_REAL_THREADS"], "address": []}
SANITIZERS = {"thread": ["-fsanitize=thread"], "address": ["-fsanitize=address,alignment", "-fno-sanitize-recover"]}
TYPES = {"thread": ("float32", "float64"), "address": ("float32", "bfloat16", "float64")}
LEFT_OUT = """
#include "cuda/launches.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace jocor_fast::cuda {
template <> cudaError_t launch_row_losses<TYPE>(const RowParams&, cudaStream_t) { return cudaErrorInvalidValue; }
template <> bool fits_single_block<TYPE>(const RowParams&, const SelectionParams&) { return false; }
template <> cudaError_t launch_rows_and_selection<TYPE>(const RowParams&, const SelectionParams&, cudaStream_t) {
  return cudaErrorInvalidValue;
}
template <> cudaError_t launch_row_gradients<TYPE>(const GradientParams&, cudaStream_t) {
  return cudaErrorInvalidValue;
}
}
"""


@pytest.fixture(scope="module")
def cpu_kernels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """What the cases are compared with, compiled without a sanitizer."""
    if compiler() is None:
        pytest.skip("needs a C++ compiler")
    sources = [CSRC / "cpu" / f"{name}.cpp" for name in ("rows_portable", "selection")]
    return compile_all(sources, tmp_path_factory.mktemp("cpu"), flags=["-O1", "-Wno-error"])


@dataclass(frozen=True)
class Sanitized:
    """The program's object files by name, and how to compile one of them again."""

    sanitizer: str
    objects: dict[str, Path]
    flags: Sequence[str]
    precompiled: Path

    def linked_in(self, folder: Path, **changed: Path) -> Path:
        objects = {**self.objects, **changed}
        return link(list(objects.values()), folder / "check", [*SANITIZERS[self.sanitizer], "-pthread"])


def build(sanitizer: str, folder: Path, cpu_kernels: list[Path]) -> Sanitized:
    flags = ["-O0", "-g1", *DEFINES[sanitizer], *SANITIZERS[sanitizer]]
    sources = [CSRC / "cuda" / f"{name}.cu" for name in ("joint_loss", "selection")]
    sources += [CSRC / "cuda" / f"rows_{name}.cu" for name in TYPES[sanitizer]]
    sources += [HERE / f"{RUNNERS[sanitizer]}.cpp", HERE / "check_kernels.cpp"]
    for name in sorted(set(CXX_NAMES) - set(TYPES[sanitizer])):
        sources.append(folder / f"no_{name}.cpp")
        sources[-1].write_text(LEFT_OUT.replace("TYPE", CXX_NAMES[name]))
    precompiled = precompile(folder, flags)
    objects = [*compile_all(sources, folder, flags=flags, precompiled=precompiled), *cpu_kernels]
    return Sanitized(sanitizer, {path.name: path for path in objects}, flags, precompiled)


def run_check(program: Path, *types: str) -> str:
    """What the program printed; a sanitizer's report ends it with an exit status of its own."""
    environ = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1"}
    done = subprocess.run([program, *types], capture_output=True, text=True, timeout=240, env=environ)
    if "unexpected memory mapping" in done.stderr:  # ThreadSanitizer and a kernel that places programs too freely
        command = ["setarch", "-R", str(program), *types]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environ)
    return done.stdout + done.stderr


@pytest.fixture(scope="module", params=SANITIZERS)
def sanitized(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, cpu_kernels: list[Path]
) -> Sanitized:
    folder = tmp_path_factory.mktemp(request.param)
    probe = folder / "probe.cpp"
    probe.write_text("int main() {}\n")
    try:
        objects = compile_all([probe], folder, flags=SANITIZERS[request.param])
        subprocess.run(link(objects, folder / "probe", SANITIZERS[request.param]), check=True, timeout=60)
    except (AssertionError, subprocess.SubprocessError) as error:
        pytest.skip(f"the compiler has no {request.param} sanitizer that runs here: {str(error)[-200:]}")
    return build(request.param, folder, cpu_kernels)


def test_every_kernel_is_clean(sanitized: Sanitized, tmp_path: Path) -> None:
    printed = run_check(sanitized.linked_in(tmp_path), *TYPES[sanitized.sanitizer])
    assert "Sanitizer" not in printed, printed[-5000:]
    assert "runtime error" not in printed, printed[-5000:]
    assert "every kernel agrees with the CPU's" in printed, printed[-5000:]


FAULTS = {
    "thread": MUTANTS["reduction: read before written"],
    "address": Mutant(
        "cuda/row_losses.cuh", "if (lane == 0 && row < pair.rows) write_row", "if (lane == 0) write_row",
        lambda kernels: None,
    ),
}  # fmt: skip
REPORTS = {"thread": "WARNING: ThreadSanitizer: data race", "address": "ERROR: AddressSanitizer: heap-buffer-overflow"}


def test_a_planted_fault_is_reported(sanitized: Sanitized, tmp_path: Path) -> None:
    csrc = plant(FAULTS[sanitized.sanitizer], tmp_path)
    source, flags = csrc / "cuda" / "rows_float32.cu", [*sanitized.flags, "-Wno-error"]
    (changed,) = compile_all([source], tmp_path, csrc=csrc, flags=flags, precompiled=sanitized.precompiled)
    program = sanitized.linked_in(tmp_path, **{changed.name: changed})
    assert REPORTS[sanitized.sanitizer] in run_check(program, "float32")
