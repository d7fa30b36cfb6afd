"""Part "build": `python setup.py build_ext --inplace`, then what the build says of itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from gpu import records

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    records.plan(["build"])
    started = time.monotonic()
    environ = {**os.environ, "MAX_JOBS": os.environ.get("MAX_JOBS", str(len(os.sched_getaffinity(0))))}
    code = subprocess.run([sys.executable, "setup.py", "build_ext", "--inplace"], cwd=ROOT, env=environ).returncode
    if code == 0:
        built = json.loads((ROOT / "jocor_fast" / "_build.json").read_text())
        records.done("build", seconds=round(time.monotonic() - started, 1), **built)
        if built["cuda"] is None:
            print(f"built without its CUDA part: {built['reason']}")
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
