"""The kernels under compute-sanitizer's four tools, each compared with the CPU's kernels.

The program, cuda_on_host/check_kernels.cpp, uses no torch: a tool that follows every access would take minutes to load
torch's libraries.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from gpu.device import toolkit  # noqa: E402

TOOLS = ("", "memcheck", "racecheck", "initcheck", "synccheck")
FLAGS = ("-O3", "-std=c++20", "-lineinfo", "-DJOCOR_FAST_CUDA", f"-I{ROOT / 'csrc'}")
CHECK_KERNELS = ROOT / "tests" / "cuda_on_host" / "check_kernels.cpp"
SOURCES = (
    *sorted((ROOT / "csrc" / "cuda").glob("*.cu")),
    CHECK_KERNELS,
    *(ROOT / "csrc" / "cpu" / f"{name}.cpp" for name in ("rows_portable", "selection")),
)

Ran = subprocess.CompletedProcess[str]


def compile_source(nvcc: Path, architecture: str, folder: Path, source: Path) -> Path:
    """Return the object file of a source, for one architecture ("90"); errors are on the standard error."""
    # Whatever calls the runtime is CUDA, however the file is named; the CPU's kernels are the host compiler's.
    language = "c++" if source.parent.name == "cpu" else "cu"
    target = folder / f"{source.name}.o"
    subprocess.run([nvcc, *FLAGS, f"-arch=sm_{architecture}", "-x", language, "-c", source, "-o", target], check=True)
    return target


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Ran]]]:
    """The program alone and under each tool, all at once: what takes them long is the host's work, one core each."""
    folder, binaries = tmp_path_factory.mktemp("check_kernels"), toolkit().home / "bin"
    nvcc, architecture = binaries / "nvcc", "{}{}".format(*torch.cuda.get_device_capability())
    under = shutil.which("compute-sanitizer") or binaries / "compute-sanitizer"
    program = folder / "check_kernels"
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        objects = pool.map(partial(compile_source, nvcc, architecture, folder), SOURCES)
        subprocess.run([nvcc, f"-arch=sm_{architecture}", *objects, "-o", program], check=True)
        run = partial(subprocess.run, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        options = {tool: [under, "--tool", tool, "--error-exitcode", "9"] if tool else [] for tool in TOOLS}
        yield {tool: pool.submit(run, [*options[tool], program]) for tool in TOOLS}


@pytest.mark.gpu
@pytest.mark.parametrize("tool", TOOLS)
def test_the_kernels_agree_with_the_cpus(runs: dict[str, Future[Ran]], tool: str) -> None:
    ran = runs[tool].result()
    print(ran.stdout)
    assert ran.returncode == 0


def test_the_program_under_the_sanitizer_compiles_with_nvcc(tmp_path: Path) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc")
    assert all(source.exists() for source in SOURCES)
    assert compile_source(Path("nvcc"), "90", tmp_path, CHECK_KERNELS).stat().st_size > 0
