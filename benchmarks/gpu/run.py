"""Prove and measure on a machine with a GPU, part by part, offline and with the Python that runs this.

    python benchmarks/gpu/run.py [--parts build,tests,…] [--output DIR]

Each part is a process group, killed when its budget is spent: what it had measured by then counts, and the rest is
listed as skipped. What a part leaves of its budget is added to the next one's. A part that fails does not stop the
others. The results are at most six files in one folder; the summary is also printed last. Exit code 2: no GPU or no
nvcc; 1: a part failed; else 0.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from gpu import records, report
from gpu.device import ROOT, Facts, NotHere, clocks, facts
from gpu.records import Outcome, Part

LOG_BYTES = 400_000  # of a part's output, its end

PARTS = {
    name: Part(name, budget, what, ("-m", *arguments))
    for name, budget, what, *arguments in (
        ("build", 130, "the extension, in place, for the default architectures", "gpu.prove", "build"),
        ("tests", 60, "the tests that are marked gpu", "gpu.prove", "tests"),
        ("sanitizer", 40, "compute-sanitizer's four tools over a small case for each kernel", "gpu.prove", "sanitizer"),
        ("bench-short", 70, "three shapes, and what the bars ask for", "gpu.measure", "bench-short"),
        ("train", 60, "MNIST, 200 epochs; CIFAR-10, 15 seconds; both without graphs", "gpu.measure", "train"),
        ("bench-full", 480, "every shape, type, contender, piece of work and cache", "gpu.measure", "bench-full"),
        ("steps", 240, "the training step, rung by rung, and five runs of MNIST at once", "gpu.measure", "steps"),
        ("dali", 90, "photographs through DALI, alone and to train two ResNet-18", "gpu.measure", "dali"),
        ("train-cifar", 420, "CIFAR-10, 200 epochs", "gpu.measure", "train-cifar"),
    )
}
TOGETHER = "build,tests,sanitizer,bench-short,train"  # six minutes


def parts_named(names: str) -> list[Part]:
    """Return the parts in this order; commas or blanks separate their names."""
    wanted = re.split(r"[,\s]+", names.strip())
    if unknown := [name for name in wanted if name not in PARTS]:
        raise argparse.ArgumentTypeError(f"must be some of {', '.join(PARTS)}, got {', '.join(map(repr, unknown))}")
    return [PARTS[name] for name in wanted]


def default_folder(facts: Facts, parts: Sequence[Part]) -> Path:
    """Return the folder named after the card, the day, and the parts if they are not the usual ones."""
    card = re.sub(r"[^a-z0-9]+", "-", facts["card"].lower()).strip("-")
    which = "" if parts == parts_named(TOGETHER) else "-" + "-".join(part.name for part in parts)
    return ROOT / "benchmarks" / "results" / f"gpu-{card}-{datetime.date.today():%Y-%m-%d}{which}"


def run_part(part: Part, spare: float = 0.0) -> Outcome:
    """Run a part until it ends or its budget and the spare seconds do, then kill whatever it started."""
    budget = part.budget + spare
    with tempfile.TemporaryDirectory() as scratch:
        record, log = Path(scratch, "records.jsonl"), Path(scratch, "log")
        search = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH")]))
        environ = {**os.environ, "PYTHONPATH": search, "PYTHONUNBUFFERED": "1", records.VARIABLE: str(record)}
        started = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, *part.arguments], cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                status = "failed" if process.wait(budget) else "done"
            except subprocess.TimeoutExpired:
                status = "ended at its budget"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # also where the part itself has ended
                process.wait()
        seconds = time.monotonic() - started
        printed = log.read_bytes()[-LOG_BYTES:].decode(errors="replace")
        return Outcome(part, status, seconds, budget, *records.read(record), printed)


def run_parts(parts: Sequence[Part], facts: Facts, folder: Path) -> list[Outcome]:
    """Run each part and write the results so far, so a call that is killed leaves them."""
    outcomes: list[Outcome] = []
    for part in parts:
        spare = max(0.0, outcomes[-1].budget - outcomes[-1].seconds) if outcomes else 0.0
        print(f"{part.name}: {part.what} ({part.budget + spare:.0f} s)", flush=True)
        outcomes.append(run_part(part, spare))
        print(f"  {outcomes[-1].status} after {outcomes[-1].seconds:.1f} s", flush=True)
        facts["clocks"][f"the end of {part.name}"] = clocks()
        report.write(folder, facts, outcomes)
    try:
        report.draw(folder, facts, outcomes)
    except Exception as error:  # such as no matplotlib: the figures are in the other files, and the summary is to come
        print(f"there are no pictures: {type(error).__name__}: {error}", flush=True)
    return outcomes


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, allow_abbrev=False, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--parts", type=parts_named, default=TOGETHER, help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--output", type=Path, help="default: benchmarks/results/gpu-CARD-DATE[-PARTS]")
    given = parser.parse_args(arguments)
    try:
        known = facts()
    except NotHere as error:
        print(error, file=sys.stderr)
        return 2
    folder = given.output or default_folder(known, given.parts)
    outcomes = run_parts(given.parts, known, folder)
    print((folder / "summary.txt").read_text(), end="")
    return 1 if any(outcome.status == "failed" for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
