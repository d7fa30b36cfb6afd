"""`jocor-fast predict`: the same predictions as in training, of images and arrays, whatever the data set."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import jocor_fast as jf
from engine_cases import blobs, small_tanh
from image_cases import encoded, picture, write_clothing1m
from jocor_fast.cli import main
from jocor_fast.config import resolve
from jocor_fast.models import build_model
from jocor_fast.predictor import Predictor, describe_input
from jocor_fast.task import build_task

pytestmark = pytest.mark.usefixtures("one_thread")


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
        found.append(network(torch.from_numpy(inputs).float() * DIGITS.input_scale).softmax(1).detach().numpy())
    return found


DIGITS = build_task(resolve({})).dataset
TEST = DIGITS.test_inputs
assert isinstance(TEST, np.ndarray)


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
    scaled = np.rint(TEST * DIGITS.input_scale * 255).astype(np.uint8)  # as people save images: 0 … 255
    for number, pixels in enumerate(scaled[:5]):
        image = Image.fromarray(pixels).convert("RGB" if number % 2 else "L")
        image.save(folder / f"{number}.png")
    (folder / "notes.txt").write_text("no image")
    rows = predicted(capsys, digits, tmp_path / "images")
    assert [Path(row["path"]).name for row in rows] == [f"{number}.png" for number in range(5)]
    assert [row["index"] for row in rows] == [""] * 5
    np.testing.assert_allclose([float(row["confidence"]) for row in rows], [float(c) for c in expected], atol=0.02)
    Image.fromarray(np.repeat(np.repeat(scaled[0], 4, 0), 4, 1)).save(tmp_path / "large.png")
    assert predicted(capsys, digits, tmp_path / "large.png")[0]["label"] == rows[0]["label"]


def test_a_file_that_is_no_image_is_named_and_the_others_are_labelled(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_text("no image")
    assert main(["predict", str(digits), str(tmp_path), f"--output={tmp_path / 'out.csv'}"]) == 1
    assert "bad.png: not an image" in (message := capsys.readouterr().err)
    assert "1 of the files could not be read, the others are labelled" in message
    assert [Path(row["path"]).name for row in csv.DictReader((tmp_path / "out.csv").open())] == ["good.png"]


def test_image_files_are_prepared_as_in_training(tmp_path: Path) -> None:
    write_clothing1m(tmp_path / "clothing1m")
    options = {"dataset": "clothing1m", "data_root": str(tmp_path), "loader": "torchvision", "forget_rate": "0.2"}
    config = resolve({**options, "normalisation": "clothing1m"})
    task = build_task(config)
    networks = [build_model("cnn", (3, 224, 224), 4).eval() for _ in range(2)]
    described = describe_input(task, "cnn", config["normalisation"])
    content = {"networks": [network.state_dict() for network in networks], "input": described}
    torch.save(content, tmp_path / "best.pt")
    predictor = Predictor.load(tmp_path / "best.pt", torch.device("cpu"))
    assert predictor.classes == ("T-Shirt", "Shirt", "Knitwear", "Chiffon")
    assert task.test is not None
    source = task.test.open(torch.device("cpu"), 4)
    _, stored = next(source.batches(torch.arange(3), 4))
    with torch.no_grad():
        expected = networks[1](source.network_input(stored)).softmax(1).numpy()
    files = task.test.inputs.images  # type: ignore[union-attr]
    images = torch.stack([predictor.image(files.folder / path) for path in files.paths[:3]])
    np.testing.assert_allclose(predictor.probabilities(images, 1), expected, atol=1e-5)


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
    (tmp_path / "empty").mkdir()
    assert "there is no image in" in says(1, digits, tmp_path / "empty")
    data = blobs(40)
    jf.train(small_tanh, (data.inputs, data.labels), forget_rate=0.4, epochs=1, batch_size=16, output=tmp_path / "own")
    assert "or of networks that were handed to jocor_fast.train" in says(1, tmp_path / "own", "a.png")
    (tmp_path / "colour.jpg").write_bytes(encoded(picture(0, (8, 8), np.random.default_rng(0))))
    assert main(["predict", str(digits), str(tmp_path / "colour.jpg")]) == 0  # gray is made of it
