"""Proves and measures on a machine with a GPU, part by part, offline and with the Python that runs this.

    python benchmarks/gpu/run.py [--parts build,tests,…] [--output DIR] [--dry-run]

Each part is a process group with a budget, at whose end it is killed; what it had measured by then counts, and the
rest is named as left out. What a part leaves of its budget is added to the next one's. A part that fails does not stop
the others. The results are at most six files in one folder; the summary is also printed last. Exit code 2: no GPU or no
nvcc; 1: a part failed; else 0.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from gpu import report
from gpu.device import Facts, NotHere, clocks, facts
from gpu.parts import PARTS, ROOT, TOGETHER, Outcome, Part, run_part

NOT_HERE, FAILED = 2, 1


def wanted_parts(names: str) -> list[Part]:
    """By names parted by commas or blanks, in this order."""
    wanted = re.split(r"[,\s]+", names.strip())
    unknown = [name for name in wanted if name not in PARTS]
    if unknown:
        raise ValueError(f"--parts must be some of {', '.join(PARTS)}, got {', '.join(map(repr, unknown))}")
    return [PARTS[name] for name in wanted]


def default_folder(facts: Facts, parts: Sequence[Part]) -> Path:
    """Of the card and the day; for other parts than those that go together one of their own."""
    card = re.sub(r"[^a-z0-9]+", "-", facts["card"].lower()).strip("-")
    names = tuple(part.name for part in parts)
    which = "" if names == TOGETHER else "-" + "-".join(names)
    return ROOT / "benchmarks" / "results" / f"gpu-{card}-{datetime.date.today():%Y-%m-%d}{which}"


def run_parts(parts: Sequence[Part], facts: Facts, folder: Path) -> list[Outcome]:
    """Each in turn; what there is is written after each, so that a call that is cut off leaves it."""
    outcomes: list[Outcome] = []
    for part in parts:
        spare = max(0.0, outcomes[-1].budget - outcomes[-1].seconds) if outcomes else 0.0
        print(f"{part.name}: {part.what} ({part.budget + spare:.0f} s)", flush=True)
        outcomes.append(run_part(part, spare))
        print(f"  {outcomes[-1].status} after {outcomes[-1].seconds:.1f} s", flush=True)
        facts["clocks"][f"after {part.name}"] = clocks()
        report.write(folder, facts, outcomes)
    try:
        report.draw(folder, facts, outcomes)
    except Exception as error:  # such as no matplotlib: the figures are in the other files, and the summary is to come
        print(f"there is no curves.png: {type(error).__name__}: {error}", flush=True)
    return outcomes


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, allow_abbrev=False, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(TOGETHER), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--output", type=Path, help="default: benchmarks/results/gpu-CARD-DATE[-PARTS]")
    parser.add_argument("--dry-run", action="store_true", help="say what would be run, and end")
    given = parser.parse_args(arguments)
    try:
        parts = wanted_parts(given.parts)
    except ValueError as error:
        parser.error(str(error))
    if given.dry_run:
        for part in parts:
            print(f"{part.name} ({part.budget:.0f} s): {part.what}: {' '.join(part.command)}")
        print(f"at most {sum(part.budget for part in parts):.0f} s")
        return 0
    try:
        known = facts()
    except NotHere as error:
        print(error, file=sys.stderr)
        return NOT_HERE
    folder = given.output or default_folder(known, parts)
    outcomes = run_parts(parts, known, folder)
    print((folder / "summary.txt").read_text(), end="")
    return FAILED if any(outcome.status == "failed" for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
