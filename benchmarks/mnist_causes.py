"""Why cells of MNIST's table miss the paper's figures: the differences taken apart, a run at a time.

1. The two differences of recipe `published`, at most 401 batches an epoch and β1 .1 from epoch 80, one at a time; and
   the whole recipe, which also rounds the number of kept rows down, with the noise drawn for each seed.
2. The faults of Co-teaching+'s published code (published_faults.py), one at a time.
3. F-correction: the true T or its estimate, a second softmax before or after T, at most 401 batches or all, and β1.
   The estimate is that of `--method f-correction`, one for each noise: its network trains on 375 batches either way.
4. JoCoR at symmetric 80 %: ten seeds, three λ.
5. The table by both recipes, five seeds.
6. Symmetric 80 %: the seeds that end far below the others drop a class; the same with `--balanced-ramp`.

    python benchmarks/mnist_causes.py --list [--experiment 3]   # the runs to do, what proves most first
    python benchmarks/mnist_causes.py --run 2/symmetric-0.2/coteaching-plus-softmax/seed1 [NAME ...]
    python benchmarks/mnist_causes.py --collect runs/mnist-causes

A name is the folder of a run below --output. Those that begin with 5/paper and 5/published are the runs of `jocor-fast
reproduce mnist --recipe paper` and `published`, in the same folders. Runs whose figures are committed are not listed.
--collect writes results/mnist-causes: README.md, runs.csv and epochs.csv.gz, of the runs in DIR and those committed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from jocor_fast.cli.program import INTERRUPTED, TERMINATED
from mnist_causes_runs import FOLDER, Runs, collected_rows
from mnist_causes_tables import collect


def make(names: Sequence[str], output: Path, epochs: int | None = None) -> int:
    """Make runs one after the other, and return how many failed; finished ones are skipped."""
    runs, failed = Runs().by_name, 0
    unknown = [name for name in names if name not in runs]
    if unknown:
        raise SystemExit(f"no run is named {unknown[0]}; --list prints the names")
    for number, name in enumerate(names, 1):
        print(f"[{number} of {len(names)}] {name}", flush=True)
        if runs[name].folder(output) is not None:
            continue
        code = runs[name].make(output, epochs)
        if code in (INTERRUPTED, TERMINATED):
            raise SystemExit(code)
        failed += code != 0
    return failed


def main() -> None:
    """List the runs, make some, or write the tables of those that are finished."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the names of the runs that are not done")
    parser.add_argument("--experiment", type=int, choices=range(1, 7), help="list those of one experiment")
    parser.add_argument("--run", nargs="+", metavar="NAME", help="make these runs")
    parser.add_argument("--output", type=Path, default=Path("runs/mnist-causes"), help="folder of the runs")
    parser.add_argument("--collect", type=Path, metavar="DIR", help="write the tables of the runs in a folder")
    parser.add_argument("--epochs", type=int, help="for a trial, with an --output of its own")
    arguments = parser.parse_args()
    if arguments.list:
        committed = collected_rows()
        for run in Runs().in_order(arguments.experiment):
            if run.name not in committed and run.folder(arguments.output) is None:
                print(run.name)
    if arguments.run and make(arguments.run, arguments.output, arguments.epochs):
        raise SystemExit(1)
    if arguments.collect:
        print((collect(arguments.collect, FOLDER) / "README.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
