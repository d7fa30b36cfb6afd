"""Build the extension module jocor_fast._C, or a package without one. csrc/build_decision.py decides which, and why.

Environment: JOCOR_FAST_BUILD=none, FORCE_CUDA, FORCE_CPU, CUDA_HOME, TORCH_CUDA_ARCH_LIST, CXX, MAX_JOBS;
JOCOR_FAST_WERROR=1 is for CI.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "csrc"))
from build_decision import BuildError, decide, find_compiler, why_pure  # noqa: E402

WERROR = os.environ.get("JOCOR_FAST_WERROR") == "1"
CXX_FLAGS = ["-O3", "-g0", "-std=c++20", "-fopenmp", "-fvisibility=hidden", "-Wall", "-Wextra", *["-Werror"] * WERROR]
NVCC_FLAGS = ["-O3", "-std=c++20", "-Xcompiler=-Wall,-fvisibility=hidden", *["-Werror=all-warnings"] * WERROR]


def files(pattern: str) -> list[str]:
    """Return files under the repository's root, relative to it, in a fixed order."""
    return sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(pattern))


def compiler_here() -> tuple[str, str]:
    """Return the C++ compiler and what it is."""
    return find_compiler(os.environ, CXX_FLAGS, sysconfig.get_paths()["include"])


def record_build(folder: Path, **build: Any) -> None:
    """Write what the package says of its build when it runs; say loudly what it lacks (pip shows that with -v)."""
    (folder / "_build.json").write_text(json.dumps(build, indent=2) + "\n")
    if build["reason"] is not None:
        line = f"jocor_fast is built WITHOUT {'CUDA' if build['compiler'] else 'COMPILED'} KERNELS: {build['reason']}"
        print("*" * len(line), line, "Plain PyTorch takes their place, which is slower.", "*" * len(line), sep="\n")


def pure_command(reason: str) -> type:
    """Return the command that builds a package without an extension and writes jocor_fast/_build.json."""

    class BuildPure(build_py):
        def run(self) -> None:
            super().run()
            folder = (ROOT if self.editable_mode else Path(self.build_lib)) / "jocor_fast"
            nothing: dict[str, Any] = {"torch": None, "compiler": None, "cuda": None, "cuda_architectures": []}
            record_build(folder, version=self.distribution.get_version(), **nothing, reason=reason)

    return BuildPure


def extension_and_command() -> tuple[Extension, type]:
    """Return the extension to build here and the command that builds it and writes jocor_fast/_build.json."""
    os.environ["CXX"], compiler = compiler_here()
    try:
        import torch
    except (ImportError, OSError) as error:
        raise BuildError(
            f"jocor_fast is compiled against the torch that will run it, and this build cannot import torch ({error}): "
            "install torch, then run `pip install --no-build-isolation .` (without that option pip hides torch); "
            "JOCOR_FAST_BUILD=none does without compiled kernels."
        ) from None
    if [int(number) for number in torch.__version__.split(".")[:2]] < [2, 11]:
        raise BuildError(f"jocor_fast needs torch 2.11 or newer, and this build found torch {torch.__version__}.")
    decision = decide(
        environ=os.environ,
        torch_version=torch.__version__,
        torch_cuda=torch.version.cuda,
        cuda_sources=files("csrc/cuda/*.cu"),
        package_folders=sys.path,
    )
    if decision.toolkit is not None:
        os.environ["CUDA_HOME"] = str(decision.toolkit.home)  # read by torch as it is imported below
        os.environ["TORCH_CUDA_ARCH_LIST"] = ";".join(decision.architectures)
    from torch.utils import cpp_extension

    # As a system folder torch's headers cause no warnings; the -I that torch adds for it is then without effect.
    cxx_flags = CXX_FLAGS + [flag for folder in cpp_extension.include_paths() for flag in ("-isystem", folder)]
    options: dict[str, Any] = {"include_dirs": [str(ROOT / "csrc")], "extra_link_args": ["-fopenmp"]}
    sources = files("csrc/*.cpp") + files("csrc/cpu/*.cpp")
    if (toolkit := decision.toolkit) is not None:
        sources += files("csrc/cuda/*.cu")
        options["include_dirs"] += [str(toolkit.include)]
        options["define_macros"] = [("JOCOR_FAST_CUDA", None)]
        options["library_dirs"] = [str(toolkit.libraries)]
        options["libraries"] = [toolkit.cudart, "c10_cuda", "torch_cuda"]
    options["extra_compile_args"] = {"cxx": cxx_flags, "nvcc": NVCC_FLAGS}
    extension = cpp_extension.CppExtension("jocor_fast._C", sources, depends=files("csrc/**/*.*h"), **options)

    class BuildExtension(cpp_extension.BuildExtension):
        def finalize_options(self) -> None:
            super().finalize_options()
            # One folder for every kind of build: ninja compiles only what changed; another for another torch.
            self.build_temp = str(ROOT / "build" / f"objects-{sys.implementation.cache_tag}-torch-{torch.__version__}")

        def run(self) -> None:
            version = self.distribution.get_version()
            print(f"jocor_fast {version} against torch {torch.__version__}: {decision}", flush=True)
            super().run()
            record_build(
                Path(self.get_ext_fullpath("jocor_fast._C")).parent,
                version=version,
                torch=torch.__version__,
                compiler=compiler,
                cuda=toolkit and toolkit.release,
                cuda_architectures=decision.architectures,
                reason=decision.reason,
            )

    return extension, BuildExtension


if {"sdist", "egg_info"} & set(sys.argv):  # neither compiles anything, so neither needs torch or a compiler
    setup()
else:
    try:
        reason = why_pure(os.environ, sys.platform, compiler_here)
        if reason is None:
            extension, build_ext = extension_and_command()
    except BuildError as error:
        sys.exit(str(error))
    if reason is None:
        setup(ext_modules=[extension], cmdclass={"build_ext": build_ext})
    else:
        setup(cmdclass={"build_py": pure_command(reason)})
