"""README and docs/: every block of code and every command runs as it stands there, and links lead to what exists."""

from __future__ import annotations

import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import jocor_fast as jf
from engine_cases import blobs, small_tanh
from jocor_fast.cli.program import COMMANDS, main
from jocor_fast.paper.plan import StepTimes
from page_blocks import LANGUAGES, ROOT, Block, Session, blocks_of, check

sys.path.insert(0, str(ROOT / "benchmarks"))

import new_user_path

SITE = sorted(path for path in (ROOT / "docs").rglob("*.md") if (ROOT / "docs" / "results") not in path.parents)
FILES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *SITE)
PAGES = {path: path.read_text(encoding="utf-8") for path in FILES}
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


def test_the_readme_has_the_two_commands_and_the_loop() -> None:
    commands = [
        command
        for block in blocks_of(PAGES[ROOT / "README.md"])
        if block.language == "sh"
        for command in block.commands
    ]
    assert [command for command in commands if command.startswith("make ")] == ["make train", "make test"]
    assert len(re.findall("jf.jocor_loss\\(", PAGES[ROOT / "README.md"])) == 1


def test_the_readme_stays_short() -> None:
    assert len(PAGES[ROOT / "README.md"].splitlines()) <= 180


@pytest.fixture
def session(
    in_an_empty_folder: Path, runs_in_this_process: object, curves_at_once: None, monkeypatch: pytest.MonkeyPatch
) -> Session:
    """What pages name is in the current folder: class folders of images, a network's weights, arrays, labels."""
    monkeypatch.setattr(StepTimes, "_measured", lambda *arguments: (0.01, 0.0001))  # a plan needs seconds for it
    generator = np.random.default_rng(0)
    labels = np.arange(48) % 2
    for number, label in enumerate(labels):
        folder = Path("photos", ("cat", "dog")[label])
        folder.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 100, (40, 48, 3)) + 120 * label
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number:02}.jpg")
    inputs = (generator.integers(0, 60, (200, 8)) + 90 * (np.arange(200) % 2)[:, None]).astype(np.uint8)
    np.savez("data.npz", x_train=inputs, y_train=np.arange(200) % 2)
    np.save("embeddings.npy", inputs.astype(np.float32))
    Path("labels.csv").write_text("id,label\n" + "".join(f"{i},{i % 2}\n" for i in range(200)), encoding="utf-8")
    return Session()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_run(page: Path, session: Session) -> None:
    blocks = blocks_of(PAGES[page])
    assert {block.language for block in blocks} <= set(LANGUAGES)
    if any("resnet18.pt" in block.text + block.comment for block in blocks):
        torchvision = pytest.importorskip("torchvision", reason="torchvision is not installed")
        torch.save(torchvision.models.resnet18().state_dict(), "resnet18.pt")
    missing = set()
    for block in blocks:
        absent = {
            name for name in ("lightning", "transformers") if f"import {name}" in block.text and not find_spec(name)
        }
        missing |= absent
        if not absent:
            session.run(block)
            assert session.names.get("share", 1.0) >= 0.9  # of the wrong among what an example drops
    if missing:
        pytest.skip(f"{' and '.join(sorted(missing))} not installed: all blocks ran but theirs")


@pytest.mark.parametrize("page", SITE, ids=lambda page: str(page.relative_to(ROOT / "docs")))
def test_a_page_has_an_example(page: Path) -> None:
    included = re.findall(r"^```{include} (\S+)", PAGES[page], re.MULTILINE)
    if included == ["../CHANGELOG.md"]:
        return
    text = "".join(PAGES[page.parent.joinpath(name).resolve()] for name in included) or PAGES[page]
    assert any(block.language in ("python", "sh") for block in blocks_of(text))


def test_every_command_has_a_page() -> None:
    pages = {path.stem: PAGES[path] for path in SITE if path.parent.name == "commands"}
    assert set(pages) == set(COMMANDS)
    assert all(f".. command-options:: {name}\n" in text for name, text in pages.items())


def test_every_public_name_has_a_place() -> None:
    text = "".join(PAGES[path] for path in SITE if path.parent.name == "api")
    places = re.findall(r"^\.\. auto(?:function|class|module):: (?:jocor_fast\.)?(?:\w+\.)*(\w+)", text, re.MULTILINE)
    assert sorted(name for name in places if name in jf.__all__) == sorted(jf.__all__)


def test_what_a_page_leaves_unrun_is_noticed_where_it_is_wrong() -> None:
    for wrong in ("make tset", "jocor-fast train --epoch 1", "python benchmarks/none.py", "rm -r /"):
        with pytest.raises(AssertionError):
            check(wrong)
    check("CC=gcc make test MAX_JOBS=2")


def test_an_output_that_lacks_a_line_or_breaks_its_condition_is_noticed() -> None:
    session = Session()
    session.run(Block("python", "better = 0.9\nprint('first  0.5')\nprint('second', better)\n"))
    session.run(Block("text", "first 0.4\nsecond 1.0\n", "output where: better > 0.8"))
    for text, comment in (
        ("first 0.5\n", "output"),
        ("second 0.9\nfirst 0.5\n", "output"),
        ("first 0.5\nsecond 0.9\nthird\n", "output"),
        ("first 0.5\nsecond 0.9\n", "output where: better > 0.95"),
    ):
        with pytest.raises(AssertionError):
            session.run(Block("text", text, comment))


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
