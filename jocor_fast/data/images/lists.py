"""A user's own images: class folders (`folder:DIR`) and lists (`csv:FILE`)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from jocor_fast.data.arrays import csv_rows, reading
from jocor_fast.data.classes import number_classes
from jocor_fast.data.dataset import DataError
from jocor_fast.data.images.image_set import IMAGE_SUFFIXES, ImageDataset, ImageList
from jocor_fast.files.names import COMPARISON, NOISE_MATRIX, OURS

PARTS = ("train", "val", "test")

_Images = list[tuple[str, str]]  # (path, label)


def load_folder(folder: Path, name: str) -> ImageDataset:
    """Class folders: DIR/CLASS/…/image, or DIR/train/CLASS/…/image; DIR/test and DIR/val likewise, where they are.

    Images are taken in the order of their paths, classes in that of their names. Passed over are names that begin with
    a dot, files whose suffix is not that of an image, and what this program has written (runs/ beside the images).

    Raises:
        DataError: there are no class folders, or no images in them, or a class that is only tested on.
    """
    written: list[str] = []
    notes: list[str] = []
    with reading(folder, "a folder of images"):
        folder.stat()  # one that is absent is said to be
        parts = {part: _class_folders(folder, folder / part, written) for part in ("val", "test")}
        parts["train"] = _class_folders(folder, folder / "train", written)
        if not parts["train"]:
            skipped = [part for part in ("val", "test") if parts[part]]
            parts["train"] = _class_folders(folder, folder, written, skipped)
        elif beside := _folders_with_images(folder, PARTS):
            notes.append(f"{', '.join(beside)} in {folder}: left out, since train/ there holds class folders")
    if not parts["train"]:
        raise DataError(f"{folder} must hold a folder of images for each class, or train/ with such folders")
    classes = {label for _, label in parts["train"]}
    for part in ("val", "test"):
        for path, label in parts[part]:
            if label not in classes:
                raise DataError(f"{folder / path}: the class {label!r} has no training images")
    if written:
        notes.append(f"{', '.join(written)}: written by jocor-fast, so that its pictures are no images to train on")
    return _dataset(name, folder, str(folder), parts, notes=notes)


def load_csv(path: Path, name: str) -> ImageDataset:
    """A list with a header path,label[,clean][,split], its columns in any order; paths are relative to its folder.

    `clean` is the true label, `split` one of train, val and test (rows for test and val count by their true label,
    where there is one). Without that column test images are those of class folders in a folder test/ beside the list.

    Raises:
        DataError: the list is absent or a line of it wrong; the sentence names the line.
    """
    rows = list(_checked_rows(path))
    parts: dict[str, _Images] = {part: [] for part in PARTS}
    truth: list[str] = []
    for row in rows:
        part = row.get("split", "train")
        parts[part].append((row["path"], row["label"] if part == "train" else row.get("clean", row["label"])))
        if part == "train" and "clean" in row:
            truth.append(row["clean"])
    if rows and "split" not in rows[0]:
        parts["test"] = _class_folders(path.parent, path.parent / "test", [])
    if not parts["train"]:
        raise DataError(f"{path} has no row to train on")
    return _dataset(name, path.parent, str(path), parts, truth)


def _dataset(
    name: str,
    folder: Path,
    source: str,
    parts: dict[str, _Images],
    truth: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> ImageDataset:
    """Number the classes over all parts, and put them together."""
    trained_on = {os.path.normpath(path) for path, _ in parts["train"]}
    for path, _ in (*parts["val"], *parts["test"]):
        if os.path.normpath(path) in trained_on:
            raise DataError(f"{source}: {path} is trained on, and what is trained on cannot be measured on")
    texts = [[label for _, label in parts[part]] for part in PARTS]
    names = {label for labels in (*texts, truth) for label in labels}
    as_numbers = all(map(str.isdecimal, names)) and len(set(map(int, names))) == len(names)  # 1 and 01 are two names
    values = [[int(label) for label in labels] if as_numbers else labels for labels in (*texts, list(truth))]
    numbered, table = number_classes(*values)
    num_classes = len(table) if table is not None else 1 + max(int(labels.max(initial=0)) for labels in numbered)
    lists = {}
    for part, labels in zip(PARTS, numbered, strict=False):
        if parts[part]:
            clean = numbered[-1] if part == "train" and truth else None
            lists[part] = ImageList(folder, [path for path, _ in parts[part]], labels, clean)
    return ImageDataset(
        name=name,
        train=lists["train"],
        test=lists.get("test"),
        val=lists.get("val"),
        class_names=table or tuple(map(str, range(num_classes))),
        label_table=table,
        notes=tuple(notes),
        source=source,
    )


def _class_folders(base: Path, folder: Path, written: list[str], skipped: Sequence[str] = ()) -> _Images:
    """The images below folder/CLASS for each class, their paths relative to `base`; none where there is no such.

    Folders that this program has written go to `written`.
    """
    return [
        (os.path.relpath(image, base), label)
        for label in _folders(folder, skipped)
        for image in images_below(str(folder / label), written)
    ]


def _folders(folder: Path, skipped: Sequence[str]) -> list[str]:
    """The names of the folders in one, without hidden ones; none where it is no folder."""
    if not folder.is_dir():
        return []
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and entry.name not in skipped)
    return [name for name in names if not name.startswith(".")]


def _folders_with_images(folder: Path, skipped: Sequence[str]) -> list[str]:
    return [name for name in _folders(folder, skipped) if next(images_below(str(folder / name), []), None) is not None]


def images_below(folder: str, written: list[str], above: tuple[str, ...] = ()) -> Iterator[str]:
    """The paths of the images in a folder and below, by name; hidden ones are passed over.

    Folders that this program has written go to `written`: their pictures are no images to learn from or to label.
    `above` are the folders that this one was reached by; a DataError where a link leads back to one of them.
    """
    here = os.path.realpath(folder)
    if here in above:
        raise DataError(f"{folder} is {here} once more, to which a link in it leads back")
    entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    images = {entry.name for entry in entries if entry.name.lower().endswith(IMAGE_SUFFIXES)}
    if any(entry.name in OURS for entry in entries) or (images and images <= {COMPARISON, NOISE_MATRIX}):
        written.append(folder)
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from images_below(entry.path, written, (*above, here))
        elif entry.name.lower().endswith(IMAGE_SUFFIXES):
            yield entry.path


def _checked_rows(path: Path) -> Iterator[dict[str, str]]:
    """The rows as {column: cell}, checked."""
    rows = csv_rows(path)
    header = [name.strip() for name in next(rows, (1, []))[1]]
    known = {"path", "label", "clean", "split"}
    if not {"path", "label"} <= set(header) <= known or len(set(header)) < len(header):
        raise DataError(
            f"{path}, line 1: the header must be path,label, then clean or split or both, got {','.join(header)!r}"
        )
    seen: dict[str, int] = {}
    for line, cells in rows:
        row = {name: cell.strip() for name, cell in zip(header, cells, strict=False)}
        _check_row(f"{path}, line {line}", row, cells, header)
        if seen.setdefault(row["path"], line) != line:
            raise DataError(f"{path}, line {line}: {row['path']} stands in line {seen[row['path']]} already")
        yield row


def _check_row(where: str, row: dict[str, str], cells: Sequence[str], header: Sequence[str]) -> None:
    if len(cells) != len(header):
        raise DataError(f"{where}: there must be {len(header)} cells, got {len(cells)}")
    empty = [name for name, cell in row.items() if not cell]
    if empty:
        raise DataError(f"{where}: the {empty[0]} is empty")
    if row.get("split", "train") not in PARTS:
        raise DataError(f"{where}: the split must be one of {', '.join(PARTS)}, got {row['split']!r}")
