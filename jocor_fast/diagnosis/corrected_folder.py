"""A corrected copy of images in class folders: where each image goes, and the copy itself."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jocor_fast.data.images.lists import FOLDER
from jocor_fast.errors import ArgumentValueError, DataError

if TYPE_CHECKING:
    import numpy as np

    from jocor_fast.data.dataset import Dataset

DROPPED = -1  # in place of a corrected label: the sample is left out


@dataclass(frozen=True)
class CorrectedFolder:
    """What a corrected copy holds.

    Attributes:
        source: the folder that the paths of the images start from.
        places: the path in the copy of each image, by its path.
        moved: those of them whose class folder or name is another one there.
        dropped: the paths of images that are left out on purpose.
        missing: those of images that do not exist.
    """

    source: Path
    places: dict[str, str]
    moved: dict[str, str]
    dropped: list[str]
    missing: list[str]

    @staticmethod
    def of(
        source: Path, paths: Sequence[str], corrected: np.ndarray, names: Sequence[str], others: Sequence[str] = ()
    ) -> CorrectedFolder:
        """Plan the copy.

        Where all images lie in CLASS/… or PART/CLASS/…, CLASS becomes the folder of the corrected label; elsewhere
        images go to LABEL/NAME. Of two images that would have one name, the one that was there keeps it.

        Args:
            corrected: int64 [N], the class of each path, or DROPPED.
            names: what the classes are called.
            others: further images, which keep their paths.

        Raises:
            DataError: two classes would share a folder.
        """
        depth, folders = _class_folders(paths, names)
        kept = {path: label for path, label in zip(paths, corrected.tolist(), strict=True) if label != DROPPED}
        wanted = {path: _place(path, folders[label], depth) for path, label in kept.items()}
        wanted |= {path: path for path in others}
        missing = [path for path in wanted if not (source / path).is_file()]
        for path in missing:
            del wanted[path]
        places = {path: place for path, place in wanted.items() if path == place}
        taken, numbers = set(places.values()), Counter[str]()
        moved = {path: _free(place, taken, numbers) for path, place in wanted.items() if path != place}
        return CorrectedFolder(source, places | moved, moved, [path for path in paths if path not in kept], missing)

    @property
    def summary(self) -> str:
        """Such as "1,500 images, 199 of them in another place, 3 dropped"."""
        parts = [f"{len(self.places):,} images, {len(self.moved):,} of them in another place"]
        parts += [f"{len(self.dropped):,} dropped"] if self.dropped else []
        parts += [f"{len(self.missing):,} missing"] if self.missing else []
        return ", ".join(parts)

    def lines(self) -> Iterator[str]:
        """Return a line for each image that does not stay where it is."""
        yield from (f"{path} → {place}" for path, place in self.moved.items())
        yield from (f"{path} dropped" for path in self.dropped)
        yield from (f"{path} missing" for path in self.missing)

    def write(self, folder: Path, on_file: Callable[[int, int], None] | None = None, *, links: bool = True) -> bool:
        """Write the copy by hard links, or by copies where there can be no links; it is whole or not there.

        Args:
            folder: as `check_new` accepts it.
            on_file: called before each file with how many are written and their total.
            links: whether hard links are wanted.

        Returns:
            Whether a file of the copy is a hard link.
        """
        linked = False
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=folder) as unfinished:
            for number, (path, place) in enumerate(self.places.items()):
                if on_file is not None:
                    on_file(number, len(self.places))
                copy = Path(unfinished, place)
                copy.parent.mkdir(parents=True, exist_ok=True)
                original = os.path.realpath(self.source / path)  # a link to a link could lead nowhere
                if links and _link(original, copy):
                    linked = True
                else:
                    shutil.copy2(original, copy)
            for name in os.listdir(unfinished):
                os.replace(Path(unfinished, name), folder / name)
        return linked


def _link(original: str, copy: Path) -> bool:
    """Make a hard link; False where there can be none: on another file system, or on one without links."""
    try:
        os.link(original, copy)
    except OSError:
        return False
    return True


def other_images(dataset: Dataset) -> Sequence[str]:
    """Return the paths of the validation and test images of a data set of class folders."""
    from jocor_fast.data.images.source import ImageFiles

    parts = (dataset.val, dataset.test) if dataset.name.startswith(FOLDER.name) else ()
    files = [part.inputs for part in parts if part is not None and isinstance(part.inputs, ImageFiles)]
    return [path for inputs in files for path in inputs.paths]


def check_new(folder: Path) -> None:
    """Raise an ArgumentError unless a folder is empty or absent."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ArgumentValueError("write_folder", f"must be a new or an empty folder, {folder} is not")


def check_outside(folder: Path, source: Path, paths: Sequence[str]) -> None:
    """Raise an ArgumentError if a folder lies among the images, whose paths start from `source`."""
    places = {os.path.normpath(os.path.dirname(path)) for path in paths}
    if any(map(os.path.isabs, places)):  # such a list says where each image lies, whatever comes next to them
        return
    images = source / os.path.commonpath(places)
    if folder.resolve().is_relative_to(images.resolve()):
        raise ArgumentValueError("write_folder", f"must lie outside {images}, the folder of the images, got {folder}")


def _class_folders(paths: Sequence[str], names: Sequence[str]) -> tuple[int | None, Sequence[str]]:
    """Return at which place in all paths the folder of a class stands, if it does, and the folder of each class."""
    folders = [("_" * name.startswith(".")) + re.sub(r"[/\\]", "_", name) for name in names]  # a name may be any text
    if len(set(folders)) < len(names):
        raise DataError(f"two classes would share a folder: {', '.join(sorted(folders))}")
    parts = [Path(path).parts[:-1] for path in paths]
    if any(above[:1] == (Path(path).anchor,) or ".." in above for above, path in zip(parts, paths, strict=True)):
        return None, folders
    for depth in (0, 1):
        found = {above[depth] if len(above) > depth else "" for above in parts}
        by_name = {str(int(name)) if name.isdecimal() and name not in names else name: name for name in found}
        if by_name.keys() <= set(names):
            return depth, [by_name.get(name, folder) for name, folder in zip(names, folders, strict=True)]
    return None, folders


def _place(path: str, folder: str, depth: int | None) -> str:
    """Return where an image goes in the copy."""
    if depth is None:
        return os.path.join(folder, os.path.basename(path))
    parts = Path(path).parts
    return path if parts[depth] == folder else os.path.join(*parts[:depth], folder, *parts[depth + 1 :])


def _free(place: str, taken: set[str], numbers: Counter[str]) -> str:
    """Return the path, or the first of NAME-2, NAME-3 … that is free, and take it."""
    stem, suffix = os.path.splitext(place)
    free = place
    while free in taken:
        numbers[place] += 1
        free = f"{stem}-{numbers[place] + 1}{suffix}"
    taken.add(free)
    return free
