"""A corrected copy of a folder of images: `jocor-fast audit --write-folder`, and formats of other tools."""

from __future__ import annotations

import csv
import json
import os
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from jocor_fast.cli.program import main
from jocor_fast.diagnosis.corrected_folder import DROPPED, CorrectedFolder
from jocor_fast.errors import DataError

pytestmark = pytest.mark.usefixtures("curves_at_once")


def written(folder: Path, paths: list[str]) -> list[str]:
    """Files that hold their own path; returns the paths."""
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(path)
    return paths


def files_in(folder: Path) -> dict[str, str]:
    """What each file in a folder holds."""
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


def copied(folder: Path, paths: list[str], labels: list[int], names: list[str], others: Any = ()) -> dict[str, str]:
    """What the copy of folder/photos holds."""
    before = files_in(folder / "photos")
    plan = CorrectedFolder.of(folder / "photos", paths, np.array(labels), names, others)
    plan.write(folder / "copy")
    assert files_in(folder / "photos") == before
    return files_in(folder / "copy")


@pytest.mark.parametrize("part", ["", "train/"])
def test_the_corrected_label_decides_the_class_folder_and_other_images_stay(part: str, tmp_path: Path) -> None:
    paths = written(tmp_path / "photos", [f"{part}{name}" for name in ("cat/1.png", "cat/x/2.png", "dog/3.png")])
    others = written(tmp_path / "photos", ["test/dog/1.png"])
    found = copied(tmp_path, paths, [1, 1, DROPPED], ["cat", "dog"], others)
    assert found == {
        f"{part}dog/1.png": f"{part}cat/1.png",
        f"{part}dog/x/2.png": f"{part}cat/x/2.png",
        "test/dog/1.png": "test/dog/1.png",
    }
    assert (tmp_path / "copy" / part / "dog" / "1.png").samefile(tmp_path / "photos" / paths[0])


def test_of_two_files_that_would_have_one_name_the_one_that_was_there_keeps_it(tmp_path: Path) -> None:
    paths = written(tmp_path / "photos", ["ant/1.png", "bee/1.png", "cat/1.png", "cat/1-2.png", "dog/1.png"])
    found = copied(tmp_path, paths, [2, 2, 2, 2, 3], ["ant", "bee", "cat", "dog"])
    assert found == {
        "cat/1.png": "cat/1.png",
        "cat/1-2.png": "cat/1-2.png",
        "cat/1-3.png": "ant/1.png",
        "cat/1-4.png": "bee/1.png",
        "dog/1.png": "dog/1.png",
    }


def test_class_folders_keep_the_spelling_of_their_numbers(tmp_path: Path) -> None:
    paths = written(tmp_path / "photos", ["00/1.png", "01/2.png"])
    assert set(copied(tmp_path, paths, [1, 1], ["0", "1"])) == {"01/1.png", "01/2.png"}


def test_images_of_a_list_go_to_their_label_and_nowhere_else(tmp_path: Path) -> None:
    elsewhere = written(tmp_path / "photos", ["a/1.png", "b/1.png", "cat/2.png"])
    paths = [str(tmp_path / "photos" / elsewhere[0]), "../photos/b/1.png", "cat/2.png"]
    found = copied(tmp_path, paths, [0, 1, 2], ["cat", "..", "a/b"])
    assert found == {"cat/1.png": "a/1.png", "_../1.png": "b/1.png", "a_b/2.png": "cat/2.png"}
    with pytest.raises(DataError, match="two classes would share a folder: a_b, a_b"):
        CorrectedFolder.of(tmp_path, paths, np.array([0, 1, 1]), ["a/b", "a_b"])


def test_an_absolute_path_that_begins_with_a_class_is_not_written_to(tmp_path: Path) -> None:
    plan = CorrectedFolder.of(tmp_path, ["/cat/1.png"], np.array([1]), ["cat", "dog"])
    assert plan.missing == ["/cat/1.png"]
    assert plan.summary == "0 images, 0 of them in another place, 1 missing"


def test_where_there_can_be_no_links_files_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*paths: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    paths = written(tmp_path / "photos", ["cat/1.png", "dog/2.png"])
    assert copied(tmp_path, paths, [0, 0], ["cat", "dog"]) == {"cat/1.png": "cat/1.png", "cat/2.png": "dog/2.png"}
    assert not (tmp_path / "copy" / "cat" / "1.png").samefile(tmp_path / "photos" / "cat" / "1.png")


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = written(tmp_path / "photos", ["cat/1.png", "dog/2.png"])
    plan = CorrectedFolder.of(tmp_path / "photos", paths, np.array([0, 0]), ["cat", "dog"])
    (tmp_path / "photos" / "dog" / "2.png").unlink()
    with pytest.raises(FileNotFoundError):
        plan.write(tmp_path / "copy")
    assert list((tmp_path / "copy").iterdir()) == []


