"""Random crops and mirror images on the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from engine_cases import blobs, fit, parameters, same_bits, settings, small_cnn
from jocor_fast.data.samples import Samples
from jocor_fast.engine import augment


def test_crops_are_shifted_windows_and_half_are_mirrored() -> None:
    """Every result is found among the 81 · 2 windows of its padded image; shifts and mirrors vary within a batch."""
    images = torch.randint(1, 256, (64, 2, 5, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    kept = images.clone()
    result = augment.crop_flip(images, torch.Generator().manual_seed(1))
    assert torch.equal(images, kept)
    assert result.dtype == torch.uint8
    assert result.shape == images.shape
    padded = nn.functional.pad(images, [augment.PADDING] * 4)
    found = []
    for image, crop in zip(padded, result, strict=True):
        windows = {
            (top, left, mirrored): window.flip(-1) if mirrored else window
            for top in range(9)
            for left in range(9)
            for mirrored in (False, True)
            for window in [image[:, top : top + 5, left : left + 6]]
        }
        found.append(next(place for place, window in windows.items() if torch.equal(window, crop)))
    assert len({place[:2] for place in found}) > 30
    assert [(min(ends), max(ends)) for ends in list(zip(*found, strict=True))[:2]] == [(0, 8), (0, 8)]
    assert 20 < sum(mirrored for *_, mirrored in found) < 44
    gray = augment.crop_flip(images[:, 0], torch.Generator().manual_seed(1))
    assert torch.equal(gray, result[:, 0])


def test_crops_are_drawn_anew_each_step_and_follow_the_seed() -> None:
    data = blobs(32, (3, 8, 8))
    plain, first, again = (run_cnn(data, augment=kind) for kind in ("none", "crop-flip", "crop-flip"))
    assert same_bits(first, again)
    assert not same_bits(plain, first)


def run_cnn(data: Samples, **changes: Any) -> list[Tensor]:
    return parameters(fit(settings(epochs=2, **changes), small_cnn, data).networks)
