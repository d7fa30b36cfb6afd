"""The kernels of csrc/cuda as a library of the host, compiled once a session, of however many workers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from filelock import FileLock  # which torch needs
from host_build import CSRC, CUDA_FILES, HERE, OPTIMISED, compile_all, compiler, link, precompile
from host_kernels import HostKernels

HOST_FILES = ("fibres", "kernels")
LIBRARY = "libkernels.so"


@pytest.fixture(scope="session")
def host_objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Object files by the name of their source; tests/cuda_on_host/README.md says how kernels run on the host."""
    if compiler() is None:
        pytest.skip("needs a C++ compiler")
    sources = [CSRC / "cuda" / f"{name}.cu" for name in CUDA_FILES] + [HERE / f"{name}.cpp" for name in HOST_FILES]
    of_worker = tmp_path_factory.getbasetemp()
    folder = (of_worker.parent if "PYTEST_XDIST_WORKER" in os.environ else of_worker) / "cuda_on_host"
    with FileLock(f"{folder}.lock"):
        if not (folder / LIBRARY).exists():
            folder.mkdir(exist_ok=True)
            link(compile_all(sources, folder, precompiled=precompile(folder, OPTIMISED)), folder / LIBRARY, ["-shared"])
    return {source.stem: folder / f"{source.name}.o" for source in sources}


@pytest.fixture(scope="session")
def library(host_objects: dict[str, Path]) -> HostKernels:
    return HostKernels(host_objects["kernels"].parent / LIBRARY)


@pytest.fixture(params=[False, True], ids=["first-thread-first", "last-thread-first"])
def kernels(request: pytest.FixtureRequest, library: HostKernels) -> HostKernels:
    """The library; threads take turns from the first to the last, and in a second run of the test the other way."""
    library.set_order(descending=request.param)
    library.set_limits()
    library.take_launches()
    return library
