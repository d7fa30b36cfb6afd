"""Measure the mapping table of csrc/cuda/row_mapping.h on the GPU at hand, and print it as measured.

    python benchmarks/tune_mapping.py [--types float32,bfloat16]

Compiles tune_mapping.cu, without torch, against a copy of csrc/ whose table is all candidates: lanes that share a row,
columns that a lane holds, threads in a block. First the batch size up to which the radix search is faster in one block
than in a cluster (kOneBlockRows), whose barriers flush the L1 cache; then, for every number of classes, the best
candidates over types, steps and batch sizes; the batch size up to which counting selects faster than the radix search
(kCountingRows); and the rounds up to which one block for rows and selection beats two launches (kSingleBlockRounds).
About two minutes on sixteen cores.
"""

from __future__ import annotations

import argparse
import math
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CSRC = HERE.parent / "csrc"
CXX_TYPES = {"float32": "float", "bfloat16": "__nv_bfloat16"}
MOST_CANDIDATE_ROWS = 2048  # by counting, while tuning


@dataclass(frozen=True, order=True)
class Mapping:
    lanes: int  # 0: a block loops over the row
    columns: int
    threads: int

    def __str__(self) -> str:
        return f"{self.lanes} x {self.columns}, {self.threads} threads" if self.lanes else "a block"


TODAY = (Mapping(4, 4, 128), Mapping(4, 8, 128), Mapping(32, 8, 128), Mapping(32, 32, 128))
CANDIDATES = tuple(
    dict.fromkeys(
        [
            *TODAY,
            *(
                Mapping(lanes, columns, threads)
                for lanes in (2, 4, 8, 16, 32)
                for columns in (4, 8, 16, 32)
                for threads in (128, 256)
            ),
        ]
    )
)


# --- compiling --------------------------------------------------------------------------------------------------------


def header_with(candidates: Sequence[Mapping], header: str) -> str:
    """row_mapping.h with the candidates for its table, and room for every batch size that is tried by counting."""
    lines = "".join(f"    {{{m.lanes * m.columns}, {m.lanes}, {m.columns}, {m.threads}}},\n" for m in candidates)
    changed, tables = re.subn(r"(kRowMappings\[\] = \{\n).*?(\n?\};)", rf"\g<1>{lines}\g<2>", header, flags=re.S)
    changed, limits = re.subn(r"kCountingRows = \d+;", f"kCountingRows = {MOST_CANDIDATE_ROWS};", changed)
    if (tables, limits) != (1, 1):
        raise ValueError("row_mapping.h does not hold kRowMappings[] and kCountingRows once each")
    return changed


def compile_program(
    nvcc: str, dtype: str, candidates: Sequence[Mapping], folder: Path, flags: Sequence[str] = ("-arch=native",)
) -> Path:
    """Compile tune_mapping.cu for one logit type.

    Raises:
        subprocess.CalledProcessError: it does not compile; the messages are on the standard error.
    """
    csrc = Path(shutil.copytree(CSRC, folder / dtype / "csrc", ignore=shutil.ignore_patterns("__pycache__")))
    header = csrc / "cuda" / "row_mapping.h"
    header.write_text(header_with(candidates, header.read_text()))
    target = folder / f"tune_{dtype}"
    defines = [
        f"-DJF_LOGIT={CXX_TYPES[dtype]}",
        f"-DJF_SHORT_ROWS={candidates.index(TODAY[1])}",
        f"-DJF_WARP_ROWS={candidates.index(TODAY[2])}",
    ]
    command = [nvcc, "-O3", "-std=c++20", *flags, *defines, f"-I{csrc}", str(HERE / "tune_mapping.cu")]
    subprocess.run([*command, "-o", str(target)], check=True)
    return target


# --- choosing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """What the programs printed. Each dictionary holds µs."""

    mappings: dict[
        int, dict[Mapping, list[float]]
    ]  # by classes; a list over types, steps and batch sizes, in one order
    selections: dict[int, list[tuple[float, float]]]  # by rows: by counting, by radix; of each type
    clusters: dict[int, list[tuple[float, float]]]  # by rows: by radix in one block, in a cluster
    rounds: dict[tuple[int, int], list[tuple[float, float]]]  # by classes and rounds: in one launch, in two


def parse(outputs: Iterable[str]) -> Measured:
    times: dict[int, dict[Mapping, list[float]]] = defaultdict(lambda: defaultdict(list))
    selections: dict[int, list[tuple[float, float]]] = defaultdict(list)
    clusters: dict[int, list[tuple[float, float]]] = defaultdict(list)
    rounds: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for line in (line for output in outputs for line in output.splitlines()):
        kind, *fields = line.split(",")
        if kind == "mapping":
            _, classes, _, lanes, columns, threads, time = fields
            times[int(classes)][Mapping(int(lanes), int(columns), int(threads))].append(float(time))
        elif kind in ("selection", "cluster"):
            rows, first, second = fields
            (selections if kind == "selection" else clusters)[int(rows)].append((float(first), float(second)))
        elif kind == "rounds":
            classes, number, one, two = fields
            rounds[int(classes), int(number)].append((float(one), float(two)))
    mappings = {classes: dict(of) for classes, of in times.items()}
    return Measured(mappings, dict(selections), dict(clusters), dict(rounds))


