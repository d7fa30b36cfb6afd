"""The Python of README and docs/ runs as it stands there, and their links lead to files that exist."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

import jocor_fast as jf
from engine_cases import blobs, small_tanh
from jocor_fast.cli.program import main

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import new_user_path  # noqa: E402

PAGES = {path: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
EXAMPLES = [
    pytest.param(example, id=f"{path.stem}-{number}")
    for path, text in PAGES.items()
    for number, example in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL), start=1)
]
PROSE = {path: re.sub(r"```.*?```", "", text, flags=re.DOTALL) for path, text in PAGES.items()}
TESTS = [
    (test, path.parent / file)
    for path, text in PROSE.items()
    for test, file in sorted(set(re.findall(r"\[`(test_\w+)`\]\(([\w./]+\.py)\)", text)))
]
LINKS = [
    path.parent / link
    for path, text in PROSE.items()
    for link in sorted(set(re.findall(r"\]\((?!https?:)([^)#]+)\)", text)))
]
RESULTS = ROOT / "benchmarks" / "results"
RESULT_LINKS = set(re.findall(r"\]\(([^)]+)\)", (RESULTS / "README.md").read_text(encoding="utf-8")))


def test_the_readme_has_the_loop_and_the_trainer() -> None:
    assert len(re.findall("jf.jocor_loss\\(|jf.train\\(", PAGES[ROOT / "README.md"])) == 2


def test_the_readme_stays_short() -> None:
    assert len(PAGES[ROOT / "README.md"].splitlines()) <= 180


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("lightning", "transformers"):
        if f"import {package}" in example:
            pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(example, "an example", "exec"), names)
    assert "jf" in names
    assert names.get("share", 1.0) >= 0.9  # of the wrong among what an example drops


def test_the_way_of_a_new_user_is_that_of_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its commands run as they stand and find what was misplaced; the recorded way is that of the same commands."""
    generator = np.random.default_rng(0)
    labels = np.arange(160) % 2
    bright = np.where(labels, 200, 60)[:, None, None] + generator.integers(-40, 40, (160, 12, 12))
    wrong = new_user_path.make_photos(tmp_path / new_user_path.PHOTOS, bright.astype(np.uint8), labels, 16)
    monkeypatch.chdir(tmp_path)
    commands = new_user_path.readme_commands(new_user_path.OWN_IMAGES)
    assert [command.split()[1] for command in commands] == ["train", "audit"]
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0
    assert new_user_path.found(new_user_path.LIST, wrong, 16) >= 14
    recorded = (ROOT / "benchmarks" / "results" / "new_user_path.md").read_text(encoding="utf-8")
    for command in new_user_path.readme_commands(new_user_path.SETTING_UP) + commands:
        assert f"`{command.partition('#')[0].strip()}`" in recorded


def test_what_the_files_of_a_run_hold_is_described() -> None:
    training = PAGES[ROOT / "docs" / "training.md"]
    (section,) = re.findall(r"^## Files of a run\n(.*?)(?=^## )", training, re.DOTALL | re.MULTILINE)
    data = blobs(40)
    run = jf.train(small_tanh, (data.inputs, data.labels), forget_rate=0.4, epochs=1, ramp_epochs=1, batch_size=16)
    for name in (*run.metrics[0], *run.summary):
        assert f"`{name.replace('test_accuracy_', '_')}`" in section, name


@pytest.mark.parametrize(("test", "file"), TESTS)
def test_a_test_that_a_page_names_exists(test: str, file: Path) -> None:
    assert f"def {test}(" in file.read_text(encoding="utf-8")


@pytest.mark.parametrize("link", LINKS, ids=lambda link: str(link.relative_to(ROOT)))
def test_a_file_that_a_page_points_to_exists(link: Path) -> None:
    assert link.exists()


def test_the_list_of_results_points_to_all_there_are() -> None:
    missing = [link for link in sorted(RESULT_LINKS) if not (RESULTS / link).exists()]
    assert missing == []
    listed = {Path(link).parts[0].split(".")[0] for link in RESULT_LINKS}
    assert {path.name.split(".")[0] for path in RESULTS.iterdir()} - listed == {"README"}
