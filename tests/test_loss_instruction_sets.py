"""Every instruction set that is compiled in and that this processor has gives the right numbers.

The choice is made once in a process, so the tests of the numbers run again in a process of their own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import jocor_fast

TESTS = Path(__file__).parent
IN_USE = jocor_fast.build_info()["cpu_instruction_sets"][0]
WIDTHS = ["portable", "avx2", "avx512"]


def run(instruction_set, *command):
    environment = {**os.environ, "JOCOR_FAST_CPU_ISA": instruction_set, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *command], env=environment, cwd=TESTS.parent, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("instruction_set", WIDTHS[: WIDTHS.index(IN_USE)])
def test_numbers_on_a_lesser_instruction_set(instruction_set):
    done = run(instruction_set, "-c", "import jocor_fast; print(jocor_fast.build_info()['cpu_instruction_sets'][0])")
    assert done.stdout.strip() == instruction_set, done.stderr
    files = [str(TESTS / name) for name in ("test_loss_values.py", "test_loss_edges.py")]
    done = run(instruction_set, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", "compiled-cpu", *files)
    assert done.returncode == 0, done.stdout[-4000:]
