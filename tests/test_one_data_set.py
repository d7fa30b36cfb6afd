"""A data set that is added in one place works everywhere: in every command, its help, from Python, and in the files."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image

from children import python

# What an author of a data set writes: a function and an entry. It has to be there before the command line is.
TOYS = """
import sys
from pathlib import Path
import numpy as np
import torch
from jocor_fast.data.catalogue import DATASETS, load_dataset
from jocor_fast.data.dataset import Dataset, Entry, Wanted, in_memory
from jocor_fast.data.images.source import ImageFiles
from jocor_fast.data.samples import Samples

def arrays(wanted: Wanted) -> Dataset:
    rows = np.random.default_rng(0).integers(0, 255, (60, 6, 6)).astype(np.uint8)
    labels = np.arange(60) % 3
    return in_memory(wanted.name, {"train": (rows, labels), "test": (rows[:9], labels[:9])}, 3)

def photos(wanted: Wanted) -> Dataset:
    folder = next(folder for folder in wanted.folders if folder.is_dir())
    files = ImageFiles(folder, sorted(path.name for path in folder.glob("*.png")))
    labels = torch.arange(len(files)) % 2
    return Dataset(wanted.name, Samples(files, labels), ("day", "night"), notes=("a toy",), source=str(folder))

DATASETS["toy"] = Entry("toy", arrays, place="made up", model="cnn")
DATASETS["toys"] = Entry(
    "toys", photos, lambda folders: next(filter(Path.is_dir, folders), None), holds_files=True, labels="given"
)
DATASETS["any:"] = Entry("any:", arrays, path="FILE", help="with anything in it", labels="given")

from jocor_fast.cli import main
for command in sys.argv[1:]:
    print("$", command)
    try:
        code = main(command.split())
    except SystemExit as ended:
        code = ended.code
    print("exit code", code)
"""


def test_a_data_set_is_one_entry(tmp_path: Path) -> None:
    (tmp_path / "root" / "toys").mkdir(parents=True)
    for number in range(8):
        Image.new("RGB", (16, 16), (20 * number, 0, 0)).save(tmp_path / "root" / "toys" / f"{number}.png")
    trained = "--model=mlp --batch-size=4 --device=cpu"
    photos = f"--dataset=toys --image-size=8 --loader=pillow --epochs=1 --forget-rate=0.2 {trained}"
    commands = {
        f"train --dataset=toy --epochs=2 --noise-rate=0.2 {trained} --output=arrays": "toy: 60 training, 9 test ",
        "audit arrays": "60 training samples",
        f"train --data-root=root {photos} --output=photos": "the share of wrong labels is unknown",
        "predict photos root/toys/0.png": "root/toys/0.png,",
        "prepare --dataset=toys --data-root=root --output=small/toys --size=8": "note: a toy toys is in small/toys",
        f"train --data-root=small {photos} --output=again": "toys: 8 training, no test samples, 2 classes",
        f"train --dataset=any:x --epochs=1 --noise-rate=0.2 {trained} --output=path": "any:x: 60 training",
        "train --help": "; toy; toys; any:FILE with anything in it",
        "estimate-noise --help": "cnn for cifar10 and cifar100 and toy, ",
        "info --data-root=root": "toy: made up toys: root/toys",
    }
    refused = {
        "train --dataset=other": "csv:FILE, toy, toys or any:FILE, got 'other'",
        "prepare --dataset=toy --output=x": "must be clothing1m, folder:DIR, csv:FILE or toys, got 'toy'",
    }
    done = python("-c", TOYS, *commands, *refused, cwd=tmp_path)
    printed = [" ".join(text.split()) for text in done.stdout.split("$ ")[1:]]
    for (command, expected), text in zip(commands.items(), printed, strict=False):
        assert expected in text, (command, text, done.stderr)
        assert text.endswith("exit code 0"), (command, text, done.stderr)
    for command, expected in refused.items():
        assert expected in done.stderr, command
    settings = json.loads((tmp_path / "arrays" / "config.json").read_text())["settings"]
    assert settings["dataset"] == "toy"
    assert json.loads((tmp_path / "again" / "summary.json").read_text())["status"] == "finished"
