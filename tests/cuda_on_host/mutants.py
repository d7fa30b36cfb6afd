"""Planted faults: changes to a copy of csrc/, of which a run turns one on, and the test that must notice each.

`python mutants.py LIBRARY` reads lines `PLANTED TAB TEST`, two names of faults, and answers each with a line: the JSON
text of what became of the second's test with the first planted, empty where it passed. Each runs in a process of its
own, forked from this one with everything imported, for a fault may crash it or never end.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import test_robust_kernels as robust
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
    replacement: str  # the same where FAULT is false
    test: Test | None  # that fails where it is true; None: AddressSanitizer alone sees it


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


def robust_special_rows(kernels: HostKernels) -> None:
    robust.test_special_logits(kernels, "nce_rce", 1.0, 0.1, "float32", 10)


def robust_long_rows(kernels: HostKernels) -> None:
    robust.test_large_logits_keep_their_digits_and_the_width_of_the_loads_changes_no_bit(
        kernels, *robust.LOSSES[3], 2000
    )


def sieve(kernels: HostKernels) -> None:
    robust.test_the_selection_is_linked_and_takes_what_the_sieve_keeps(kernels, 128, True)


def small_batches(kernels: HostKernels) -> None:
    selection.test_a_small_batch_takes_one_launch_and_others_two_that_are_linked(kernels, "float32", 128, 10, True)


def linked_batches(kernels: HostKernels) -> None:
    selection.test_a_small_batch_takes_one_launch_and_others_two_that_are_linked(kernels, "float32", 40, 300, False)


def strides(kernels: HostKernels) -> None:
    rows.test_the_width_of_the_loads_follows_the_distance_between_rows(kernels, "float32")


def large_batches(kernels: HostKernels) -> None:
    selection.test_a_small_batch_takes_one_launch_and_others_two_that_are_linked(kernels, "float32", 600, 10, False)


def few_ties(kernels: HostKernels) -> None:
    selection.test_ties_go_to_the_lower_row(kernels, 5)


def many_ties(kernels: HostKernels) -> None:
    selection.test_ties_go_to_the_lower_row(kernels, 9000)


def a_few_rows(kernels: HostKernels) -> None:
    selection.test_the_choice_equals_a_stable_sort(kernels, rows.np.float32, 33)


def many_rows(kernels: HostKernels) -> None:
    selection.test_the_choice_equals_a_stable_sort(kernels, rows.np.float32, 1153)


def a_cluster(kernels: HostKernels) -> None:
    selection.test_the_choice_equals_a_stable_sort(kernels, rows.np.float32, selection.LARGE)


def ties_in_rounds(kernels: HostKernels) -> None:
    selection.test_the_choice_does_not_depend_on_the_size_of_the_block(kernels, 96)


def repeated_losses(kernels: HostKernels) -> None:
    selection.test_every_k_of_losses_that_repeat(kernels, rows.np.float32, 5000)


def excluded_rows(kernels: HostKernels) -> None:
    selection.test_rows_that_may_not_be_chosen(kernels, rows.np.float32, 700)


def one_differing_row(kernels: HostKernels) -> None:
    for where in (0, selection.LARGE - 1):  # the block that has it has its turn last in one of the orders
        selection.test_a_cluster_finds_one_differing_prediction_in_any_slice(kernels, where)


def ties_in_a_cluster(kernels: HostKernels) -> None:
    selection.test_a_cluster_takes_ties_in_the_order_of_its_slices(kernels, 3000)


def mean_of_a_cluster(kernels: HostKernels) -> None:
    selection.test_the_choice_does_not_depend_on_the_blocks_of_the_cluster(kernels, rows.np.float32, 3)


VECTORS, LAUNCHES = "cuda/row_vectors.cuh", "cuda/row_launches.cuh"
REDUCTIONS, ROWS, GRADIENTS = "cuda/reductions.cuh", "cuda/row_losses.cuh", "cuda/row_gradients.cuh"
SELECTION, COUNTING, RADIX = "cuda/selection.cuh", "cuda/counting_selection.cuh", "cuda/radix_selection.cuh"
TOGETHER, CLUSTER, ROBUST = "cuda/rows_and_selection.cuh", "cuda/cluster.cuh", "cuda/robust_loss.cuh"

MUTANTS = {
    # a barrier is missing
    "reduction: read before written": Mutant(
        REDUCTIONS, "__syncthreads();  // each warp's result is written before any is read",
        "if (!FAULT) __syncthreads();", long_rows,
    ),
    "reduction: written before read": Mutant(
        REDUCTIONS, "__syncthreads();  // all have read before the next reduction writes",
        "if (!FAULT) __syncthreads();", long_rows,
    ),
    "rows and selection: losses read before written": Mutant(
        TOGETHER, "__syncthreads();  // every row's loss and state are written before the selection reads them",
        "if (!FAULT) __syncthreads();", small_batches,
    ),
    "radix: counted before cleared and surveyed": Mutant(
        RADIX, "__syncthreads();  // each warp's are written before any are read", "if (!FAULT) __syncthreads();",
        many_rows,
    ),
    "cluster: another block's rows taken before surveyed": Mutant(
        RADIX, "cluster.sync();  // each block's are written before any are read", "if (!FAULT) cluster.sync();",
        ties_in_a_cluster,
    ),
    "radix: read before counted": Mutant(
        RADIX, "cluster.sync();  // every row is counted before any counter is read",
        "if (!FAULT) cluster.sync();", many_rows,
    ),
    "radix: a digit is read before it is found": Mutant(
        RADIX, "__syncthreads();  // it is found before any thread reads it;", "if (!FAULT) __syncthreads();  //",
        many_rows,
    ),
    "selection: sums of the warps read before they are written": Mutant(
        SELECTION, "__syncthreads();  // each warp's sum is written before any is read",
        "if (!FAULT) __syncthreads();", many_rows,
    ),
    "cluster: another block's counters read before counted": Mutant(
        CLUSTER, "if (blocks > 1) {\n      __cluster_barrier", "if (blocks > 1 && !FAULT) {\n      __cluster_barrier",
        ties_in_a_cluster,
    ),
    "cluster: sums of counters read before added up": Mutant(
        RADIX, "__syncthreads();  // every counter is added up before any sum is read",
        "if (!FAULT) __syncthreads();", a_cluster,
    ),
    "cluster: another block's finding read before written": Mutant(
        RADIX, "cluster.sync();  // every block's finding is written before any is read",
        "if (!FAULT) cluster.sync();", one_differing_row,
    ),
    "cluster: sums of the blocks read before they arrive": Mutant(
        RADIX, "cluster.sync();  // all sums have arrived;", "if (!FAULT) cluster.sync();  //", mean_of_a_cluster,
    ),
    "cluster: every block counts its ties from the first": Mutant(
        RADIX, "block < cluster.rank; ++block) {", "block < cluster.rank && !FAULT; ++block) {", ties_in_a_cluster,
    ),
    "ties: read before written": Mutant(
        RADIX, "__syncthreads();\n    uint32_t taken", "if (!FAULT) __syncthreads();\n    uint32_t taken", many_ties
    ),
    "ties: written before read": Mutant(RADIX, "parity ^= 1;", "parity ^= FAULT ? 0 : 1;", ties_in_rounds),
    "selection: does not wait for the rows": Mutant(
        RADIX, "wait_for_previous_kernel();\n  select_by_radix",
        "if (!FAULT) wait_for_previous_kernel();\n  select_by_radix", large_batches,
    ),
    "selection by counting: reads before it waits for the rows": Mutant(
        COUNTING, "wait_for_previous_kernel();\n  select_by_counting<Real>(params, scratch);",
        "if (!FAULT) wait_for_previous_kernel();\n  select_by_counting<Real>(params, scratch);\n"
        "  if (FAULT) wait_for_previous_kernel();", linked_batches,
    ),
    "rows: 16-byte loads at any stride": Mutant(
        LAUNCHES, "(pair.row_stride1 % columns == 0 && pair.row_stride2 % columns == 0);",
        "FAULT || (pair.row_stride1 % columns == 0 && pair.row_stride2 % columns == 0);", strides,
    ),
    # the end of a row, of a warp, of a batch
    "rows: a vector may end one column late": Mutant(
        VECTORS, "if (column + N <= classes) {\n      load_columns<N>(z + column",
        "if (column + N <= classes + FAULT) {\n      load_columns<N>(z + column", short_rows,
    ),
    "long rows: a vector may end one column late": Mutant(
        VECTORS, "if (column + N <= classes) {\n        load_columns<N>(z1",
        "if (column + N <= classes + FAULT) {\n        load_columns<N>(z1", long_rows,
    ),
    "reduction: half of the lanes": Mutant(
        REDUCTIONS, "distance = lanes / 2", "distance = lanes / (FAULT ? 4 : 2)", warp_rows
    ),
    "grid: rows beyond it are left out": Mutant(
        ROWS, "step = gridDim.x * rows_per_block;", "step = gridDim.x * rows_per_block * (FAULT ? 2 : 1);",
        rows.test_a_broadcast_row_and_a_grid_smaller_than_the_batch,
    ),
    "rows: those past the last one are written": Mutant(
        ROWS, "lane == 0 && row < pair.rows", "lane == 0 && (FAULT || row < pair.rows)", None
    ),
    "long rows: not rescaled to a new maximum": Mutant(
        ROWS, "sum *= exponential(max - new_max);", "if (!FAULT) sum *= exponential(max - new_max);", long_rows
    ),
    "prediction: the highest column on ties": Mutant(
        ROWS, "if (is_prediction(values[i], max, column)) first = column;",
        "if (is_prediction(values[i], max, column) && !(FAULT && first < lanes * columns)) first = column;",
        special_rows,
    ),
    # the gradient
    "gradient: rows of network 2 that do not train it keep what was there": Mutant(
        GRADIENTS, "zero_row<N>(task.gradient2", "if (!FAULT) zero_row<N>(task.gradient2", gradients
    ),
    "gradient: network 1's choice for both": Mutant(
        GRADIENTS, "params.selected2[row] != 0", "(FAULT ? params.selected1 : params.selected2)[row] != 0", gradients
    ),
    # the robust losses
    "robust: a masked class counts": Mutant(
        ROBUST, "if (shifted_logit == minus_infinity<Real>()) return;",
        "if (!FAULT && shifted_logit == minus_infinity<Real>()) return;", robust_special_rows,
    ),
    "robust: the gradient of a masked class is not 0": Mutant(
        ROBUST, "shifted == minus_infinity<Real>() ? Real(0)", "!FAULT && shifted == minus_infinity<Real>() ? Real(0)",
        robust_special_rows,
    ),
    "robust: rows that do not train keep what was there": Mutant(
        ROBUST, "zero_row<N>(gradient, logits.classes", "if (!FAULT) zero_row<N>(gradient, logits.classes",
        robust_special_rows,
    ),
    "robust, long rows: the sum is not relative to the maximum": Mutant(
        ROBUST, "sums.add_class(values[i] - max[0]);", "sums.add_class(values[i] - (FAULT ? Real(0) : max[0]));",
        robust_long_rows,
    ),
    "robust: the sieve leaves out what is not finite, uncounted": Mutant(
        "robust_rows.h", "row.in_sieve || !(row.loss", "row.in_sieve || !FAULT && !(row.loss", sieve,
    ),
    # order and ties
    "counting: ties to the higher row": Mutant(
        COUNTING, "i < row % at_once;", "(FAULT ? i > row % at_once : i < row % at_once);", few_ties
    ),
    "counting: lower rows' ties come after": Mutant(
        COUNTING, "first + at_once <= row ?", "first + at_once <= (FAULT ? 0 : row) ?", few_ties
    ),
    "counting: what lies past the last row is counted": Mutant(
        COUNTING, "if (row < whole) scratch", "if (row < (FAULT ? rows : whole)) scratch", a_few_rows
    ),
    "ties: a lane counts itself": Mutant(RADIX, "(1u << lane) - 1", "((FAULT ? 2u : 1u) << lane) - 1", many_ties),
    "radix: keys below the lowest are counted": Mutant(
        RADIX, "keys[i] - lowest;", "keys[i] - (FAULT && keys[i] < lowest ? keys[i] : lowest);", many_rows
    ),
    "radix: the highest key is left out": Mutant(
        RADIX, "const Bits next = keys[i] + 1;", "const Bits next = keys[i] + !FAULT;", excluded_rows
    ),
    "radix: the first sweep decides": Mutant(RADIX, "if (shift == 0) {", "if (shift == 0 || FAULT) {", many_rows),
    "keys: -0 comes before +0": Mutant(
        "ranked_rows.h", "loss += Real(0);", "if (!FAULT) loss += Real(0);", repeated_losses
    ),
    "keys: NaN may be chosen": Mutant(
        RADIX, "keys[i] < threshold.key ? 1u << i : 0;",
        "keys[i] < threshold.key || (FAULT && keys[i] == RankedRows<Real>::kNoCandidate) ? 1u << i : 0;", excluded_rows,
    ),
}  # fmt: skip
TESTS = {name: mutant.test for name, mutant in MUTANTS.items() if mutant.test is not None}
NONE = ""  # planted: no fault


def plant_all(folder: Path) -> Path:
    """Copy csrc/ to `folder` with every fault in it; the shim's settings say which of them is true."""
    csrc = Path(shutil.copytree(CSRC, folder / "csrc", ignore=shutil.ignore_patterns("__pycache__")))
    for number, mutant in enumerate(MUTANTS.values(), start=1):
        file = csrc / mutant.file
        source = file.read_text()
        assert source.count(mutant.text) == 1, f"{mutant.file} does not hold once: {mutant.text}"
        here = f"(cuda_on_host::settings.planted_fault == {number})"
        file.write_text(source.replace(mutant.text, mutant.replacement.replace("FAULT", here)))
    return csrc


def environment(planted: str) -> dict[str, str]:
    """Return the environment that plants a fault into a library or a program."""
    return {} if planted == NONE else {"PLANTED_FAULT": str(list(MUTANTS).index(planted) + 1)}


def run_test(library: str, planted: str, test: Test, answer: Connection) -> None:
    """Send what went wrong, or an empty text."""
    try:
        os.environ.update(environment(planted))
        kernels = HostKernels(Path(library))
        for descending in (False, True):
            kernels.set_order(descending)
            test(kernels)
            kernels.set_limits()
            kernels.take_launches()
    except BaseException:
        answer.send(traceback.format_exc())
    else:
        answer.send("")


def outcome(library: str, planted: str, test: Test) -> str:
    fork = multiprocessing.get_context("fork")
    reader, writer = fork.Pipe(duplex=False)
    process = fork.Process(target=run_test, args=(library, planted, test, writer))
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
    (library,) = sys.argv[1:]
    for line in sys.stdin:
        planted, name = line.rstrip("\n").split("\t")
        print(json.dumps(outcome(library, planted, TESTS[name])), flush=True)


if __name__ == "__main__":
    main()
