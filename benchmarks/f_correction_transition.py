"""How F-correction on MNIST depends on its estimate of the transition matrix T.

`jocor-fast train --method f-correction` estimates T by a Standard network that was trained as long as the run itself.
On MNIST 200 epochs are enough to learn the wrong labels by heart: what such a network predicts of an image of class i
is its label, not how class i is labelled, and T comes out near the identity, with which F-correction is plain training.
Here the same loss is given the true T, and estimates from first stages of fewer epochs; by either recipe; and with
networks that end in a softmax, so that it is taken twice (softmax_before_loss.py).

    python benchmarks/f_correction_transition.py [--noise symmetric] [--noise-rate 0.5] [--first-stages 5,20]
        [--recipe paper] [--softmax-twice]

Writes benchmarks/results/f-correction-transition/NOISE-RATE.json and .md, a line as soon as it is known; what is
there already is not run again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import jocor_fast as jf
from jocor_fast.data.catalogue import load_dataset
from jocor_fast.data.dataset import Dataset
from jocor_fast.data.samples import Samples
from jocor_fast.models.networks import mlp
from jocor_fast.noise.estimate import anchor_percentile, estimate_transition
from jocor_fast.report.tables import TextTable

RESULTS = Path(__file__).parent / "results" / "f-correction-transition"
EPOCHS, BATCH, LR, LAST_EPOCHS = 200, 128, 1e-3, 10
TRUE = "the true T"
SEED = 1  # of training and noise


def estimated(data: Dataset, labels: np.ndarray, epochs: int) -> np.ndarray:
    """T by a Standard network of this many epochs."""
    run = jf.train(
        lambda: mlp(784, data.num_classes),
        (data.train.arrays()[0], labels),
        method="standard",
        forget_rate=0.0,
        epochs=epochs,
        seed=1000 + SEED,
    )
    with torch.no_grad():
        probabilities = run.networks[0](scaled(data.train)).double().softmax(1).numpy()
    return estimate_transition(probabilities, anchor_percentile(data.num_classes))


def classifier(data: Dataset, softmax_twice: bool) -> nn.Module:
    network = mlp(784, data.num_classes)
    return nn.Sequential(network, nn.Softmax(dim=1)) if softmax_twice else network


def scaled(samples: Samples) -> Tensor:
    return torch.from_numpy(samples.arrays()[0]).float().div_(255)


def accuracy(data: Dataset, labels: np.ndarray, transition: np.ndarray, recipe: str, softmax_twice: bool) -> float:
    """Test accuracy, the mean over the last ten epochs, of a network trained with this T by this recipe."""
    assert data.test is not None
    torch.manual_seed(SEED)
    network = classifier(data, softmax_twice)
    optimizer = torch.optim.Adam(network.parameters(), lr=LR)
    inputs, targets, matrix = scaled(data.train), torch.from_numpy(labels), torch.from_numpy(transition)
    test_inputs, test_labels = scaled(data.test), data.test.labels
    steps = jf.schedules.steps_per_epoch(len(targets), BATCH, recipe)
    last_epoch = jf.schedules.trained_epochs(EPOCHS, recipe)
    accuracies = []
    for epoch in range(1, last_epoch + 1):
        for group in optimizer.param_groups:
            group["lr"] = LR * jf.schedules.lr_factor(epoch, epochs=EPOCHS, recipe=recipe)
            group["betas"] = (jf.schedules.adam_beta1(epoch, recipe=recipe), 0.999)
        for rows in torch.randperm(len(targets)).split(BATCH)[:steps]:
            loss = jf.forward_corrected_loss(network(inputs[rows]), targets[rows], matrix)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch > last_epoch - LAST_EPOCHS:
            with torch.no_grad():
                accuracies.append((network(test_inputs).argmax(1) == test_labels).float().mean().item())
    return float(np.mean(accuracies))


def write(results: dict[str, Any], noise: str, rate: float) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{noise}-{rate:g}.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    rows = [
        (source, f"{np.mean(found['diagonal']):.3f}", f"{100 * found['test_accuracy']:.2f}")
        for source, found in results.items()
    ]
    table = TextTable(("T", "mean of its diagonal", "test accuracy, %"), rows).markdown()
    (RESULTS / f"{noise}-{rate:g}.md").write_text(
        f"F-correction on MNIST, {noise} noise at {100 * rate:g} %, {EPOCHS} epochs: the mean over the last "
        f"{LAST_EPOCHS}, by recipe `paper` where no other is named. Made by "
        f"`python benchmarks/f_correction_transition.py --noise {noise} --noise-rate {rate:g}`.\n\n{table}",
        encoding="utf-8",
    )


def main() -> None:
    """Train with each T, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise", choices=("symmetric", "asymmetric"), default="symmetric", help="its kind")
    parser.add_argument("--noise-rate", type=float, default=0.5, help="its rate")
    parser.add_argument("--first-stages", default="5,20", help="epochs of the networks that estimate T")
    parser.add_argument("--recipe", choices=jf.schedules.RECIPES, default="paper", help="of the network with this T")
    parser.add_argument("--softmax-twice", action="store_true", help="networks with this T end in a softmax")
    arguments = parser.parse_args()
    data = load_dataset("mnist")
    true = jf.noise.transition_matrix(arguments.noise, data.num_classes, arguments.noise_rate, "mnist")
    labels = jf.noise.corrupt(data.train.labels, true, seed=SEED)
    path = RESULTS / f"{arguments.noise}-{arguments.noise_rate:g}.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    wanted = {TRUE: 0} | {f"by {n} epochs": int(n) for n in arguments.first_stages.split(",") if n}
    for source, epochs in wanted.items():
        name = source if arguments.recipe == "paper" else f"{source}, recipe {arguments.recipe}"
        if arguments.softmax_twice:
            name += ", softmax taken twice"
        if name in results:
            continue
        transition = true if source == TRUE else estimated(data, labels, epochs)
        print(name, transition.diagonal().round(3), flush=True)
        found = accuracy(data, labels, transition, arguments.recipe, arguments.softmax_twice)
        results[name] = {"diagonal": transition.diagonal().tolist(), "test_accuracy": found}
        write(results, arguments.noise, arguments.noise_rate)
        print(f"  {100 * found:.2f} %", flush=True)


if __name__ == "__main__":
    main()
