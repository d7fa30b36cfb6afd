"""Clothing1M (Xiao et al., CVPR 2015) in its official layout.

    noisy_train_key_list.txt, clean_{train,val,test}_key_list.txt   a key a line: images/3/25/NAME.jpg
    noisy_label_kv.txt, clean_label_kv.txt                          "KEY LABEL" a line; names may hold commas
    category_names_eng.txt                                          a class a line
    images/0..9/NN/NAME.jpg

The lists lie next to images/ or in annotations/. As in the paper, the noisily labelled million is trained on, the clean
validation and test parts are what they are called, and the clean training part is not used, but for one number: images
in it that have a noisy label too tell how many noisy labels are wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jocor_fast.data.arrays import reading
from jocor_fast.data.dataset import Dataset, DataShape, Entry, Wanted
from jocor_fast.data.images.decoder import IMAGE_SUFFIXES
from jocor_fast.data.images.preprocessing import Preprocessing
from jocor_fast.errors import DataError

if TYPE_CHECKING:
    from jocor_fast.data.samples import Samples

NOISY_TRAIN, CLEAN_TRAIN = "noisy_train_key_list.txt", "clean_train_key_list.txt"
CLEAN_VAL, CLEAN_TEST = "clean_val_key_list.txt", "clean_test_key_list.txt"
NOISY_LABELS, CLEAN_LABELS = "noisy_label_kv.txt", "clean_label_kv.txt"
CATEGORIES = "category_names_eng.txt"
LIST_FILES = (NOISY_TRAIN, CLEAN_TRAIN, CLEAN_VAL, CLEAN_TEST, NOISY_LABELS, CLEAN_LABELS, CATEGORIES)
REQUIRED = tuple(name for name in LIST_FILES if name != CLEAN_TRAIN)

SQUASHED_TO = (256, 256)  # the paper: "we resize the image to 256 × 256, crop the middle 224 × 224"
# Fewer images with both labels say too little of the rate (at a thousand its standard error is 1.5 %).
LEAST_FOR_ESTIMATE = 1000
WHERE_FROM = "its authors hand it out for research on request, see github.com/Cysu/noisy_label"


def load_clothing1m(wanted: Wanted) -> Dataset:
    """Read the lists in the first folder that has them, some seconds for the whole million; no image is opened.

    Raises:
        DataError: a list is absent or a line of it wrong (the sentence names file and line), or an image that is
            trained on is validated or tested on too.
    """
    folder = find_clothing1m(wanted.folders)
    if folder is None:
        places, files = " or ".join(map(str, wanted.folders)), ", ".join(REQUIRED)
        raise DataError(
            f"{wanted.name} is not in {places}: there must be {files} (there, or in annotations/) and images/; "
            f"{WHERE_FROM}"
        )
    lists = lists_folder(folder)
    missing = [name for name in REQUIRED if not (lists / name).exists()]
    if missing:
        raise DataError(f"{lists} has no {', '.join(missing)}")
    names = tuple(text for _, text in _lines(lists / CATEGORIES))
    noisy, clean = (_read_labels(lists / name, len(names)) for name in (NOISY_LABELS, CLEAN_LABELS))
    train_keys, val_keys, test_keys = (_read_keys(lists / name) for name in (NOISY_TRAIN, CLEAN_VAL, CLEAN_TEST))
    _check_leak(lists, train_keys, {CLEAN_VAL: val_keys, CLEAN_TEST: test_keys})
    notes: list[str] = []
    return Dataset(
        wanted.name,
        train=_labelled(folder, lists / NOISY_TRAIN, train_keys, noisy, notes),
        val=_labelled(folder, lists / CLEAN_VAL, val_keys, clean, notes),
        test=_labelled(folder, lists / CLEAN_TEST, test_keys, clean, notes),
        class_names=names,
        noise_estimate=_noise_estimate(lists / CLEAN_TRAIN, noisy, clean),
        notes=tuple(notes),
        source=str(folder),
        lists=tuple((lists / name).relative_to(folder) for name in LIST_FILES if (lists / name).exists()),
    )


def lists_folder(folder: Path) -> Path:
    """Where below the data set's folder its lists lie."""
    return folder if (folder / NOISY_TRAIN).exists() else folder / "annotations"


