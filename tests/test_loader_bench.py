"""What the bench of the loaders times: every contender brings all images, in the same form."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
from loader_throughput import DALI, DATALOADER, ORIGINALS, OURS_WITHOUT, PREPARED, bars, table
from loading import BATCH, loaded_by, loaded_by_dataloader
from photos import write_photos

CPU = torch.device("cpu")


def test_every_contender_brings_all_images_normalised_and_in_batches(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    images = write_photos(tmp_path / "photos", BATCH + 3, distinct=3, prepared=True)
    contenders = [loaded_by("pillow", images, CPU), loaded_by_dataloader(images, 0)]
    means = []
    for batches in contenders:
        passed = list(batches())
        assert [tuple(batch.shape) for batch in passed] == [(BATCH, 3, 224, 224), (3, 3, 224, 224)]
        means.append(torch.cat(passed).mean((0, 2, 3)))
    torch.testing.assert_close(means[0], means[1], rtol=0, atol=1e-3)


def test_the_bars_compare_what_they_say() -> None:
    figures = {ORIGINALS: {DALI: 300.0, OURS_WITHOUT: 250.0, DATALOADER: 240.0}}
    figures[PREPARED] = {DALI: 900.0, OURS_WITHOUT: 400.0, DATALOADER: 600.0}
    verdicts = bars(figures)
    assert [(line["figure"], line["met"]) for line in verdicts] == [(1.25, False), (3.0, True), (1.6, False)]
    assert "not met" in table(figures, verdicts, 0.5)
