"""A small case for every kernel: with real threads under ThreadSanitizer, with fibres under AddressSanitizer.

ThreadSanitizer stands in for a race checker: a barrier orders memory there, a shuffle does not. AddressSanitizer sees
arrays that end with their last element; the alignment check with it sees vectors at addresses that a device refuses.
Both see the same in every logit type, so one stands for all: float32 for its time, and for addresses bfloat16, which
has vectors of three widths. The selection of float64 losses has a layout of shared memory of its own, and is in both.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from host_build import CSRC, HERE, compile_all, compiler, link, precompile
from kernel_inputs import CXX_NAMES
from mutants import NONE, environment, plant_all

from children import PATIENCE

RUNNERS = {"thread": "real_threads", "address": "fibres"}
DEFINES = {"thread": ["-DCUDA_ON_HOST_REAL_THREADS"], "address": []}
SANITIZERS = {"thread": ["-fsanitize=thread"], "address": ["-fsanitize=address,alignment", "-fno-sanitize-recover"]}
TYPE = {"thread": "float32", "address": "bfloat16"}
LOSSES = {
    "thread": ["float64 losses"],
    "address": ["float32 losses", "float64 losses", "many float64 losses"],  # the last by a cluster, uncached
}
FAULTS = {"thread": "reduction: read before written", "address": "rows: those past the last one are written"}
REPORTS = {"thread": "WARNING: ThreadSanitizer: data race", "address": "ERROR: AddressSanitizer: heap-buffer-overflow"}
LEFT_OUT_HEADERS = """
#include "cuda/launches.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
"""
LEFT_OUT = """
namespace jocor_fast::cuda {
template <> cudaError_t launch_row_losses<TYPE>(const RowParams&, cudaStream_t) { return cudaErrorInvalidValue; }
template <> bool fits_single_block<TYPE>(const LogitPair&) { return false; }
template <> cudaError_t launch_rows_and_selection<TYPE>(const RowParams&, const SelectionParams&, cudaStream_t) {
  return cudaErrorInvalidValue;
}
template <> cudaError_t launch_row_gradients<TYPE>(const GradientParams&, cudaStream_t) {
  return cudaErrorInvalidValue;
}
template <> cudaError_t launch_robust_losses<TYPE>(const RobustRowParams&, cudaStream_t) {
  return cudaErrorInvalidValue;
}
template <> cudaError_t launch_robust_gradients<TYPE>(const RobustGradientParams&, cudaStream_t) {
  return cudaErrorInvalidValue;
}
}
"""


@pytest.fixture(scope="module")
def checks(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The cases and the CPU's kernels, which they are compared with: what needs no sanitizer."""
    if compiler() is None:
        pytest.skip("needs a C++ compiler")
    sources = [HERE / "check_kernels.cpp", *(CSRC / "cpu" / f"{name}.cpp" for name in ("rows_portable", "selection"))]
    return compile_all(sources, tmp_path_factory.mktemp("checks"), flags=["-O0", "-Wno-error"])


def build(sanitizer: str, folder: Path, checks: list[Path]) -> Path:
    """Build the program from sources that hold the planted faults."""
    flags = ["-O0", "-g1", "-Wno-error", *DEFINES[sanitizer], *SANITIZERS[sanitizer]]
    csrc, others = plant_all(folder), folder / "other_types.cpp"
    left_out = [name for name in CXX_NAMES if name != TYPE[sanitizer]]
    others.write_text(LEFT_OUT_HEADERS + "".join(LEFT_OUT.replace("TYPE", CXX_NAMES[name]) for name in left_out))
    sources = [csrc / "cuda" / f"{name}.cu" for name in ("joint_loss", "selection", f"rows_{TYPE[sanitizer]}")]
    sources += [HERE / f"{RUNNERS[sanitizer]}.cpp", others]
    objects = compile_all(sources, folder, csrc=csrc, flags=flags, precompiled=precompile(folder, flags))
    return link([*objects, *checks], folder / "check", [*SANITIZERS[sanitizer], "-pthread"])


def run_check(program: Path, *what: str, planted: str = NONE) -> str:
    """Return what the program printed; a sanitizer's report ends it with an exit status of its own."""
    environ = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1", **environment(planted)}
    done = subprocess.run([program, *what], capture_output=True, text=True, timeout=PATIENCE, env=environ)
    if "unexpected memory mapping" in done.stderr:  # ThreadSanitizer and a kernel that places programs too freely
        command = ["setarch", "-R", str(program), *what]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environ)
    return done.stdout + done.stderr


@pytest.fixture(scope="module", params=SANITIZERS)
def sanitized(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, checks: list[Path]
) -> tuple[str, Path]:
    """A sanitizer and the program under it."""
    folder = tmp_path_factory.mktemp(request.param)
    probe = folder / "probe.cpp"
    probe.write_text("int main() {}\n")
    try:
        objects = compile_all([probe], folder, flags=SANITIZERS[request.param])
        subprocess.run(link(objects, folder / "probe", SANITIZERS[request.param]), check=True, timeout=PATIENCE)
    except (AssertionError, subprocess.SubprocessError) as error:
        pytest.skip(f"the compiler has no {request.param} sanitizer that runs here: {str(error)[-200:]}")
    return request.param, build(request.param, folder, checks)


def test_every_kernel_is_clean(sanitized: tuple[str, Path]) -> None:
    sanitizer, program = sanitized
    printed = run_check(program, TYPE[sanitizer], *LOSSES[sanitizer])
    assert "Sanitizer" not in printed, printed[-5000:]
    assert "runtime error" not in printed, printed[-5000:]
    assert "every kernel agrees with the CPU's" in printed, printed[-5000:]


def test_a_planted_fault_is_reported(sanitized: tuple[str, Path]) -> None:
    sanitizer, program = sanitized
    assert REPORTS[sanitizer] in run_check(program, TYPE[sanitizer], planted=FAULTS[sanitizer])
