"""Tables in the three forms that people use: on the screen, as Markdown, as CSV.

A cell on the screen or in Markdown is text for people (percent); a CSV holds the plain values for programs (fractions,
an empty field for what does not apply).
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Group

NOT_AVAILABLE = "n/a"
CSV_LINES = 10_000  # that are joined at once
NOTE_WIDTH = 100  # of a note below a table on the screen, at most: no wider than is good to read


def percent(fraction: float | None) -> str:
    """Return a fraction as percent without the sign ("93.40"), "n/a" for None."""
    return NOT_AVAILABLE if fraction is None else f"{100.0 * fraction:.2f}"


def percent_with_std(mean: float | None, std: float | None) -> str:
    """ "93.40 ± 0.21" from fractions; without the second half where there is no standard deviation."""
    return percent(mean) + (f" ± {percent(std)}" if mean is not None and std is not None else "")


def duration(seconds: float) -> str:
    """Return a time for people, no finer than they need: "45 s", "12 min", "3 h 20 min", "2 d 5 h"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min"
    return "{} d {} h".format(*divmod(round(hours + minutes / 60), 24))


@dataclass(frozen=True)
class TextTable:
    """Headings and rows of formatted text; the first `text_columns` are left-aligned, the others hold numbers."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    title: str = ""
    note: str = ""
    text_columns: int = 1

    def markdown(self) -> str:
        """Return a Markdown table, padded to be read as plain text too."""
        grid = [self.columns, *self.rows]
        widths = [max(3, *(len(row[i]) for row in grid)) for i in range(len(self.columns))]

        def line(row: Sequence[str]) -> str:
            padded = (
                text.ljust(width) if i < self.text_columns else text.rjust(width)
                for i, (text, width) in enumerate(zip(row, widths, strict=True))
            )
            return f"| {' | '.join(padded)} |"

        dashes = ["-" * width for width in widths]
        rule = "|".join(f"-{dash}-" if i < self.text_columns else f"-{dash}:" for i, dash in enumerate(dashes))
        body = "\n".join([line(self.columns), f"|{rule}|", *map(line, self.rows)])
        return "\n\n".join(part for part in (f"**{self.title}**" if self.title else "", body, self.note) if part) + "\n"

    def rich(self) -> Group:
        """Return the same for a rich console; title and note are as wide as it is, and not as the table."""
        from rich import box
        from rich.console import Group
        from rich.constrain import Constrain
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        for i, heading in enumerate(self.columns):
            name = i < self.text_columns  # names stay whole where the table is wider than the screen
            table.add_column(Text(heading), justify="left" if name else "right", no_wrap=name)
        for row in self.rows:
            table.add_row(*map(Text, row))
        above = [Text(self.title, style="table.title")] if self.title else []
        below = [Constrain(Text(self.note, style="table.caption"), NOTE_WIDTH)] if self.note else []
        return Group(*above, table, *below)


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return CSV with a heading line; None becomes an empty field, floats keep every digit."""
    cells = (["" if row.get(name) is None else row[name] for name in columns] for row in rows)
    lines = map(_csv_line, itertools.chain((columns,), cells))
    return "".join(iter(lambda: "".join(itertools.islice(lines, CSV_LINES)), ""))  # a million strings take memory


def _csv_line(cells: Iterable[Any]) -> str:
    """Return a line that ends in \\n alone; a cell with a \\r is quoted as well, which readers take for an end too."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\r\n").writerow(cells)  # what is in the terminator is quoted
    return buffer.getvalue().removesuffix("\r\n") + "\n"
