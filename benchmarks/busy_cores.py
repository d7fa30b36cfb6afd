"""How much longer an MNIST epoch takes while two processes keep both cores busy, by OpenMP's settings.

    python benchmarks/busy_cores.py --data-root FOLDER [--epochs N]

Writes busy_cores.md and .json. The runs are `jocor-fast train` with JoCoR's perceptrons, a process each, first on idle
cores and then next to one endless loop for each core; the figure is the median epoch, evaluation included, as
metrics.jsonl has it. On a machine of which every process gets an equal share an epoch then takes twice as long.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from record import described, machine, parser, write
from tables import markdown_table

BAR = 2.5
SETTINGS: dict[str, dict[str, str]] = {
    "as it comes": {},
    "OMP_WAIT_POLICY=PASSIVE": {"OMP_WAIT_POLICY": "PASSIVE"},
    "GOMP_SPINCOUNT=1000": {"GOMP_SPINCOUNT": "1000"},
    "GOMP_SPINCOUNT=30000": {"GOMP_SPINCOUNT": "30000"},
    "GOMP_SPINCOUNT=100000": {"GOMP_SPINCOUNT": "100000"},
    "OMP_NUM_THREADS=1": {"OMP_NUM_THREADS": "1"},
}
OPENMP = ("OMP_", "GOMP_", "KMP_")


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def epochs_of_a_run(setting: dict[str, str], data_root: Path, epochs: int) -> list[float]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(OPENMP)} | setting
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "run")
        command = ["-m", "jocor_fast", "train", "--dataset", "mnist", "--data-root", str(data_root)]
        command += ["--noise", "symmetric", "--noise-rate", "0.5", "--epochs", str(epochs), "--output", str(output)]
        subprocess.run([sys.executable, *command], env=environ, check=True, stdout=subprocess.DEVNULL)
        lines = (output / "metrics.jsonl").read_text().splitlines()
    metrics = [json.loads(line) for line in lines[1:]]  # the first epoch also makes torch ready
    return [line["seconds"] + line["eval_seconds"] for line in metrics]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--data-root", type=Path, required=True)
    options.add_argument("--epochs", type=int, default=5)
    asked = options.parse_args()
    cores = machine()["cores"]
    seconds: dict[str, dict[str, list[float]]] = {name: {} for name in SETTINGS}
    for name, setting in SETTINGS.items():
        for kind, loops in (("idle", 0), ("busy", cores)):
            with busy(loops):
                seconds[name][kind] = epochs_of_a_run(setting, asked.data_root, asked.epochs)
    rows = []
    for name, of in seconds.items():
        idle, busy_epoch = statistics.median(of["idle"]), statistics.median(of["busy"])
        rows.append([name, f"{idle:.2f}", f"{busy_epoch:.2f}", f"{busy_epoch / idle:.2f}"])
    text = (
        f"Seconds of an MNIST epoch of JoCoR's perceptrons, symmetric 50 %, batch 128, on idle cores and next to "
        f"{cores} endless loops: medians of {asked.epochs - 1} epochs. At most {BAR}× are asked for. By "
        "`python benchmarks/busy_cores.py`.\n\n"
        f"{markdown_table(['setting', 'idle, s', 'busy, s', 'busy / idle'], rows)}\n{described('threads')}\n"
    )
    write("busy_cores", text, {"command": "python benchmarks/busy_cores.py", "seconds": seconds}, asked.output)


if __name__ == "__main__":
    main()
