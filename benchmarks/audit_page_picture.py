"""The picture of an audit's page in README and the documentation: real images, with labels that people gave them.

    python benchmarks/audit_page_picture.py [--data-root DIR]

audits CIFAR-10's training images by frozen features, under the labels that one person gave each (CIFAR-10N, random 1),
opens the page in a headless Chromium and writes page.png into benchmarks/results/audit-page, with page.json: how many
of the labels on the picture differ from CIFAR-10's own. The folder `cifar10` of the data root holds features.npz,
cifar10n_labels.npz, and the images as cifar10_jpeg.npz, all JPEG files one after the other.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
from PIL import Image

from chromium import Chromium
from jocor_fast.cli import main as jocor_fast
from record import RESULTS, machine

NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
LABELS, TRUE = "random_label1", "clean_label"
WIDTH, COLUMNS, ROWS, MOST, MARGIN = 1320, 6, 2, 1000, 14
SHOWN = f"""(() => {{
  const cards = [...document.querySelectorAll("article")].slice(0, {COLUMNS * ROWS});
  return [Math.ceil(cards.at(-1).getBoundingClientRect().bottom), cards.map((card) => +card.dataset.id)];
}})()"""


def write_inputs(source: Path, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Write images, their list, labels and names into a folder; return the given labels and the true ones."""
    with np.load(source / "cifar10_jpeg.npz") as archive:
        files, offsets = archive["train_bytes"], archive["train_offsets"]
    for number, (start, stop) in enumerate(pairwise(offsets)):
        (folder / f"{number:05}.jpg").write_bytes(files[start:stop].tobytes())
    rows = "".join(f"{number},{number:05}.jpg\n" for number in range(len(offsets) - 1))
    (folder / "paths.csv").write_text(f"id,path\n{rows}", encoding="utf-8")
    (folder / "names.txt").write_text("\n".join(NAMES), encoding="utf-8")
    with np.load(source / "cifar10n_labels.npz") as archive:
        return archive[LABELS].astype(np.int64), archive[TRUE].astype(np.int64)


def main(data_root: Path) -> None:
    """Audit, look, and write the picture and what is on it."""
    output = RESULTS / "audit-page"
    with tempfile.TemporaryDirectory() as scratch:
        folder, source = Path(scratch), data_root / "cifar10"
        given, true = write_inputs(source, folder)
        np.save(folder / "labels.npy", given)
        command = ["audit", f"--features={source / 'features.npz'}:x_train", f"--labels={folder / 'labels.npy'}"]
        command += [f"--names={folder / 'names.txt'}", f"--paths={folder / 'paths.csv'}", f"--images={MOST}"]
        assert jocor_fast([*command, f"--output={folder / 'CIFAR-10N'}"]) == 0
        with Chromium(folder / "profile", WIDTH) as browser:
            browser.call("Emulation.setScrollbarsHidden", hidden=True)
            browser.open(folder / "CIFAR-10N" / "audit.html")
            bottom, shown = browser.run(SHOWN)
            size = {"width": WIDTH, "height": bottom + MARGIN, "deviceScaleFactor": 1, "mobile": False}
            browser.call("Emulation.setDeviceMetricsOverride", **size)
            browser.screenshot(folder / "page.png")
            assert not browser.problems, browser.problems
        picture = io.BytesIO()
        colours = Image.open(folder / "page.png").convert("RGB").quantize(256, dither=Image.Dither.NONE)
        colours.save(picture, "PNG", optimize=True)
    (output / "page.png").write_bytes(picture.getvalue())
    wrong = int((given[shown] != true[shown]).sum())
    figures = {"labels": LABELS, "shown": len(shown), "wrong": wrong, "ids": shown, "machine": machine()}
    (output / "page.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(f"{wrong} of the {len(shown)} labels shown are wrong")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, default=Path(os.environ.get("JOCOR_FAST_DATA", ".")))
    main(parser.parse_args().data_root)
