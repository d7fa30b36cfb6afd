"""Part "sanitizer": compute-sanitizer's four tools over a small case for each kernel, compared with the CPU's kernels.

The program is tests/cuda_on_host/check_kernels.cpp, which knows nothing of torch: a tool that follows every access
would take minutes to load torch's libraries.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpu import records
from gpu.device import NotHere, toolkit

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
PROGRAM = "the kernels agree with the CPU's"
FLAGS = ("-O3", "-std=c++20", "-lineinfo", "-DJOCOR_FAST_CUDA", f"-I{CSRC}")
SOURCES = (
    *sorted((CSRC / "cuda").glob("*.cu")),
    ROOT / "tests" / "cuda_on_host" / "check_kernels.cpp",
    *(CSRC / "cpu" / f"{name}.cpp" for name in ("rows_portable", "selection")),
)


def compile_source(nvcc: Path, architecture: str, source: Path, folder: Path) -> Path:
    """The object file of one source, for one architecture ("90").

    Raises:
        subprocess.CalledProcessError: it does not compile; the messages are on the standard error.
    """
    # Whatever calls the runtime is CUDA, however the file is named; the CPU's kernels are the host compiler's.
    language = "c++" if source.parent.name == "cpu" else "cu"
    target = folder / f"{source.name}.o"
    subprocess.run([nvcc, *FLAGS, f"-arch=sm_{architecture}", "-x", language, "-c", source, "-o", target], check=True)
    return target


def build_program(nvcc: Path, architecture: str, folder: Path) -> Path:
    """check_kernels, its files compiled side by side."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        objects = list(pool.map(lambda source: compile_source(nvcc, architecture, source, folder), SOURCES))
    program = folder / "check_kernels"
    subprocess.run([nvcc, f"-arch=sm_{architecture}", *objects, "-o", program], check=True)
    return program


def run_tool(command: Sequence[str | Path]) -> tuple[int, float, str]:
    """Exit status, seconds, and the line that tells most."""
    started = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout, flush=True)
    lines = done.stdout.strip().splitlines()
    summary = next((line for line in reversed(lines) if "SUMMARY" in line), lines[-1] if lines else "")
    return done.returncode, round(time.monotonic() - started, 1), summary.strip("= ")


def run_and_record(name: str, command: Sequence[str | Path]) -> bool:
    code, seconds, summary = run_tool(command)
    records.done(name, ok=code == 0, seconds=seconds, summary=summary)
    return code == 0


def main() -> int:
    records.plan([PROGRAM, *TOOLS])
    import torch

    try:
        home = toolkit().home
    except NotHere as error:
        print(error)
        return 1
    major, minor = torch.cuda.get_device_capability()
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=str(home / "bin"))
    with tempfile.TemporaryDirectory() as folder:
        program = build_program(home / "bin" / "nvcc", f"{major}{minor}", Path(folder))
        well = [run_and_record(PROGRAM, [program])]
        if sanitizer is None:
            print(f"there is no compute-sanitizer on PATH or in {home}/bin")
            return 1
        commands = [[sanitizer, "--tool", tool, "--error-exitcode", "9", program] for tool in TOOLS]
        with ThreadPoolExecutor(len(TOOLS)) as pool:  # what takes them long is the host's work, of one core each
            well += pool.map(run_and_record, TOOLS, commands)
    return 0 if all(well) else 1


if __name__ == "__main__":
    sys.exit(main())
