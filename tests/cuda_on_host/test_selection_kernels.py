"""The selection of csrc/cuda, alone and in one launch with the rows, run on the host, against NumPy's stable sort."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import kernel_oracle as oracle
import numpy as np
import pytest
from host_build import HERE, run
from host_kernels import LOGIT_TYPES, HostKernels, SelectionResults
from kernel_inputs import CXX_NAMES, random_pair, vector_widths

Array = np.ndarray[Any, Any]

COUNTING, RADIX = "selection_by_counting", "selection_by_radix"

# Around warps, around the batch size at which counting ends (256), around that at which a cluster begins (8192), and
# around what the registers of a cluster hold (65,536).
SIZES = [1, 2, 31, 32, 33, 127, 128, 255, 256, 257, 1151, 1153, 8191, 8192, 8193, 20000, 65536, 65537]
LARGE = 8193  # rows of the smallest batch that a cluster selects from, 1056 in a slice


def assert_selection_is_right(actual: SelectionResults, losses: Array, **settings: Any) -> None:
    for name in ("num_keep", "forget_rate"):
        if isinstance(settings.get(name), np.ndarray):
            settings[name] = settings[name][0].item()
    selected, num_selected, num_nonfinite, mean = oracle.select(losses, **settings)
    np.testing.assert_array_equal(actual.selected, selected)
    assert (actual.num_selected, actual.num_nonfinite) == (num_selected, num_nonfinite)
    if settings.get("mean_of") is not None:
        assert actual.mean == pytest.approx(mean, rel=1e-7 if losses.dtype == np.float32 else 1e-14, abs=0)


@pytest.mark.parametrize("real", [np.float32, np.float64])
@pytest.mark.parametrize("rows", SIZES)
def test_the_choice_equals_a_stable_sort(kernels: HostKernels, real: Any, rows: int) -> None:
    losses = np.random.default_rng(rows).gamma(2, 1, rows).astype(real)
    for k in sorted({1, 2, rows // 3, rows // 2, rows - 1, rows, rows + 5} - {0}):
        actual = kernels.select_small_loss(losses, num_keep=k, mean_of=losses)
        assert_selection_is_right(actual, losses, num_keep=k, mean_of=losses)
    kernel = COUNTING if rows <= 256 else RADIX
    cluster = rows >= LARGE
    for launch in kernels.take_launches():
        assert kernel in launch.kernel
        assert (launch.cluster, launch.blocks) == (cluster, 8 if cluster else 1)


@pytest.mark.parametrize("real", [np.float32, np.float64])
@pytest.mark.parametrize("rows", [130, 5000, 9000])
def test_every_k_of_losses_that_repeat(kernels: HostKernels, real: Any, rows: int) -> None:
    losses = np.random.default_rng(0).integers(-2, 4, rows).astype(real)
    losses[losses == 0] = np.where(np.arange((losses == 0).sum()) % 2, 0.0, -0.0)  # -0 and +0 tie
    for k in range(0, rows + 1, 1 if rows < 1000 else 611):
        assert_selection_is_right(kernels.select_small_loss(losses, num_keep=k), losses, num_keep=k)


@pytest.mark.parametrize("rows", [5, 257, 9000])
def test_ties_go_to_the_lower_row(kernels: HostKernels, rows: int) -> None:
    losses = np.full(rows, 1.5, np.float32)
    for k in (1, 2, rows // 2, rows - 1):
        np.testing.assert_array_equal(kernels.select_small_loss(losses, num_keep=k).selected, np.arange(rows) < k)
    losses[:5] = 2, 1, 1, 1, 3
    assert list(np.flatnonzero(kernels.select_small_loss(losses, num_keep=2).selected)) == [1, 2]


@pytest.mark.parametrize("real", [np.float32, np.float64])
@pytest.mark.parametrize("exponents", [(-3, 3), (-30, 30), (0, 0)])
def test_keys_that_differ_in_any_digit(kernels: HostKernels, real: Any, exponents: tuple[int, int]) -> None:
    rng = np.random.default_rng(7)
    losses = (rng.choice([-1, 1], 3000) * 10.0 ** rng.uniform(*exponents, 3000)).astype(real)
    if exponents == (0, 0):  # neighbours in the last bits
        losses = np.nextafter(real(1), real(2)) * np.ones(3000, real)
        losses.view(np.int32 if real == np.float32 else np.int64)[...] += rng.integers(0, 400, 3000)
    losses[:4] = np.finfo(real).max, np.finfo(real).min, np.finfo(real).tiny / 2, -np.finfo(real).tiny / 2
    for k in (1, 7, 1500, 2999):
        assert_selection_is_right(kernels.select_small_loss(losses, num_keep=k), losses, num_keep=k)


@pytest.mark.parametrize("real", [np.float32, np.float64])
@pytest.mark.parametrize("rows", [8, 300, 700, 10000])
def test_rows_that_may_not_be_chosen(kernels: HostKernels, real: Any, rows: int) -> None:
    rng = np.random.default_rng(rows)
    losses = rng.normal(size=rows).astype(real)
    losses[rng.random(rows) < 0.1] = np.nan
    losses[rng.random(rows) < 0.1] = np.inf
    losses[rng.random(rows) < 0.1] = -np.inf
    other = np.where(rng.random(rows) < 0.1, np.nan, rng.normal(size=rows)).astype(real)
    state = rng.choice([oracle.INELIGIBLE, oracle.ELIGIBLE, oracle.DIFFERING], rows).astype(np.uint8)
    for settings in (
        {"num_keep": rows},
        {"num_keep": rows // 4, "row_state": state},
        {"forget_rate": 0.3, "row_state": state},
        {"forget_rate": 0.3, "row_state": state, "also_finite": other, "mean_of": other},
        {"forget_rate": 0.5, "row_state": state, "disagreement": "preferred"},
        {"forget_rate": 0.5, "row_state": np.minimum(state, oracle.ELIGIBLE), "disagreement": "preferred"},
        {"num_keep": rows, "row_state": state, "disagreement": "required", "mean_of": losses},
        {"num_keep": rows, "row_state": np.minimum(state, oracle.ELIGIBLE), "disagreement": "required"},
        {"forget_rate": np.array([0.3]), "row_state": state, "mean_of": losses, "mean_offset": 1.5},
        {"forget_rate": 0.45, "row_state": state, "round_down": True},
        {"forget_rate": np.array([2.0])},
        {"forget_rate": 0.0, "row_state": np.zeros_like(state)},
        {"num_keep": np.array([rows // 5]), "mean_of": losses},
        {"num_keep": np.array([-3])},
        {"num_keep": np.array([2**40])},
    ):
        assert_selection_is_right(kernels.select_small_loss(losses, **settings), losses, **settings)
    nothing = kernels.select_small_loss(np.full(rows, np.nan, real), forget_rate=0.2, mean_of=losses)
    assert (nothing.num_selected, nothing.num_nonfinite, nothing.mean) == (0, rows, 0.0)


@pytest.mark.parametrize("rows", [10, 60, 100, 128, 700])
@pytest.mark.parametrize("forget_rate", [0.0, 0.07, 0.2, 0.29, 0.3, 0.5, 0.7, 0.8, 0.9, 0.99, 7 / 10 * 0.2, 1 - 0.7])
def test_how_many_rows_a_forget_rate_keeps(kernels: HostKernels, rows: int, forget_rate: float) -> None:
    losses = np.arange(rows, dtype=np.float32)
    assert_selection_is_right(
        kernels.select_small_loss(losses, forget_rate=forget_rate), losses, forget_rate=forget_rate
    )


@pytest.mark.parametrize(
    ("rows", "threads"),
    [(1, 32), (100, 416), (256, 1024), (257, 64), (2500, 320), (8192, 1024), (20000, 320), (10**6, 1024)],
)
def test_a_selection_has_as_many_threads_as_its_rows_occupy(kernels: HostKernels, rows: int, threads: int) -> None:
    """By counting four for a row; by radix one for eight rows of a block."""
    kernels.select_small_loss(np.arange(rows, dtype=np.float32), num_keep=1)
    assert [launch.threads for launch in kernels.take_launches()] == [threads]


@pytest.mark.parametrize("threads", [32, 96, 128, 1024])
def test_the_choice_does_not_depend_on_the_size_of_the_block(kernels: HostKernels, threads: int) -> None:
    kernels.set_limits(most_threads=threads)
    rng = np.random.default_rng(4)
    for rows in (100, 256, 777, 10001):
        losses = np.round(rng.normal(size=rows), 1).astype(np.float32)
        actual = kernels.select_small_loss(losses, forget_rate=0.4, mean_of=losses)
        assert_selection_is_right(actual, losses, forget_rate=0.4, mean_of=losses)


# --- a cluster ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("real", [np.float32, np.float64])
@pytest.mark.parametrize("blocks", [1, 2, 3, 8])
def test_the_choice_does_not_depend_on_the_blocks_of_the_cluster(kernels: HostKernels, real: Any, blocks: int) -> None:
    """Each has more keys than its registers hold."""
    kernels.set_limits(most_threads=64, most_blocks=blocks)
    rng = np.random.default_rng(blocks)
    losses = np.round(rng.normal(size=17000), 2).astype(real)  # ties in every slice
    losses[rng.random(17000) < 0.1] = np.nan
    state = rng.choice([oracle.INELIGIBLE, oracle.ELIGIBLE], 17000).astype(np.uint8)
    for settings in ({"num_keep": 9000}, {"forget_rate": 0.37, "row_state": state}):
        actual = kernels.select_small_loss(losses, mean_of=losses, **settings)
        assert_selection_is_right(actual, losses, mean_of=losses, **settings)


@pytest.mark.parametrize("where", [0, LARGE // 2, LARGE - 1])
def test_a_cluster_finds_one_differing_prediction_in_any_slice(kernels: HostKernels, where: int) -> None:
    losses = np.random.default_rng(0).normal(size=LARGE).astype(np.float32)
    state = np.full(LARGE, oracle.ELIGIBLE, np.uint8)
    state[where] = oracle.DIFFERING
    settings: dict[str, Any] = {"num_keep": 7, "row_state": state, "disagreement": "preferred"}
    assert_selection_is_right(kernels.select_small_loss(losses, **settings), losses, **settings)


@pytest.mark.parametrize("k", [1, 500, 1056, 1057, 3000, LARGE - 1])
def test_a_cluster_takes_ties_in_the_order_of_its_slices(kernels: HostKernels, k: int) -> None:
    chosen = kernels.select_small_loss(np.full(LARGE, 0.25, np.float32), num_keep=k).selected
    np.testing.assert_array_equal(chosen, np.arange(LARGE) < k)


ONE_BLOCK = [{"CODE_FOR": "80"}, {"CLUSTERS": "0"}]


@pytest.mark.parametrize("device", ONE_BLOCK, ids=["code for 8.0", "too few multiprocessors"])
def test_where_no_cluster_can_run_one_block_selects(library: HostKernels, device: dict[str, str]) -> None:
    """In a process of its own, for a device is asked once."""
    code = (
        "import sys\nfrom pathlib import Path\nimport numpy as np\nfrom host_kernels import HostKernels\n"
        "kernels = HostKernels(Path(sys.argv[1]))\n"
        "print(kernels.select_small_loss(np.arange(9000, dtype=np.float32), num_keep=4000).selected.sum())\n"
        "print([(launch.blocks, launch.cluster) for launch in kernels.take_launches()])"
    )
    environ = {**os.environ, **device, "PYTHONPATH": str(HERE)}
    printed = run([sys.executable, "-c", code, library.library._name], env=environ)
    assert printed.split("\n")[:2] == ["4000", "[(1, False)]"]


def test_a_build_for_other_gpus_says_what_to_do(library: HostKernels) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nimport numpy as np\nfrom host_kernels import HostKernels\n"
        "HostKernels(Path(sys.argv[1])).select_small_loss(np.zeros(4, np.float32), num_keep=1)"
    )
    environ = {**os.environ, "CODE_FOR": "0", "PYTHONPATH": str(HERE)}
    done = subprocess.run(
        [sys.executable, "-c", code, library.library._name], env=environ, capture_output=True, text=True
    )
    assert "RuntimeError: this build has kernels for other GPUs" in done.stderr


# --- rows and selection together ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", LOGIT_TYPES)
@pytest.mark.parametrize(
    ("rows", "classes", "single"),
    [
        (1, 1, True),
        (128, 10, True),
        (64, 14, True),
        (128, 100, True),
        (200, 10, True),
        (40, 300, False),
        (600, 10, False),
    ],
)
def test_a_small_batch_takes_one_launch_and_others_two_that_are_linked(
    kernels: HostKernels, dtype: str, rows: int, classes: int, single: bool
) -> None:
    single = single and not (dtype == "float64" and classes == 100)
    for width in vector_widths(dtype):
        pair = random_pair(rows, classes, dtype, width, ignore_index=0 if classes > 1 else None)
        alone = kernels.row_losses(pair, compare_predictions=False)
        kernels.take_launches()
        results, selection = kernels.row_losses_and_selection(pair, forget_rate=0.2)
        launches = kernels.take_launches()
        np.testing.assert_array_equal(results.per_sample, alone.per_sample)
        np.testing.assert_array_equal(results.statistics, alone.statistics)
        assert_selection_is_right(
            selection, alone.per_sample, row_state=alone.row_state, forget_rate=0.2, mean_of=alone.per_sample
        )
        if single:
            assert [launch.blocks for launch in launches] == [1]
            assert f"rows_and_selection_by_block<{CXX_NAMES[dtype]}, " in launches[0].kernel
        else:
            assert [launch.linked for launch in launches] == [False, True]


@pytest.mark.parametrize(
    ("rows", "classes", "threads"), [(1, 1, 32), (9, 10, 64), (128, 10, 512), (256, 10, 1024), (20, 100, 640)]
)
def test_a_single_block_has_no_warp_without_a_row(kernels: HostKernels, rows: int, classes: int, threads: int) -> None:
    """Four threads a row up to 32 classes, 32 above: idle ones would take the others' turns."""
    pair = random_pair(rows, classes)
    kernels.row_losses_and_selection(pair, forget_rate=0.2)
    assert [(launch.blocks, launch.threads) for launch in kernels.take_launches()] == [(1, threads)]
    kernels.row_losses_and_selection(random_pair(rows, 10, "float64"), forget_rate=0.2)
    assert kernels.take_launches()[0].threads <= 256


