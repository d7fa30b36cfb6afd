"""Time an epoch on sparse inputs against the same matrix made dense: 20,000 × 50,000 TF-IDF, 0.2 % filled, two layers.

    python benchmarks/sparse_inputs.py            # epochs: processes of either kind take turns
    python benchmarks/sparse_inputs.py --kernels  # the first layer alone, also at the shape and the zeros of MNIST

Words come as in texts, the k-th most frequent one with a share of about 1 / k ("zipf"), or all equally often
("uniform"), which touches the most weights a step. Memory is the peak of a process while it trains, less what it held
before (the matrix too), in multiples of the CSR matrix.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse
import torch
from sklearn.feature_extraction.text import TfidfTransformer

import jocor_fast as jf
import record
from jocor_fast.data.sparse import csr_inputs
from jocor_fast.engine import sparse_perceptrons
from jocor_fast.engine.sparse_perceptrons import _plain_gradient, _plain_linear, sparse_linear, sparse_linear_gradient
from jocor_fast.models.networks import mlp

SAMPLES, WORDS, A_TEXT, CLASSES, HIDDEN, BATCH = 20_000, 50_000, 100, 10, 256, 128
ROUNDS, EPOCHS = 2, {"sparse": 4, "dense": 2}  # the first of which is not counted


def texts(kind: str, samples: int = SAMPLES) -> tuple[scipy.sparse.csr_matrix, np.ndarray]:
    """TF-IDF of some 100 different words a text, most of them of all classes, some of its own; 40 % of labels wrong."""
    generator = np.random.default_rng(0)
    labels = generator.integers(CLASSES, size=samples)
    share = 1 / np.arange(20, WORDS + 20) if kind == "zipf" else np.full(WORDS, 1.0)
    drawn = generator.choice(WORDS, size=(samples, 2 * A_TEXT), p=share / share.sum())
    drawn[:, ::8] = drawn[:, ::8] // CLASSES * CLASSES + labels[:, None]
    rows = [np.unique(row, return_index=True)[1] for row in drawn]
    columns = np.concatenate([row[np.sort(first)[:A_TEXT]] for row, first in zip(drawn, rows, strict=True)])
    lengths = [min(len(first), A_TEXT) for first in rows]
    counts = generator.geometric(0.7, size=len(columns)).astype(np.float32)
    matrix = scipy.sparse.csr_matrix((counts, columns, np.cumsum([0, *lengths])), shape=(samples, WORDS))
    wrong = generator.random(samples) < 0.4
    noisy = np.where(wrong, generator.integers(CLASSES, size=samples), labels)
    return TfidfTransformer().fit_transform(matrix).astype(np.float32), noisy


def memory(name: str) -> int:
    """Bytes that this process has ("VmRSS"), or has had at most ("VmHWM")."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])


def trained(kind: str, way: str) -> dict[str, Any]:
    """Train in this process; return seconds an epoch and memory."""
    matrix, labels = texts(kind)
    inputs = matrix if way == "sparse" else matrix.toarray()
    if way == "dense":
        sparse_perceptrons.MOST_FILLED = 0.0  # else they would be made sparse
    size = matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes
    if way == "dense":
        del matrix
    settings: dict[str, Any] = {"forget_rate": 0.4, "ramp_epochs": 1, "batch_size": BATCH, "device": "cpu"}
    few = inputs[:512, :HIDDEN], labels[:512]  # for what torch and its libraries hold from their first use on
    jf.train(lambda: mlp(HIDDEN, CLASSES, 8), few, epochs=1, **settings)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = memory("VmRSS")
    run = jf.train(network, (inputs, labels), epochs=EPOCHS[way], **settings)
    weights = sum(p.numel() * p.element_size() for module in run.networks for p in module.parameters())
    return {
        "seconds": [line["seconds"] for line in run.metrics][1:],
        "losses": [line["train_loss"] for line in run.metrics],
        "matrix_bytes": size,
        "weights_bytes": weights,
        "peak_bytes": memory("VmHWM") - before,
        "steps": run.summary["environment"]["steps"],
    }


def network() -> torch.nn.Module:
    return mlp(WORDS, CLASSES, HIDDEN)


