"""Whether a fault of Co-teaching+'s published code explains the paper's figures on MNIST that ours miss.

That code takes the softmax of the logits and gives it to a cross-entropy, which takes the softmax again: the loss of a
sample lies between 1.46 and 2.46 whatever the networks say, and a wrong label pulls little. Here networks that end in
a softmax are trained by our methods, whose cross-entropy then is that one; all else is recipe `published`. The
run without the softmax is `jocor-fast train --dataset mnist --noise symmetric --noise-rate 0.2 --noise-seed 1 --method
coteaching-plus --seed 1 --recipe published`. `--method standard` is also what F-correction is where T is the identity,
which is nearly what a network of the whole 200 epochs estimates (f_correction_transition.py).

    python benchmarks/softmax_before_loss.py [--method coteaching-plus] [--noise symmetric] [--noise-rate 0.2]

Writes config.json, metrics.jsonl and summary.json into benchmarks/results/mnist-METHOD-softmax, a folder for each
noise. Stopped, it goes on where it was.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from torch import nn

import jocor_fast as jf
from jocor_fast.data.catalogue import load_dataset
from jocor_fast.models.networks import mlp

RESULTS = Path(__file__).parent / "results"
SEED = 1  # of training and noise
KEPT_FILES = ("config.json", "metrics.jsonl", "summary.json")


def main() -> None:
    """Train, keep the run's files, and print its figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=("standard", "coteaching-plus"), default="coteaching-plus", help="trained")
    parser.add_argument("--noise", choices=("symmetric", "asymmetric"), default="symmetric", help="its kind")
    parser.add_argument("--noise-rate", type=float, default=0.2, help="its rate")
    parser.add_argument("--work", type=Path, default=Path("runs/softmax-before-loss"), help="folder of runs")
    arguments = parser.parse_args()
    name = f"{arguments.noise}-{arguments.noise_rate:g}"
    work = arguments.work / arguments.method / name
    data = load_dataset("mnist")
    assert data.test is not None
    (inputs, labels), test_data = data.train.arrays(), data.test.arrays()
    noise = jf.noise.transition_matrix(arguments.noise, data.num_classes, arguments.noise_rate, "mnist")
    run = jf.train(
        lambda: nn.Sequential(mlp(784, data.num_classes), nn.Softmax(dim=1)),
        (inputs, jf.noise.corrupt(labels, noise, seed=SEED)),
        test_data=test_data,
        clean_labels=labels,
        method=arguments.method,
        forget_rate=jf.noise.expected_rate(noise, labels),
        recipe="published",
        seed=SEED,
        output=work,
        resume=True,
    )
    results = RESULTS / f"mnist-{arguments.method}-softmax" / name
    results.mkdir(parents=True, exist_ok=True)
    for file in KEPT_FILES:
        shutil.copyfile(work / file, results / file)
    print(f"test accuracy {100 * run.summary['last_10_mean']['test_accuracy']:.2f} % over the last ten epochs")


if __name__ == "__main__":
    main()
