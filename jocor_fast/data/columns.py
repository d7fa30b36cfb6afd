"""Tables in .csv files as people's programs write them: which column is which, whatever stands around it."""

from __future__ import annotations

import codecs
import csv
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from jocor_fast.data.arrays import reading
from jocor_fast.errors import DataError

DELIMITERS = ",;\t"
SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
# Column -> what it may be called, in any case, its own name first. A name in one table only is given there.
NAMES: Mapping[str, Sequence[str]] = {
    "id": ("id", "index"),
    "path": ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "img"),
    "label": ("label", "class", "target", "class_name"),
    "clean": ("clean", "clean_label", "true_label", "truth"),
    "split": ("split", "subset", "set"),
}
_INDEX = ("", "unnamed: 0")  # how pandas heads its index, in the first column


def text_encoding(path: Path) -> str:
    """Return UTF-16 where a file begins as such a text does, as spreadsheets save it; else UTF-8."""
    with open(path, "rb") as file:
        return "utf-16" if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"


def split_named(name: str) -> str | None:
    """Return "train", "val" or "test" for the usual names of these parts, in any case; None for another name."""
    return SPLITS.get(name.casefold())


def read_table(
    path: Path, required: Sequence[str], optional: Sequence[str], *, errors: str = "surrogateescape", index: str = ""
) -> Iterator[tuple[int, dict[str, str]]]:
    """Read a .csv file whose cells are parted by commas, semicolons or tabs, with a header.

    Columns are found by `NAMES`; others are skipped with a warning.

    Args:
        required: columns that must be there.
        optional: columns that may be.
        errors: what is done about bytes that are not UTF-8, as for `open`.
        index: the column that an unnamed first one stands for where no other is called so; "": it is skipped.

    Yields:
        The number of each line that is not blank, and its cells by column, as they are.

    Raises:
        DataError: the file cannot be read, a column is missing or there twice, or a line has more or fewer cells.
    """
    wanted = (*required, *optional)
    for delimiter in DELIMITERS:
        line, header = next(_rows(path, delimiter, errors, strict=False), (1, []))
        found = _columns(header, wanted, index)
        if set(required) <= found.keys():
            break
    else:
        text = f"must have the columns {', '.join(required)}"
        text += f", and may have {', '.join(optional)}" if optional else ""
        raise DataError(f"{path}, line {line}: the header {text}, got {','.join(header)!r}")
    for name, places in found.items():
        if len(places) > 1:
            candidates = " and ".join(repr(header[place]) for place in places)
            raise DataError(f"{path}, line {line}: {candidates} could both be the column {name}; rename all but one")
    used = {places[0] for places in found.values()}
    known = (*_INDEX, *(NAMES["path"] if index else ()))  # where rows go by number, files' names are for people
    names = enumerate(cell.strip() for cell in header)
    others = [name for place, name in names if place not in used and name.casefold() not in known]
    if others:
        warnings.warn(f"{path}: columns that are not read: {', '.join(others)}", stacklevel=2)
    rows = _rows(path, delimiter, errors, strict=True)
    next(rows)
    for line, cells in rows:
        if len(cells) != len(header):
            raise DataError(f"{path}, line {line}: there must be {len(header)} cells, got {len(cells)}")
        yield line, {name: cells[places[0]] for name, places in found.items()}


def read_by_id(
    path: Path, required: Sequence[str], optional: Sequence[str], count: int, *, errors: str = "surrogateescape"
) -> dict[int, tuple[int, dict[str, str]]]:
    """Read a table whose column id has some of 0 … N−1, in any order.

    Returns:
        The number of the line and its cells, as `read_table` yields them, by id.

    Raises:
        DataError: as for `read_table`, or an id is none of these numbers, or there twice.
    """
    rows: dict[int, tuple[int, dict[str, str]]] = {}
    for line, row in read_table(path, ("id", *required), optional, errors=errors, index="id"):
        text = row["id"].strip()
        number = int(text) if text.isdecimal() and len(text) < 20 else -1
        if not 0 <= number < count:
            raise DataError(f"{path}, line {line}: the id must lie in 0 … {count - 1}, got {text!r}")
        if number in rows:
            raise DataError(f"{path}, line {line}: the id {number} stands in line {rows[number][0]} already")
        rows[number] = line, row
    return rows


def check_complete(path: Path, rows: Mapping[int, object], count: int, advice: str = "") -> None:
    """Raise a DataError, which ends with the advice, unless `read_by_id` has found each id."""
    missing = next((number for number in range(count) if number not in rows), None)
    if missing is not None:
        raise DataError(f"{path} must hold each id of 0 … {count - 1} once, but {missing} is missing{advice}")


def _columns(header: Sequence[str], wanted: Sequence[str], index: str) -> dict[str, list[int]]:
    """Return the places in a header that each wanted column could have, of those that have any."""
    names = [cell.strip().casefold() for cell in header]
    found = {name: [place for place, cell in enumerate(names) if cell in NAMES[name]] for name in wanted}
    if index and not found[index] and names and names[0] in _INDEX:
        found[index] = [0]
    return {name: places for name, places in found.items() if places}


def _rows(path: Path, delimiter: str, errors: str, *, strict: bool) -> Iterator[tuple[int, list[str]]]:
    """Return the rows with anything in them, each with the number of its line."""
    with (
        reading(path, "a .csv file in UTF-8 or UTF-16"),
        open(path, newline="", encoding=text_encoding(path), errors=errors) as file,
    ):
        rows = csv.reader(file, delimiter=delimiter, strict=strict)
        try:
            yield from ((rows.line_num, row) for row in rows if any(row))
        except csv.Error as error:
            raise DataError(f"{os.fspath(path)}, line {rows.line_num}: {error}") from None
