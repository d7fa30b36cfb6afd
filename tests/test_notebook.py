"""The notebook in examples/: its committed outputs are of one whole execution, and its cells run in their order."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

from page_blocks import ROOT

NOTEBOOK = ROOT / "examples" / "photos_to_clean_labels.ipynb"
# Less of the same, for the tests' sake; plain training is only shown to run.
SHORTER = (
    ("--forget-rate auto", "--forget-rate 0.2"),
    ("--method standard", "--method standard --max-batches 1"),
    ("--epochs 40", "--epochs 12"),
)


def code_cells() -> list[dict[str, Any]]:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_the_committed_outputs_are_of_one_execution_without_an_error() -> None:
    assert [cell["execution_count"] for cell in code_cells()] == list(range(1, len(code_cells()) + 1))
    outputs = [output for cell in code_cells() for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} == {"stream", "display_data"}, "no error, no bare value"
    assert not [output for output in outputs if output.get("name") == "stderr"]
    text = "".join("".join(output.get("text", [])) for output in outputs)
    assert "jocor-fast: error" not in text
    assert "\x1b[2K" not in text, "a bar that was drawn over and over"
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 5
    assert NOTEBOOK.stat().st_size < 1_500_000


def test_its_cells_run_and_find_the_wrong_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn, whose photographs these are, is not installed")
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(tmp_path))
    monkeypatch.setenv("PATH", os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    monkeypatch.chdir(tmp_path)  # and back at the end
    names: dict[str, Any] = {}
    printed = io.StringIO()
    with mpl.rc_context({"backend": "agg"}), contextlib.redirect_stdout(printed):
        for cell in code_cells():
            run_cell("".join(cell["source"]), names)
    assert sum(names["is_wrong"][:160]) >= 120, printed.getvalue()
    assert names["misplaced"]("photos") == 160
    assert names["misplaced"]("photos-clean") <= 80
    assert [path.name for path in sorted(Path("runs").iterdir())] == ["after", "before", "photos"]


def run_cell(source: str, names: dict[str, Any]) -> None:
    """Run a cell: Python, and command lines after `!`, in which {NAME} stands for a variable's value."""
    lines = source.splitlines(keepends=True)
    exec("".join(line for line in lines if not line.startswith("!")), names)
    for line in lines:
        if line.startswith("!"):
            command = line[1:].format_map(names)
            for longer, shorter in SHORTER:
                command = command.replace(longer, shorter)
            subprocess.run(["bash", "-o", "pipefail", "-c", command], check=True, stdout=subprocess.DEVNULL)
