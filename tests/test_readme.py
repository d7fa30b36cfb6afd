"""The README's Python runs as it stands there, and what it points to exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
PROSE = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
LINKS = sorted(set(re.findall(r"\]\((?!https?:)([^)#]+)\)", PROSE)))


def test_the_readme_has_the_loop_and_the_trainer() -> None:
    assert sum("jf.jocor_loss(" in example for example in EXAMPLES) == 1
    assert sum("jf.train(" in example for example in EXAMPLES) == 1


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: "train" if "jf.train(" in text else "loop")
def test_an_example_runs(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(example, "README.md", "exec"), names)
    assert "jf" in names


@pytest.mark.parametrize("link", LINKS)
def test_a_file_that_the_readme_points_to_exists(link: str) -> None:
    assert (ROOT / link).exists()
