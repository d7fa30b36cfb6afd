"""Runs on image files from the command line: both loaders alike, bad files, resuming, what is refused and said."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine_cases import fit, pair_of, same_bits, settings, without_timings
from image_cases import damage, encoded, loaded, picture, write_clothing1m
from jocor_fast.cli.program import main
from jocor_fast.data.catalogue import load_dataset
from jocor_fast.data.images.bad_files import BadFiles
from jocor_fast.data.images.preprocessing import CROP, Preprocessing
from jocor_fast.engine.evaluate import predicted_probabilities
from jocor_fast.engine.state import TrainingState
from jocor_fast.methods import METHODS
from jocor_fast.noise.estimate import estimate_transition
from jocor_fast.runs.fit import Run
from loader_cases import EACH_LOADER, LOADERS, SMALL


@pytest.fixture
def spoilt(tmp_path: Path) -> dict[str, str]:
    """Clothing1M in small, with four files that cannot be read. Returns them with a part of the reason of each."""
    return damage(tmp_path / "data" / "clothing1m", write_clothing1m(tmp_path / "data" / "clothing1m"))


@pytest.fixture
def small_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """32×32 out of 36×36 in the place of 224×224 out of 256×256, where no --image-size is given."""
    at_size = Preprocessing.at_size

    def smaller(preprocessing: Preprocessing, crop: int) -> Preprocessing:
        sized = at_size(preprocessing, crop)
        return replace(sized, resize=SMALL.resize, crop=SMALL.crop) if crop == CROP else sized

    monkeypatch.setattr(Preprocessing, "at_size", smaller)


def train(folder: Path, *arguments: str, output: str = "run") -> int:
    given = ["--dataset", "clothing1m", "--data-root", str(folder / "data"), "--model", "mlp", "--device", "cpu"]
    return main(["train", *given, "--output", str(folder / output), *arguments])


def lines(folder: Path, output: str = "run") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / output / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.usefixtures("small_inputs")
def test_a_whole_run_is_the_same_with_both_loaders(
    tmp_path: Path, spoilt: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("nvidia.dali")
    orders: list[Tensor] = []
    end = TrainingState.end_epoch

    def noted(state: TrainingState) -> None:
        assert state.log is not None
        orders.append(state.log.order.clone())
        end(state)

    monkeypatch.setattr(TrainingState, "end_epoch", noted)
    run = ["--batch-size", "8", "--epochs", "9", "--forget-rate", "0.2", "--lr", "1e-4"]
    for loader in ("dali", "pillow"):
        assert train(tmp_path, *run, "--loader", loader, output=loader) == 0
    dali, pillow = lines(tmp_path, "dali"), lines(tmp_path, "pillow")
    assert all(map(torch.equal, orders[:9], orders[9:]))
    assert len({tuple(order.tolist()) for order in orders[:9]}) == 9  # another order in each epoch
    paths = load_dataset("clothing1m", tmp_path / "data").train.inputs.paths
    bad = {paths.index(path) for path in spoilt}
    assert not bad & set(torch.cat(orders).tolist())  # what an epoch's figures are taken over is what was trained on
    for mine, other in zip(dali, pillow, strict=True):
        assert mine["bad_files"] == other["bad_files"]
        assert mine["train_loss"] == pytest.approx(other["train_loss"], rel=0.1)
    assert abs(dali[-1]["test_accuracy"] - pillow[-1]["test_accuracy"]) <= 0.01
    assert dali[-1]["test_accuracy"] >= 0.9
    assert dali[-1]["bad_files"] == 4
    assert 0 <= dali[-1]["wait_share"] <= 1
    assert len(dali[-1]["selected_share_per_class"]) == 4
    summary = json.loads((tmp_path / "dali" / "summary.json").read_text())
    assert summary["best_by_validation"]["val_accuracy"] >= summary["last"]["val_accuracy"]
    listed = (tmp_path / "dali" / "bad_files.txt").read_text().splitlines()
    assert listed == (tmp_path / "pillow" / "bad_files.txt").read_text().splitlines()
    assert sorted(line.split("\t")[0] for line in listed) == sorted(spoilt)
    assert all(spoilt[line.split("\t")[0]] in line.split("\t")[1] for line in listed)


@pytest.mark.usefixtures("small_inputs")
def test_what_is_printed_names_settings_that_the_paper_leaves_open_and_their_reasons(
    tmp_path: Path, spoilt: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, "--epochs", "1", "--batch-size", "8", "--forget-rate", "0.2", "--loader", "pillow") == 0
    text = " ".join(capsys.readouterr().out.split())
    for part in (
        "the share of wrong labels is unknown",
        "0.9 (default: the paper's value for Clothing1M is not known)",
        "drawn at random; the paper does not say",
        "imagenet normalisation (default: what torchvision's networks expect; the paper names none)",
        "read by pillow (flag)",
        "learning rate 0.0008 in turn (preset: the paper's for Clothing1M",
        "1 of 40 keys in noisy_train_key_list.txt have no label and are left out",
        "bad files",
        "% waiting",
    ):
        assert part in text, part


@pytest.mark.usefixtures("small_inputs")
def test_strict_ends_the_run_with_the_name_of_the_file(
    tmp_path: Path, spoilt: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--epochs", "9", "--batch-size", "8", "--forget-rate", "0.2", "--loader", "pillow"]
    assert train(tmp_path, *arguments, "--strict") == 1
    error = capsys.readouterr().err
    assert any(str(tmp_path / "data" / "clothing1m" / path) in error for path in spoilt)
    assert train(tmp_path, *arguments, "--resume") == 0  # what a run is does not depend on --strict
    assert lines(tmp_path)[-1]["bad_files"] == 4


@pytest.mark.usefixtures("small_inputs")
def test_the_forget_rate_of_clothing1m_is_measured_where_it_can_be_and_else_required(
    tmp_path: Path, spoilt: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train(tmp_path, "--epochs", "1") == 2
    assert "--forget-rate is required for clothing1m where the clean labels are unknown" in capsys.readouterr().err
    monkeypatch.setattr("jocor_fast.data.images.clothing1m.LEAST_FOR_ESTIMATE", 4)
    assert train(tmp_path, "--epochs", "1", "--loader", "pillow") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "(default: the share of wrong labels among the clean training images that have a noisy label too)" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--noise", "symmetric", "--noise-rate", "0.2"], "--noise adds noise, and the labels of clothing1m are noisy"),
        (["--dataset", "digits", "--loader", "dali"], "--loader is for image files, and digits lies in memory"),
        (["--dataset", "digits", "--strict"], "--strict is for image files, and digits lies in memory"),
        (
            ["--val-fraction", "0.1", "--forget-rate", "0.2"],
            "--val-fraction must be 0 for clothing1m, which comes with",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_clothing1m(tmp_path / "data")
    assert train(tmp_path, *arguments) == 2
    assert message in capsys.readouterr().err


def test_labels_of_a_folder_are_not_claimed_to_be_clean_unless_noise_is_added_to_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = np.random.default_rng(0)
    for label, name in enumerate(("ant", "bee")):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(20):
            data = encoded(picture(label, (12, 12), generator), "PNG")
            (tmp_path / "images" / name / f"{number}.png").write_bytes(data)
    own = [
        "--dataset",
        f"folder:{tmp_path / 'images'}",
        "--epochs",
        "1",
        "--loader",
        "pillow",
        "--image-size",
        "8",
        "--val-fraction",
        "0.2",
    ]
    assert train(tmp_path, *own, output="a") == 2
    assert "--forget-rate is required for folder:" in capsys.readouterr().err
    assert train(tmp_path, *own, "--forget-rate", "0.1", output="b") == 0
    assert lines(tmp_path, "b")[0]["label_precision"] is None
    assert lines(tmp_path, "b")[0]["test_accuracy"] is None
    assert lines(tmp_path, "b")[0]["val_accuracy"] is not None
    assert train(tmp_path, *own, "--noise", "symmetric", "--noise-rate", "0.25", output="c") == 0
    assert 0.5 < lines(tmp_path, "c")[0]["label_precision"] < 1


def small_run(
    root: Path, loader: str, output: Path | None, bad_files: BadFiles, method: str = "jocor", **arguments: Any
) -> Run:
    """A run of the engine alone on the tree, with random crops."""
    dataset = loaded("clothing1m", root)
    assert dataset.test is not None
    reading = {"preprocessing": Preprocessing((36, 36), crop=32, augment=True), "loader": loader, "seed": 7}
    train, test = (
        replace(part, inputs=replace(part.inputs, bad_files=bad_files, **reading))
        for part in (dataset.train, dataset.test)
    )
    networks = pair_of(lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 4)))
    return fit(
        settings(method=method, epochs=3, batch_size=8, augment="crop-flip", lr=1e-4),
        networks[: METHODS[method].num_networks],
        train,
        test=test,
        output=output,
        **arguments,
    )


@EACH_LOADER
@pytest.mark.parametrize("stopped_in", [1, 2])
def test_a_run_that_is_stopped_goes_on_at_the_right_batch_and_knows_its_bad_files(
    tmp_path: Path, spoilt: dict[str, str], loader: str, stopped_in: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "data" / "clothing1m"
    monkeypatch.delattr("jocor_fast.engine.augment.crop_flip")  # the source crops and mirrors, and it does so alone
    whole = small_run(root, loader, None, BadFiles())

    def stop(epoch: int, step: int, steps: int) -> None:
        if (epoch, step) == (stopped_in, 3):
            os.kill(os.getpid(), signal.SIGTERM)

    first = BadFiles()
    with pytest.raises(SystemExit):
        small_run(root, loader, tmp_path / "run", first, on_step=stop)
    for path in first.reasons:  # what was bad stays bad, though it can be read now: not even tried
        (root / path).write_bytes(encoded(picture(0, (40, 40), np.random.default_rng(0))))
    resumed = small_run(root, loader, tmp_path / "run", BadFiles(), resume=True)
    assert without_timings(resumed.metrics) == without_timings(whole.metrics)
    for mine, other in zip(resumed.networks, whole.networks, strict=True):
        assert same_bits(list(mine.state_dict().values()), list(other.state_dict().values()))
    listed = [line.split("\t")[0] for line in (tmp_path / "run" / "bad_files.txt").read_text().splitlines()]
    assert sorted(listed) == sorted(spoilt)


@EACH_LOADER
def test_f_correction_estimates_its_matrix_from_the_images_as_they_are_evaluated(
    tmp_path: Path, loader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In batches that the loader has room for, and without random crops."""
    write_clothing1m(tmp_path)
    firsts: list[torch.nn.Module] = []

    def noted(network: torch.nn.Module, *rest: Any, **named: Any) -> np.ndarray:
        firsts.append(network)
        return predicted_probabilities(network, *rest, **named)

    monkeypatch.setattr("jocor_fast.runs.fit.predicted_probabilities", noted)
    run = small_run(tmp_path, loader, None, BadFiles(), method="f-correction")
    dataset = loaded("clothing1m", tmp_path)
    source = replace(dataset.files, preprocessing=SMALL, loader=loader).open(torch.device("cpu"), 8, training=False)
    (first,) = firsts
    with torch.no_grad():
        batches = [source.network_input(stored) for _, stored in source.batches(torch.arange(len(dataset.train)), 8)]
        probabilities = torch.cat([first(batch) for batch in batches]).double().softmax(1)
    np.testing.assert_allclose(run.summary["transition"], estimate_transition(probabilities.numpy(), 97.0), rtol=1e-6)


