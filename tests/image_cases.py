"""Trees of small real image files, good and bad, that the tests of the loaders share."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from jocor_fast.data.catalogue import load_dataset
from jocor_fast.data.dataset import Dataset

CLASS_NAMES = ("T-Shirt", "Shirt", "Knitwear", "Chiffon")
COLOURS = ((200, 40, 40), (40, 190, 60), (50, 60, 210), (220, 210, 60))


def picture(label: int, size: tuple[int, int], generator: np.random.Generator) -> Image.Image:
    """A smooth image of (height, width) in the colour of its class: one that JPEG keeps, and a network tells apart."""
    coarse = generator.normal(0, 25, (3, 3, 3)) + COLOURS[label]
    height, width = size
    return Image.fromarray(coarse.clip(0, 255).astype(np.uint8)).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str = "JPEG", **options: object) -> bytes:
    """The image as the bytes of a file."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def write_clothing1m(
    root: Path, *, train: int = 40, held_out: int = 12, noise: float = 0.25, seed: int = 0, in_annotations: bool = True
) -> list[str]:
    """A tree in Clothing1M's layout, whose files are whole and of every kind that belongs there.

    Names hold commas; one image is gray, one CMYK; one key has a line without a label. Returns the training keys.
    """
    generator = np.random.default_rng(seed)
    lists = root / "annotations" if in_annotations else root
    lists.mkdir(parents=True, exist_ok=True)
    (lists / "category_names_eng.txt").write_text("".join(f"{name}\n" for name in CLASS_NAMES))
    labels: dict[str, dict[str, int]] = {"noisy": {}, "clean": {}}
    keys: dict[str, list[str]] = {}
    parts = (("noisy_train", train), ("clean_train", 4), ("clean_val", held_out), ("clean_test", held_out))
    for part, count in parts:
        for number in range(count):
            label = number % len(CLASS_NAMES)
            key = f"images/{number % 10}/{number % 3:02d}/{part},{number},{number * 7919}.jpg"
            size = tuple(generator.integers(40, 90, 2).tolist())
            image = picture(label, size, generator)
            if part == "noisy_train" and number == 5:
                image = image.convert("L")
            if part == "noisy_train" and number == 6:
                image = image.convert("CMYK")
            (root / key).parent.mkdir(parents=True, exist_ok=True)
            (root / key).write_bytes(encoded(image, quality=90))
            keys.setdefault(part, []).append(key)
            flipped = int(generator.integers(len(CLASS_NAMES))) if generator.random() < noise else label
            if part == "noisy_train":
                labels["noisy"][key] = flipped
            else:
                labels["clean"][key] = label
            if part == "clean_train":
                labels["noisy"][key] = flipped
        (lists / f"{part}_key_list.txt").write_text("".join(f"{key}\n" for key in keys[part]))
    for kind, by_key in labels.items():
        lines = [f"{key} {label}\n" for key, label in by_key.items()]
        if kind == "noisy":
            lines[3] = lines[3].rpartition(" ")[0] + "\n"
        (lists / f"{kind}_label_kv.txt").write_text("".join(lines))
    return keys["noisy_train"]


def damage(root: Path, keys: list[str]) -> dict[str, str]:
    """Spoil four files of a tree, each in another way. Returns a part of the reason for each."""
    missing, truncated, empty, text = keys[8], keys[11], keys[17], keys[23]
    (root / missing).unlink()
    (root / truncated).write_bytes((root / truncated).read_bytes()[:-200])
    (root / empty).write_bytes(b"")
    (root / text).write_text("not found\n")
    return {missing: "no such file", truncated: "truncated", empty: "empty", text: "not an image"}


def loaded(name: str, root: Path | None = None) -> Dataset:
    """A data set of image files, by its name."""
    dataset = load_dataset(name, root)
    assert dataset.files is not None
    return dataset