@pytest.mark.parametrize(("code_for", "linked"), [(80, False), (90, True), (100, True)])
def test_a_selection_is_linked_where_its_code_waits_for_the_rows(
    library: HostKernels, code_for: int, linked: bool
) -> None:
    """Each in a process of its own, for the answer is asked for once."""
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from host_kernels import HostKernels\nfrom kernel_inputs import random_pair\n"
        "kernels = HostKernels(Path(sys.argv[1]))\n"
        "kernels.row_losses_and_selection(random_pair(600, 10), forget_rate=0.2)\n"
        "print([launch.linked for launch in kernels.take_launches()])"
    )
    environ = {**os.environ, "CODE_FOR": str(code_for), "PYTHONPATH": str(HERE)}
    printed = run([sys.executable, "-c", code, library.library._name], env=environ)
    assert printed.strip() == str([False, linked])


def test_an_error_of_a_question_is_not_kept_as_its_answer(library: HostKernels) -> None:
    """Such as one within the capture of a graph; the first answer is, for it cannot change."""
    assert library.answers([-1, -1, 1, 0, -1]) == [False, False, True, True, True]
    assert library.answers([-1, 0, 1]) == [False, False, False]


def test_the_first_selection_asks_for_all_sizes(library: HostKernels) -> None:
    """A capture may have more rows than its warm-up, and asks no question then."""
    code = (
        "import sys\nfrom pathlib import Path\nimport numpy as np\nfrom host_kernels import HostKernels\n"
        "kernels = HostKernels(Path(sys.argv[1]))\n"
        "for rows in (100, 9000):\n"
        "    kernels.select_small_loss(np.arange(rows, dtype=np.float32), num_keep=4)\n"
        "    kernels.library.kernels_refuse_questions()\n"
        "print([launch.cluster for launch in kernels.take_launches()])"
    )
    environ = {**os.environ, "PYTHONPATH": str(HERE)}
    printed = run([sys.executable, "-c", code, library.library._name], env=environ)
    assert printed.strip() == "[False, True]"


def test_the_selection_among_differing_predictions_follows_the_rows(kernels: HostKernels) -> None:
    for rows in (100, 1000):
        pair = random_pair(rows, 10, seed=5)
        state = kernels.row_losses(pair).row_state
        for disagreement in ("preferred", "required"):
            settings: dict[str, Any] = {"forget_rate": 0.3, "disagreement": disagreement}
            results, selection = kernels.row_losses_and_selection(pair, **settings)
            settings |= {"row_state": state, "mean_of": results.per_sample}
            assert_selection_is_right(selection, results.per_sample, **settings)


@pytest.mark.parametrize("rows", [2**32, 2**40])
def test_more_rows_than_the_counters_hold_are_refused(kernels: HostKernels, rows: int) -> None:
    params, _ = kernels._selection(np.zeros(4, np.float32), num_keep=1)
    params.rows = rows
    with pytest.raises(RuntimeError, match="invalid argument"):
        kernels.call("select_small_loss", params)
