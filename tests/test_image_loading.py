"""Image files as a run's inputs: order, ids, kinds of images; the same from both loaders (cases 46, 47)."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, PngImagePlugin
from torch import Tensor

from image_cases import encoded, loaded, picture, write_clothing1m
from jocor_fast.cli.program import _own_warnings_in_one_line
from jocor_fast.data.dataset import Dataset
from jocor_fast.data.images.image_file import PIXELS_VARIABLE, PlainJpeg, decode_by_pillow, most_pixels, read_image
from jocor_fast.data.images.preprocessing import Draw, Preprocessing
from jocor_fast.data.images.source import ImageSource
from jocor_fast.errors import DataError
from loader_cases import BATCH, CPU, EACH_LOADER, SMALL, numbers_and_pixels, opened, pixels, write_list


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    root = tmp_path_factory.mktemp("clothing1m")
    write_clothing1m(root)
    return loaded("clothing1m", root)


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
def test_inputs_are_normalised_and_lie_channels_last(tree: Dataset, loader: str) -> None:
    source = opened(tree.files, loader)
    first = source.first(3)
    assert (first.shape, first.dtype) == ((3, 3, 32, 32), torch.float32)
    assert first.is_contiguous(memory_format=torch.channels_last)
    shown = np.asarray(Image.open(tree.train.inputs.folder / tree.train.inputs.paths[0]))
    mean, std = (np.array(values) for values in (SMALL.mean, SMALL.std))
    by_hand = (prepared_by_pillow(shown, SMALL) / 255 - mean) / std
    assert np.abs(first[0].permute(1, 2, 0).numpy() - by_hand).mean() < 0.01


@EACH_LOADER
def test_evaluation_gives_every_image_once_and_training_the_order_it_is_told(tree: Dataset, loader: str) -> None:
    everything = torch.arange(len(tree.train))
    evaluation = opened(tree.files, loader, training=False)
    for _ in range(3):  # 39 images in batches of 8: the last one is smaller, in every pass
        numbers, shown = numbers_and_pixels(evaluation, everything)
        assert numbers == everything.tolist()
    order = torch.randperm(len(tree.train), generator=torch.Generator().manual_seed(1))
    numbers, shuffled = numbers_and_pixels(opened(tree.files, loader), order)
    assert numbers == order.tolist()
    assert torch.equal(shuffled, shown[order])  # each image stays with its number


@EACH_LOADER
def test_an_epoch_that_was_left_half_way_does_not_hang_or_change_the_next(tree: Dataset, loader: str) -> None:
    source = opened(tree.files, loader)
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
def test_random_crops_and_mirror_images_repeat_with_seed_and_epoch_alone(tree: Dataset, loader: str) -> None:
    augmented = Preprocessing((48, 48), crop=32, augment=True)
    forwards = torch.arange(len(tree.train))

    def shown(order: Tensor, *, seed: int = 0, epoch: int = 1, training: bool = True) -> Tensor:
        source = opened(tree.files, loader, preprocessing=augmented, seed=seed, training=training)
        return numbers_and_pixels(source, order, epoch)[1]

    first = shown(forwards)
    assert torch.equal(shown(forwards.flip(0)), first.flip(0))  # whatever the order
    assert torch.equal(shown(forwards[20:]), first[20:])
    for other in (shown(forwards, epoch=2), shown(forwards, seed=1), shown(forwards, training=False)):
        assert (other - first).abs().mean() > 1
    centre = shown(forwards, training=False)
    assert torch.equal(shown(forwards, training=False, epoch=2), centre)


@EACH_LOADER
def test_images_are_tried_out_and_predicted_on_at_their_centres_one_at_a_time_too(tree: Dataset, loader: str) -> None:
    """Without an epoch there are no random crops; a batch of one is what a run of --batch-size 1 has."""
    augmented = Preprocessing((48, 48), crop=32, augment=True)
    plain = opened(tree.files, loader, preprocessing=replace(augmented, augment=False), training=False)
    source = replace(tree.files, preprocessing=augmented, loader=loader).open(CPU, 1, training=True)
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


def test_what_dali_refuses_and_pillow_takes_is_decoded_by_pillow_from_then_on(
    tree: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A PNG that claims to be a plain JPEG stands for a JPEG that DALI's decoders refuse, a text for a bad one."""
    pytest.importorskip("nvidia.dali")
    from jocor_fast.data.images import dali_decoder

    odd, bad = (str(tree.train.inputs.folder / tree.train.inputs.paths[place]) for place in (10, 20))
    image = picture(3, (30, 30), np.random.default_rng(0))
    broken_png = encoded(image, "PNG")[:-12] + b"IEND"  # without its last chunk's checksum: Pillow does not mind

    def disguised(path: str) -> Any:
        if path in (odd, bad):
            data = broken_png if path == odd else b"no image"
            return PlainJpeg(np.frombuffer(bytearray(data), np.uint8), 30, 30)
        return read_image(path)

    monkeypatch.setattr(dali_decoder, "read_image", disguised)
    source = opened(tree.files, "dali")
    order = torch.arange(len(tree.train))
    numbers, shown = numbers_and_pixels(source, order)
    assert numbers == [21 if number == 20 else number for number in range(len(tree.train))]
    assert np.abs(shown[10].numpy() - prepared_by_pillow(np.asarray(image), SMALL)).mean() <= 1
    assert isinstance(source, ImageSource)
    assert list(source.bad_files.reasons) == [tree.train.inputs.paths[20]]
    pipeline = source.decoder._pipeline  # type: ignore[attr-defined]
    assert numbers_and_pixels(source, order)[0] == numbers
    assert source.decoder._pipeline is pipeline  # type: ignore[attr-defined]  # nothing broke it this time


