"""What a run learns and is measured on: the noise, the split and the rate to forget."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from jocor_fast import noise
from jocor_fast.cli.train_warnings import warnings_of
from jocor_fast.config.resolve import resolve
from jocor_fast.config.task import build_task
from jocor_fast.data.catalogue import load_dataset
from jocor_fast.engine.processes import ALONE
from jocor_fast.errors import ConfigError
from jocor_fast.methods import METHODS


def warnings(flags: dict[str, str | bool]) -> list[str]:
    """What `train` with these flags warns of."""
    config = resolve(flags)
    return warnings_of(config, build_task(config), ALONE, batch=32)


def test_a_split_changes_no_label() -> None:
    digits = load_dataset("digits")
    noisy = noise.corrupt(digits.train.arrays()[1], noise.symmetric(10, 0.5), seed=3)
    whole = build_task(resolve({"noise_rate": "0.5", "noise_seed": "3"}))
    part = build_task(resolve({"noise_rate": "0.5", "noise_seed": "3", "val_fraction": "0.2"}))
    assert np.array_equal(whole.train.labels.numpy(), noisy)
    assert part.val is not None
    assert (len(part.train.labels), len(part.val.labels)) == (1437 - 287, 287)
    wrong = part.train.labels != part.train.clean_labels
    assert part.realised_noise_rate == wrong.double().mean().item() != whole.realised_noise_rate
    by_image = {image.tobytes(): label for image, label in zip(digits.train.arrays()[0], noisy, strict=True)}
    for data in (part.train, part.val):
        for image, label in zip(data.inputs.numpy(), data.labels.numpy(), strict=True):
            assert by_image[image.tobytes()] == label


def test_the_split_depends_on_the_seed_alone() -> None:
    def held_out(**flags: str) -> torch.Tensor:
        task = build_task(resolve({"val_fraction": "0.1", **flags}))
        assert task.val is not None
        return task.val.inputs

    first = held_out(seed="1")
    assert torch.equal(first, held_out(seed="1", noise_rate="0.5", noise_seed="4"))
    assert not torch.equal(first, held_out(seed="2"))


@pytest.mark.parametrize(("kind", "agreement"), [("clean", 1.0), ("noisy", 0.5)])
def test_validation_labels_are_clean_or_noisy_by_flag(kind: str, agreement: float) -> None:
    """Case 38: a part of the training data, with the labels that were asked for."""
    flags = {"noise_rate": "0.5", "val_fraction": "0.4", "val_labels": kind}
    task, digits = build_task(resolve(flags)), load_dataset("digits")
    assert task.val is not None
    truth = {image.tobytes(): label for image, label in zip(*digits.train.arrays(), strict=True)}
    clean = np.array([truth[image.tobytes()] for image in task.val.inputs.numpy()])
    assert (task.val.labels.numpy() == clean).mean() == pytest.approx(agreement, abs=0.08)


def test_the_seed_does_not_touch_the_noise_nor_the_noise_seed_the_rest() -> None:
    """Case 28, through the command line's settings."""
    tasks = [build_task(resolve({"noise_rate": "0.5", **flags})) for flags in ({}, {"seed": "9"}, {"noise_seed": "9"})]
    assert torch.equal(tasks[0].train.labels, tasks[1].train.labels)
    assert not torch.equal(tasks[0].train.labels, tasks[2].train.labels)
    assert torch.equal(tasks[0].train.inputs, tasks[2].train.inputs)


@pytest.mark.parametrize(
    ("kind", "rate", "expected"),
    [("symmetric", "0.5", 0.5), ("symmetric-inclusive", "0.5", 0.45), ("pairflip", "0.45", 0.45), ("clean", "0", 0.0)],
)
def test_the_forget_rate_is_what_the_noise_lets_expect(kind: str, rate: str, expected: float) -> None:
    config = resolve({"noise": kind, "noise_rate": rate})
    task = build_task(config)
    assert config.forget_rate == pytest.approx(expected)
    assert config.sources["forget_rate"] == "default"
    assert task.expected_noise_rate == config.forget_rate
    assert task.nominal_noise_rate == float(rate)
    assert task.realised_noise_rate == pytest.approx(expected, abs=0.05)


def test_a_given_forget_rate_stays() -> None:
    config = resolve({"noise_rate": "0.5", "forget_rate": "0.2"})
    build_task(config)
    assert (config.forget_rate, config.sources["forget_rate"]) == (0.2, "flag")


def test_a_start_of_the_decay_that_no_plan_heeds_is_warned_of() -> None:
    given = {"decay_start": "3", "lr_plan": "clothing1m"}
    sentence = "--decay-start changes nothing: --lr-plan clothing1m sets when the learning rate falls"
    assert sentence in warnings(given)
    for heeded in ({**given, "recipe": "published"}, {"decay_start": "3"}, {"lr_plan": "clothing1m"}):
        assert sentence not in warnings(heeded)


