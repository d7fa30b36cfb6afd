"""What nvcc makes of the kernels that are shipped: registers, spills, the width of loads and stores."""

from __future__ import annotations

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from host_build import CSRC, run

TYPES = ("float32", "bfloat16")
MANGLED = {"float32": "f", "bfloat16": "13__nv_bfloat16"}
LOAD_16_BYTES, STORE_16_BYTES = r"\bld\.global\.v4\.[ubf]32\b", r"\bst\.global\.v4\.[ubf]32\b"
WIDEST = {"float32": 4, "bfloat16": 8}


def nvcc(*arguments: str) -> str:
    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc")
    return run(["nvcc", "-O3", "-std=c++20", "-DJOCOR_FAST_CUDA", f"-I{CSRC}", *arguments])


@dataclass(frozen=True)
class Kernel:
    name: str
    capability: str
    registers: int
    spilled_bytes: int


def kernels_in(report: str, capability: str) -> list[Kernel]:
    """What `ptxas -v` says of each kernel."""
    kernels = []
    for part in report.split("Compiling entry function '")[1:]:
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", part)
        registers = re.search(r"Used (\d+) registers", part)
        assert spills is not None, part
        assert registers is not None, part
        spilled = int(spills.group(1)) + int(spills.group(2))
        kernels.append(Kernel(part.split("'")[0], capability, int(registers.group(1)), spilled))
    return kernels


@pytest.fixture(scope="module")
def ptx_files(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """PTX by the name of the .cu file and the capability. That of 9.0 serves 10.0 too: the kernels treat them alike."""
    folder = tmp_path_factory.mktemp("ptx")
    jobs = [(name, capability) for capability in ("80", "90") for name in (*(f"rows_{t}" for t in TYPES), "selection")]

    def compile_one(job: tuple[str, str]) -> Path:
        target = folder / f"{job[0]}_{job[1]}.ptx"
        nvcc("-ptx", f"-arch=compute_{job[1]}", str(CSRC / "cuda" / f"{job[0]}.cu"), "-o", str(target))
        return target

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(jobs, pool.map(compile_one, jobs), strict=True))


@pytest.fixture(scope="module")
def compiled(ptx_files: dict[tuple[str, str], Path]) -> list[Kernel]:
    """What ptxas says of the kernels on float32 and bfloat16 logits."""
    targets = {"80": ["80"], "90": ["90", "100"]}  # of PTX
    jobs = [(path, target) for (_, capability), path in ptx_files.items() for target in targets[capability]]

    def assemble(job: tuple[Path, str]) -> list[Kernel]:
        path, capability = job
        target = path.with_suffix(f".{capability}.cubin")
        report = nvcc("-cubin", f"-arch=sm_{capability}", "-Xptxas=-v", str(path), "-o", str(target))
        return [k for k in kernels_in(report, capability) if not re.search(r"selection_by_\w+IdE", k.name)]

    with ThreadPoolExecutor(2) as pool:
        return [kernel for kernels in pool.map(assemble, jobs) for kernel in kernels]


def test_no_float32_or_bfloat16_kernel_spills(compiled: list[Kernel]) -> None:
    per_type = {
        "float32": 2 * (4 + 2 + 4),
        "bfloat16": 3 * (4 + 2 + 4),
    }  # widths × (rows, rows and selection, gradients)
    assert len(compiled) == 3 * (sum(per_type.values()) + 2)  # and two selections
    assert [kernel for kernel in compiled if kernel.spilled_bytes > 0] == []


