"""Compare the loss on the CPU with its contenders, each at its own best setting.

    python benchmarks/compare.py [--rounds N] [--output DIR] [--readme]

Every contender runs in processes of its own: on one thread, and on two whose idle thread spins (OMP_WAIT_POLICY=ACTIVE)
or sleeps (PASSIVE). The processes take turns in random order, and are stopped (SIGSTOP) between their turns, so their
threads do not spin into another's. A contender's figure is the median of its fastest setting. All this twice: with
glibc's malloc told to keep large blocks, and as it comes, where every large gradient is fresh memory whose pages the
kernel has to fill with zeros.

Writes loss_cpu.json and loss_cpu.md. --readme copies the figures of an existing loss_cpu.json into README.md and
benchmarks/results/README.md, and measures nothing. On a GPU: `make gpu PARTS=bench-full`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch

from cases import COMPILED, CPU_SHAPES, EAGER, KERNELS_ALONE, OURS, PUBLISHED, Case, Shape
from contenders import Step, assert_agrees, contenders_of, expected_result
from inputs import make_inputs
from interleave import Quartiles
from record import described, parser, write
from tables import markdown_table, microseconds
from timing import CpuClock

GIB = str(1 << 30)
ALLOCATORS = {
    "malloc keeps large blocks": {"MALLOC_TRIM_THRESHOLD_": GIB, "MALLOC_MMAP_THRESHOLD_": GIB},
    "malloc as it comes": {},
}
CONTENDERS = (PUBLISHED, EAGER, COMPILED, OURS, KERNELS_ALONE)
ROUNDS = 15
TURN_SECONDS, WARM_UP_SECONDS = 0.15, 0.03
ROOT = Path(__file__).resolve().parents[1]


class Setting(NamedTuple):
    threads: int
    wait_policy: str  # of OpenMP; of no account on one thread

    def __str__(self) -> str:
        return f"{self.threads} threads, {self.wait_policy}" if self.threads > 1 else "1 thread"


SETTINGS = (Setting(1, "passive"), Setting(2, "passive"), Setting(2, "active"))


# --- a contender's process --------------------------------------------------------------------------------------------


def serve(contender: str) -> None:
    """Answer every line, a case's shape, with the seconds of single steps, until the input ends."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    clock = CpuClock()
    prepared = lru_cache(maxsize=1)(lambda shape: prepare(contender, shape))
    for line in sys.stdin:
        step = prepared(line.strip())
        taken: list[float] = []
        started = perf_counter()
        while (passed := perf_counter() - started) < WARM_UP_SECONDS + TURN_SECONDS or not taken:
            samples = clock.samples(step, "warm")
            if passed >= WARM_UP_SECONDS:
                taken += [sample.wall for sample in samples]
        print(json.dumps(taken), flush=True)


def prepare(contender: str, shape: str) -> Step:
    rows, classes = map(int, shape.split("x"))
    case = Case(Shape(rows, classes), torch.float32, "forward + backward")
    torch._dynamo.reset()  # else what was compiled for other cases is looked through at every call
    inputs = make_inputs(case, "cpu")
    step = contenders_of(case, "cpu")[contender](inputs, case.work)
    assert_agrees(contender, step(), expected_result(inputs, case))
    return step


# --- the process that has them take turns -----------------------------------------------------------------------------


