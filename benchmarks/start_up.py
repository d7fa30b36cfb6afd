"""How long commands take that compute nothing: versions, help, completion, refusals, and the import of the package.

    python benchmarks/start_up.py

writes start_up.md and start_up.json. Each is a process of its own; they take turns. Beside an interpreter that imports
nothing and one that imports torch, both times are of the whole process: on the wall, and its processor time.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from time import perf_counter

from jocor_fast.cli.program import COMMANDS
from jocor_fast.report.tables import TextTable
from record import described, parser, write

BAR = 0.3  # seconds
COMMAND = "python benchmarks/start_up.py"
JOCOR_FAST = ("-m", "jocor_fast")
CASES: dict[str, tuple[str, ...]] = {
    "python -c pass": ("-c", "pass"),
    "python -c 'import torch'": ("-c", "import torch"),
    "python -c 'import jocor_fast'": ("-c", "import jocor_fast"),
    **{
        f"jocor-fast {line}": (*JOCOR_FAST, *line.split())
        for line in (
            "--version",
            "--help",
            *(f"{command} --help" for command in COMMANDS),
            "--print-completion bash",
            "nothing",
            "train --nothing",
            "train --epochs many",
            "train --noise-rate 1",
            "audit",
        )
    },
}


def timed(arguments: tuple[str, ...]) -> tuple[float, float]:
    """Seconds on the wall, and of the processor, of `python …`."""
    started = perf_counter()
    child = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, _, used = os.wait4(child.pid, 0)
    child.returncode = 0  # it has been waited for
    return perf_counter() - started, used.ru_utime + used.ru_stime


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=15)
    asked = options.parse_args()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in CASES}
    for _ in range(asked.rounds):
        for name, arguments in CASES.items():
            times[name].append(timed(arguments))
    found = {
        name: {
            "wall": [wall for wall, _ in measured],
            "processor": [processor for _, processor in measured],
        }
        for name, measured in times.items()
    }
    slowest = max(min(one["processor"]) for name, one in found.items() if name.startswith("jocor-fast"))
    columns = ("what", "wall, least", "median", "processor, least", "median")
    rows = [
        (name, *(f"{value:.3f}" for kind in one.values() for value in (min(kind), statistics.median(kind))))
        for name, one in found.items()
    ]
    text = (
        f"Seconds of commands that compute nothing, of {asked.rounds} processes each, which took turns; at most {BAR} "
        f"are asked for, and the slowest takes {slowest:.2f} s of processor time. Made by `{COMMAND}`.\n\n"
        f"{TextTable(columns, rows).markdown()}\n{described('threads')}\n"
    )
    write("start_up", text, {"command": COMMAND, "bar": BAR, "seconds": found}, asked.output)


if __name__ == "__main__":
    main()
