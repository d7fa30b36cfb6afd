"""Planted faults: one change each to a copy of csrc/, and the test that must notice it.

`python mutants.py` reads lines `LIBRARY TAB NAME` and answers each with a line: the JSON text of what became of that
test against a library with the fault, empty where it passed. Each runs in a process of its own, forked from this one
with everything imported, for a fault may crash it or never end.
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import test_row_kernels as rows
import test_selection_kernels as selection
from host_build import CSRC
from host_kernels import HostKernels

Test = Callable[[HostKernels], None]
SECONDS = 30  # in which a test must end


@dataclass(frozen=True)
class Mutant:
    file: str  # in csrc/
    text: str  # stands there once
    replacement: str
    test: Test  # that fails with it
    compiled: str = "rows_float32"  # the .cu file to compile again


def long_rows(kernels: HostKernels) -> None:
    rows.test_rows_equal_the_formulas_in_every_tier_type_and_vector_width(kernels, "float32", 4, 4099)


def warp_rows(kernels: HostKernels) -> None:
    rows.test_rows_equal_the_formulas_in_every_tier_type_and_vector_width(kernels, "float32", 4, 255)


def short_rows(kernels: HostKernels) -> None:
    rows.test_rows_equal_the_formulas_in_every_tier_type_and_vector_width(kernels, "float32", 4, 31)


def special_rows(kernels: HostKernels) -> None:
    rows.test_special_logits(kernels, "float32", 10)


def gradients(kernels: HostKernels) -> None:
    rows.test_gradients_equal_the_closed_form_in_every_type_and_vector_width(kernels, "float32", 4, 40)


def small_batches(kernels: HostKernels) -> None:
    selection.test_a_small_batch_takes_one_launch_and_others_two_that_are_linked(kernels, "float32", 128, 10, True)


def large_batches(kernels: HostKernels) -> None:
    selection.test_a_small_batch_takes_one_launch_and_others_two_that_are_linked(kernels, "float32", 600, 10, False)


def few_ties(kernels: HostKernels) -> None:
    selection.test_ties_go_to_the_lower_row(kernels, 5)


def many_ties(kernels: HostKernels) -> None:
    selection.test_ties_go_to_the_lower_row(kernels, 9000)


def many_rows(kernels: HostKernels) -> None:
    selection.test_the_choice_equals_a_stable_sort(kernels, rows.np.float32, 1025)


def repeated_losses(kernels: HostKernels) -> None:
    selection.test_every_k_of_losses_that_repeat(kernels, rows.np.float32, 5000)


def excluded_rows(kernels: HostKernels) -> None:
    selection.test_rows_that_may_not_be_chosen(kernels, rows.np.float32, 700)


VECTORS = "cuda/row_vectors.cuh"
REDUCTIONS, ROWS, GRADIENTS = "cuda/reductions.cuh", "cuda/row_losses.cuh", "cuda/row_gradients.cuh"
SELECTION, TOGETHER = "cuda/selection.cuh", "cuda/rows_and_selection.cuh"

MUTANTS = {
    # a barrier is missing
    "reduction: read before written": Mutant(
        REDUCTIONS, "__syncthreads();  // each warp's result is written before any is read", "", long_rows
    ),
    "reduction: written before read": Mutant(
        REDUCTIONS, "__syncthreads();  // all have read before the next reduction writes", "", long_rows
    ),
    "rows and selection: losses read before written": Mutant(
        TOGETHER, "__syncthreads();  // every row's loss and state are written before the selection reads them", "",
        small_batches,
    ),
    "radix: counted before cleared": Mutant(
        SELECTION, "__syncthreads();  // the histograms are clear before any row is counted", "", many_rows, "selection"
    ),
    "radix: read before counted": Mutant(
        SELECTION, "__syncthreads();  // every row is counted before the histogram is read", "", many_rows, "selection"
    ),
    "ties: read before written": Mutant(
        SELECTION, "      __syncthreads();\n      const uint32_t of_lane", "      const uint32_t of_lane", many_ties,
        "selection",
    ),
    "ties: written before read": Mutant(SELECTION, "parity ^= 1;", "", many_ties, "selection"),
    "selection: does not wait for the rows": Mutant(
        SELECTION, "wait_for_previous_kernel();\n  select_by_radix", "select_by_radix", large_batches, "selection"
    ),
    # the end of a row, of a warp, of a batch
    "rows: a vector may end one column late": Mutant(
        VECTORS, "if (column + N <= classes) {\n      load_columns<N>(z + column",
        "if (column + N <= classes + 1) {\n      load_columns<N>(z + column", short_rows,
    ),
    "long rows: a vector may end one column late": Mutant(
        VECTORS, "if (column + N <= classes) {\n      load_columns<N>(z1",
        "if (column + N <= classes + 1) {\n      load_columns<N>(z1", long_rows,
    ),
    "reduction: half of the lanes": Mutant(REDUCTIONS, "distance = lanes / 2", "distance = lanes / 4", warp_rows),
    "grid: rows beyond it are left out": Mutant(
        ROWS, "step = gridDim.x * rows_per_block;", "step = gridDim.x * rows_per_block * 2;",
        rows.test_a_broadcast_row_and_a_grid_smaller_than_the_batch,
    ),
    "long rows: not rescaled to a new maximum": Mutant(ROWS, "sum *= exponential(max - new_max);", "", long_rows),
    "prediction: the highest column on ties": Mutant(
        ROWS, "for (int i = columns - 1; i >= 0; --i)", "for (int i = 0; i < columns; ++i)", special_rows
    ),
    # the gradient
    "gradient: rows of network 2 that do not train it keep what was there": Mutant(
        GRADIENTS, "zero_row<N>(task.gradient2, pair.classes, lane, lanes);", "", gradients
    ),
    "gradient: network 1's choice for both": Mutant(
        GRADIENTS, "params.selected2[row] != 0", "params.selected1[row] != 0", gradients
    ),
    # order and ties
    "counting: ties to the higher row": Mutant(
        SELECTION, "other_key == key && other < row", "other_key == key && other > row", few_ties, "selection"
    ),
    "ties: a lane counts itself": Mutant(SELECTION, "(1u << lane) - 1", "(2u << lane) - 1", many_ties, "selection"),
    "radix: every lane adds for its peers": Mutant(
        SELECTION, "digit != kNoDigit && lane_of_thread() == __ffs(same) - 1", "digit != kNoDigit", many_rows,
        "selection",
    ),
    "radix: the first sweep decides": Mutant(SELECTION, "all || shift == 0", "true", many_rows, "selection"),
    "keys: -0 comes before +0": Mutant("ranked_rows.h", "loss += Real(0);", "", repeated_losses, "selection"),
    "keys: NaN may be chosen": Mutant(
        SELECTION, "chosen && key != RankedRows<Real>::kNoCandidate", "chosen || key == RankedRows<Real>::kNoCandidate",
        excluded_rows, "selection",
    ),
}  # fmt: skip


def plant(mutant: Mutant, folder: Path) -> Path:
    """A copy of csrc/ in `folder` with the fault in it."""
    csrc = Path(shutil.copytree(CSRC, folder / "csrc"))
    file = csrc / mutant.file
    source = file.read_text()
    assert source.count(mutant.text) == 1, f"{mutant.file} does not hold once: {mutant.text}"
    file.write_text(source.replace(mutant.text, mutant.replacement))
    return csrc


def run_test(library: str, name: str, answer: Connection) -> None:
    """Sends what went wrong, or an empty text."""
    try:
        kernels = HostKernels(Path(library))
        for descending in (False, True):
            kernels.set_order(descending)
            MUTANTS[name].test(kernels)
            kernels.set_limits()
            kernels.take_launches()
    except BaseException:
        answer.send(traceback.format_exc())
    else:
        answer.send("")


def outcome(library: str, name: str) -> str:
    fork = multiprocessing.get_context("fork")
    reader, writer = fork.Pipe(duplex=False)
    process = fork.Process(target=run_test, args=(library, name, writer))
    process.start()
    writer.close()
    try:
        return reader.recv() if reader.poll(SECONDS) else "it never ended"
    except EOFError:
        process.join()
        return f"exit status {process.exitcode}"
    finally:
        process.kill()
        process.join()


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(outcome(*line.rstrip("\n").split("\t"))), flush=True)


if __name__ == "__main__":
    main()
