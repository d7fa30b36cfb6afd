"""The tuning of the kernels' mapping table: what it prints for what was measured, and that its program compiles."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import tune_mapping  # noqa: E402

PRINTED = """\
mapping,rows,16,128,4,8,128,2.0
mapping,gradient,16,128,4,8,128,4.0
mapping,rows,16,128,32,8,128,3.0
mapping,gradient,16,128,32,8,128,4.0
mapping,rows,16,128,0,0,256,9.0
mapping,rows,32,128,4,8,128,2.02
mapping,rows,32,128,32,8,128,2.0
mapping,rows,256,128,32,8,128,5.0
mapping,rows,256,128,32,32,128,4.0
selection,64,3.0,8.0
selection,512,7.5,8.0
selection,768,9.0,8.0
cluster,4096,4.0,6.0
cluster,8192,7.0,8.0
cluster,65536,30.0,12.0
rounds,16,1,3.0,5.0
rounds,16,2,6.0,5.0
"""


def test_the_table_is_printed_as_measured() -> None:
    measured = tune_mapping.parse([PRINTED])
    short, warp, long = tune_mapping.TODAY[1:]
    assert tune_mapping.ranked(measured.mappings[16])[0] == (1.0, short)
    assert tune_mapping.table(measured) == [(16, short), (32, warp), (256, long)]
    assert tune_mapping.table(measured, tolerance=1.5) == [(32, warp), (256, long)]
    text = tune_mapping.report(measured)
    assert "    {16, 4, 8, 128},\n    {32, 32, 8, 128},\n    {256, 32, 32, 128},\n};" in text
    assert "kCountingRows = 512;" in text
    assert text.partition("kOneBlockRows = 8192;")[0].count("\n") == 4  # first of all
    assert "kSingleBlockRounds = 1 at 16 classes" in text


def test_the_candidates_hold_what_the_table_holds_today() -> None:
    header = (tune_mapping.CSRC / "cuda" / "row_mapping.h").read_text()
    lines = "".join(
        f"    {{{m.lanes * m.columns}, {m.lanes}, {m.columns}, {m.threads}}},\n" for m in tune_mapping.TODAY
    )
    assert lines in header.replace("kRowMappings[] = {\n", "")
    changed = tune_mapping.header_with(tune_mapping.CANDIDATES, header)
    assert changed.count("    {") == len(tune_mapping.CANDIDATES)
    assert "kCountingRows = 2048;" in changed


def test_the_tuning_program_compiles_with_nvcc(tmp_path: Path) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc")
    flags = ["-ptx", "-arch=compute_90"]
    ptx = tune_mapping.compile_program("nvcc", "float32", tune_mapping.TODAY, tmp_path, flags).read_text()
    assert ptx.count("row_gradients_in_registersIfLi3ELi4EE") >= 1


def test_the_gpu_is_kept_busy_until_what_is_timed_is_enqueued() -> None:
    """Else launches of two microseconds would show how long the host takes for each."""
    timing = (ROOT / "benchmarks" / "tune_mapping.cu").read_text().partition("double microseconds(")[2]
    before, _, _ = timing.partition("cudaEventRecord(start);")
    assert before.rstrip().endswith("delay<<<1, 1>>>();")
