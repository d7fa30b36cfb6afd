"""The form of the tables: Markdown, CSV, and the digits of a time."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

NOT_RUN = "not run"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table: the first column to the left, figures to the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def with_std(mean: float | None, std: float | None) -> str:
    """A share and its deviation in %: "97.80 ± 0.05"; without the deviation where it is None."""
    if mean is None:
        return NOT_RUN
    return f"{100 * mean:.2f}" if std is None else f"{100 * mean:.2f} ± {100 * std:.2f}"


def csv_text(rows: Iterable[Mapping[str, Any]], comments: Iterable[str]) -> str:
    """Comment lines (#), then a header and a line for each of the rows, which have the same keys; None is empty."""
    text = io.StringIO()
    text.writelines(f"# {line}\n" for line in comments)
    writer: csv.DictWriter[str] | None = None
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(text, list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow(row)
    return text.getvalue()


def microseconds(seconds: float) -> str:
    """Three significant digits, in µs: "7.94", "79.4", "12,300"."""
    return f"{float(f'{seconds * 1e6:.3g}'):,g}"
