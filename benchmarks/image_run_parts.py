"""Where the time of a CPU run on image files goes: reading, decoding, resizing, augmenting, copying, the step.

    python benchmarks/image_run_parts.py [--output DIR]

Writes image_run_parts.md and .json. Each part is timed alone, on one thread, as `--loader pillow` does it; a run has a
thread for each core in both, so the shares are those of its processor time. The step is JoCoR's of two networks:
forward and backward pass, the loss, Adam.
"""

from __future__ import annotations

import io
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

import jocor_fast as jf
from jocor_fast.data.images.image_file import decode_by_pillow, read_bytes
from jocor_fast.data.images.pillow_decoder import PillowDecoder
from jocor_fast.data.images.preprocessing import Draw, Preprocessing
from jocor_fast.models.networks import build_model
from photos import ORIGINAL, write_photos
from record import described, parser, write
from tables import markdown_table

COMMAND = "python benchmarks/image_run_parts.py"
COUNT, CLASSES, REPEATS = 32, 14, 3
# (what a run is, whether its files are prepared, the network, the side of its input)
RUNS = (
    (f"{ORIGINAL[1]}×{ORIGINAL[0]}, resnet18 at 224", False, "resnet18", 224),
    ("prepared at 256×256, resnet18 at 224", True, "resnet18", 224),
    (f"{ORIGINAL[1]}×{ORIGINAL[0]}, cnn at 32", False, "cnn", 32),
    ("prepared at 256×256, cnn at 32", True, "cnn", 32),
)
DRAW = Draw(0.3, 0.6, True)


def milliseconds(work: Callable[[], object], images: int) -> float:
    """Of an image: the median of some repeats, after one that warms up."""
    work()
    taken = []
    for _ in range(REPEATS):
        started = perf_counter()
        work()
        taken.append(1e3 * (perf_counter() - started) / images)
    return statistics.median(taken)


def parts(paths: Sequence[str], model: str, side: int) -> Iterator[tuple[str, float]]:
    preprocessing = Preprocessing((256, 256)).at_size(side)
    decoder = PillowDecoder(preprocessing, torch.device("cpu"))
    files = [read_bytes(path) for path in paths]
    pixels = [torch.from_numpy(decode_by_pillow(data)).permute(2, 0, 1) for data in files]
    height, width = preprocessing.resized(*pixels[0].shape[1:])

    def resized(image: Tensor) -> Tensor:
        return F.interpolate(image[None], size=(height, width), mode="bilinear", antialias=True)[0]

    needs_resizing = (height, width) != tuple(pixels[0].shape[1:])
    whole = [resized(image) if needs_resizing else image for image in pixels]

    def cropped(image: Tensor) -> Tensor:
        top, left = preprocessing.offset(height, width, DRAW)
        return image[:, top : top + side, left : left + side].permute(1, 2, 0).flip(1).contiguous()

    crops = [cropped(image) for image in whole]
    stored = torch.stack(crops).permute(0, 3, 1, 2)
    inputs = decoder.network_input(stored)
    networks = [build_model(model, (3, side, side), CLASSES) for _ in range(2)]
    optimizer = torch.optim.Adam([parameter for network in networks for parameter in network.parameters()], fused=True)
    labels = torch.arange(len(paths)) % CLASSES

    def step() -> None:
        optimizer.zero_grad()
        logits = [network(inputs) for network in networks]
        jf.jocor_loss(logits[0], logits[1], labels, forget_rate=0.2).loss.backward()
        optimizer.step()

    count = len(paths)
    yield "read", milliseconds(lambda: [read_bytes(path) for path in paths], count)
    yield "decode", milliseconds(lambda: [decode_by_pillow(data) for data in files], count)
    yield "resize", milliseconds(lambda: [resized(image) for image in pixels], count) if needs_resizing else 0.0
    yield "crop and mirror", milliseconds(lambda: [cropped(image) for image in whole], count)
    batch = lambda: decoder.network_input(torch.stack(crops).permute(0, 3, 1, 2))  # noqa: E731
    yield "copy, normalise", milliseconds(batch, count)
    yield "step", milliseconds(step, count)


def decoded_smaller(data: bytearray) -> Image.Image:
    """Decode as far as libjpeg's DCT scaling leaves no fewer than 256 pixels a side."""
    with Image.open(io.BytesIO(data)) as image:
        image.draft("RGB", (256, 256))
        image.load()
        return image


def main() -> None:
    asked = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folders: dict[bool, list[str]] = {}
        for prepared in (False, True):
            files = write_photos(Path(scratch, str(prepared)), COUNT, prepared=prepared)
            folders[prepared] = [os.path.join(files.folder, path) for path in files.paths]
        for name, prepared, model, side in RUNS:
            found[name] = dict(parts(folders[prepared], model, side))
        originals = [read_bytes(path) for path in folders[False]]
        smaller = milliseconds(lambda: [decoded_smaller(data) for data in originals], COUNT)
    names = list(next(iter(found.values())))
    rows = []
    for name, of in found.items():
        total = sum(of.values())
        rows.append([name, *(f"{of[part]:.2f} ({100 * of[part] / total:.0f} %)" for part in names), f"{total:.1f}"])
    text = (
        f"Milliseconds of one core for an image, and their share, by `{COMMAND}`: batches of {COUNT}, float32, the "
        "parts of `--loader pillow` alone, then JoCoR's step of two networks.\n\n"
        f"{markdown_table(['run', *names, 'sum'], rows)}\n"
        f"Decoding {ORIGINAL[1]}×{ORIGINAL[0]} at half size by the DCT (Pillow's `draft`, which gives other pixels): "
        f"{smaller:.2f} ms.\n\n{described('threads')}\n"
    )
    write("image_run_parts", text, {"command": COMMAND, "milliseconds": found, "draft": smaller}, asked.output)


if __name__ == "__main__":
    main()