def test_a_row_in_too_few_registers_is_reported(ptx_files: dict[tuple[str, str], Path], tmp_path: Path) -> None:
    """1024 threads in a block leave 64 registers for 64 logits and as many exponentials."""
    head, *kernels = re.split(r"(?=\.visible \.entry )", ptx_files["rows_float32", "90"].read_text())
    (kernel,) = (text for text in kernels if "row_losses_in_registersIfLi2ELi4EE" in text.partition("(")[0])
    source = tmp_path / "spills.ptx"
    source.write_text(head + kernel.replace(".maxntid 128", ".maxntid 1024"))
    report = nvcc("-cubin", "-arch=sm_90", "-Xptxas=-v", str(source), "-o", str(tmp_path / "spills.cubin"))
    assert any(kernel.spilled_bytes > 0 for kernel in kernels_in(report, "90"))


@pytest.fixture(scope="module", params=TYPES)
def ptx(request: pytest.FixtureRequest, ptx_files: dict[tuple[str, str], Path]) -> tuple[str, dict[str, str]]:
    """A type, and the PTX of its kernels by their mangled names."""
    text = ptx_files[f"rows_{request.param}", "90"].read_text()
    parts = re.split(r"\.visible \.entry (\w+)\(", text)[1:]
    return request.param, dict(zip(parts[::2], parts[1::2], strict=True))


def kernel_named(ptx: dict[str, str], pattern: str) -> str:
    (found,) = [body for name, body in ptx.items() if re.search(pattern, name)]
    return found


@pytest.mark.parametrize("mapping", [0, 1, 2])
def test_rows_in_registers_move_16_bytes_at_a_time(ptx: tuple[str, dict[str, str]], mapping: int) -> None:
    dtype, kernels = ptx
    arguments = f"I{MANGLED[dtype]}Li{mapping}ELi{WIDEST[dtype]}E"
    vectors = 2 * (8, 8, 32)[mapping] // WIDEST[dtype]  # of two networks
    assert len(re.findall(LOAD_16_BYTES, kernel_named(kernels, f"row_losses_in_registers{arguments}"))) == vectors
    gradient = kernel_named(kernels, f"row_gradients_in_registers{arguments}")
    assert len(re.findall(LOAD_16_BYTES, gradient)) == vectors + 1  # and the row's statistics
    assert len(re.findall(STORE_16_BYTES, gradient)) >= vectors + 2  # and zeros, in loops


def test_long_rows_move_16_bytes_at_a_time(ptx: tuple[str, dict[str, str]]) -> None:
    dtype, kernels = ptx
    arguments = f"I{MANGLED[dtype]}Li{WIDEST[dtype]}E"
    for step in ("row_losses_by_block", "row_gradients_by_block"):
        assert len(re.findall(LOAD_16_BYTES, kernel_named(kernels, f"{step}{arguments}"))) >= 2 + 2  # two loops
    gradient = kernel_named(kernels, f"row_gradients_by_block{arguments}")
    assert len(re.findall(STORE_16_BYTES, gradient)) >= 2 + 2  # gradients and zeros


@pytest.mark.parametrize("file", ["selection", "rows_float32", "rows_bfloat16"])
@pytest.mark.parametrize("capability", ["80", "90"])
def test_the_number_of_rows_to_keep_is_free_of_fused_rounding(
    ptx_files: dict[tuple[str, str], Path], file: str, capability: str
) -> None:
    """In these files float64 serves the rate and the mean alone. ptxas fuses no product that names its rounding."""
    text = ptx_files[file, capability].read_text()
    assert "mul.rn.f64" in text
    assert re.findall(r"\bmul\.f64|\bfma\S*\.f64", text) == []


def test_a_kernel_waits_for_the_one_before_it_where_its_code_is_for_9_0_and_nowhere_else(
    ptx_files: dict[tuple[str, str], Path],
) -> None:
    """So the code's own architecture decides whether it may be linked: linked_launch.cuh, can_be_linked."""
    assert (
        ptx_files["selection", "90"].read_text().count("griddepcontrol.wait") == 4  # two kernels, two types
    )  # by counting, by radix; two types
    assert "griddepcontrol" not in ptx_files["selection", "80"].read_text()
    assert "griddepcontrol.launch_dependents" in ptx_files["rows_float32", "90"].read_text()
