"""What nvcc makes of the kernels that are shipped: registers, spills, the width of loads and stores."""

from __future__ import annotations

import re
import shutil
from collections import Counter
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
    """Return what `ptxas -v` says of each kernel."""
    kernels = []
    for part in report.split("Compiling entry function '")[1:]:
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", part)
        registers = re.search(r"Used (\d+) registers", part)
        assert spills is not None, part
        assert registers is not None, part
        spilled = int(spills.group(1)) + int(spills.group(2))
        kernels.append(Kernel(part.split("'")[0], capability, int(registers.group(1)), spilled))
    return kernels


STRICT = "-Werror=all-warnings"  # as in CI's build
# These two instructions, and numbers of registers, are all in which nvcc's PTX of the rows for 8.0 differs from that
# for 9.0. That for 10.0 computes in pairs, which takes registers of its own. The selections have clusters from 9.0 on.
LINKING = re.compile(r"^\s*griddepcontrol\..*$", re.M)
CLUSTERS = ("barrier.cluster", "mapa.", "%cluster_")


def shipped_ptx(folder: Path, capability: str, *names: str) -> Path:
    """Return the PTX of some of the .cu files, read as one, as a build for this capability makes it."""
    source, target = folder / f"shipped_{capability}.cu", folder / f"shipped_{capability}.ptx"
    source.write_text("".join(f'#include "cuda/{name}.cu"\n' for name in names))
    nvcc("-ptx", STRICT, f"-arch=compute_{capability}", str(source), "-o", str(target))
    return target


@pytest.fixture(scope="module")
def ptx_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PTX for 9.0 of the kernels on float32 and bfloat16 logits and of the selections."""
    return shipped_ptx(tmp_path_factory.mktemp("ptx"), "90", "rows_float32", "rows_bfloat16", "selection")


@pytest.fixture(scope="module")
def ptx_for_100(ptx_file: Path) -> Path:
    """PTX for 10.0 of the same, and of the kernels on float16 logits."""
    return shipped_ptx(ptx_file.parent, "100", "rows_float32", "rows_bfloat16", "rows_float16", "selection")


KERNEL = re.compile(r"(?=\.visible \.entry )")


def name_of(kernel: str) -> str:
    return kernel.split("(")[0].split()[-1]


def kernels_of(text: str) -> dict[str, str]:
    """Return each kernel's PTX by its mangled name."""
    return {name_of(part): part for part in KERNEL.split(text)[1:]}


def is_selection(name: str) -> bool:
    return re.search(r"\dselection_by_", name) is not None


@pytest.fixture(scope="module")
def selections_for_80(ptx_file: Path) -> Path:
    """PTX for 8.0 of the selections."""
    return shipped_ptx(ptx_file.parent, "80", "selection")


@pytest.fixture(scope="module")
def compiled(ptx_file: Path, ptx_for_100: Path, selections_for_80: Path) -> list[Kernel]:
    """What ptxas says of the kernels on logits of up to 32 bits, for each capability that is shipped."""
    head, *kernels = KERNEL.split(ptx_file.read_text())
    rows_for_80 = ptx_file.with_name("rows_for_80.ptx")
    rows = head.replace(".target sm_90", ".target sm_80") + "".join(k for k in kernels if not is_selection(name_of(k)))
    rows_for_80.write_text(LINKING.sub("", rows))

    def assemble(capability: str, source: Path) -> list[Kernel]:
        target = source.with_suffix(f".{capability}.cubin")
        report = nvcc("-cubin", f"-arch=sm_{capability}", "-Xptxas=-v", str(source), "-o", str(target))
        return [k for k in kernels_in(report, capability) if not (is_selection(k.name) and "IdE" in k.name)]

    tasks = [("80", rows_for_80), ("80", selections_for_80), ("90", ptx_file), ("100", ptx_for_100)]
    with ThreadPoolExecutor(2) as pool:
        return [kernel for kernels in pool.map(assemble, *zip(*tasks, strict=True)) for kernel in kernels]


def test_no_kernel_on_logits_of_up_to_32_bits_spills(compiled: list[Kernel]) -> None:
    # for a width: rows, rows with selection, gradients; rows and gradients of robust losses
    float32, half = 5 + 3 + 5 + 5 + 5, 4 + 2 + 4 + 4 + 4
    count = 2 * float32 + 3 * half + 2  # and two selections
    assert Counter(kernel.capability for kernel in compiled) == {"80": count, "90": count, "100": count + 3 * half}
    assert [kernel for kernel in compiled if kernel.spilled_bytes > 0] == []


@pytest.fixture(scope="module")
def ptx(ptx_file: Path) -> dict[str, str]:
    """The PTX of the kernels by their mangled names."""
    return kernels_of(ptx_file.read_text())


def kernel_named(ptx: dict[str, str], pattern: str) -> str:
    (found,) = [body for name, body in ptx.items() if re.search(pattern, name)]
    return found


