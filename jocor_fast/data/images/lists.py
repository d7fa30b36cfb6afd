"""A user's own images: class folders (`folder:DIR`) and lists (`csv:FILE`)."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jocor_fast.data.arrays import reading
from jocor_fast.data.columns import read_table, split_named
from jocor_fast.data.dataset import Dataset, Entry, Wanted, numbered
from jocor_fast.data.images.decoder import IMAGE_SUFFIXES
from jocor_fast.errors import DataError
from jocor_fast.files.names import COMPARISON, NOISE_MATRIX, OURS

PARTS = ("train", "val", "test")
# What systems put into folders by themselves, in any case; names that begin with a dot are passed over too.
SYSTEM_FOLDERS = frozenset(
    {"@eadir", "@recycle", "#recycle", "#snapshot", "$recycle.bin", "__macosx", "lost+found", "__pycache__"}
    | {"system volume information"}
)
SPELLINGS = "the parts of a data set are called train (or training), val (valid, validation) and test (testing)"
_NAMED = 20  # in a note

_Images = list[tuple[str, str]]  # (path, label)


@dataclass
class Walk:
    """A walk through folders of images, and what it passed over.

    Attributes:
        written: folders that this program has written: their pictures are no images to learn from or to label.
        skipped: files that are no images, by suffix.
        empty: class folders without an image.
        loose: images next to class folders, in none of them: {folder: how many}.
    """

    written: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    empty: list[str] = field(default_factory=list)
    loose: dict[str, int] = field(default_factory=dict)

    def images(self, folder: str, above: tuple[str, ...] = ()) -> Iterator[str]:
        """Yield the paths of the images in a folder and below, by name, whatever their suffix; no hidden ones.

        `above` are the folders that this one was reached by; a DataError where a link leads back to one of them.
        """
        from jocor_fast.data.images.image_file import is_image

        here = os.path.realpath(folder)
        if here in above:
            raise DataError(f"{folder} is {here} once more, to which a link in it leads back")
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        images = {entry.name for entry in entries if entry.name.lower().endswith(IMAGE_SUFFIXES)}
        if any(entry.name in OURS for entry in entries) or (images and images <= {COMPARISON, NOISE_MATRIX}):
            self.written.append(folder)
            return
        for entry in entries:
            if _of_the_system(entry.name):
                continue
            if entry.is_dir():
                yield from self.images(entry.path, (*above, here))
            elif is_image(entry.path):
                yield entry.path
            else:
                self.skipped[os.path.splitext(entry.name)[1].lower() or "without a suffix"] += 1

    def class_folders(self, base: Path, folder: Path, classes: Iterable[str]) -> _Images:
        """Return the images below folder/CLASS for each class, their paths relative to `base`."""
        found: _Images = []
        for label in classes:
            written = len(self.written)
            images = [(os.path.relpath(image, base), label) for image in self.images(str(folder / label))]
            if not images and len(self.written) == written:
                self.empty.append(os.path.relpath(folder / label, base))
            found += images
        names = {entry.name for entry in os.scandir(folder)} if found else set()
        loose = [name for name in names if name.lower().endswith(IMAGE_SUFFIXES) and not _of_the_system(name)]
        if loose and not OURS & names and not {COMPARISON, NOISE_MATRIX}.issuperset(loose):
            self.loose[str(folder)] = len(loose)
        return found

    def notes(self) -> list[str]:
        """Return a sentence for each kind of thing that was passed over."""
        notes = []
        if self.written:
            notes.append(f"{_some(self.written)}: written by jocor-fast, so its pictures are skipped")
        if self.skipped:
            count = self.skipped.total()
            kinds = sorted(self.skipped.items(), key=lambda kind: (-kind[1], kind[0]))
            suffixes = _some([f"{number:,} {suffix}" for suffix, number in kinds])
            notes.append(f"{count:,} file{'s' * (count != 1)} skipped: {suffixes}")
        if self.empty:
            notes.append(f"no image in {_some(self.empty)}")
        for folder, count in self.loose.items():
            notes.append(f"{count:,} image{'s' * (count != 1)} in {folder} itself skipped: they lie in no class folder")
        return notes


def load_folder(wanted: Wanted) -> Dataset:
    """Class folders: DIR/CLASS/…/image, or DIR/train/CLASS/…/image; DIR/test and DIR/val likewise, where they are.

    The parts may have any of their usual names (`columns.SPLITS`). Images are taken in the order of their paths,
    classes in that of their names. Passed over are names that begin with a dot, folders that systems make, files that
    are no images (the notes count them), and what this program has written (runs/ among the images).

    Raises:
        DataError: there are no class folders, or no images in them, or a class that is only tested on.
    """
    folder = wanted.path
    with reading(folder, "a folder of images"):
        folder.stat()  # one that is absent is said to be
        names = _folders(folder)
        places = _parts_in(folder, names)
        walk = Walk()
        parts = {
            part: walk.class_folders(folder, folder / place, _folders(folder / place)) for part, place in places.items()
        }
        others = [name for name in names if name not in places.values()]
        notes = []
        if "train" not in parts:
            parts["train"] = walk.class_folders(folder, folder, others)
            others = sorted({label for _, label in parts["train"]})
        elif others := [other for other in others if _holds_images(folder / other)]:
            train = places["train"]
            notes.append(f"{_some(others)} in {folder}: left out, since {train}/ there holds class folders")
    classes = {label for _, label in parts["train"]}
    if not classes:
        raise DataError(f"{folder} must hold a folder of images for each class, or train/ with such folders")
    if misspelt := [name for name in others if _is_like_a_part(name)]:
        notes.append(f"{_some(misspelt)}: {SPELLINGS}, in any case, and hold a folder for each class")
    for images in parts.values():
        for path, label in images:
            if label not in classes:
                raise DataError(f"{folder / path}: the class {label!r} has no training images ({SPELLINGS})")
    return _dataset(wanted, folder, parts, notes=(*notes, *walk.notes()))


def load_csv(wanted: Wanted) -> Dataset:
    """A list with columns path,label[,clean][,split], as `columns.read_table` finds them.

    Paths are relative to its folder. `clean` is the true label, `split` one of train, val and test (rows for test and
    val count by their true label, where there is one). Without that column test images are those of class folders in a
    folder test/ next to the list.

    Raises:
        DataError: the list is absent or a line of it wrong; the sentence names the line.
    """
    path = wanted.path
    parts: dict[str, _Images] = {part: [] for part in PARTS}
    truth: list[str] = []
    row: Mapping[str, str] = {}
    for row in _checked_rows(path):
        part = row.get("split", "train")
        parts[part].append((row["path"], row["label"] if part == "train" else row.get("clean", row["label"])))
        if part == "train" and "clean" in row:
            truth.append(row["clean"])
    walk = Walk()
    if "split" not in row:
        test = _parts_in(path.parent, _folders(path.parent)).get("test")
        if test is not None:
            parts["test"] = walk.class_folders(path.parent, path.parent / test, _folders(path.parent / test))
    if not parts["train"]:
        raise DataError(f"{path} has no row to train on")
    return _dataset(wanted, path.parent, parts, truth, walk.notes(), lists=(Path(path.name),))


def _dataset(
    wanted: Wanted,
    folder: Path,
    parts: Mapping[str, _Images],
    truth: Sequence[str] = (),
    notes: Sequence[str] = (),
    lists: tuple[Path, ...] = (),
) -> Dataset:
    """Number the classes over all parts, and put them together."""
    import torch

    from jocor_fast.data.classes import number_classes
    from jocor_fast.data.images.source import ImageFiles
    from jocor_fast.data.samples import Samples

    images = [parts.get(part, ()) for part in PARTS]
    trained_on = {os.path.normpath(path) for path, _ in parts["train"]}
    for path, _ in (*images[1], *images[2]):
        if os.path.normpath(path) in trained_on:
            raise DataError(f"{wanted.path}: {path} is trained on, and what is trained on cannot be measured on")
    texts = [*([label for _, label in part] for part in images), list(truth)]
    names = {label for labels in texts for label in labels}
    as_numbers = all(map(str.isdecimal, names)) and len(set(map(int, names))) == len(names)  # 1 and 01 are two names
    (*labels, clean), table = number_classes(*([list(map(int, some)) for some in texts] if as_numbers else texts))
    num_classes = len(table) if table is not None else 1 + max(int(some.max(initial=0)) for some in (*labels, clean))
    train, val, test = (
        Samples(ImageFiles(folder, [path for path, _ in part]), torch.from_numpy(some)) if part else None
        for part, some in zip(images, labels, strict=True)
    )
    assert train is not None
    return Dataset(
        wanted.name,
        replace(train, clean_labels=torch.from_numpy(clean)) if truth else train,
        table or numbered(num_classes),
        test,
        val,
        table,
        notes=tuple(notes),
        source=str(wanted.path),
        lists=lists,
    )


def _parts_in(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Return which of the folders in one are parts of a data set, {"train", "val" or "test": its name}.

    They are those with such a name and class folders in them; a class may have such a name too. Of several names for
    one part that of `PARTS` counts. Where there is no part to train on, a folder with another name of a part must hold
    the classes next to it.

    Raises:
        DataError: two folders could be the same part.
    """
    found: dict[str, list[str]] = {}
    for name in names:
        part = split_named(name)
        if part is not None and any(_holds_images(folder / name / label) for label in _folders(folder / name)):
            found.setdefault(part, []).append(name)
    if "train" not in found:
        others = {name for name in names if split_named(name) is None}
        for part, spelt in found.items():
            found[part] = [name for name in spelt if name == part or others.issuperset(_folders(folder / name))]
    for part, spelt in found.items():
        if len(spelt) > 1 and part not in spelt:
            raise DataError(f"{folder}: {' and '.join(spelt)} could both be its part {part!r}; rename all but one")
    return {part: part if part in spelt else spelt[0] for part, spelt in found.items() if spelt}


