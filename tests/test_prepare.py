"""`jocor-fast prepare`: what it writes, that `train` reads it like the original, and that it goes on where it left."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from image_cases import damage, encoded, loaded, picture, write_clothing1m
from jocor_fast.cli.program import main
from jocor_fast.data.images import prepare
from test_image_sets import write_other_suffixes


@pytest.mark.parametrize("in_annotations", [True, False])
def test_clothing1m_is_squashed_into_the_same_layout(
    tmp_path: Path, in_annotations: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = write_clothing1m(tmp_path / "original", in_annotations=in_annotations)
    reasons = damage(tmp_path / "original", keys)
    arguments = ["prepare", "--dataset", "clothing1m", "--data-root", str(tmp_path / "original")]
    assert main([*arguments, "--output", str(tmp_path / "small")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "256×256, quality 90" in text
    assert "4 files cannot be read" in text
    original, small = loaded("clothing1m", tmp_path / "original"), loaded("clothing1m", tmp_path / "small")
    for part in ("train", "val", "test"):
        mine, theirs = getattr(small, part), getattr(original, part)
        assert mine.inputs.paths == theirs.inputs.paths
        assert np.array_equal(mine.labels, theirs.labels)
    assert small.notes == original.notes
    listed = (tmp_path / "small" / "bad_files.txt").read_text().splitlines()
    assert sorted(line.split("\t")[0] for line in listed) == sorted(reasons)
    for path in small.train.inputs.paths:
        assert (tmp_path / "small" / path).exists() is (path not in reasons)
    path = original.train.inputs.paths[0]
    with Image.open(tmp_path / "small" / path) as image, Image.open(tmp_path / "original" / path) as source:
        assert (image.format, image.size, image.mode) == ("JPEG", (256, 256), "RGB")
        whole = source.resize((256, 256), Image.Resampling.BILINEAR)
        assert np.abs(np.asarray(image, np.float64) - np.asarray(whole, np.float64)).mean() < 1.5
        assert image.quantization == Image.open(io.BytesIO(encoded(whole, quality=90))).quantization


def test_it_goes_on_file_by_file_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = write_clothing1m(tmp_path / "original")
    arguments = ["prepare", "--dataset", "clothing1m", "--data-root", str(tmp_path / "original")]
    arguments += ["--output", str(tmp_path / "small"), "--size", "24x32"]
    assert main(arguments) == 0
    kept, gone = tmp_path / "small" / keys[0], tmp_path / "small" / keys[1]
    before = kept.stat().st_mtime_ns
    again = gone.read_bytes()
    gone.unlink()
    assert main(arguments) == 0
    assert kept.stat().st_mtime_ns == before
    assert gone.read_bytes() == again
    assert not list((tmp_path / "small").rglob("*.partial"))
    assert Image.open(gone).size == (32, 24)


def test_class_folders_keep_names_and_shape_and_small_images_stay_small(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    sizes = {"cat/a.png": (40, 60), "cat/b.jpg": (90, 45), "dog/small.webp": (20, 30), "test/cat/t.jpg": (50, 50)}
    for name, size in sizes.items():
        path = tmp_path / "original" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(
            encoded(picture(0, size, generator), {".png": "PNG", ".webp": "WEBP"}.get(path.suffix, "JPEG"))
        )
    folder = tmp_path / "small"
    assert (
        main(["prepare", "--dataset", f"folder:{tmp_path / 'original'}", "--output", str(folder), "--size", "30"]) == 0
    )
    shapes = {name: Image.open(folder / name).size[::-1] for name in sizes}
    assert shapes == {
        "cat/a.png": (30, 45),
        "cat/b.jpg": (60, 30),
        "dog/small.webp": (20, 30),
        "test/cat/t.jpg": (30, 30),
    }
    assert all(Image.open(folder / name).format == "JPEG" for name in sizes)
    small, original = loaded(f"folder:{folder}"), loaded(f"folder:{tmp_path / 'original'}")
    assert small.train.inputs.paths == original.train.inputs.paths
    assert small.test is not None


def test_a_list_goes_with_its_images_unless_they_lie_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = encoded(picture(0, (20, 20), np.random.default_rng(0)))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.jpg").write_bytes(image)
    (tmp_path / "2.jpg").write_bytes(image)
    (tmp_path / "a" / "list.csv").write_text("path,label\n1.jpg,0\n")
    arguments = ["prepare", "--dataset", f"csv:{tmp_path / 'a' / 'list.csv'}", "--output", str(tmp_path / "b")]
    assert main(arguments) == 0
    assert loaded(f"csv:{tmp_path / 'b' / 'list.csv'}").train.inputs.paths == ["1.jpg"]
    (tmp_path / "a" / "list.csv").write_text("path,label\n1.jpg,0\n../2.jpg,1\n")
    assert main(arguments) == 1
    assert "../2.jpg lies outside" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "--dataset is needed: what to resize"),
        (["--dataset", "clothing1m"], 2, "--output is needed"),
        (["--dataset", "digits", "--output", "x"], 2, "--dataset must be clothing1m, folder:DIR or csv:FILE"),
        (["--size", "0"], 2, "--size must be HxW or a number, such as 256x256 or 256, got '0'"),
        (["--size", "256x"], 2, "--size must be HxW"),
        (["--quality", "96"], 2, "--quality must be a whole number from 1 to 95, got '96'"),
        (["--output", "original"], 2, "--output must be another folder"),
    ],
)
def test_wrong_use_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    write_clothing1m(tmp_path / "original", train=8, held_out=4)
    usual = ["--dataset", "clothing1m", "--data-root", "original", "--output", "small"]
    complete = not arguments or arguments[0] == "--dataset"
    assert main(["prepare", *(arguments if complete else [*usual, *arguments])]) == code
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_folder_that_was_prepared_otherwise_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_clothing1m(tmp_path / "original", train=8, held_out=4)
    arguments = ["prepare", "--dataset", "clothing1m", "--data-root", str(tmp_path / "original")]
    arguments += ["--output", str(tmp_path / "small")]
    assert main(arguments) == 0
    assert main([*arguments, "--quality", "80"]) == 1
    assert "was prepared with" in capsys.readouterr().err


def test_where_no_image_can_be_read_few_files_are_tried_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"{number}.jpg,{number % 2}\n" for number in range(3000))
    (tmp_path / "list.csv").write_text(f"path,label\n{rows}")
    tried: list[object] = []
    read = prepare.read_bytes
    monkeypatch.setattr(prepare, "read_bytes", lambda path: (tried.append(path), read(path))[1])
    arguments = ["prepare", f"--dataset=csv:{tmp_path / 'list.csv'}", f"--output={tmp_path / 'small'}"]
    assert main(arguments) == 1
    assert f"{tmp_path}: none of 100 images, tried all over the data set, can be read" in capsys.readouterr().err
    assert len(tried) == 100
    assert not (tmp_path / "small").exists()
    (tmp_path / "2999.jpg").write_bytes(encoded(picture(0, (20, 20), np.random.default_rng(0))))
    (tmp_path / "0.jpg").write_bytes(b"no image")
    (tmp_path / "30.jpg").write_bytes(encoded(picture(0, (20, 20), np.random.default_rng(0))))
    assert main(arguments) == 0  # some can be read: the others are left out
    assert "2,998 files cannot be read" in capsys.readouterr().out


def test_what_is_skipped_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Case 52."""
    write_other_suffixes(tmp_path / "photos")
    assert main(["prepare", "--dataset", f"folder:{tmp_path / 'photos'}", "--output", str(tmp_path / "small")]) == 0
    out = capsys.readouterr().out
    assert out.count("6 files skipped: 3 .txt, 2 .heic, 1 without a suffix\n") == 1
    assert "no image in owl\n" in out
    original, small = (loaded(f"folder:{tmp_path / name}") for name in ("photos", "small"))
    assert small.train.inputs.paths == original.train.inputs.paths
