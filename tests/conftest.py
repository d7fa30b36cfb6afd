"""What every test shares: threads, Hypothesis' settings, the `gpu` marker and the folder of data sets."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

os.environ.setdefault("MPLBACKEND", "Agg")

import numpy as np
import pytest
import torch

import jocor_fast as jf
from children import IMPORTED

try:
    import hypothesis
except ImportError:  # as on a machine that has torch and a GPU and no more; the tests that need it are left out there
    pass
else:
    # Shapes vary from example to example, and a slow machine must not fail a test; in CI a run repeats exactly.
    hypothesis.settings.register_profile("local", deadline=None)
    hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
    hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")

# Two workers share two cores (make test); tests of several threads set their number themselves.
torch.set_num_threads(1)
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


@pytest.fixture
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, in which processes that a test starts find this package too, and run on one thread."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", IMPORTED)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


@pytest.fixture
def named_blobs(in_an_empty_folder: Path) -> np.ndarray:
    """Writes blobs.npz: 200 samples to train on, 40 to test on, labelled with four names. Returns the class numbers."""
    generator = np.random.default_rng(0)
    names = np.array(["ant", "bee", "cat", "dog"])
    classes = generator.integers(0, 4, 240)
    inputs = (40 * classes[:, None] + generator.integers(0, 30, (240, 6))).astype(np.uint8)
    labels = names[classes]
    np.savez("blobs.npz", x_train=inputs[:200], y_train=labels[:200], x_test=inputs[200:], y_test=labels[200:])
    return classes[:200]


@pytest.fixture
def runs_in_this_process(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What `reproduce` and `search-lambda` start as processes is done at once. Returns the command line of each run."""
    from jocor_fast.cli.program import main  # here, for where there are a GPU and torch and no more, there is no rich
    from jocor_fast.files.names import LOG_NAME
    from jocor_fast.paper.run_queue import QueuedRun

    lines: list[list[str]] = []

    class Done:
        def __init__(self, code: int) -> None:
            self.code = code

        def poll(self) -> int:
            return self.code

        def terminate(self) -> None:
            pass

    def start(run: QueuedRun, threads: int) -> None:
        lines.append(run.arguments())
        run.folder.mkdir(parents=True, exist_ok=True)
        handler = signal.getsignal(signal.SIGTERM)
        with (run.folder / LOG_NAME).open("a") as log:
            run._log_start = log.tell()
            with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
                run._process = Done(main(run.arguments()))  # type: ignore[assignment]
        signal.signal(signal.SIGTERM, handler)

    monkeypatch.setattr(QueuedRun, "start", start)
    return lines


@pytest.fixture
def curves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For runs of a few steps: the picture would take longer than they do, and is tested in test_report.py."""
    monkeypatch.setattr("jocor_fast.report.curves.draw_curves", lambda metrics, path: path.write_bytes(b"drawn"))


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
