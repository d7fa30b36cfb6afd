"""The kernels of csrc/cuda as a library of the host, compiled once a session."""

from __future__ import annotations

from pathlib import Path

import pytest
from host_build import CSRC, CUDA_FILES, HERE, OPTIMISED, compile_all, compiler, link, precompile
from host_kernels import HostKernels

HOST_FILES = ("fibres", "kernels")


@pytest.fixture(scope="session")
def host_objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Object files by the name of their source; tests/cuda_on_host/README.md says how kernels run on the host."""
    if compiler() is None:
        pytest.skip("needs a C++ compiler")
    sources = [CSRC / "cuda" / f"{name}.cu" for name in CUDA_FILES] + [HERE / f"{name}.cpp" for name in HOST_FILES]
    folder = tmp_path_factory.mktemp("cuda_on_host")
    objects = compile_all(sources, folder, precompiled=precompile(folder, OPTIMISED))
    return dict(zip(CUDA_FILES + HOST_FILES, objects, strict=True))


@pytest.fixture(scope="session")
def library(host_objects: dict[str, Path]) -> HostKernels:
    objects = list(host_objects.values())
    return HostKernels(link(objects, objects[0].parent / "libkernels.so", ["-shared"]))


@pytest.fixture(params=[False, True], ids=["first-thread-first", "last-thread-first"])
def kernels(request: pytest.FixtureRequest, library: HostKernels) -> HostKernels:
    """The library; threads take turns from the first to the last, and in a second run of the test the other way."""
    library.set_order(descending=request.param)
    library.set_limits()
    library.take_launches()
    return library
