"""The README's Python runs as it stands there, and what it points to exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
PROSE = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
TESTS = sorted(set(re.findall(r"\[`(test_\w+)`\]\((tests/[\w/]+\.py)\)", PROSE)))
LINKS = sorted(set(re.findall(r"\]\((?!https?:)([^)#]+)\)", PROSE)))


def test_the_readme_has_the_loop_and_the_trainer() -> None:
    subjects = [subject(example) for example in EXAMPLES]
    assert (subjects.count("loop"), subjects.count("train")) == (1, 1)


def subject(example: str) -> str:
    """What an example is about, for its name in pytest."""
    marks = {"lightning": "import lightning", "scikit-learn": "JoCoRClassifier(", "train": "jf.train("}
    return next((name for name, mark in marks.items() if mark in example), "loop")


@pytest.mark.parametrize("example", EXAMPLES, ids=subject)
def test_an_example_runs(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "import lightning" in example:
        pytest.importorskip("lightning", reason="lightning is not installed")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(example, "README.md", "exec"), names)
    assert "jf" in names


@pytest.mark.parametrize(("test", "file"), TESTS)
def test_a_test_that_the_readme_names_exists(test: str, file: str) -> None:
    assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("link", LINKS)
def test_a_file_that_the_readme_points_to_exists(link: str) -> None:
    assert (ROOT / link).exists()
