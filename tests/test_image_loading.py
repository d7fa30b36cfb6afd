"""Image files as a run's inputs: order, ids, kinds of images, bad files; the same from both loaders (cases 46, 47)."""

from __future__ import annotations

import importlib.util
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from image_cases import damage, encoded, picture, write_clothing1m
from jocor_fast.data import DataError, load_dataset
from jocor_fast.data.bad_files import BadFiles
from jocor_fast.data.image_file import PlainJpeg, read_image
from jocor_fast.data.image_set import MOST_TRIED, ImageDataset, ImageList
from jocor_fast.data.image_source import BATCHES_AHEAD, ImageInputs, ImageSource
from jocor_fast.data.preprocessing import Draw, Preprocessing
from jocor_fast.engine.samples import InputSource

CPU = torch.device("cpu")
SMALL = Preprocessing((36, 36), crop=32)
BATCH = 8


def _present(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False


LOADERS = [
    pytest.param(name, marks=pytest.mark.skipif(not _present(module), reason=f"needs {module}"))
    for name, module in (("dali", "nvidia.dali"), ("torchvision", "torchvision"))
]
EACH_LOADER = pytest.mark.parametrize("loader", LOADERS)


def opened(
    images: ImageList,
    loader: str,
    *,
    preprocessing: Preprocessing = SMALL,
    training: bool = True,
    bad_files: BadFiles | None = None,
    seed: int = 0,
) -> InputSource:
    inputs = ImageInputs(images, preprocessing, loader, BadFiles() if bad_files is None else bad_files, seed)
    return inputs.open(CPU, BATCH, training=training)


def pixels(source: InputSource, stored: Tensor, preprocessing: Preprocessing = SMALL) -> Tensor:
    """[B, H, W, 3] in 0 … 255, of what a source gave."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (preprocessing.mean, preprocessing.std))
    return (255 * (source.network_input(stored) * std + mean)).permute(0, 2, 3, 1)


def numbers_and_pixels(source: InputSource, order: Tensor, epoch: int = 1) -> tuple[list[int], Tensor]:
    batches = list(source.batches(order, BATCH, epoch))
    return [i for batch in batches for i in batch.samples.tolist()], torch.cat(
        [pixels(source, b.stored) for b in batches]
    )


def write_list(folder: Path, files: dict[str, bytes]) -> ImageList:
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return ImageList(folder, list(files), np.zeros(len(files), np.int64))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> ImageDataset:
    root = tmp_path_factory.mktemp("clothing1m")
    write_clothing1m(root)
    dataset = load_dataset("clothing1m", root)
    assert isinstance(dataset, ImageDataset)
    return dataset


@pytest.fixture
def spoilt(tmp_path: Path) -> tuple[ImageList, dict[str, str]]:
    """Training images of which four cannot be read, and why each cannot."""
    reasons = damage(tmp_path, write_clothing1m(tmp_path))
    dataset = load_dataset("clothing1m", tmp_path)
    assert isinstance(dataset, ImageDataset)
    return dataset.train, reasons


def with_sixteen_bits() -> tuple[bytes, np.ndarray]:
    """A gray PNG of 16 bits, and what it is in 8."""
    values = np.linspace(0, 65535, 40 * 50).reshape(40, 50).astype(np.uint16)
    return encoded(Image.fromarray(values), "PNG"), np.repeat(np.rint(values / 257)[:, :, None], 3, axis=2)


def kinds() -> dict[str, tuple[bytes, np.ndarray]]:
    """Each kind of image as the bytes of a file, and the RGB pixels that it stands for."""
    image = picture(2, (40, 50), np.random.default_rng(3))
    found = {
        "plain.jpg": encoded(image, quality=95),
        "progressive.jpg": encoded(image, progressive=True),
        "gray.jpg": encoded(image.convert("L")),
        "cmyk.jpg": encoded(image.convert("CMYK")),
        "rgb-not-ycc.jpg": encoded(image, keep_rgb=True),
        "padded.jpg": encoded(image) + b"\0\0",
        "png-named.jpg": encoded(image, "PNG"),
        "palette.png": encoded(image.convert("P"), "PNG"),
        "rgba.png": encoded(image.convert("RGBA"), "PNG"),
        "black-and-white.png": encoded(image.convert("1"), "PNG"),
        "image.bmp": encoded(image, "BMP"),
        "image.gif": encoded(image, "GIF"),
        "image.webp": encoded(image, "WEBP", lossless=True),
    }
    cases = {name: (data, np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))) for name, data in found.items()}
    return {**cases, "sixteen.png": with_sixteen_bits()}


def turned(orientation: int) -> tuple[bytes, np.ndarray]:
    """A JPEG that is to be turned before it is looked at, and the pixels that are looked at."""
    image = picture(1, (40, 60), np.random.default_rng(orientation))
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(image, quality=95, exif=exif)
    as_stored = np.asarray(Image.open(io.BytesIO(data)))
    turns = {
        1: (0, False),
        2: (0, True),
        3: (2, False),
        4: (2, True),
        5: (3, True),
        6: (3, False),
        7: (1, True),
        8: (1, False),
    }
    quarters, mirrored = turns[orientation]
    upright = np.rot90(as_stored, quarters)
    return data, upright[:, ::-1] if mirrored else upright


def prepared_by_pillow(shown: np.ndarray, preprocessing: Preprocessing) -> np.ndarray:
    """What becomes of upright RGB pixels, by Pillow alone: resize, then crop the centre."""
    height, width = preprocessing.resized(*shown.shape[:2])
    whole = Image.fromarray(np.ascontiguousarray(shown, np.uint8)).resize((width, height), Image.Resampling.BILINEAR)
    top, left = preprocessing.offset(height, width)
    return np.asarray(whole)[top : top + preprocessing.crop, left : left + preprocessing.crop].astype(np.float64)


@EACH_LOADER
@pytest.mark.parametrize("resize", [(36, 36), (40, 33), 36])
def test_every_kind_of_image_becomes_what_pillow_makes_of_it(tmp_path: Path, loader: str, resize: Any) -> None:
    cases = kinds() | {f"turned{orientation}.jpg": turned(orientation) for orientation in range(1, 9)}
    preprocessing = Preprocessing(resize, crop=32)
    source = opened(
        write_list(tmp_path, {name: data for name, (data, _) in cases.items()}), loader, preprocessing=preprocessing
    )
    numbers, got = numbers_and_pixels(source, torch.arange(len(cases)))
    assert numbers == list(range(len(cases)))
    assert source.bad_files is not None
    assert not source.bad_files.reasons
    for image, (name, (_, shown)) in zip(got.numpy(), cases.items(), strict=True):
        assert np.abs(image - prepared_by_pillow(shown, preprocessing)).mean() <= 1, name  # case 46 allows 2 of 255


def test_only_plain_jpegs_are_left_to_other_decoders_than_pillow(tmp_path: Path) -> None:
    cases = kinds() | {f"turned{orientation}.jpg": turned(orientation) for orientation in (1, 3, 6)}
    images = write_list(tmp_path, {name: data for name, (data, _) in cases.items()})
    read = {name: read_image(images.folder / name) for name in images.paths}
    plain = {name: (image.height, image.width) for name, image in read.items() if isinstance(image, PlainJpeg)}
    assert plain == {
        "plain.jpg": (40, 50),
        "progressive.jpg": (40, 50),
        "gray.jpg": (40, 50),
        "turned1.jpg": (40, 60),
        "turned3.jpg": (40, 60),
        "turned6.jpg": (60, 40),
    }


@EACH_LOADER
def test_inputs_are_normalised_and_lie_channels_last(tree: ImageDataset, loader: str) -> None:
    source = opened(tree.train, loader)
    first = source.first(3)
    assert (first.shape, first.dtype) == ((3, 3, 32, 32), torch.float32)
    assert first.is_contiguous(memory_format=torch.channels_last)
    shown = np.asarray(Image.open(tree.train.folder / tree.train.paths[0]))
    mean, std = (np.array(values) for values in (SMALL.mean, SMALL.std))
    by_hand = (prepared_by_pillow(shown, SMALL) / 255 - mean) / std
    assert np.abs(first[0].permute(1, 2, 0).numpy() - by_hand).mean() < 0.01


@EACH_LOADER
def test_evaluation_gives_every_image_once_and_training_the_order_it_is_told(tree: ImageDataset, loader: str) -> None:
    everything = torch.arange(len(tree.train))
    evaluation = opened(tree.train, loader, training=False)
    for _ in range(3):  # 39 images in batches of 8: the last one is smaller, in every pass
        numbers, shown = numbers_and_pixels(evaluation, everything)
        assert numbers == everything.tolist()
    order = torch.randperm(len(tree.train), generator=torch.Generator().manual_seed(1))
    numbers, shuffled = numbers_and_pixels(opened(tree.train, loader), order)
    assert numbers == order.tolist()
    assert torch.equal(shuffled, shown[order])  # each image stays with its number


@EACH_LOADER
def test_an_epoch_that_was_left_half_way_does_not_hang_or_change_the_next(tree: ImageDataset, loader: str) -> None:
    source = opened(tree.train, loader)
    order = torch.arange(len(tree.train)).flip(0)
    whole = numbers_and_pixels(source, order)
    for left_after in (0, 1, 3):
        batches = source.batches(order, BATCH)
        for _ in range(left_after):
            next(batches)
        del batches
        numbers, shown = numbers_and_pixels(source, order)
        assert numbers == whole[0]
        assert torch.equal(shown, whole[1])
    rest = numbers_and_pixels(source, order[2 * BATCH :])  # as a run that is resumed goes on
    assert rest[0] == whole[0][2 * BATCH :]
    assert torch.equal(rest[1], whole[1][2 * BATCH :])


@EACH_LOADER
def test_random_crops_and_mirror_images_repeat_with_seed_and_epoch_alone(tree: ImageDataset, loader: str) -> None:
    augmented = Preprocessing((48, 48), crop=32, augment=True)
    forwards = torch.arange(len(tree.train))

    def shown(order: Tensor, *, seed: int = 0, epoch: int = 1, training: bool = True) -> Tensor:
        source = opened(tree.train, loader, preprocessing=augmented, seed=seed, training=training)
        return numbers_and_pixels(source, order, epoch)[1]

    first = shown(forwards)
    assert torch.equal(shown(forwards.flip(0)), first.flip(0))  # whatever the order
    assert torch.equal(shown(forwards[20:]), first[20:])
    for other in (shown(forwards, epoch=2), shown(forwards, seed=1), shown(forwards, training=False)):
        assert (other - first).abs().mean() > 1
    centre = shown(forwards, training=False)
    assert torch.equal(shown(forwards, training=False, epoch=2), centre)


@EACH_LOADER
def test_images_are_tried_out_and_predicted_on_at_their_centres_one_at_a_time_too(
    tree: ImageDataset, loader: str
) -> None:
    """Without an epoch there are no random crops; a batch of one is what a run of --batch-size 1 has."""
    augmented = Preprocessing((48, 48), crop=32, augment=True)
    plain = opened(tree.train, loader, preprocessing=replace(augmented, augment=False), training=False)
    source = ImageInputs(tree.train, augmented, loader, BadFiles()).open(CPU, 1, training=True)
    centres = numbers_and_pixels(plain, torch.arange(4))[1]
    assert torch.equal(torch.cat([pixels(source, b.stored) for b in source.batches(torch.arange(4), 1)]), centres)
    assert torch.equal(source.first(), plain.first())


def test_a_draw_reaches_every_place_of_the_crop_and_both_sides() -> None:
    augmented = Preprocessing((36, 34), crop=32, augment=True)
    draws = [Draw(top, left, side < 0.5) for top, left, side in augmented.draws(2000, seed=3, epoch=4).tolist()]
    places = {augmented.offset(36, 34, draw) for draw in draws}
    assert places == {(top, left) for top in range(5) for left in range(3)}
    assert 900 < sum(draw.mirrored for draw in draws) < 1100
    box = augmented.box(72, 68, Draw(0.0, 0.5, True))
    assert box == pytest.approx((0, 33 / 34, 32 / 36, 1 / 34))  # right before left: mirrored


@pytest.mark.parametrize("augment", [False, True])
def test_both_loaders_give_the_same_pixels_and_numbers(spoilt: tuple[ImageList, dict[str, str]], augment: bool) -> None:
    pytest.importorskip("nvidia.dali")
    preprocessing = Preprocessing((40, 36), crop=32, augment=augment)
    order = torch.randperm(len(spoilt[0]), generator=torch.Generator().manual_seed(2))
    results = []
    for loader in ("dali", "torchvision"):
        bad_files = BadFiles()
        source = opened(spoilt[0], loader, preprocessing=preprocessing, bad_files=bad_files)
        results.append((*numbers_and_pixels(source, order), bad_files.reasons))
    assert results[0][0] == results[1][0]
    assert (results[0][1] - results[1][1]).abs().mean() <= 1
    assert list(results[0][2].items()) == list(results[1][2].items())  # in the order in which they were met


@EACH_LOADER
def test_a_bad_image_is_replaced_by_the_next_good_one_of_its_batch_or_left_out(
    spoilt: tuple[ImageList, dict[str, str]], loader: str
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
    spoilt: tuple[ImageList, dict[str, str]], loader: str, monkeypatch: pytest.MonkeyPatch
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


@EACH_LOADER
def test_strict_ends_at_the_first_bad_image_with_its_name(
    spoilt: tuple[ImageList, dict[str, str]], loader: str
) -> None:
    images, reasons = spoilt
    with pytest.raises(DataError) as caught:
        numbers_and_pixels(opened(images, loader, bad_files=BadFiles(strict=True)), torch.arange(len(images)))
    assert str(images.folder / next(iter(reasons))) in str(caught.value)
    assert "--strict" in str(caught.value)


@EACH_LOADER
def test_a_folder_without_a_readable_image_is_one_sentence(tmp_path: Path, loader: str) -> None:
    images = ImageList(tmp_path, [f"{number}.jpg" for number in range(5)], np.zeros(5, np.int64))
    with pytest.raises(
        DataError,
        match=r"none of 5 images, tried all over the data set, can be read, the first of them is 0.jpg \(no such",
    ):
        opened(images, loader).first()


@EACH_LOADER
def test_where_nothing_can_be_read_any_more_few_files_are_tried(tmp_path: Path, loader: str) -> None:
    missing = ImageList(tmp_path, [f"{number}.jpg" for number in range(3000)], np.zeros(3000, np.int64))
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


def test_what_dali_refuses_and_pillow_takes_is_decoded_by_pillow_from_then_on(
    tree: ImageDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A PNG that claims to be a plain JPEG stands for a JPEG that DALI's decoders refuse, a text for a bad one."""
    pytest.importorskip("nvidia.dali")
    from jocor_fast.data import dali_decoder

    odd, bad = (str(tree.train.folder / tree.train.paths[place]) for place in (10, 20))
    image = picture(3, (30, 30), np.random.default_rng(0))
    broken_png = encoded(image, "PNG")[:-12] + b"IEND"  # without its last chunk's checksum: Pillow does not mind

    def disguised(path: str) -> Any:
        if path in (odd, bad):
            data = broken_png if path == odd else b"no image"
            return PlainJpeg(np.frombuffer(bytearray(data), np.uint8), 30, 30)
        return read_image(path)

    monkeypatch.setattr(dali_decoder, "read_image", disguised)
    source = opened(tree.train, "dali")
    order = torch.arange(len(tree.train))
    numbers, shown = numbers_and_pixels(source, order)
    assert numbers == [21 if number == 20 else number for number in range(len(tree.train))]
    assert np.abs(shown[10].numpy() - prepared_by_pillow(np.asarray(image), SMALL)).mean() <= 1
    assert isinstance(source, ImageSource)
    assert list(source.bad_files.reasons) == [tree.train.paths[20]]
    pipeline = source.decoder._pipeline  # type: ignore[attr-defined]
    assert numbers_and_pixels(source, order)[0] == numbers
    assert source.decoder._pipeline is pipeline  # type: ignore[attr-defined]  # nothing broke it this time