def measure_epochs(output: Path) -> None:
    runs: dict[str, list[dict[str, Any]]] = {}
    for _ in range(ROUNDS):
        for kind, way in (("zipf", "sparse"), ("uniform", "sparse"), ("zipf", "dense")):
            ran = subprocess.run([sys.executable, __file__, "--child", kind, way], capture_output=True, text=True)
            if ran.returncode:
                raise SystemExit(ran.stderr)
            runs.setdefault(f"{kind}, {way}", []).append(json.loads(ran.stdout.splitlines()[-1]))
    dense = statistics.median(s for run in runs["zipf, dense"] for s in run["seconds"])
    lines = ["| words, inputs | an epoch | of the dense way | peak over the CSR matrix | without weights and Adam |"]
    lines.append("| --- | ---: | ---: | ---: | ---: |")
    for name, found in runs.items():
        seconds = statistics.median(s for run in found for s in run["seconds"])
        size, peak = found[0]["matrix_bytes"], max(run["peak_bytes"] for run in found)
        rest = peak - 3 * found[0]["weights_bytes"]
        lines.append(
            f"| {name} | {seconds:.2f} s | {dense / seconds:.1f}× faster | {peak / size:.1f} | {rest / size:.1f} |"
        )
    text = f"{__doc__}\n" + "\n".join(lines) + f"\n\n{record.described()}\n"
    record.write("sparse_inputs", text, {"runs": runs}, output)


def median_us(work: Callable[[], object]) -> float:
    times = []
    for _ in range(60):
        started = perf_counter()
        work()
        times.append(perf_counter() - started)
    return 1e6 * statistics.median(times[10:])


def layer_times(matrix: scipy.sparse.csr_matrix) -> dict[str, dict[str, float]]:
    """Microseconds of the first layer of two networks on these rows, by direction and way."""
    batch, inputs = csr_inputs(matrix, "batch"), matrix.shape[1]
    pair_of = [mlp(inputs, CLASSES, HIDDEN) for _ in range(2)]
    width = sparse_perceptrons.SparsePerceptrons(pair_of).first_weight.shape[1]  # as the trainer stores it
    parts, rows = (batch.crow_indices(), batch.col_indices(), batch.values()), torch.arange(BATCH)
    weight, bias, grad = torch.randn(inputs, width), torch.randn(width), torch.randn(BATCH, width)
    shared, pair = batch.to_dense().expand(2, -1, -1), torch.randn(2, HIDDEN, inputs)
    pair_grad, out = torch.randn(2, BATCH, HIDDEN), torch.empty(2, HIDDEN, inputs)
    return {
        "forward": {
            "ours": median_us(lambda: sparse_linear(*parts, weight, bias)),
            "plain": median_us(lambda: _plain_linear(*parts, weight, bias)),
            "dense": median_us(lambda: torch.bmm(shared, pair.transpose(1, 2))),
        },
        "gradient": {
            "ours": median_us(lambda: sparse_linear_gradient(*parts, rows, grad, inputs)),
            "plain": median_us(lambda: _plain_gradient(*parts, rows, grad, inputs)),
            "dense": median_us(lambda: torch.bmm(pair_grad.transpose(1, 2), shared, out=out)),
        },
    }


def measure_kernels(output: Path) -> None:
    pixels = scipy.sparse.random(BATCH, 784, 0.19, "csr", np.float32, random_state=0)
    found = {
        "128 × 784, 19 % filled": layer_times(pixels),
        "128 × 50,000, 0.2 % filled": layer_times(texts("zipf", BATCH)[0]),
    }
    lines = ["| rows | direction | ours | plain torch on CSR | dense products |", "| --- | --- | ---: | ---: | ---: |"]
    for name, directions in found.items():
        for direction, ways in directions.items():
            lines.append(f"| {name} | {direction} | " + " | ".join(f"{us:,.0f} µs" for us in ways.values()) + " |")
    text = "The first layer of two networks of 256, medians.\n\n" + "\n".join(lines) + f"\n\n{record.described()}\n"
    record.write("sparse_kernels", text, {"microseconds": found}, output)


def main() -> None:
    parser = record.parser(__doc__)
    parser.add_argument("--kernels", action="store_true", help="time the first layer alone")
    parser.add_argument("--child", nargs=2, metavar=("WORDS", "WAY"), help="train in this process")
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(trained(*arguments.child)))
    elif arguments.kernels:
        measure_kernels(arguments.output)
    else:
        measure_epochs(arguments.output)


if __name__ == "__main__":
    main()
