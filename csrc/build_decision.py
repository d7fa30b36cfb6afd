"""Decide what is built and why: kernels where there is a compiler, those for CUDA where torch and a toolkit allow it.

setup.py loads this file by its path; nothing here imports torch or setuptools: the tests pass any environment.
A GPU's presence plays no part: a build machine often has none.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

NONE = "none"  # the one value of JOCOR_FAST_BUILD: compile nothing
INSTALL_COMPILER = "install g++ 11 or newer (Debian, Ubuntu: apt install g++), or set CXX"
DEFAULT_ARCHITECTURES = "8.0;9.0;10.0+PTX"  # all from 8.0 on; 7.5 takes a quarter more time to compile


class BuildError(Exception):
    """Nothing can be built; the message is one sentence for the user."""


@dataclass(frozen=True)
class Toolkit:
    """A CUDA toolkit: `home` holds bin/nvcc, `release` is "13.0"; `cudart` is the name to link against."""

    home: Path
    release: str
    include: Path
    libraries: Path
    cudart: str

    @property
    def major(self) -> str:
        return self.release.split(".")[0]


@dataclass(frozen=True)
class Decision:
    """What to build. Exactly one of `toolkit` (build the CUDA part with it) and `reason` (why not) is set."""

    toolkit: Toolkit | None
    architectures: tuple[str, ...]
    reason: str | None

    def __str__(self) -> str:
        if self.toolkit is None:
            return f"building the CPU part only: {self.reason}"
        return (
            f"building the CPU and CUDA parts: toolkit {self.toolkit.release} in {self.toolkit.home}, "
            f"architectures {' '.join(self.architectures)}"
        )


def decide(
    *,
    environ: Mapping[str, str],
    torch_version: str,
    torch_cuda: str | None,
    cuda_sources: Sequence[str],
    package_folders: Sequence[str],
) -> Decision:
    """Decide whether the CUDA part is built.

    Args:
        environ: PATH, CUDA_HOME (or CUDA_PATH), FORCE_CUDA, FORCE_CPU and TORCH_CUDA_ARCH_LIST are read from it.
        torch_version: `torch.__version__`, for the reason.
        torch_cuda: `torch.version.cuda`, e.g. "13.0"; None for a CPU (or ROCm) build of torch.
        cuda_sources: the .cu files that there are to build.
        package_folders: where Python packages lie (`sys.path`), for the toolkit's pip packages.

    Raises:
        BuildError: FORCE_CUDA=1 where CUDA cannot be built, or contradictory switches.
    """
    force_cuda, force_cpu = _switch(environ, "FORCE_CUDA"), _switch(environ, "FORCE_CPU")
    if force_cuda and force_cpu:
        raise BuildError("FORCE_CUDA=1 and FORCE_CPU=1 contradict each other: set one of them.")
    toolkit, reason = None, None
    if force_cpu:
        reason = "FORCE_CPU=1"
    elif torch_cuda is None:
        reason = f"torch {torch_version} is not a CUDA build"
    else:
        toolkit, reason = _matching_toolkit(environ, torch_cuda.split(".")[0], package_folders)
    if toolkit is not None and not cuda_sources:
        toolkit, reason = None, "there are no CUDA sources in csrc/cuda"
    if toolkit is None:
        if force_cuda:
            raise BuildError(f"FORCE_CUDA=1, but the CUDA part cannot be built: {reason}.")
        return Decision(toolkit=None, architectures=(), reason=reason)
    listed = environ.get("TORCH_CUDA_ARCH_LIST") or DEFAULT_ARCHITECTURES
    return Decision(toolkit=toolkit, architectures=tuple(listed.replace(";", " ").split()), reason=None)


def why_pure(environ: Mapping[str, str], platform: str, find: Callable[[], object]) -> str | None:
    """Return why nothing is compiled, and plain PyTorch is to serve; None where the kernels are compiled.

    Args:
        environ: JOCOR_FAST_BUILD is read from it, and CXX, FORCE_CUDA and FORCE_CPU, each of which asks for kernels.
        platform: `sys.platform`.
        find: `find_compiler`, with its arguments.

    Raises:
        BuildError: kernels are asked for, and there is no compiler that can compile them; or JOCOR_FAST_BUILD is wrong.
    """
    chosen = environ.get("JOCOR_FAST_BUILD", "")
    if chosen not in ("", NONE):
        raise BuildError(f"JOCOR_FAST_BUILD is {chosen!r}: accepted is {NONE}.")
    if chosen == NONE:
        return f"JOCOR_FAST_BUILD={NONE}"
    asked_for = environ.get("CXX") or _switch(environ, "FORCE_CUDA") or _switch(environ, "FORCE_CPU")
    if platform != "linux" and not asked_for:
        return f"kernels are compiled on Linux, and this is {platform}"
    try:
        find()
    except BuildError as error:
        if asked_for:
            raise BuildError(f"{error}: {INSTALL_COMPILER}.") from None
        return str(error)
    return None


def find_compiler(environ: Mapping[str, str], flags: Sequence[str], python_include: str) -> tuple[str, str]:
    """Return the C++ compiler's command and the first line of its `--version`, after it compiled an empty module.

    Raises:
        BuildError: there is no compiler, or it cannot compile C++20, OpenMP or Python's headers; the message is the
            reason alone.
    """
    path = environ.get("PATH", "")
    names = [environ["CXX"]] if environ.get("CXX") else ["c++", "g++", "clang++"]
    command = next((name for name in names if shutil.which(shlex.split(name)[0], path=path)), None)
    if command is None:
        raise BuildError(f"no C++ compiler was found among {', '.join(names)}")
    probe = [*shlex.split(command), *flags, "-fsyntax-only", f"-I{python_include}", "-x", "c++", "-"]
    result = subprocess.run(
        probe, input="#include <Python.h>\n#include <version>\n", env=environ, capture_output=True, text=True
    )
    if result.returncode != 0:
        complaint = next(iter(result.stderr.strip().splitlines()), f"exit status {result.returncode}")
        raise BuildError(f"`{command}` cannot compile C++20 with OpenMP and Python's headers, it says: {complaint}")
    version = subprocess.run([*shlex.split(command), "--version"], env=environ, capture_output=True, text=True)
    return command, version.stdout.partition("\n")[0].strip()


def _switch(environ: Mapping[str, str], name: str) -> bool:
    value = environ.get(name, "")
    if value not in ("", "0", "1"):
        raise BuildError(f"{name} is {value!r}: accepted are 0 and 1.")
    return value == "1"


def _matching_toolkit(
    environ: Mapping[str, str], torch_major: str, package_folders: Sequence[str]
) -> tuple[Toolkit | None, str | None]:
    """Return the first toolkit of torch's CUDA major, or why there is none; CUDA_HOME alone, where it is set."""
    chosen = environ.get("CUDA_HOME") or environ.get("CUDA_PATH")
    if chosen:
        toolkit = _toolkit_at(Path(chosen), environ)
        if toolkit is None:
            return None, f"CUDA_HOME={chosen} holds no whole toolkit (bin/nvcc, cuda_runtime.h, libcudart.so)"
        found = [toolkit]
    else:
        homes = (*_homes_on_path(environ), *(Path(f) / "nvidia" / f"cu{torch_major}" for f in package_folders))
        found = [toolkit for home in homes if (toolkit := _toolkit_at(home, environ)) is not None]
    for toolkit in found:
        if toolkit.major == torch_major:
            return toolkit, None
    if found:
        listed = ", ".join(f"{toolkit.release} in {toolkit.home}" for toolkit in found)
        return None, f"torch is built for CUDA {torch_major}, and the toolkit found is {listed}"
    return None, (
        f"no CUDA {torch_major} toolkit was found (looked at CUDA_HOME, nvcc on PATH, "
        "and the pip packages of cuda-toolkit[nvcc,cccl])"
    )


