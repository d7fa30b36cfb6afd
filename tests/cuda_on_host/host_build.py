"""Compile the kernel sources of csrc/cuda for the host: a library for ctypes, or an executable under a sanitizer."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
CSRC = HERE.parents[1] / "csrc"
CUDA_FILES = ("joint_loss", "selection", "rows_float32", "rows_float64", "rows_float16", "rows_bfloat16")

# The kernels read 16 bytes of logits through an integer type, as CUDA allows.
FLAGS = ["-std=c++20", "-fPIC", "-fno-strict-aliasing", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]


OPTIMISED = ("-O1",)
SHIM = (f"-I{HERE / 'shim'}", f"-I{HERE}", "-DJOCOR_FAST_CUDA")
PRECOMPILED = "precompiled.h"


def compiler() -> list[str] | None:
    """Return the C++ compiler's command, or None where there is none."""
    command = shlex.split(os.environ.get("CXX", "c++"))
    return command if shutil.which(command[0]) else None


def compile_all(
    sources: Sequence[Path],
    folder: Path,
    *,
    csrc: Path = CSRC,
    flags: Sequence[str] = OPTIMISED,
    precompiled: Path | None = None,
) -> list[Path]:
    """Compile each source to an object file, two at a time. Sources that end in .cu are read through the shim.

    `precompiled` is what `precompile` made with the same flags: half of a kernel file's time is its headers.
    """
    command = compiler()
    assert command is not None
    include = [*SHIM, f"-I{csrc}"]
    if precompiled is not None:
        include = ["-include", str(precompiled), *include]

    def compile_one(source: Path) -> Path:
        target = folder / f"{source.name}.o"
        run([*command, *FLAGS, *flags, *include, "-x", "c++", "-c", str(source), "-o", str(target)])
        return target

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(compile_one, sources))


def precompile(folder: Path, flags: Sequence[str]) -> Path:
    """Compile the shim's large header ahead of the sources that are compiled with these flags."""
    command = compiler()
    assert command is not None
    header = folder / PRECOMPILED
    header.write_text("#include <cuda_runtime.h>\n")
    run([*command, *FLAGS, *flags, *SHIM, "-x", "c++-header", str(header), "-o", f"{header}.gch"])
    return header


def link(objects: Sequence[Path], target: Path, flags: Sequence[str]) -> Path:
    """Link object files into a library or an executable."""
    command = compiler()
    assert command is not None
    run([*command, *map(str, objects), *flags, "-o", str(target)])
    return target


def run(command: Sequence[str], *, env: dict[str, str] | None = None) -> str:
    """Return standard output and error of a command that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr
