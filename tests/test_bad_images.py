"""Image files that cannot be read: what takes their place, that each is met once, and when there are too many."""

from __future__ import annotations

import os
from multiprocessing.pool import ThreadPool
from pathlib import Path

import numpy as np
import pytest
import torch

from image_cases import damage, encoded, loaded, picture, write_clothing1m
from jocor_fast.data.images.bad_files import BadFiles
from jocor_fast.data.images.image_file import BadImage, read_bytes
from jocor_fast.data.images.preprocessing import Preprocessing
from jocor_fast.data.images.source import BATCHES_AHEAD, MOST_TRIED, ImageFiles, ImageSource
from jocor_fast.errors import DataError
from loader_cases import BATCH, EACH_LOADER, numbers_and_pixels, opened, write_list


@pytest.fixture
def spoilt(tmp_path: Path) -> tuple[ImageFiles, dict[str, str]]:
    """Training images of which four cannot be read, and why each cannot."""
    reasons = damage(tmp_path, write_clothing1m(tmp_path))
    return loaded("clothing1m", tmp_path).files, reasons


@EACH_LOADER
def test_a_bad_image_is_replaced_by_the_next_good_one_of_its_batch_or_left_out(
    spoilt: tuple[ImageFiles, dict[str, str]], loader: str
) -> None:
    images, reasons = spoilt
    bad = [images.paths.index(path) for path in reasons]
    order = torch.arange(len(images))
    bad_files = BadFiles()
    trained, _ = numbers_and_pixels(opened(images, loader, bad_files=bad_files), order)
    for place, number in enumerate(trained):
        if place not in bad:
            assert number == place
        else:
            batch = range(place - place % BATCH, min(len(images), place - place % BATCH + BATCH))
            later = [i for i in (*range(place, batch.stop), *batch) if i not in bad]
            assert number == later[0]
    assert set(bad_files.reasons) == set(reasons)
    for path, reason in reasons.items():
        assert reason in bad_files.reasons[path]
    evaluated, _ = numbers_and_pixels(opened(images, loader, training=False), order)
    assert evaluated == [number for number in range(len(images)) if number not in bad]


@EACH_LOADER
def test_a_bad_image_is_met_once_and_never_opened_again(
    spoilt: tuple[ImageFiles, dict[str, str]], loader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, reasons = spoilt
    source = opened(images, loader)
    order = torch.arange(len(images))
    first = numbers_and_pixels(source, order)
    assert isinstance(source, ImageSource)
    tried: list[str] = []
    load = source.decoder.load
    monkeypatch.setattr(source.decoder, "load", lambda path, where: (tried.append(path), load(path, where))[1])
    again = numbers_and_pixels(source, order)
    assert again[0] == first[0]
    assert len(tried) == len(images) - len(reasons)
    assert len(source.bad_files) == len(reasons)


@EACH_LOADER
def test_a_batch_of_bad_images_alone_is_filled_or_left_out(tmp_path: Path, loader: str) -> None:
    good = encoded(picture(0, (20, 20), np.random.default_rng(0)))
    files = {f"{number}.jpg": good if number == 3 or number >= 2 * BATCH else b"" for number in range(3 * BATCH)}
    images = write_list(tmp_path, files)
    order = torch.cat([torch.arange(BATCH, 3 * BATCH), torch.arange(BATCH)])
    numbers, _ = numbers_and_pixels(opened(images, loader), order)
    assert numbers == [3] * BATCH + list(range(2 * BATCH, 3 * BATCH)) + [3] * BATCH
    numbers, _ = numbers_and_pixels(opened(images, loader, training=False), order)
    assert numbers == [*range(2 * BATCH, 3 * BATCH), 3]


def test_pipes_devices_and_files_larger_than_any_image_are_bad_at_once(tmp_path: Path) -> None:
    """A pipe is waited for by whoever opens it; for a file of terabytes there is no memory."""
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "device.png").symlink_to("/dev/zero")
    (tmp_path / "large.png").touch()
    os.truncate(tmp_path / "large.png", 2**40)
    with ThreadPool(1) as thread:
        for name, reason in {
            "pipe": "not a regular file",
            "device": "not a regular file",
            "large": "1,099,511,627,776 bytes are too many for an image",
        }.items():
            with pytest.raises(BadImage, match=reason):
                thread.apply_async(read_bytes, [tmp_path / f"{name}.png"]).get(timeout=20)


@EACH_LOADER
def test_strict_ends_at_the_first_bad_image_with_its_name(
    spoilt: tuple[ImageFiles, dict[str, str]], loader: str
) -> None:
    images, reasons = spoilt
    with pytest.raises(DataError) as caught:
        numbers_and_pixels(opened(images, loader, bad_files=BadFiles(strict=True)), torch.arange(len(images)))
    assert str(images.folder / next(iter(reasons))) in str(caught.value)
    assert caught.value.argument == "strict"


@EACH_LOADER
def test_a_folder_without_a_readable_image_is_one_sentence(tmp_path: Path, loader: str) -> None:
    images = ImageFiles(tmp_path, [f"{number}.jpg" for number in range(5)])
    with pytest.raises(
        DataError,
        match=r"none of 5 images, tried all over the data set, can be read, the first of them is 0.jpg \(no such",
    ):
        opened(images, loader).first()


@EACH_LOADER
def test_where_nothing_can_be_read_any_more_few_files_are_tried(tmp_path: Path, loader: str) -> None:
    missing = ImageFiles(tmp_path, [f"{number}.jpg" for number in range(3000)])
    for start in (lambda source: source.first(), lambda source: next(source.batches(torch.arange(3000), BATCH))):
        bad_files = BadFiles()
        with pytest.raises(DataError, match=r"none of .* images, tried all over the data set, can be read, the first"):
            start(opened(missing, loader, bad_files=bad_files))
        assert MOST_TRIED <= len(bad_files) <= MOST_TRIED + BATCHES_AHEAD * BATCH


@EACH_LOADER
def test_a_whole_class_of_bad_images_ends_no_run(tmp_path: Path, loader: str) -> None:
    good = encoded(picture(0, (40, 40), np.random.default_rng(0)))
    files = {f"{number:03}.jpg": b"no image" if number < 200 else good for number in range(300)}
    source = opened(write_list(tmp_path, files), loader)
    assert len(source.first()) == 2
    assert next(source.batches(torch.arange(8), BATCH)).samples.min() >= 200


@pytest.mark.parametrize("augment", [False, True])
def test_both_loaders_give_the_same_pixels_and_numbers(
    spoilt: tuple[ImageFiles, dict[str, str]], augment: bool
) -> None:
    pytest.importorskip("nvidia.dali")
    preprocessing = Preprocessing((40, 36), crop=32, augment=augment)
    order = torch.randperm(len(spoilt[0]), generator=torch.Generator().manual_seed(2))
    results = []
    for loader in ("dali", "pillow"):
        bad_files = BadFiles()
        source = opened(spoilt[0], loader, preprocessing=preprocessing, bad_files=bad_files)
        results.append((*numbers_and_pixels(source, order), bad_files.reasons))
    assert results[0][0] == results[1][0]
    assert (results[0][1] - results[1][1]).abs().mean() <= 1
    assert list(results[0][2].items()) == list(results[1][2].items())  # in the order in which they were met
