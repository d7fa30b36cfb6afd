"""Every instruction set that is compiled in and that this processor has gives the right numbers.

The choice is made once in a process, so the tests of the numbers run again in a process of their own.
"""

from pathlib import Path

import pytest

import jocor_fast
from children import python

TESTS = Path(__file__).parent
IN_USE = jocor_fast.build_info()["cpu_instruction_sets"][0]
WIDTHS = ["portable", "avx2", "avx512"]
# Tests whose arithmetic differs between instruction sets.
NUMBERS = (
    "vector_width or long_rows or tiny_and_large or layout_in or far_from_zero or rounded_once"
    " or masked_in or underflows or non_finite_logit"
)
RUN = """
import sys
import jocor_fast, pytest
instruction_set, *arguments = sys.argv[1:]
assert jocor_fast.build_info()["cpu_instruction_sets"][0] == instruction_set, jocor_fast.build_info()
sys.exit(pytest.main(arguments))
"""


@pytest.mark.parametrize("instruction_set", WIDTHS[: WIDTHS.index(IN_USE)])
def test_numbers_on_a_lesser_instruction_set(instruction_set):
    files = [str(TESTS / f"test_{name}.py") for name in ("loss_values", "loss_edges", "forward_correction")]
    arguments = ["-q", "-x", "-p", "no:cacheprovider", "-k", f"compiled-cpu and ({NUMBERS})", *files]
    done = python("-c", RUN, instruction_set, *arguments, cwd=TESTS.parent, JOCOR_FAST_CPU_ISA=instruction_set)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