def test_flags_on_the_data_that_change_nothing_are_warned_of(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x_train=np.zeros((9, 4), np.uint8), y_train=np.arange(9) % 3)
    own = {"dataset": f"npz:{tmp_path / 'own.npz'}", "forget_rate": "0"}
    noisy = {"noise_rate": "0.5"}
    for given, heeded, sentence in (
        ({"noise_seed": "1"}, noisy, "--noise-seed changes nothing: no noise is drawn"),
        ({"data_root": "."}, None, "--data-root changes nothing: digits is not looked for in it"),
        ({**own, "data_root": "."}, None, f"--data-root changes nothing: {own['dataset']} is not looked for in it"),
        (
            {"forget_rate": "auto", "method": "standard"},
            None,
            "--forget-rate changes nothing: standard does not select",
        ),
        ({"val_labels": "clean", "val_fraction": "0"}, {"val_fraction": "0.1"}, "--val-labels changes nothing: "),
    ):
        assert any(line.startswith(sentence) for line in warnings(given)), sentence
        if heeded is not None:
            assert not any(line.startswith(sentence) for line in warnings({**given, **heeded}))


def test_floats_so_large_that_networks_learn_little_from_them_are_warned_of(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 8, 8))
    pixels[0, 0, :2] = 0, 255
    said = {
        "floats": (pixels.astype("f8"), "from 0 to 255 reach .*: give them mean 0 .*, or hold the pixels as ui"),
        "averaged": (pixels * 0.99, "from 0 to 252.45 reach .*, or hold the pixels as uint8, which are divided by 255"),
        "16 bits": (pixels * 257.0, "from 0 to 65535 reach .*: give them mean 0 and deviation 1$"),
        "features": (
            pixels.reshape(12, 64) - 9.0,
            "from -9 to 246 .*: give each feature mean 0 and deviation 1$",
        ),
        "far from 0": (pixels / 255 + 40, "from 40 to 41 reach "),
        "digits": (pixels / 16, None),
        "scaled": (pixels / 255, None),
        "ints": (pixels, None),
    }
    for name, (inputs, sentence) in said.items():
        np.savez(tmp_path / "set.npz", x_train=inputs, y_train=np.arange(12) % 3)
        found = [
            line
            for line in warnings({"dataset": f"npz:{tmp_path}/set.npz", "forget_rate": "0"})
            if "floats from" in line
        ]
        assert len(found) == (sentence is not None), name
        assert sentence is None or re.search(sentence, found[0]), name


def test_which_draw_of_the_noise_to_take_does_not_say_that_labels_of_images_are_clean(tmp_path: Path) -> None:
    for name in ("cat/a.png", "cat/b.png", "dog/c.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / name)
    flags = {"dataset": f"folder:{tmp_path}", "noise_seed": "1", "device": "cpu"}
    with pytest.raises(
        ConfigError, match=r"--forget-rate is required for folder:.* where the clean labels are unknown"
    ):
        build_task(resolve(flags))
    assert build_task(resolve({**flags, "forget_rate": "0.1"})).realised_noise_rate is None


@pytest.mark.parametrize("method", METHODS)
def test_small_loss_validation_leaves_out_as_much_whatever_the_method(method: str) -> None:
    """τ is the measure's too: a method that has no other use for it is judged as those that select."""
    flags = {"noise_rate": "0.5", "val_fraction": "0.4", "method": method}
    measured = resolve({**flags, "val_labels": "small-loss"})
    task = build_task(measured)
    assert task.val is not None
    assert (task.val.keep_rate, measured.forget_rate) == (0.5, 0.5)
    assert not any(
        "changes nothing" in line for line in warnings({**flags, "val_labels": "small-loss", "forget_rate": "0.4"})
    )
    unmeasured = build_task(resolve({**flags, "val_labels": "noisy"}))
    assert unmeasured.val is not None
    assert unmeasured.val.keep_rate == 1.0


def test_data_with_a_validation_set_of_their_own(tmp_path: Path) -> None:
    images, labels = np.zeros((12, 8, 8), dtype=np.uint8), np.arange(12) % 3
    arrays = {f"{part}_{name}": array for part in ("train", "val", "test") for name, array in
              (("images", images), ("labels", labels[:, None]))}  # fmt: skip
    np.savez(tmp_path / "medical.npz", **arrays)
    dataset = {"dataset": f"npz:{tmp_path}/medical.npz", "forget_rate": "0"}
    task = build_task(resolve(dataset))
    assert task.val is not None
    assert len(task.val.labels) == 12
    with pytest.raises(ConfigError, match=r"--val-fraction must be 0 for .*, which comes with a validation set"):
        build_task(resolve({**dataset, "val_fraction": "0.5"}))


def test_the_model_is_the_data_sets_unless_asked_for() -> None:
    default, asked = resolve({}), resolve({"model": "cnn"})
    shapes = [len(list(build_task(config).build_network().parameters())) for config in (default, asked)]
    assert (default.model, default.sources["model"]) == ("mlp", "default")
    assert (asked.model, asked.sources["model"]) == ("cnn", "flag")
    assert shapes == [4, 26]