def _homes_on_path(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the toolkit's folder as the nvcc on PATH reports it, then the folder above nvcc's own.

    `nvcc --dryrun` prints `#$ TOP=DIR`. The folder above nvcc's own, which is torch's guess, is wrong where that nvcc
    is a wrapper script; it is right for distributions that spread the toolkit over /usr.
    """
    nvcc = shutil.which("nvcc", path=environ.get("PATH", ""))
    if nvcc is None:
        return
    top = re.search(r"^#\$ TOP=(.+)$", _run_nvcc(nvcc, "--dryrun", "-x", "cu", os.devnull, environ=environ), re.M)
    if top is not None:
        yield Path(top.group(1).strip())
    yield Path(nvcc).parent.parent


def _toolkit_at(home: Path, environ: Mapping[str, str]) -> Toolkit | None:
    """Return the toolkit in a folder if it is whole: nvcc, the runtime's headers, the runtime library."""
    home = home.resolve()
    nvcc = home / "bin" / "nvcc"
    if not nvcc.is_file():
        return None
    release = re.search(r"release (\d+\.\d+)", _run_nvcc(str(nvcc), "--version", environ=environ))
    include = _first_holding("cuda_runtime.h", [home / "include", *home.glob("targets/*/include")])
    folders = [home / "lib64", home / "lib", *home.glob("lib/*-linux-gnu"), *home.glob("targets/*/lib")]
    # The pip packages have no libcudart.so without a number, so the linker must be given the file's own name.
    for name in ("libcudart.so", f"libcudart.so.{release.group(1).split('.')[0]}" if release else ""):
        libraries = _first_holding(name, folders) if name else None
        if release and include and libraries:
            cudart = "cudart" if name == "libcudart.so" else f":{name}"
            return Toolkit(home, release.group(1), include, libraries, cudart)
    return None


def _first_holding(name: str, folders: Sequence[Path]) -> Path | None:
    return next((folder for folder in folders if (folder / name).is_file()), None)


def _run_nvcc(nvcc: str, *arguments: str, environ: Mapping[str, str]) -> str:
    try:
        result = subprocess.run([nvcc, *arguments], env=environ, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout + result.stderr
