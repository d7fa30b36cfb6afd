"""Part "dali": prepared photographs through DALI on the GPU, alone and into the training of two ResNet-18.

    python -m gpu.dali

DALI must be at hand; where no package registry is, unpack it and put its folder on PYTHONPATH.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

from gpu import records
from gpu.bars import DALI_ALONE, DALI_AND_RESNETS
from loading import images_per_second, loaded_by, train_resnets
from photos import write_photos

COUNT = 8192  # 100 MB of files, which stay in the page cache
SECONDS = 15


def main() -> int:
    records.plan([DALI_ALONE, DALI_AND_RESNETS])
    device = torch.device("cuda", 0)
    with tempfile.TemporaryDirectory() as scratch:
        images = write_photos(Path(scratch, "photos"), COUNT, prepared=True)
        batches = loaded_by("dali", images, device)
        records.done(DALI_ALONE, images_per_second=images_per_second(batches, COUNT, device, seconds=SECONDS))
        records.done(DALI_AND_RESNETS, **train_resnets(images, "dali", device, seconds=SECONDS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
