"""A small case for every kernel: with real threads under ThreadSanitizer, with fibres under AddressSanitizer.

ThreadSanitizer stands in for a race checker: a barrier orders memory there, a shuffle does not. AddressSanitizer sees
arrays that end with their last element; the alignment check with it sees vectors at addresses that a device refuses.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from host_build import CSRC, CUDA_FILES, HERE, compile_all, compiler, link
from mutants import MUTANTS, Mutant, plant

RUNNERS = {"thread": "real_threads", "address": "fibres"}
DEFINES = {"thread": ["-DCUDA_ON_HOST_REAL_THREADS"], "address": []}
SANITIZERS = {"thread": ["-fsanitize=thread"], "address": ["-fsanitize=address,alignment", "-fno-sanitize-recover"]}


@pytest.fixture(scope="module")
def cpu_kernels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """What the cases are compared with, compiled without a sanitizer."""
    if compiler() is None:
        pytest.skip("needs a C++ compiler")
    sources = [CSRC / "cpu" / f"{name}.cpp" for name in ("rows_portable", "selection")]
    return compile_all(sources, tmp_path_factory.mktemp("cpu"), flags=["-O1", "-Wno-error"])


def build(sanitizer: str, folder: Path, cpu_kernels: list[Path]) -> dict[str, Path]:
    flags = ["-O1", "-g1", *DEFINES[sanitizer], *SANITIZERS[sanitizer]]
    sources = [CSRC / "cuda" / f"{name}.cu" for name in CUDA_FILES]
    sources += [HERE / f"{RUNNERS[sanitizer]}.cpp", HERE / "check_kernels.cpp"]
    objects = compile_all(sources, folder, flags=flags)
    return {path.name: path for path in [*objects, *cpu_kernels]}


def run_check(program: Path, *types: str) -> str:
    """What the program printed; a sanitizer's report ends it with an exit status of its own."""
    done = subprocess.run([program, *types], capture_output=True, text=True, timeout=240)
    if "unexpected memory mapping" in done.stderr:  # ThreadSanitizer and a kernel that places programs too freely
        command = ["setarch", "-R", str(program), *types]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    return done.stdout + done.stderr


@pytest.fixture(scope="module", params=SANITIZERS)
def sanitized(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, cpu_kernels: list[Path]
) -> tuple[str, dict[str, Path]]:
    """The sanitizer's name and the program's object files."""
    folder = tmp_path_factory.mktemp(request.param)
    probe = folder / "probe.cpp"
    probe.write_text("int main() {}\n")
    try:
        objects = compile_all([probe], folder, flags=SANITIZERS[request.param])
        subprocess.run(link(objects, folder / "probe", SANITIZERS[request.param]), check=True, timeout=60)
    except (AssertionError, subprocess.SubprocessError) as error:
        pytest.skip(f"the compiler has no {request.param} sanitizer that runs here: {str(error)[-200:]}")
    return request.param, build(request.param, folder, cpu_kernels)


def test_every_kernel_is_clean(sanitized: tuple[str, dict[str, Path]], tmp_path: Path) -> None:
    sanitizer, objects = sanitized
    printed = run_check(link(list(objects.values()), tmp_path / "check", [*SANITIZERS[sanitizer], "-pthread"]))
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


def test_a_planted_fault_is_reported(sanitized: tuple[str, dict[str, Path]], tmp_path: Path) -> None:
    sanitizer, objects = sanitized
    csrc = plant(FAULTS[sanitizer], tmp_path)
    flags = ["-O1", "-g1", "-Wno-error", *DEFINES[sanitizer], *SANITIZERS[sanitizer]]
    (changed,) = compile_all([csrc / "cuda" / "rows_float32.cu"], tmp_path, csrc=csrc, flags=flags)
    faulty = {**objects, changed.name: changed}
    program = link(list(faulty.values()), tmp_path / "check", [*SANITIZERS[sanitizer], "-pthread"])
    assert REPORTS[sanitizer] in run_check(program, "float32")