def _is_like_a_part(name: str) -> bool:
    """Tell whether a folder is called nearly as a part of a data set: "train_images", "test-set", "Val2017"."""
    return re.match(r"(train|training|val|valid|validation|test|testing)(?![a-z])", name.lower()) is not None


def _folders(folder: Path) -> list[str]:
    """Return the names of the folders in one, without those of the system; none where it is no folder."""
    if not folder.is_dir():
        return []
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    return [name for name in names if not _of_the_system(name)]


def _holds_images(folder: Path) -> bool:
    return next(Walk().images(str(folder)), None) is not None


def _of_the_system(name: str) -> bool:
    return name.startswith(".") or name.lower() in SYSTEM_FOLDERS


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _checked_rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows as {column: cell}, checked."""
    seen: dict[str, int] = {}
    for line, cells in read_table(path, ("path", "label"), ("clean", "split")):
        row = {name: cell.strip() for name, cell in cells.items()}
        for name, cell in row.items():
            if not cell:
                raise DataError(f"{path}, line {line}: the {name} is empty")
        if "split" in row:
            part, parts = split_named(row["split"]), ", ".join(PARTS)
            if part is None:
                raise DataError(f"{path}, line {line}: the split must be one of {parts}, got {row['split']!r}")
            row["split"] = part
        if seen.setdefault(row["path"], line) != line:
            raise DataError(f"{path}, line {line}: {row['path']} stands in line {seen[row['path']]} already")
        yield row


_IMAGES: dict[str, Any] = {"holds_files": True, "labels": "given", "model": "resnet18"}
FOLDER = Entry("folder:", load_folder, path="DIR", help="with a folder of images for each class", **_IMAGES)
CSV = Entry("csv:", load_csv, path="FILE", help="with columns path,label[,clean][,split]", **_IMAGES)
