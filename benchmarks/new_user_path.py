"""From a clone to a list of suspicious labels, by the README's commands alone, timed.

A folder of class folders is made of 1,500 of MNIST's images as JPEG files, 15 % of them put into the wrong class. The
commands are those of the README's sections "Installing" and "Your own folder of images", read from there: they run in
a fresh clone, in a virtual environment of its own, with nothing else in the environment.

    python benchmarks/new_user_path.py FOLDER > benchmarks/results/new_user_path.md
"""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image

from jocor_fast.data.catalogue import load_dataset
from jocor_fast.report.tables import TextTable
from record import machine

ROOT = Path(__file__).resolve().parents[1]
SETTING_UP, OWN_IMAGES = "Installing", "Your own folder of images"
IMAGES, WRONG = 1500, 225
PHOTOS = "photos"  # the folder that the README's commands name
LIST = Path("runs") / PHOTOS / "audit" / "suspicious.csv"
STEPS = {
    "pip install torch": "torch",
    "pip install": "jocor_fast",
    "jocor-fast train": "training",
    "jocor-fast audit": "audit",
}


def readme_commands(section: str) -> list[str]:
    """The command lines of the first block of commands in a section of the README."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (text,) = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## )", readme, re.DOTALL | re.MULTILINE)
    block = re.search(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert block is not None, f"the README's section {section!r} has no commands"
    return block[1].splitlines()


def make_photos(folder: Path, images: np.ndarray, labels: np.ndarray, wrong: int, seed: int = 0) -> set[str]:
    """Write images uint8 [N, H, W] as folder/CLASS/NUMBER.jpg; returns the paths of those in a wrong class."""
    generator = np.random.default_rng(seed)
    misplaced = set(generator.permutation(len(images))[:wrong].tolist())
    classes = int(labels.max()) + 1
    paths = set()
    for number, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
        given = (label + int(generator.integers(1, classes))) % classes if number in misplaced else label
        path = Path(str(given)) / f"{number:04}.jpg"
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / path, quality=95)
        if number in misplaced:
            paths.add(str(path))
    return paths


def found(list_file: Path, wrong: set[str], top: int) -> int:
    """How many of the wrong ones are among the first `top` of the audit's list."""
    with list_file.open(newline="", encoding="utf-8") as file:
        rows = [row["path"] for row in csv.DictReader(file)]
    return len(wrong & set(rows[:top]))


def timed(command: str, folder: Path, environment: dict[str, str]) -> tuple[float, str]:
    """Seconds and what was printed; a failure ends the script with that."""
    started = time.perf_counter()
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{command}\n{done.stdout}")
    return time.perf_counter() - started, done.stdout


def main(work: Path) -> None:
    """Go the way, and print the report."""
    load = os.getloadavg()[0]
    work.mkdir(parents=True, exist_ok=True)
    clone = work / "jocor_fast"
    bare = {"HOME": os.environ["HOME"], "PATH": "/usr/bin:/bin:/usr/local/bin"}
    inside = {**bare, "PATH": f"{clone / '.venv' / 'bin'}:{bare['PATH']}"}
    preparing = timed(f"git clone --quiet {ROOT} {clone} && python3 -m venv {clone / '.venv'}", work, bare)[0]
    data = load_dataset("mnist")
    inputs, labels = data.train.arrays()
    chosen = np.random.default_rng(1).permutation(len(labels))[:IMAGES]
    wrong = make_photos(clone / PHOTOS, inputs[chosen], labels[chosen], WRONG)
    rows, shown = [("clone and virtual environment", f"{preparing:.0f} s")], []
    for command in readme_commands(SETTING_UP) + readme_commands(OWN_IMAGES):
        seconds, text = timed(command, clone, inside)
        if command.startswith("pip install torch") and "Processing /" in text:
            shown.append("pip found its packages on the machine: elsewhere their download comes on top")
        step = next(name for start, name in STEPS.items() if command.startswith(start))
        rows.append((f"{step}: `{command.partition('#')[0].strip()}`", f"{seconds:.0f} s"))
        if command.startswith("jocor-fast"):
            lines = [" ".join(line.split()) for line in text.splitlines() if line.startswith(("τ ", "wrong "))]
            shown += [f"`{line}`" for line in lines]
    print("# A new user's path: from a clone to a list of suspicious labels\n")
    print(f"{' '.join((__doc__ or '').split('    python')[0].split())}\n")
    print(TextTable(("step", "time"), rows).markdown())
    for line in shown:
        print(f"- {line}")
    for top in (50, WRONG, 300):
        print(f"- {found(clone / LIST, wrong, top)} of the {WRONG} misplaced images are in the first {top} of the list")
    text = ", ".join(f"{name} {value}" for name, value in machine().items())
    print(f"\n{text}. The machine was busy (load average before the run: {load:.1f}), so the times are upper bounds.")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
