"""Part "steps": the training step, rung by rung, and five runs at once beside one alone.

python -m gpu.steps
"""

from __future__ import annotations

import sys
from dataclasses import asdict

import torch

from gpu import records
from gpu.bars import AT_ONCE
from step_rungs import rungs_of, tasks_of
from steps import measure, runs_at_once

RUNS = 5


def main() -> int:
    names = {(task, rung): f"{task.name}: {rung}" for task in tasks_of("cuda") for rung in rungs_of("cuda")}
    records.plan([*names.values(), AT_ONCE])
    failures = 0
    for (task, rung), name in names.items():
        print(name, flush=True)
        try:
            records.done(name, **asdict(measure(task, rung, torch.device("cuda", 0))))
        except Exception as error:  # a rung that fails must not cost the others
            records.done(name, error=f"{type(error).__name__}: {error}"[:500])
            failures += 1
        torch.cuda.empty_cache()
    records.done(AT_ONCE, **runs_at_once(RUNS))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