def test_bad_test_images_are_left_out_of_the_accuracy(tmp_path: Path) -> None:
    root = tmp_path / "data"
    write_clothing1m(root)
    for path in (root / "images").rglob("clean_test,[0-3],*"):
        path.write_bytes(b"")
    run = small_run(root, "pillow", None, BadFiles())
    right = [line["test_accuracy_1"] * 8 for line in run.metrics]  # 12 less 4
    assert right == pytest.approx([round(count) for count in right])
    assert run.metrics[-1]["bad_files"] == 4
    for path in (root / "images").rglob("clean_test,*"):
        path.write_bytes(b"")
    with pytest.raises(ValueError, match="none of 12 images, tried all over the data set"):
        small_run(root, "pillow", None, BadFiles())


def test_auto_takes_dali_where_it_can_be_imported_and_says_why() -> None:
    from jocor_fast.data.images.source import choose_loader

    for device in ("cpu", "cuda"):
        name, reason = choose_loader("auto", torch.device(device))
        assert name == ("dali" if not LOADERS[0].marks[0].args[0] else "pillow")
        assert reason


def test_without_dali_auto_takes_the_other_and_asking_for_it_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    from jocor_fast.data.images.source import choose_loader

    for module in [name for name in sys.modules if name.startswith(("nvidia.dali", "jocor_fast.data.images.dali"))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    name, reason = choose_loader("auto", torch.device("cpu"))
    assert name == "pillow"
    assert "pip install nvidia-dali-cuda130" in reason
    write_clothing1m(tmp_path / "data")
    assert train(tmp_path, "--loader", "dali", "--forget-rate", "0.2") == 2
    assert "--loader must be pillow where DALI cannot be imported" in capsys.readouterr().err


def test_a_run_at_another_image_size_sees_such_images_and_predicts_on_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_clothing1m(tmp_path / "data" / "clothing1m")
    options = ["--epochs=1", "--batch-size=8", "--forget-rate=0.2", "--loader=pillow"]
    assert train(tmp_path, *options, "--image-size=28") == 0
    assert "resized to 32×32, cropped to the centre of 28×28" in " ".join(capsys.readouterr().out.split())
    described = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["input"]
    assert (described["shape"], described["resize"]) == ([3, 28, 28], [32, 32])
    image = next((tmp_path / "data" / "clothing1m" / "images").rglob("clean_test,*"))
    assert main(["predict", str(tmp_path / "run"), str(image)]) == 0
    assert main(["audit", str(tmp_path / "run"), f"--data-root={tmp_path / 'data'}"]) == 0
    capsys.readouterr()
    assert train(tmp_path, *options, "--image-size=32", "--resume") == 1
    assert "holds a run of other settings" in capsys.readouterr().err
    assert train(tmp_path, *options, "--image-size=7", output="b") == 2
    assert "error: --image-size must be at least 8, got 7" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("resize", "crop", "resized"),
    [(256, 112, 128), (256, 224, 256), ((256, 256), 32, (37, 37)), ((300, 256), 8, (11, 9))],
)
def test_at_another_size_as_much_is_cut_off_as_before(resize: Any, crop: int, resized: Any) -> None:
    sized = Preprocessing(resize).at_size(crop)
    assert (sized.resize, sized.crop) == (resized, crop)
