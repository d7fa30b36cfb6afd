"""Processes that tests start, and how long they wait for one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jocor_fast as jf

# Seconds. What takes some of them on a free machine takes minutes on a loaded one; what hangs takes for ever.
PATIENCE = 600.0
IMPORTED = os.pathsep.join((str(Path(jf.__file__).parents[1]), str(Path(__file__).parent)))


def python(*arguments: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    """`python …`, once it has ended; it can import this package and what tests share.

    Args:
        arguments: of python.
        cwd: where it is started; by default here.
        environ: variables, besides those of this process.
    """
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": IMPORTED, **environ},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