def with_broken_exif() -> bytes:
    """A JPEG whose EXIF data say that they are longer than they are."""
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010E] = "a long description of what is seen"
    data = bytearray(encoded(picture(0, (40, 60), np.random.default_rng(0)), exif=exif))
    place = data.index(b"\x01\x0e\0\x02") + 4
    data[place : place + 4] = (2**16).to_bytes(4, "big")
    return bytes(data)


def odd_images() -> dict[str, bytes]:
    """Case 57: images that Pillow warns of or refuses, and that are whole."""
    image = picture(0, (40, 60), np.random.default_rng(0))
    text = PngImagePlugin.PngInfo()
    text.add_text("comment", "x" * 3_000_000, zip=True)
    return {
        "exif.jpg": with_broken_exif(),
        "palette.png": encoded(image.convert("P"), "PNG", transparency=bytes([0, 128, 255])),
        "text.png": encoded(image, "PNG", pnginfo=text),
        "profile.png": encoded(image, "PNG", icc_profile=bytes(3_000_000)),
    }


@EACH_LOADER
def test_images_that_pillow_complains_of_are_read_and_its_words_come_with_their_names(
    tmp_path: Path, loader: str, capsys: pytest.CaptureFixture[str]
) -> None:
    images = write_list(tmp_path, odd_images())
    with _own_warnings_in_one_line():
        for _ in range(2):
            source = opened(images, loader)
            numbers, _ = numbers_and_pixels(source, torch.arange(len(images)))
            assert numbers == list(range(len(images)))
            assert source.bad_files is not None
            assert not source.bad_files.reasons
    lines = sorted(capsys.readouterr().err.splitlines())
    assert len(lines) == 2
    assert all(line.startswith(f"jocor-fast: warning: {tmp_path}/") for line in lines)
    assert "/exif.jpg: Tag data larger than file" in lines[0]
    assert "/palette.png: Palette images with Transparency" in lines[1]


def test_an_image_of_196_megapixels_is_read() -> None:
    """Case 57: Pillow takes it for an attack."""
    assert decode_by_pillow(encoded(Image.new("1", (14_000, 14_000), 1), "PNG")).shape == (14_000, 14_000, 3)


@pytest.fixture
def pixel_limit(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Sets how many pixels an image may have, as the environment says."""

    def limit(text: str) -> None:
        monkeypatch.setenv(PIXELS_VARIABLE, text)
        most_pixels.cache_clear()

    yield limit
    most_pixels.cache_clear()


@EACH_LOADER
def test_images_are_read_up_to_a_limit_of_ours_that_can_be_raised(
    tmp_path: Path, loader: str, pixel_limit: Callable[[str], None]
) -> None:
    images = write_list(tmp_path, {kind: encoded(Image.new("RGB", (60, 50)), kind) for kind in ("JPEG", "PNG")})
    pixel_limit("3000")
    assert numbers_and_pixels(opened(images, loader), torch.arange(2))[0] == [0, 1]
    pixel_limit("2999")
    with pytest.raises(
        DataError, match=r"JPEG \(60×50 is more than 2,999 pixels; \$JOCOR_FAST_MAX_PIXELS raises the lim"
    ):
        opened(images, loader).first()
    pixel_limit("many")
    with pytest.raises(DataError, match="JOCOR_FAST_MAX_PIXELS must be a whole number, got 'many'"):
        opened(images, loader).first()
