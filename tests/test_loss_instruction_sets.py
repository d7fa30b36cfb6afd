"""Every instruction set that is compiled in and that this processor has gives the right numbers.

The choice is made once in a process, so the tests of the numbers run again in a process of their own.
"""

import sys
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
# Both logits end where a page ends whose successor may not be read.
READ_AT_THE_END = """
import ctypes, mmap, sys
import jocor_fast as jf, torch

assert jf.build_info()["cpu_instruction_sets"][0] == sys.argv[1], jf.build_info()
libc = ctypes.CDLL(None, use_errno=True)
memory = [mmap.mmap(-1, 3 * mmap.PAGESIZE) for _ in range(2)]
for pages in memory:
    last = ctypes.addressof(ctypes.c_char.from_buffer(pages)) + 2 * mmap.PAGESIZE
    assert libc.mprotect(ctypes.c_void_p(last), mmap.PAGESIZE, 0) == 0, ctypes.get_errno()

target = torch.tensor([0, 0, 0])
for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
    for classes in range(1, 71):
        z = torch.randn(3, classes, dtype=dtype)
        here = {"dtype": dtype, "count": z.numel(), "offset": 2 * mmap.PAGESIZE - z.nbytes}
        z1, z2 = (torch.frombuffer(pages, **here).view_as(z).copy_(z).requires_grad_() for pages in memory)
        for loss in (
            jf.jocor_loss(z1, z2, target, co_lambda=0.0, num_keep=3).loss,
            jf.jocor_loss(z1, z2, target, co_lambda=0.5, num_keep=3).loss,
            jf.forward_corrected_loss(z1, target, torch.eye(classes)),
            jf.nce_rce_loss(z1, target),
        ):
            loss.backward()
"""


RUN_TESTS = """
import pytest
sys.exit(pytest.main(sys.argv[2:]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="calls mprotect")
@pytest.mark.parametrize("instruction_set", WIDTHS[: WIDTHS.index(IN_USE) + 1])
def test_the_numbers_are_right_and_nothing_is_read_past_the_last_logit(instruction_set):
    """With the instruction set in use, the tests of the numbers run by themselves."""
    code, arguments = READ_AT_THE_END, []
    if instruction_set != IN_USE:
        code += RUN_TESTS
        files = [
            str(TESTS / f"test_{name}.py")
            for name in ("loss_values", "loss_edges", "forward_correction", "robust_losses")
        ]
        arguments = ["-q", "-x", "-p", "no:cacheprovider", "-k", f"compiled-cpu and ({NUMBERS})", *files]
    done = python("-c", code, instruction_set, *arguments, cwd=TESTS.parent, JOCOR_FAST_CPU_ISA=instruction_set)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout[-4000:]}{done.stderr[-2000:]}"
