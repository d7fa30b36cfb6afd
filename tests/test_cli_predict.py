"""`jocor-fast predict`: the same predictions as in training, of images and arrays, whatever the data set."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import jocor_fast as jf
from engine_cases import blobs, small_tanh
from image_cases import encoded, picture, write_clothing1m
from jocor_fast.cli.predict import MOST_NAMED
from jocor_fast.cli.program import main
from jocor_fast.config.predictor import Predictor, describe_input
from jocor_fast.config.resolve import resolve
from jocor_fast.config.task import build_task
from jocor_fast.models.networks import build_model
from test_image_sets import write_other_suffixes


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run on the digits, with a validation set."""
    run = tmp_path_factory.mktemp("predict") / "run"
    command = ["--noise-rate=0.2", "--epochs=3", "--val-fraction=0.1", "--device=cpu"]
    assert main(["train", *command, f"--output={run}"]) == 0
    return run


def predicted(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> list[dict[str, str]]:
    capsys.readouterr()
    assert main(["predict", *map(str, arguments), "--device=cpu"]) == code
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def by_hand(run: Path, inputs: np.ndarray, file: str = "checkpoint.pt") -> list[np.ndarray]:
    """The probabilities of both networks, float32 [n, 10] each."""
    content = torch.load(run / file, weights_only=True)
    found = []
    for state in content.get("training", content)["networks"]:
        network = build_model("mlp", inputs.shape[1:], 10)
        network.load_state_dict(state)
        found.append(network(torch.from_numpy(inputs).float() * DIGITS.train.input_scale).softmax(1).detach().numpy())
    return found


DIGITS = build_task(resolve({})).dataset
TEST = DIGITS.test.arrays()[0]
assert isinstance(TEST, np.ndarray)


def test_where_predictions_cannot_be_written_is_told_before_they_are_made(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Predictor, "load", lambda *_: pytest.fail("loaded"))
    (tmp_path / "file").touch()
    command = ["predict", str(digits), "x.npy", "--device=cpu"]
    assert main([*command, f"--output={tmp_path}"]) == 2
    assert f"--output must be a file, got the folder {tmp_path}" in capsys.readouterr().err
    assert main([*command, f"--output={tmp_path / 'file' / 'labels.csv'}"]) == 1
    assert f"{tmp_path / 'file'}: Not a directory" in capsys.readouterr().err


def test_predictions_are_written_into_a_folder_that_is_not_there_yet(digits: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", TEST[:2])
    output = tmp_path / "new" / "labels.csv"
    assert main(["predict", str(digits), str(tmp_path / "x.npy"), f"--output={output}", "--device=cpu"]) == 0
    assert output.read_text(encoding="utf-8").count("\n") == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_predictions_that_cannot_be_printed_are_an_error(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "x.npy", TEST[:2])
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr("sys.stdout", full)
        assert main(["predict", str(digits), str(tmp_path / "x.npy"), "--device=cpu"]) == 1
    assert capsys.readouterr().err == "jocor-fast: error: No space left on device\n"


@pytest.mark.parametrize("file", ["checkpoint.pt", "best.pt"])
@pytest.mark.parametrize("network", ["1", "2", "mean"])
def test_an_array_is_labelled_as_the_networks_do(
    digits: Path, tmp_path: Path, network: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "test.npy", TEST)
    rows = predicted(capsys, digits / file, tmp_path / "test.npy", f"--network={network}", "--probabilities")
    first, second = by_hand(digits, TEST, file)
    expected = {"1": first, "2": second, "mean": (first + second) / 2}[network]
    assert [int(row["index"]) for row in rows] == list(range(360))
    assert [int(row["label"]) for row in rows] == expected.argmax(1).tolist()
    got = np.array([[float(row[f"p_{label}"]) for label in range(10)] for row in rows])
    np.testing.assert_allclose(got, expected, atol=2e-6)
    np.testing.assert_allclose([float(row["confidence"]) for row in rows], expected.max(1), atol=2e-6)


def test_an_array_of_no_samples_has_no_rows_and_the_others_do(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "empty.npy", TEST[:0])
    np.save(tmp_path / "test.npy", TEST[:70])
    assert predicted(capsys, digits, tmp_path / "empty.npy") == []
    assert len(predicted(capsys, digits, tmp_path / "empty.npy", tmp_path / "test.npy")) == 70


@pytest.mark.parametrize(
    "laid_out",
    [lambda a: a[:, None], lambda a: a[..., None], lambda a: a.astype(np.int64)],
    ids=["channel first", "channel last", "int64"],
)
def test_an_array_may_be_laid_out_in_any_way_that_training_takes(
    digits: Path, tmp_path: Path, laid_out: Callable[[np.ndarray], np.ndarray], capsys: pytest.CaptureFixture[str]
) -> None:
    labels = []
    for inputs in (TEST[:20], laid_out(TEST[:20])):
        np.save(tmp_path / "inputs.npy", inputs)
        labels.append(predicted(capsys, digits, tmp_path / "inputs.npy"))
    assert labels[0] == labels[1]


def test_images_become_what_the_networks_were_trained_on(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "some.npz", few=TEST[:5])
    expected = [row["confidence"] for row in predicted(capsys, digits, f"{tmp_path / 'some.npz'}:few")]
    folder = tmp_path / "images" / "below"
    folder.mkdir(parents=True)
    scaled = np.rint(TEST * DIGITS.train.input_scale * 255).astype(np.uint8)  # as people save images: 0 … 255
    for number, pixels in enumerate(scaled[:5]):
        image = Image.fromarray(pixels).convert("RGB" if number % 2 else "L")
        image.save(folder / f"{number}.png")
    (folder / "notes.txt").write_text("no image")
    rows = predicted(capsys, digits, tmp_path / "images")
    assert [Path(row["path"]).name for row in rows] == [f"{number}.png" for number in range(5)]
    assert [row["index"] for row in rows] == [""] * 5
    np.testing.assert_allclose([float(row["confidence"]) for row in rows], [float(c) for c in expected], atol=0.02)


def error_of(capsys: pytest.CaptureFixture[str], code: int, *arguments: str | Path) -> str:
    """The one sentence that `predict` ends in, and nothing printed."""
    capsys.readouterr()
    assert main(["predict", *map(str, arguments), "--device=cpu"]) == code
    captured = capsys.readouterr()
    assert not captured.out
    assert captured.err.count("\n") == 1
    return captured.err


def test_an_image_that_is_not_like_the_arrays_trained_on_is_refused(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photo = picture(0, (60, 80), np.random.default_rng(0))
    (tmp_path / "photo.jpg").write_bytes(encoded(photo))
    error = error_of(capsys, 1, digits, tmp_path / "photo.jpg")
    assert "photo.jpg cannot be labelled: it is a colour image of 80×60, and these networks were trained on" in error
    assert "arrays of gray images of 8×8" in error
    photo.convert("L").save(tmp_path / "gray.png")
    assert "it is a gray image of 80×60" in error_of(capsys, 1, digits, tmp_path / "gray.png")
    photo.resize((8, 8)).save(tmp_path / "small.png")
    assert "it is a colour image of 8×8" in error_of(capsys, 1, digits, tmp_path / "small.png")
    many = [tmp_path / "small.png"] * 30
    assert "none of 30 files can be labelled, the first: " in error_of(capsys, 1, digits, *many)


def test_networks_trained_on_arrays_of_colour_images_take_images_of_that_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = np.random.default_rng(0)
    photos = [picture(number % 4, (12, 16), generator) for number in range(40)]
    pixels = np.stack([np.asarray(photo) for photo in photos])
    np.savez(tmp_path / "own.npz", x_train=pixels, y_train=np.arange(40) % 4, x_test=pixels[:4], y_test=np.arange(4))
    data = [f"--dataset=npz:{tmp_path / 'own.npz'}", "--epochs=2", "--batch-size=8"]
    assert main(["train", *data, "--labels-are-clean", f"--output={tmp_path / 'run'}", "--device=cpu"]) == 0
    expected = predicted(capsys, tmp_path / "run", f"{tmp_path / 'own.npz'}:x_test")
    for number, photo in enumerate(photos[:4]):
        photo.save(tmp_path / f"{number}.png")
    rows = predicted(capsys, tmp_path / "run", *(tmp_path / f"{number}.png" for number in range(4)))
    assert [row["confidence"] for row in rows] == [row["confidence"] for row in expected]
    photos[0].convert("L").save(tmp_path / "gray.png")  # is a colour image too, of gray colours
    assert len(predicted(capsys, tmp_path / "run", tmp_path / "gray.png")) == 1
    photos[0].resize((12, 16)).save(tmp_path / "upright.png")
    error = error_of(capsys, 1, tmp_path / "run", tmp_path / "upright.png")
    assert "it is a colour image of 12×16, and these networks were trained on arrays of colour images of 16×12" in error


def test_the_pictures_of_runs_in_a_folder_of_images_are_not_labelled(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "runs" / "mine"
    run.mkdir(parents=True)
    (run / "metrics.jsonl").touch()
    for path in (tmp_path / "a.png", run / "curves.png", tmp_path / ".hidden.png"):
        Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(path)
    assert main(["predict", str(digits), str(tmp_path)]) == 0
    out, error = capsys.readouterr()
    assert [row["path"] for row in csv.DictReader(io.StringIO(out))] == [str(tmp_path / "a.png")]
    assert error == f"jocor-fast: warning: {run}: written by jocor-fast, so its pictures are skipped\n"
    assert f"no image in {run}; {run}: written by jocor-fast, so" in error_of(capsys, 1, digits, run)


def test_images_of_a_folder_are_labelled_whatever_their_suffix_and_what_is_skipped_is_counted(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Case 52."""
    write_other_suffixes(tmp_path)
    for path in tmp_path.rglob("*.jp*g"):
        Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(path)
    files = [tmp_path / name for name in ("a.jfif", "b.jp2", "c")]
    for path, kind in zip(files, ("JPEG", "JPEG2000", "PNG"), strict=True):
        path.write_bytes(encoded(Image.fromarray(np.zeros((8, 8), dtype=np.uint8)), kind))
    assert main(["predict", str(digits), *map(str, (tmp_path,))]) == 1  # the larger images are none for these networks
    out, error = capsys.readouterr()
    assert {row["path"] for row in csv.DictReader(io.StringIO(out))} >= set(map(str, files))
    assert "6 files skipped: 3 .txt, 2 .heic, 1 without a suffix\n" in error


def test_a_file_that_is_no_image_is_named_and_the_others_are_labelled(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(tmp_path / "good.png")
    (tmp_path / "bad\x1b[2J.png").write_text("no image")  # which would clear a terminal
    assert main(["predict", str(digits), str(tmp_path), f"--output={tmp_path / 'out.csv'}"]) == 1
    assert "bad\\x1b[2J.png is left out: not an image" in (message := capsys.readouterr().err)
    assert "1 file is left out, the others are labelled" in message
    assert [Path(row["path"]).name for row in csv.DictReader((tmp_path / "out.csv").open())] == ["good.png"]


@pytest.mark.parametrize("terminal", [True, False])
def test_a_name_steers_no_terminal_and_reaches_a_program_as_it_is(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(tmp_path / "a\x1b[2J.png")
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: terminal)
    monkeypatch.setattr("sys.stdout", screen)
    assert main(["predict", str(digits), str(tmp_path)]) == 0
    lines = screen.getvalue().splitlines()
    assert len(lines) == 2
    assert ("a\x1b[2J.png" in lines[1]) is not terminal
    assert ("a\\x1b[2J.png" in lines[1]) is terminal


def test_a_file_alone_that_is_no_image_is_told_of_no_others(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.png").write_text("no image")
    error = error_of(capsys, 1, digits, tmp_path / "bad.png", f"--output={tmp_path / 'out.csv'}")
    assert "bad.png cannot be labelled: not an image of a known format" in error
    assert not (tmp_path / "out.csv").exists()
    assert "none.png cannot be labelled: no such file" in error_of(capsys, 1, digits, tmp_path / "none.png")
    for number in range(30):
        (tmp_path / f"{number}.png").write_text("no image")
    Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(tmp_path / "good.png")
    assert len(predicted(capsys, digits, tmp_path, code=1)) == 1
    assert main(["predict", str(digits), str(tmp_path)]) == 1
    assert capsys.readouterr().err.count("is left out: ") == MOST_NAMED


def test_an_archive_without_a_key_is_told_which_keys_there_are(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "some.npz"
    np.savez(archive, few=TEST[:5], more=TEST)
    for spec in (str(archive), f"{archive}:"):
        error = error_of(capsys, 1, digits, spec)
        assert f"{archive} must be given as {archive}:KEY, to say which array is meant; it holds few, more" in error
    assert "has no array 'all', only few, more" in error_of(capsys, 1, digits, f"{archive}:all")
    assert "none.npz does not exist" in error_of(capsys, 1, digits, tmp_path / "none.npz")


def test_image_files_are_prepared_as_in_training(tmp_path: Path) -> None:
    write_clothing1m(tmp_path / "clothing1m")
    options = {"dataset": "clothing1m", "data_root": str(tmp_path), "loader": "pillow", "forget_rate": "0.2"}
    config = resolve({**options, "normalisation": "clothing1m"})
    task = build_task(config)
    networks = [build_model("cnn", (3, 224, 224), 4).eval() for _ in range(2)]
    described = describe_input(task.dataset, "cnn")
    content = {"networks": [network.state_dict() for network in networks], "input": described}
    torch.save(content, tmp_path / "best.pt")
    predictor = Predictor.load(tmp_path / "best.pt", torch.device("cpu"))
    assert predictor.classes == ("T-Shirt", "Shirt", "Knitwear", "Chiffon")
    assert task.test is not None
    source = task.test.open(torch.device("cpu"), 4)
    _, stored = next(source.batches(torch.arange(3), 4))
    with torch.no_grad():
        expected = networks[1](source.network_input(stored)).softmax(1).numpy()
    files = task.test.inputs  # type: ignore[union-attr]
    images = torch.stack([predictor.image(files.folder / path) for path in files.paths[:3]])
    np.testing.assert_allclose(predictor.probabilities(images, 1), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "resnet18"}, "model must be mlp or cnn where torchvision cannot be imported"),
        ({"classes": ["a", "b"]}, "RuntimeError: Error(s) in loading state_dict"),
        ({"shape": None}, "TypeError: "),
        ({"kind": "files"}, "KeyError: 'resize'"),
    ],
)
def test_networks_that_cannot_be_built_are_one_sentence(
    digits: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    reason: str,
) -> None:
    """As those of a torchvision model where that is not installed."""
    monkeypatch.setitem(sys.modules, "torchvision", None)
    content = torch.load(digits / "best.pt", weights_only=True)
    torch.save({**content, "input": {**content["input"], **changes}}, tmp_path / "other.pt")
    error = error_of(capsys, 1, tmp_path / "other.pt", tmp_path / "a.png")
    assert f"CHECKPOINT: the networks of {tmp_path}/other.pt cannot be built: {reason}" in error


def test_wrong_use_ends_in_a_sentence(digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def says(code: int, *arguments: str | Path) -> str:
        assert main(["predict", *map(str, arguments)]) == code
        captured = capsys.readouterr()
        assert captured.err.count("\n") == 1
        return captured.err

    np.save(tmp_path / "wide.npy", np.zeros((3, 9, 8), dtype=np.uint8))
    np.save(tmp_path / "float.npy", np.zeros((3, 8, 8)))
    assert "predict takes a checkpoint and at least one path" in says(2, digits)
    assert "--network must be one of 1, 2, mean, got '3'" in says(2, digits, "a.png", "--network=3")
    assert "holds [3, 9, 8] of uint8, these networks take arrays [n, 8, 8] of" in says(1, digits, tmp_path / "wide.npy")
    assert "holds [3, 8, 8] of float64" in says(1, digits, tmp_path / "float.npy")
    assert "cannot be read (No such file" in says(1, tmp_path / "none.pt", "a.png")
    (tmp_path / "broken.pt").write_bytes(b"broken")
    assert "is no whole checkpoint of a run (BadZipFile)" in says(1, tmp_path / "broken.pt", "a.png")
    torch.save([1, 2], tmp_path / "other.pt")
    assert "is no whole checkpoint of a run" in says(1, tmp_path / "other.pt", "a.png")
    (tmp_path / "empty").mkdir()
    assert "there is no image in" in says(1, digits, tmp_path / "empty")
    data = blobs(40)
    jf.train(small_tanh, (data.inputs, data.labels), forget_rate=0.0, epochs=1, batch_size=16, output=tmp_path / "own")
    assert "or of networks that were handed to jocor_fast.train" in says(1, tmp_path / "own", "a.png")
