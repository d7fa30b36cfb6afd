"""`jocor-fast info`: what a report of a fault has to say about the build, the machine and the data at hand."""

from __future__ import annotations

import argparse
import importlib
import platform
from collections.abc import Iterator

from rich.console import Console

from jocor_fast.cli.flags import declare_alone
from jocor_fast.data.catalogue import DATASETS, default_root, find_dataset
from jocor_fast.errors import DataError
from jocor_fast.machine import resolve_device, usable_cores
from jocor_fast.report.screen import counted, say

SUMMARY = "print build, devices, decoders, data sets and versions"
USAGE = "[OPTIONS]"
HOW_TO_GO_ON = "run it again"
DESCRIPTION = """\
Print what is installed: the build of the kernels, devices, image decoders, data
sets with their folders, and versions. Paste the output into bug reports."""

# Distributions: those that the package needs, then those that it can make use of.
NEEDED = ("numpy", "matplotlib", "rich", "scikit-learn", "scipy", "shtab")
OPTIONAL = ("tensorboard", "lightning", "cleanlab")
# What reads images from files: module, distributions that bring it.
LOADERS = {
    "nvidia.dali": ("nvidia-dali-cuda130", "nvidia-dali-cuda120"),
    "PIL": ("pillow",),
    "torchvision": ("torchvision",),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    declare_alone(parser, "data_root")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Print it, a line a subject."""
    for name, text in _lines(arguments.data_root):
        say(console, f"{name:<11} {text}".rstrip())
    return 0


def _lines(data_root: str | None) -> Iterator[tuple[str, str]]:
    import torch

    from jocor_fast._extension import build_info, why_plain

    build = build_info()
    if build["compiler"] is None:
        yield "jocor_fast", f"{build['version']}, not compiled: {build['reason']}"
        yield "kernels", str(why_plain("cpu"))
    else:
        yield "jocor_fast", f"{build['version']}, compiled against torch {build['torch']} by {build['compiler']}"
        in_use, *others = build["cpu_instruction_sets"]
        yield "kernels", f"CPU: {in_use} in use" + (f", {', '.join(others)} compiled in" if others else "")
        cuda = f"toolkit {build['cuda']}, for {', '.join(build['cuda_architectures'])}"
        yield "", f"CUDA: {cuda if build['cuda'] else 'none, ' + build['reason']}"
    yield "python", f"{platform.python_version()} on {platform.platform()}"
    built_for = f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU"
    yield "torch", f"{torch.__version__}, built for {built_for}, {counted(torch.get_num_threads(), 'thread')}"
    yield "devices", f"{usable_cores()} CPU cores"
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        gpu = torch.cuda.get_device_properties(index)
        yield "", f"cuda:{index} {gpu.name}, {gpu.major}.{gpu.minor}, {gpu.total_memory / 2**30:.0f} GiB"
    yield "", f"--device auto is {resolve_device('auto')}"
    yield "loaders", "memory"
    for module, distributions in LOADERS.items():
        yield "", f"{module} {_importable(module, distributions)}"
    yield "packages", ", ".join(f"{name} {_version(name) or 'is missing'}" for name in NEEDED)
    yield "optional", ", ".join(f"{name} {_version(name) or '(not installed)'}" for name in OPTIONAL)
    yield "docs", "the folder docs of the source; `make docs` there makes a site of it"
    try:
        root = str(data_root if data_root is not None else default_root())
    except DataError as error:
        yield "data root", f"none: {error.problem}"
        return
    yield "data root", root
    for name, entry in DATASETS.items():
        if not entry.path:
            yield "", f"{name}: {entry.place or find_dataset(name, data_root) or 'not found'}"


def _version(distribution: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _importable(module: str, distributions: tuple[str, ...]) -> str:
    """Return the version of a module that is there and works, or what is wrong with it."""
    versions = [version for version in map(_version, distributions) if version is not None]
    if not versions:
        return "is not installed"
    try:
        importlib.import_module(module)
    except Exception as error:  # built against another torch or CUDA it can fail in any way
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return f"{versions[0]} cannot be imported: {reason}"
    return versions[0]