def find_clothing1m(folders: Sequence[Path]) -> Path | None:
    """The first of the folders that the data set lies in, by its list of training keys; None where it is in none."""
    return next((folder for folder in folders if (lists_folder(folder) / NOISY_TRAIN).exists()), None)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers; file names may be any bytes."""
    with reading(path, "a list of lines"), open(path, encoding="utf-8", errors="surrogateescape") as file:
        for number, line in enumerate(file, 1):
            text = line.strip()
            if text:
                yield number, text


def _read_keys(path: Path) -> dict[str, int]:
    """Keys in their order, with their lines."""
    keys: dict[str, int] = {}
    for number, key in _lines(path):
        if keys.setdefault(key, number) != number:
            raise DataError(f"{path}, line {number}: the key {key} stands in line {keys[key]} already")
    return keys


def _read_labels(path: Path, num_classes: int) -> dict[str, int]:
    """Labels by key. A key without a label, as a circulated list has one, is as if it were not there."""
    labels: dict[str, int] = {}
    valid = {str(label): label for label in range(num_classes)}
    for number, line in _lines(path):
        key, _, text = line.rpartition(" ")
        label = valid.get(text)
        if label is None:
            if line.lower().endswith(IMAGE_SUFFIXES):  # a key alone
                continue
            raise DataError(f"{path}, line {number}: the label must lie in 0 … {num_classes - 1}, got {text!r}")
        if labels.setdefault(key, label) != label:
            raise DataError(f"{path}, line {number}: {key} is labelled {label} here and {labels[key]} before")
    return labels


def _check_leak(lists: Path, train: dict[str, int], held_out: dict[str, dict[str, int]]) -> None:
    for name, keys in held_out.items():
        shared = train.keys() & keys.keys()
        if shared:
            key = min(shared, key=train.__getitem__)
            raise DataError(
                f"{lists / NOISY_TRAIN}, line {train[key]}: {key} is in {name}, line {keys[key]}, too, and what is "
                f"trained on cannot be measured on ({len(shared)} such keys)"
            )


def _labelled(folder: Path, path: Path, keys: dict[str, int], labels: dict[str, int], notes: list[str]) -> Samples:
    """The keys that have a label; the others are left out, with a note."""
    import torch

    from jocor_fast.data.images.source import ImageFiles
    from jocor_fast.data.samples import Samples

    kept = [key for key in keys if key in labels]
    if len(kept) < len(keys):
        first = next(key for key in keys if key not in labels)
        notes.append(
            f"{len(keys) - len(kept):,} of {len(keys):,} keys in {path.name} have no label and are left out, "
            f"the first is {first}"
        )
    if not kept:
        raise DataError(f"{path} has no image with a label")
    files = ImageFiles(folder, kept, Preprocessing(SQUASHED_TO))
    return Samples(files, torch.tensor([labels[key] for key in kept]))


def _noise_estimate(path: Path, noisy: dict[str, int], clean: dict[str, int]) -> float | None:
    if not path.exists():
        return None
    both = [key for key in _read_keys(path) if key in noisy and key in clean]
    if len(both) < LEAST_FOR_ESTIMATE:
        return None
    return sum(noisy[key] != clean[key] for key in both) / len(both)


CLOTHING1M = Entry(
    "clothing1m",
    load_clothing1m,
    find_clothing1m,
    holds_files=True,
    labels="noisy",
    model="resnet18",
    shape=DataShape(1_000_000, 10_526, (3, 224, 224), (1,) * 14, val=14_313),
)