def test_a_row_in_too_few_registers_is_reported(ptx_file: Path, ptx: dict[str, str], tmp_path: Path) -> None:
    """1024 threads in a block leave 64 registers for 64 logits and as many exponentials."""
    head = ptx_file.read_text().partition(".visible .entry ")[0]
    kernel = kernel_named(ptx, "row_losses_in_registersIfLi3ELi4EE")
    source = tmp_path / "spills.ptx"
    source.write_text(head + kernel.replace(".maxntid 128", ".maxntid 1024"))
    report = nvcc("-cubin", "-arch=sm_90", "-Xptxas=-v", str(source), "-o", str(tmp_path / "spills.cubin"))
    assert any(kernel.spilled_bytes > 0 for kernel in kernels_in(report, "90"))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("mapping", range(4))
def test_rows_in_registers_move_16_bytes_at_a_time(ptx: dict[str, str], dtype: str, mapping: int) -> None:
    arguments = f"I{MANGLED[dtype]}Li{mapping}ELi{WIDEST[dtype]}E"
    vectors = (4, 8, 8, 32)[mapping] // WIDEST[dtype]
    if (dtype, mapping) == ("bfloat16", 0):
        assert not any(arguments in name for name in ptx)
        return
    for name, networks in (("row", 2), ("robust", 1)):
        losses = kernel_named(ptx, f"{name}_losses_in_registers{arguments}")
        gradient = kernel_named(ptx, f"{name}_gradients_in_registers{arguments}")
        assert len(re.findall(LOAD_16_BYTES, losses)) == networks * vectors
        assert len(re.findall(LOAD_16_BYTES, gradient)) == networks * vectors + 1  # and the row's statistics
        assert len(re.findall(STORE_16_BYTES, gradient)) >= networks * (vectors + 1)  # and zeros, in loops


def test_no_label_is_extended_to_64_bits_before_the_logits_are_asked_for(ptx: dict[str, str]) -> None:
    """Its sign alone would be: at that the row would wait for its label. Zeros in its upper half need no label."""
    rows = {name: body for name, body in ptx.items() if re.search("(losses|gradients)_in_registers|rows_and_sel", name)}
    assert len(rows) == 2 * (4 + 3 + 4 + 4 + 4) + 3 * (3 + 2 + 3 + 3 + 3)  # float32, bfloat16; a width
    for name, body in rows.items():
        assert "ld.global.s32" not in body, name
        narrow = re.findall(r"ld\.global\.s(?:8|16)\s+%rd\d+,.*\n\s*(\S+\s+%rd\d+, %rd\d+, \d+);", body)
        assert len(narrow) == len(re.findall(r"ld\.global\.s(?:8|16)\b", body)) == 2, name
        assert all(extension.startswith("and.b64") and extension.endswith(str(2**32 - 1)) for extension in narrow), name


@pytest.mark.parametrize("dtype", TYPES)
def test_long_rows_move_16_bytes_at_a_time(ptx: dict[str, str], dtype: str) -> None:
    arguments = f"I{MANGLED[dtype]}Li{WIDEST[dtype]}E"
    for step in ("row_losses_by_block", "row_gradients_by_block"):
        assert len(re.findall(LOAD_16_BYTES, kernel_named(ptx, f"{step}{arguments}"))) >= 2 + 2  # two loops
    gradient = kernel_named(ptx, f"row_gradients_by_block{arguments}")
    assert len(re.findall(STORE_16_BYTES, gradient)) >= 2 + 2  # gradients and zeros


def test_the_number_of_rows_to_keep_is_free_of_fused_rounding(ptx: dict[str, str]) -> None:
    """In these kernels float64 serves the rate and the mean alone. ptxas fuses no product that names its rounding."""
    kernels = [body for name, body in ptx.items() if "selection_by_" in name]
    assert len(kernels) == 4 + 2 * 3 + 3 * 2  # alone; after the rows, a width
    for body in kernels:
        assert "mul.rn.f64" in body
        assert re.findall(r"\bmul\.f64|\bfma\S*\.f64", body) == []


def test_a_kernel_waits_for_the_one_before_it_where_its_code_is_for_9_0_and_nowhere_else(
    ptx_file: Path, selections_for_80: Path
) -> None:
    """So the code's own architecture decides whether it may be linked: linked_launch.cuh, is_code_for_9_0."""
    for_90, for_80 = ptx_file.read_text(), selections_for_80.read_text()
    assert for_90.count("griddepcontrol.wait") == 4  # by counting, by radix; two types
    for name, body in kernels_of(for_90).items():
        before = body.partition("griddepcontrol.wait")[0]
        assert not is_selection(name) or not re.search(r"\b(ld|st|atom|red)\.(?!param)", before), name
    # types' widths × kernels of rows alone, of pairs and of single networks
    assert for_90.count("griddepcontrol.launch_dependents") == 2 * (2 * 5 + 3 * 4)
    assert "griddepcontrol" not in for_80
    assert not any(text in for_80 for text in CLUSTERS)
    for name, body in kernels_of(for_90).items():
        clusters = [text in body for text in CLUSTERS]
        assert all(clusters) if "selection_by_radix" in name else not any(clusters), name
        if "selection_by_counting" in name and is_selection(name):
            assert instructions(kernels_of(for_80)[name]) == instructions(LINKING.sub("", body))


def instructions(text: str) -> list[str]:
    """Return their names, sorted, repeated as in the text; not what register allocation and order make of them."""
    return sorted(re.findall(r"^\s+(?:@!?%p\d+ )?([a-z][\w.:]*)\s.*;$", text, re.M))
