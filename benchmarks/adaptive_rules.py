"""Rules that estimate the share of wrong labels from a run's own history: what each says after each epoch (adaptive/).

JoCoR is trained with the true share, ramped as usual, and after each epoch every rule is given the history: on kinds
and rates of noise on MNIST that the paper's table has not, on features of CIFAR-10, and on digits whose pixels of 0 to
16 are taken for 0 to 255, of which networks learn slowly. `--adaptive` trains MNIST by the chosen rule instead, and
shows where τ comes to on the paper's four noises and on clean labels.

    python benchmarks/adaptive_rules.py [--data-root DIR] [--sets digits mnist features]
    python benchmarks/adaptive_rules.py --adaptive
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import betaln
from sklearn.mixture import GaussianMixture

import jocor_fast as jf
from jocor_fast.data.catalogue import load_dataset
from jocor_fast.data.samples import Samples
from jocor_fast.diagnosis.wrong_labels import audit_history
from jocor_fast.engine import loop
from jocor_fast.engine.history import SampleHistory
from jocor_fast.engine.loop import EpochEvent, Observer
from jocor_fast.engine.networks import build_networks
from jocor_fast.engine.settings import ADAPTIVE, TrainSettings
from jocor_fast.engine.state import TrainingState
from jocor_fast.machine import seeded_generators
from jocor_fast.models.networks import mlp
from jocor_fast.noise.estimate import rate_and_rows_of_surest
from jocor_fast.report.tables import TextTable
from record import RESULTS, described

FOLDER = RESULTS / "adaptive"
CLASSES, RAMP = 10, 10
SETS = ("digits", "mnist", "features")
NOISES: dict[str, tuple[tuple[str, float], ...]] = {
    "digits": (("clean", 0.0), ("symmetric", 0.2), ("symmetric", 0.5), ("pairflip", 0.3)),
    "features": (("clean", 0.0), ("symmetric", 0.3), ("pairflip", 0.3)),
    "mnist": (("symmetric", 0.3), ("symmetric", 0.7), ("pairflip", 0.35), ("asymmetric", 0.25)),
}
PAPERS = (("clean", 0.0), ("symmetric", 0.2), ("symmetric", 0.5), ("symmetric", 0.8), ("asymmetric", 0.4))
BATCH = {"digits": 32, "mnist": 128, "features": 128}
EM_STEPS = 30
SHOWN = (1, 2, 4, 6, 8, 10, 12)


def gaussian_mixture(losses: np.ndarray) -> float:
    """The weight of the upper of two normal distributions of the losses (DivideMix)."""
    scaled = _scaled(losses)
    mixture = GaussianMixture(2, max_iter=EM_STEPS, reg_covar=5e-4, random_state=0).fit(scaled[:, None])
    return float(mixture.weights_[mixture.means_[:, 0].argmax()])


def beta_mixture(losses: np.ndarray) -> float:
    """The weight of the upper of two beta distributions of the losses (Arazo et al. 2019)."""
    x = np.clip(_scaled(losses), 1e-3, 1 - 1e-3)[:, None]
    a, b, weight = np.array([1.0, 2.0]), np.array([2.0, 1.0]), np.array([0.5, 0.5])
    for _ in range(EM_STEPS):
        density = np.log(weight) + (a - 1) * np.log(x) + (b - 1) * np.log1p(-x) - betaln(a, b)
        part = np.exp(density - density.max(1, keepdims=True))
        part /= part.sum(1, keepdims=True)
        weight = part.mean(0)
        mean = (part * x).mean(0) / weight
        spread = (part * (x - mean) ** 2).mean(0) / weight
        total = np.maximum(mean * (1 - mean) / (spread + 1e-6) - 1, 0.1)
        a, b = mean * total, (1 - mean) * total
    return float(weight[mean.argmax()])


def _scaled(losses: np.ndarray) -> np.ndarray:
    low, high = np.quantile(losses, [0.0, 0.999])
    return np.clip((losses - low) / (high - low), 0.0, 1.0)


def of_surest(share: float) -> Callable[[SampleHistory], float]:
    def rule(history: SampleHistory) -> float:
        assert history.certainty is not None
        prediction = history.predictions().numpy()
        seen, agreed = prediction[0] >= 0, prediction[0] == prediction[1]
        certainty = history.certainty.numpy() * agreed
        labels = history.labels.numpy()
        return rate_and_rows_of_surest(labels[seen], prediction[0][seen], certainty[seen], CLASSES, share)[0]

    return rule


def contradicted(history: SampleHistory) -> float:
    """The share of labels that both networks contradict with one voice, of those that they agree on."""
    prediction = history.predictions().numpy()
    agreed = (prediction[0] >= 0) & (prediction[0] == prediction[1])
    return float((prediction[0] != history.labels.numpy())[agreed].mean())


def _seen_losses(history: SampleHistory) -> np.ndarray:
    losses = history.losses().double().numpy()
    return losses[~np.isnan(losses)]


RULES: dict[str, Callable[[SampleHistory], float]] = {
    "surest 30 % of each prediction": of_surest(0.3),
    "surest 10 %": of_surest(0.1),
    "surest 50 %": of_surest(0.5),
    "contradicted": contradicted,
    "the audit's share": lambda history: audit_history(history.statistics(), CLASSES).share,
    "Gaussian mixture": lambda history: gaussian_mixture(_seen_losses(history)),
    "beta mixture": lambda history: beta_mixture(_seen_losses(history)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, default=Path(os.environ.get("JOCOR_FAST_DATA", ".")))
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=7, help="of the networks and the noise; 1 with --adaptive")
    parser.add_argument("--adaptive", action="store_true")
    arguments = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in ["mnist"] if arguments.adaptive else arguments.sets:
        inputs, true = loaded(name, arguments.data_root)
        for kind, rate in PAPERS if arguments.adaptive else NOISES[name]:
            seed = 1 if arguments.adaptive else arguments.seed
            given = true if kind == "clean" else torch.from_numpy(jf.noise.corrupt(true, matrix(kind, rate), seed=seed))
            wrong = float((given != true).double().mean())
            tau = ADAPTIVE if arguments.adaptive else wrong
            lines = trained(name, Samples(inputs, given, true), tau, seed, arguments.epochs)
            where = {"set": name, "noise": kind, "rate": rate, "wrong": wrong, "seed": seed}
            write(where, lines, "adaptive" if arguments.adaptive else "rules")


def loaded(name: str, root: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and true labels."""
    if name != "features":
        train = load_dataset(name, root).train
        assert isinstance(train.inputs, torch.Tensor)
        return train.inputs, train.labels
    stored = np.load(root / "cifar10" / "features.npz")["x_train"].astype(np.float32)
    clean = np.load(root / "cifar10" / "cifar10n_labels.npz")["clean_label"].astype(np.int64)
    return torch.from_numpy(stored), torch.from_numpy(clean)