def ranked(times: dict[Mapping, list[float]]) -> list[tuple[float, Mapping]]:
    """Return mappings by their time over the best of each measurement, as a geometric mean; the best first.

    The looping block has no gradient here, and is compared where it was measured: it stands in no table line.
    """
    whole = {mapping: of for mapping, of in times.items() if mapping.lanes}
    best = [min(column) for column in zip(*whole.values(), strict=True)]
    factors = {
        mapping: statistics.geometric_mean(time / least for time, least in zip(of, best, strict=True))
        for mapping, of in whole.items()
    }
    return sorted((factor, mapping) for mapping, factor in factors.items())


def table(measured: Measured, tolerance: float = 1.03) -> list[tuple[int, Mapping]]:
    """Return lines (classes up to, mapping); the next line's mapping is kept where it is as good within `tolerance`."""
    lines: list[tuple[int, Mapping]] = []
    for classes in sorted(measured.mappings, reverse=True):
        order = ranked(measured.mappings[classes])
        factors = {mapping: factor for factor, mapping in order}
        following = lines[-1][1] if lines else None
        if following is None or factors.get(following, math.inf) > tolerance * order[0][0]:
            lines.append((classes, order[0][1]))
    return lines[::-1]


def crossover(pairs: dict[int, list[tuple[float, float]]]) -> int:
    """Return the largest size up to which the first of two ways is never slower, on average over the types."""
    largest = 0
    for size in sorted(pairs):
        if statistics.mean(first for first, _ in pairs[size]) > statistics.mean(second for _, second in pairs[size]):
            break
        largest = size
    return largest


def report(measured: Measured) -> str:
    lines = ["rows: by radix in one block, in a cluster (µs, of each type)"]
    lines += [f"  {rows:>6}  {pairs}" for rows, pairs in sorted(measured.clusters.items())]
    lines += [f"constexpr int64_t kOneBlockRows = {crossover(measured.clusters)};", ""]
    lines.append("the best candidates by classes (times the best of each measurement, geometric mean)")
    for classes in sorted(measured.mappings):
        best = ", ".join(f"{mapping}: {factor:.3f}" for factor, mapping in ranked(measured.mappings[classes])[:4])
        lines.append(f"  {classes:>5}  {best}")
    lines += ["", "constexpr RowMapping kRowMappings[] = {"]
    lines += [f"    {{{classes}, {m.lanes}, {m.columns}, {m.threads}}}," for classes, m in table(measured)]
    lines += ["};", "", "rows: by counting, by radix (µs, of each type)"]
    lines += [f"  {rows:>5}  {pairs}" for rows, pairs in sorted(measured.selections.items())]
    lines += [f"constexpr int64_t kCountingRows = {crossover(measured.selections)};", ""]
    lines.append("classes, rounds: in one launch, in two (µs, of each type)")
    lines += [f"  {key}  {pairs}" for key, pairs in sorted(measured.rounds.items())]
    for classes in sorted({classes for classes, _ in measured.rounds}):
        of_classes = {number: pairs for (c, number), pairs in measured.rounds.items() if c == classes}
        lines.append(f"kSingleBlockRounds = {crossover(of_classes)} at {classes} classes")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, allow_abbrev=False, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--types", default=",".join(CXX_TYPES), help=f"some of {', '.join(CXX_TYPES)}")
    dtypes = parser.parse_args().types.split(",")
    if unknown := set(dtypes) - set(CXX_TYPES):
        parser.error(f"--types must be some of {', '.join(CXX_TYPES)}, got {', '.join(sorted(unknown))}")
    from gpu.device import NotHere, facts, in_one_line, toolkit

    try:
        known = facts()
    except NotHere as error:
        print(error, file=sys.stderr)
        return 2
    print(in_one_line(known), flush=True)
    nvcc = str(toolkit().home / "bin" / "nvcc")
    with tempfile.TemporaryDirectory() as folder:
        with ThreadPoolExecutor(len(dtypes)) as pool:
            programs = list(pool.map(lambda dtype: compile_program(nvcc, dtype, CANDIDATES, Path(folder)), dtypes))
        runs = [subprocess.run([program], stdout=subprocess.PIPE, text=True, check=True) for program in programs]
    print(report(parse(run.stdout for run in runs)), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