def test_the_copy_of_a_link_is_the_file_that_it_leads_to(tmp_path: Path) -> None:
    written(tmp_path, ["store/1.png"])
    written(tmp_path / "photos", ["dog/2.png"])
    (tmp_path / "photos" / "cat").mkdir()
    (tmp_path / "photos" / "cat" / "1.png").symlink_to("../../store/1.png")
    assert copied(tmp_path, ["cat/1.png", "dog/2.png"], [1, 1], ["cat", "dog"])["dog/1.png"] == "store/1.png"
    assert not (tmp_path / "copy" / "dog" / "1.png").is_symlink()


COUNT = 120
NAMES = ("ant", "bee", "cat")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with embeddings of images in class folders, of which the first ten are in the wrong one."""
    folder = tmp_path_factory.mktemp("photos")
    true = np.arange(COUNT) % len(NAMES)
    given = np.where(np.arange(COUNT) < 10, (true + 1) % len(NAMES), true)
    np.save(folder / "x.npy", np.random.default_rng(0).normal(size=(COUNT, 6)) + 6 * np.eye(len(NAMES), 6)[true])
    paths = [f"photos/{NAMES[label]}/{number}.png" for number, label in enumerate(given)]
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(folder / path)
    for name, column, values in (("y", "label", [NAMES[label] for label in given]), ("paths", "path", paths)):
        rows = "".join(f"{number},{value}\n" for number, value in enumerate(values))
        (folder / f"{name}.csv").write_text(f"id,{column}\n{rows}")
    return folder


def audit(folder: Path, *others: str) -> int:
    options = [f"--features={folder / 'x.npy'}", f"--labels={folder / 'y.csv'}", f"--paths={folder / 'paths.csv'}"]
    return main(["audit", *options, "--forget-rate=0.1", f"--output={folder / 'audit'}", "--device=cpu", *others])


def test_the_audit_of_features_writes_a_corrected_folder_after_a_dry_run_that_writes_nothing(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    assert audit(photos, f"--write-folder={copy}", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "photos/bee/0.png → photos/ant/0.png\n" in said
    assert "nothing is written" in said
    assert not copy.exists()
    assert not (photos / "audit").exists()
    assert audit(photos, f"--write-folder={copy}", "--apply") == 0
    said = capsys.readouterr().out
    assert f"copy      {copy}: 120 images, 10 of them in another place\n" in said
    assert "links     hard links: a program that changes an image in place changes the original too\n" in said
    assert (copy / "photos" / "ant" / "0.png").samefile(photos / "photos" / "bee" / "0.png")
    found = {path.name: path.parent.name for path in copy.rglob("*.png")}
    assert found == {f"{number}.png": NAMES[number % 3] for number in range(COUNT)}
    assert len(list((photos / "photos").rglob("*.png"))) == COUNT
    assert (photos / "photos" / "bee" / "0.png").exists()
    assert audit(photos, f"--write-folder={copy}") == 2
    assert f"--write-folder must be a new or an empty folder, {copy} is not" in capsys.readouterr().err
    assert audit(photos, f"--write-folder={photos / 'photos' / 'copy'}") == 2
    assert "--write-folder must lie outside" in capsys.readouterr().err


def test_a_corrected_folder_of_independent_files(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit(photos, f"--write-folder={tmp_path / 'copy'}", "--copy-files") == 0
    assert "links" not in capsys.readouterr().out
    original, copy = photos / "photos" / "bee" / "0.png", tmp_path / "copy" / "photos" / "ant" / "0.png"
    assert copy.read_bytes() == original.read_bytes()
    assert not copy.samefile(original)


def test_reviewed_labels_take_the_place_of_the_suggestions(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{number},{'cat' if number == 21 else NAMES[number % 3]}" for number in range(COUNT) if number != 30]
    (tmp_path / "labels.csv").write_text("\n".join(["id,label", *rows, ""]))
    options = [f"--reviewed={tmp_path / 'labels.csv'}", "--apply", "--export=fiftyone"]
    assert audit(photos, *options, f"--write-folder={tmp_path / 'copy'}") == 0
    assert "119 images, 11 of them in another place, 1 dropped" in capsys.readouterr().out
    assert (tmp_path / "copy" / "photos" / "cat" / "21.png").exists()
    with (photos / "audit" / "corrected.csv").open() as file:
        assert [f"{row['id']},{row['label']}" for row in csv.DictReader(file)] == rows
    assert len(json.loads((photos / "audit" / "fiftyone.json").read_text())["labels"]) == 119
    (tmp_path / "labels.csv").write_text("id,label\n3,ant\n4,eel\n")
    assert audit(photos, *options) == 1
    assert "line 3: the label must be one of the audit's, got 'eel'" in capsys.readouterr().err


def test_exports_hold_the_files_and_labels_most_suspicious_first(photos: Path) -> None:
    assert audit(photos, "--export=label-studio") == 0
    assert audit(photos, "--export=fiftyone") == 0
    tasks = json.loads((photos / "audit" / "label-studio.json").read_text())
    assert len(tasks) == COUNT
    assert {task["data"]["sample_id"] for task in tasks[:10]} == set(range(10))
    view = ElementTree.parse(photos / "audit" / "label-studio.xml").getroot()
    choices = view.find("Choices")
    assert choices is not None
    assert [choice.get("value") for choice in choices] == list(NAMES)
    for task in tasks:
        path = Path("/", unquote(task["data"]["image"].removeprefix("/data/local-files/?d=")))
        assert path == Path(task["data"]["path"]).absolute()
        assert path.is_file()
        (result,) = task["predictions"][0]["result"]
        assert (result["from_name"], result["to_name"]) == (choices.get("name"), choices.get("toName"))
        assert result["value"] == {"choices": [NAMES[task["data"]["sample_id"] % 3]]}
        assert task["data"]["given"] == path.parent.name
        assert task["predictions"][0]["score"] > 0.5
    samples = json.loads((photos / "audit" / "fiftyone.json").read_text())
    assert samples["classes"] == list(NAMES)
    for path, target in samples["labels"].items():
        assert Path(path).is_file()
        assert NAMES[target["label"]] == NAMES[int(Path(path).stem) % 3]
        assert target["attributes"]["given"] == Path(path).parent.name
        assert "id" not in target["attributes"]  # which FiftyOne has for itself
        assert target["attributes"]["wrong"] == (int(Path(path).stem) < 10)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--dry-run", "--dry-run goes with --write-folder"),
        ("--copy-files", "--copy-files goes with --write-folder"),
        ("--export=coco", "--export must be one of label-studio, fiftyone, got 'coco'"),
    ],
)
def test_wrong_use_ends_in_a_sentence(option: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "run", option]) == 2
    assert message in capsys.readouterr().err


def test_samples_in_no_files_are_neither_copied_nor_exported(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [f"--features={photos / 'x.npy'}", f"--labels={photos / 'y.csv'}", f"--output={tmp_path / 'audit'}"]
    for option in (f"--write-folder={tmp_path / 'copy'}", "--export=fiftyone"):
        assert main(["audit", *options, option]) == 1
        assert "x: its samples lie in no image files that could be copied or exported" in capsys.readouterr().err
    assert not (tmp_path / "copy").exists()


def test_the_audit_of_a_run_corrects_its_folder_and_keeps_held_out_and_test_images(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for part, count in (("train", 40), ("test", 4)):
        for number in range(count):
            true, given = number % 2, (number < 8) ^ (number % 2) if part == "train" else number % 2
            path = tmp_path / "photos" / part / ("dark", "light")[given] / f"{part}{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = generator.integers(0, 60, (8, 8, 3)) + 180 * true
            Image.fromarray(pixels.astype(np.uint8)).save(path)
    run, copy = tmp_path / "run", tmp_path / "copy"
    options = [
        "--forget-rate=0.2",
        "--model=mlp",
        "--image-size=8",
        "--batch-size=8",
        "--epochs=8",
        "--val-fraction=0.2",
    ]
    train = ["train", f"--dataset=folder:{tmp_path / 'photos'}", *options, "--loader=pillow", "--device=cpu"]
    assert main([*train, f"--output={run}"]) == 0
    before = files_of(tmp_path / "photos")
    assert main(["audit", str(run), "--apply", f"--write-folder={copy}"]) == 0
    assert files_of(tmp_path / "photos") == before
    with (run / "audit" / "corrected.csv").open() as file:
        expected = {Path(row["path"]).name: f"train/{row['label']}" for row in csv.DictReader(file)}
    expected |= {path.name: f"test/{path.parent.name}" for path in (tmp_path / "photos" / "test").rglob("*.png")}
    assert {path.name: str(path.parent.relative_to(copy)) for path in copy.rglob("*.png")} == expected
    assert len(expected) == 44
    again = ["train", f"--dataset=folder:{copy}", *train[2:], f"--output={tmp_path / 'again'}"]
    shutil.rmtree(tmp_path / "photos")
    assert main(again) == 0


def files_of(folder: Path) -> list[tuple[Path, bytes]]:
    return [(path, path.read_bytes()) for path in sorted(folder.rglob("*.png"))]