@dataclass
class Contender:
    """A contender in one setting; its process runs only while it measures."""

    name: str
    setting: Setting
    process: subprocess.Popen[str]
    taken: dict[str, list[float]] = field(default_factory=dict)  # seconds, by shape

    @classmethod
    def start(cls, name: str, setting: Setting, allocator: dict[str, str]) -> Contender:
        environ = {key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "OMP_", "GOMP_"))}
        environ |= {"OMP_NUM_THREADS": str(setting.threads), "OMP_WAIT_POLICY": setting.wait_policy.upper()}
        environ |= {"TORCHINDUCTOR_COMPILE_THREADS": "1", **allocator}  # no compiling processes that outlive their use
        command = [sys.executable, __file__, "--serve", name]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, env=environ, stdin=pipe, stdout=pipe, text=True)
        process.send_signal(signal.SIGSTOP)
        return cls(name, setting, process)

    def measure(self, shape: str) -> list[float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(f"{shape}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        self.process.send_signal(signal.SIGSTOP)
        if not line:
            raise RuntimeError(f"{self.name}, {self.setting}: its process has ended with {self.process.wait()}")
        taken: list[float] = json.loads(line)
        return taken


@contextlib.contextmanager
def started(allocator: dict[str, str], names: Sequence[str]) -> Iterator[list[Contender]]:
    contenders: list[Contender] = []
    try:
        for name in names:
            contenders += [Contender.start(name, setting, allocator) for setting in SETTINGS]
        yield contenders
    finally:
        for contender in contenders:
            contender.process.kill()
            contender.process.wait()


def figures_of(contenders: Sequence[Contender], shape: str) -> dict[str, dict[str, Any]]:
    """Return each contender's fastest setting, with the quartiles of all its settings, in seconds."""
    figures: dict[str, dict[str, Any]] = {}
    for contender in contenders:
        quartiles = Quartiles.of(contender.taken[shape])
        assert quartiles is not None
        of = {**quartiles._asdict(), "steps": len(contender.taken[shape])}
        figures.setdefault(contender.name, {})[str(contender.setting)] = of
    best = {name: min(of, key=lambda setting: of[setting]["median"]) for name, of in figures.items()}
    ours = figures[OURS][best[OURS]]["median"]
    return {
        name: {"setting": best[name], **of[best[name]], "over_ours": of[best[name]]["median"] / ours, "settings": of}
        for name, of in figures.items()
    }


def compare(
    allocator: dict[str, str], rounds: int, shapes: Sequence[str], names: Sequence[str] = CONTENDERS
) -> dict[str, dict[str, Any]]:
    """Return the figures of each shape and contender."""
    turns = random.Random(0)
    with started(allocator, names) as contenders:
        for shape in shapes:
            print(f"  {shape}", file=sys.stderr, flush=True)
            for contender in contenders:
                contender.measure(shape)  # prepares, checks and compiles
                contender.taken[shape] = []
            for _ in range(rounds):
                turns.shuffle(contenders)
                for contender in contenders:
                    contender.taken[shape] += contender.measure(shape)
        contenders.sort(key=lambda of: (names.index(of.name), of.setting))
        return {shape: figures_of(contenders, shape) for shape in shapes}


# --- what is written --------------------------------------------------------------------------------------------------


def table(allocators: dict[str, dict[str, Any]]) -> str:
    parts = [
        "Joint loss, forward and backward through the public function, k = B/2, float32: median µs of single steps "
        "with its quartiles, how many times ours the median is, and the setting, of each contender its fastest. By "
        "`python benchmarks/compare.py` (`make compare`).\n"
    ]
    for title, of in allocators.items():
        variables = " ".join(f"{name}={value}" for name, value in of["environment"].items())
        rows = [[shape, *map(cell, contenders.values())] for shape, contenders in of["seconds"].items()]
        heading = f"{title} ({variables})" if variables else title
        names = next(iter(of["seconds"].values()))
        parts.append(f"## {heading[0].upper()}{heading[1:]}\n\n{markdown_table(['B×C', *names], rows)}")
    return "\n".join([*parts, described("threads"), ""])


def cell(of: dict[str, Any]) -> str:
    quartiles = "–".join(microseconds(of[name]) for name in ("quartile_1", "quartile_3"))
    return f"{microseconds(of['median'])} ({quartiles}), {of['over_ours']:.1f}×, {of['setting']}"


def update_readmes(document: dict[str, Any], root: Path = ROOT) -> None:
    """Replace the loss's rows in README.md, and its table in benchmarks/results/README.md, between its comments."""
    seconds = next(iter(document["allocators"].values()))["seconds"]
    readme, results = root / "README.md", root / "benchmarks" / "results" / "README.md"
    text, rows = readme.read_text(encoding="utf-8"), []
    for shape, of in seconds.items():
        shown = [shape.replace("x", "×"), f"{microseconds(of[OURS]['median'])} µs"]
        shown += [f"{of[name]['over_ours']:.1f}×" for name in (EAGER, COMPILED, PUBLISHED)]
        rows.append(shown)
        row = r"\1 {1}: {2} eager PyTorch, {3} `torch.compile`, {4} the published formula |".format(*shown)
        text = re.sub(rf"^(\| [^|]*, {shown[0]} \|).*$", row, text, flags=re.MULTILINE)
    readme.write_text(text, encoding="utf-8")
    table = markdown_table(["B×C", OURS, f"{EAGER} / ours", f"{COMPILED} / ours", f"{PUBLISHED} / ours"], rows)
    text = results.read_text(encoding="utf-8")
    begin, end = "<!-- python benchmarks/compare.py --readme -->\n", "<!-- -->\n"
    before, _, rest = text.partition(begin)
    results.write_text(f"{before}{begin}{table}{end}{rest.partition(end)[2]}", encoding="utf-8")


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=ROUNDS, help=f"turns of a process and shape (default: {ROUNDS})")
    options.add_argument("--shapes", nargs="+", default=[str(shape) for shape in CPU_SHAPES], help="such as 128x10")
    options.add_argument("--readme", action="store_true", help="only copy the figures into the READMEs")
    options.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.serve:
        serve(arguments.serve)
        return
    if arguments.readme:
        update_readmes(json.loads((arguments.output / "loss_cpu.json").read_text()))
        return
    allocators = {}
    for title, environment in ALLOCATORS.items():
        print(title, file=sys.stderr, flush=True)
        seconds = compare(environment, arguments.rounds, arguments.shapes)
        allocators[title] = {"environment": environment, "seconds": seconds}
    document = {"command": "python benchmarks/compare.py", "allocators": allocators}
    write("loss_cpu", table(allocators), document, arguments.output)


if __name__ == "__main__":
    main()
