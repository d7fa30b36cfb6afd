"""Contenders in processes of their own that take turns, each in every setting of threads; a script serves one of them.

The processes are stopped (SIGSTOP) between their turns: a thread that spins takes nothing from another's.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

from compare import SETTINGS, Setting
from interleave import Quartiles
from tables import markdown_table

WARM_UP = 2


def serve(measured: Callable[[], Any]) -> None:
    """Answer every line with the seconds of a call, until the input ends."""
    for _ in sys.stdin:
        started = perf_counter()
        measured()
        print(json.dumps(perf_counter() - started), flush=True)


class Process:
    """A contender in one setting, which runs only while it measures."""

    def __init__(self, contender: str, setting: Setting, command: Sequence[str]) -> None:
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
        environ |= {"OMP_NUM_THREADS": str(setting.threads), "OMP_WAIT_POLICY": setting.wait_policy.upper()}
        environ |= {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
        pipe = subprocess.PIPE
        self.contender, self.setting, self.taken = contender, setting, list[float]()
        self.process = subprocess.Popen([sys.executable, *command], env=environ, stdin=pipe, stdout=pipe, text=True)

    def measure(self) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        self.process.send_signal(signal.SIGSTOP)
        if not line:
            raise RuntimeError(f"{self.contender}, {self.setting}: its process has ended with {self.process.wait()}")
        return float(line)

    @property
    def median(self) -> float:
        quartiles = Quartiles.of(self.taken)
        assert quartiles is not None
        return quartiles.median


def take_turns(commands: Mapping[str, Sequence[str]], rounds: int) -> list[Process]:
    """Return every contender in every setting, with so many measurements; a command is a script and its arguments."""
    processes: list[Process] = []
    try:
        for contender, command in commands.items():
            for setting in SETTINGS:
                processes.append(Process(contender, setting, command))
                for _ in range(WARM_UP):  # before the next starts: a thread that spins takes a core
                    processes[-1].measure()
        turns = random.Random(0)
        for _ in range(rounds):
            for process in turns.sample(processes, len(processes)):
                process.taken.append(process.measure())
    finally:
        for process in processes:
            process.process.kill()
            process.process.wait()
    return processes


def table(processes: Sequence[Process], ours: str) -> str:
    """Return a row a contender in its fastest setting, next to `ours`."""
    fastest: dict[str, Process] = {}
    for process in processes:
        other = fastest.get(process.contender)
        if other is None or process.median < other.median:
            fastest[process.contender] = process
    rows = [
        [name, f"{best.median:.3f} s", f"{best.median / fastest[ours].median:.2f}×", str(best.setting)]
        for name, best in fastest.items()
    ]
    return markdown_table(["contender", "seconds", "over ours", "setting"], rows)


def seconds(processes: Sequence[Process]) -> dict[str, dict[str, list[float]]]:
    """Return all that was measured."""
    taken: dict[str, dict[str, list[float]]] = {}
    for process in processes:
        taken.setdefault(process.contender, {})[str(process.setting)] = process.taken
    return taken
