"""What every test shares: threads, Hypothesis' settings, the `gpu` marker and the folder of data sets."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("MPLBACKEND", "Agg")

import pytest
import torch

import jocor_fast as jf

try:
    import hypothesis
except ImportError:  # as on a machine that has torch and a GPU and no more; the tests that need it are left out there
    pass
else:
    # Shapes vary from example to example, and a slow machine must not fail a test; in CI a run repeats exactly.
    hypothesis.settings.register_profile("local", deadline=None)
    hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
    hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")

torch.set_num_threads(2)
# Started in the background (nohup, `&`), this process ignores Ctrl-C, and so would those that tests send it to.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _why_no_gpu_tests() -> str | None:
    if not torch.cuda.is_available():
        return "needs a CUDA GPU"
    if jf.build_info()["cuda"] is None:
        return f"needs a build with the CUDA part; this one has none: {jf.build_info()['reason']}"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = _why_no_gpu_tests()
    if reason is None:
        return
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """For modules of many small calls: torch splits even a softmax of eight rows over threads, which wait."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of data sets that JOCOR_FAST_DATA names; tests that need one skip where it is not there."""
    named = os.environ.get("JOCOR_FAST_DATA")
    if not named:
        pytest.skip("JOCOR_FAST_DATA does not name a folder of data sets")
    root = Path(named)
    if not root.is_dir():
        pytest.skip(f"JOCOR_FAST_DATA names {named}, which is not a folder")
    return root