def matrix(kind: str, rate: float) -> np.ndarray:
    if kind == "asymmetric":
        return jf.noise.asymmetric("mnist", rate)
    return (jf.noise.symmetric if kind == "symmetric" else jf.noise.pairflip)(CLASSES, rate)


class _Asked(Observer):
    """What the rules say after each epoch."""

    def __init__(self, state: TrainingState, rules: dict[str, Callable[[SampleHistory], float]]) -> None:
        self.state, self.rules = state, rules
        self.lines: list[dict[str, Any]] = []

    def on_epoch(self, event: EpochEvent) -> None:
        told = {name: rule(self.state.history) for name, rule in self.rules.items()}
        metrics = {name: event.metrics[name] for name in ("epoch", "keep_rate", "forget_rate", "label_precision")}
        self.lines.append({**metrics, **told})


def trained(name: str, data: Samples, tau: float | str, seed: int, epochs: int) -> list[dict[str, Any]]:
    """The lines of a run's first epochs."""
    co_lambda = 0.95 if name == "mnist" else 0.9
    settings = TrainSettings(
        forget_rate=tau, co_lambda=co_lambda, ramp_epochs=RAMP, batch_size=BATCH[name], seed=seed, device="cpu"
    )
    assert isinstance(data.inputs, torch.Tensor)
    width = data.inputs[0].numel()
    with seeded_generators(seed, torch.device("cpu")):
        networks = build_networks(lambda: mlp(width, CLASSES), 2, "jocor", torch.device("cpu"))
        state = TrainingState(settings, networks, data, None, None, torch.device("cpu"))
        if tau != ADAPTIVE:
            state.history = SampleHistory(state.labels, 2, certainties=True)
        asked = _Asked(state, {} if tau == ADAPTIVE else RULES)
        loop.train(state, range(1, epochs + 1), asked)
    return asked.lines


def write(where: dict[str, Any], lines: list[dict[str, Any]], name: str) -> None:
    """Add a run, in place of an earlier one of the same data, and write the table anew."""
    path = FOLDER / f"{name}.json"
    runs = json.loads(path.read_text()) if path.exists() else []
    same = tuple(where)[:3]
    runs = [run for run in runs if any(run[key] != where[key] for key in same)]
    runs.append({**where, "epochs": lines, "machine": described()})
    path.write_text(json.dumps(runs, indent=1) + "\n")
    rows = []
    for run in runs:
        what = f"{run['set']}, {run['noise']}" + (f" {100 * run['rate']:g} %" if run["rate"] else "")
        title = f"{what}: {100 * run['wrong']:.1f} % wrong"
        for told in (
            told for told in run["epochs"][0] if told in RULES or (name == "adaptive" and told == "forget_rate")
        ):
            by_epoch = {line["epoch"]: line[told] for line in run["epochs"]}
            shown = [f"{100 * by_epoch[epoch]:.1f}" if epoch in by_epoch else "" for epoch in SHOWN]
            rows.append((title, "τ" if told == "forget_rate" else told, *shown))
    table = TextTable(("data", "rule", *(f"epoch {epoch}" for epoch in SHOWN)), rows, text_columns=2).markdown()
    (FOLDER / f"{name}.md").write_text(f"The estimated share of wrong labels, in %.\n\n{table}\n\n{described()}\n")
    print(table, flush=True)


if __name__ == "__main__":
    main()
