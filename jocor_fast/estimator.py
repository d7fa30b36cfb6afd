"""`JoCoRClassifier`: JoCoR as a scikit-learn estimator."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from jocor_fast.data.samples import Samples, input_warnings
from jocor_fast.data.sparse import csr_inputs, dense_rows, is_sparse, take_rows
from jocor_fast.engine.networks import probe_classes
from jocor_fast.engine.plan import unfinished_schedule
from jocor_fast.engine.settings import TrainSettings
from jocor_fast.engine.sparse_perceptrons import logits_of
from jocor_fast.errors import ArgumentError, ArgumentValueError
from jocor_fast.machine import resolve_device
from jocor_fast.models.networks import build_model
from jocor_fast.runs.fit import fit
from jocor_fast.schedules import steps_per_epoch

RAMP_STEPS = 400  # what the paper's ramp has at least: a selection by loss that is in force earlier can do harm
LEAST_RAMP_EPOCHS = 10
PREDICTION_BATCH = 1024


class JoCoRClassifier(ClassifierMixin, BaseEstimator):
    """A classifier for data whose labels are partly wrong: two networks that learn together (JoCoR).

    It works in pipelines, grid searches and `cross_val_predict`, and predicts by the mean probability of the networks.
    What the networks get are the numbers of X as float32: scale them first, for instance by a `StandardScaler`.

    >>> from sklearn.datasets import make_blobs
    >>> import jocor_fast as jf
    >>> X, y = make_blobs(300, centers=[[-4, 0], [4, 0]], random_state=0)
    >>> wrong = y.copy()
    >>> wrong[:60] = 1 - wrong[:60]
    >>> classifier = jf.JoCoRClassifier(forget_rate=0.2, epochs=20, random_state=0).fit(X, wrong)
    >>> bool(classifier.score(X, y) > 0.95)
    True

    Args:
        forget_rate: τ in [0, 1), the share of wrong labels that you expect: so many of each batch are left out;
            "adaptive": the share is estimated while the ramp lasts.
        network: "mlp" (one hidden layer), "cnn", the name of a torchvision classifier, or a function of (shape of a
            sample, number of classes) that builds a module which gives logits.
        method: a key of `jocor_fast.methods.METHODS`.
        co_lambda: λ in [0, 1], the weight of the agreement between the networks.
        ramp_epochs: T_k, epochs until the full forget rate; None: as many as make 400 steps, at least 10, at most half
            of all.
        epochs: passes over the data; the learning rate falls to zero from 0.4 · epochs on.
        batch_size: rows of a step; small data need small batches.
        lr: Adam's learning rate.
        device: "auto", "cpu", "cuda" or "cuda:N".
        precision: "float32", "bfloat16" or "float16".
        class_weights: "balanced", or a number for each class, in sorted order: how much its samples count in the loss.
        label_smoothing: ε in [0, 1], the part of each label to spread evenly over the classes.
        selection_per_class: whether each class keeps the same share of its samples.
        balanced_ramp: whether each class does so while the ramp lasts: none is then dropped before it is learnt.
        random_state: initial weights and batches: an int, a RandomState or None (new ones for each fit).

    Attributes:
        classes_: the labels, in the order of the columns of `predict_proba`.
        networks_: the trained modules, on the CPU, in evaluation mode.
        metrics_: a dict an epoch, as in metrics.jsonl.
        n_iter_: epochs trained.
        n_features_in_: columns of X.
    """

    def __init__(
        self,
        forget_rate: float | str = 0.2,
        *,
        network: str | Callable[[Sequence[int], int], nn.Module] = "mlp",
        method: str = "jocor",
        co_lambda: float = 0.9,
        ramp_epochs: int | None = None,
        epochs: int = 100,
        batch_size: int = 32,
        lr: float = 1e-3,
        device: str = "auto",
        precision: str = "float32",
        class_weights: str | Sequence[float] | None = None,
        label_smoothing: float = 0.0,
        selection_per_class: bool = False,
        balanced_ramp: bool = False,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.forget_rate = forget_rate
        self.network = network
        self.method = method
        self.co_lambda = co_lambda
        self.ramp_epochs = ramp_epochs
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.device = device
        self.precision = precision
        self.class_weights = class_weights
        self.label_smoothing = label_smoothing
        self.selection_per_class = selection_per_class
        self.balanced_ramp = balanced_ramp
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> JoCoRClassifier:
        """Train on samples and labels of which some are wrong.

        Args:
            X: [N, features], or [N, ...] for a network that takes such samples; numbers. Of a sparse matrix the first
                layer of "mlp" reads its entries alone; other networks get it in dense batches.
            y: [N], labels of any kind that scikit-learn takes for classes.

        Returns:
            The estimator itself.

        Raises:
            TypeError, ValueError: an argument or a parameter is wrong; the sentence names it.
            RuntimeError: training diverged.
        """
        X, y = validate_data(self, X, y, dtype=np.float32, allow_nd=True, accept_sparse="csr")
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        settings = self._settings(X.shape[0])
        inputs = _inputs(X)
        for sentence in input_warnings("X", inputs):
            warnings.warn(sentence, stacklevel=2)
        samples = Samples(inputs, torch.from_numpy(numbers))
        run = fit(settings, partial(self._build, next(dense_rows(inputs))), samples)
        if run.summary["status"] == "diverged":
            fault = run.summary["diverged"]
            raise RuntimeError(f"training diverged in epoch {fault['epoch']}: {fault['reason']}; a smaller lr may help")
        self.networks_ = tuple(network.cpu() for network in run.networks)
        self.metrics_ = run.metrics
        self.n_iter_ = len(run.metrics)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the mean probabilities of the networks.

        Args:
            X: as for `fit`.

        Returns:
            float64 [N, C], rows that sum to 1, columns in the order of `classes_`.
        """
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float32, allow_nd=True, accept_sparse="csr", reset=False)
        device = resolve_device(self.device)
        networks = [network.to(device) for network in self.networks_]
        inputs, parts = _inputs(X), []
        sparse = is_sparse(inputs)
        logits = logits_of(networks, sparse=sparse)
        with torch.no_grad():
            for numbers in torch.arange(len(inputs)).split(PREDICTION_BATCH):
                rows = take_rows(inputs, numbers) if sparse else inputs[numbers[0] : numbers[-1] + 1]
                shares = [network.double().softmax(1) for network in logits(rows.to(device))]
                parts.append(torch.stack(shares).mean(0).cpu())
        for network in networks:
            network.cpu()
        return torch.cat(parts).numpy()

    def predict(self, X: Any) -> np.ndarray:
        """Return the label of the highest probability for each sample.

        Args:
            X: as for `fit`.

        Returns:
            [N], entries of `classes_`.
        """
        probabilities = self.predict_proba(X)
        labels: np.ndarray = self.classes_[probabilities.argmax(axis=1)]
        return labels

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _build(self, sample: Tensor) -> nn.Module:
        """Return a network for such samples, with an output for each class: `predict` has labels for no others."""
        build = self.network if callable(self.network) else partial(build_model, self.network)
        try:
            network = build(sample.shape, len(self.classes_))
        except ArgumentError as error:
            if error.argument != "model":
                raise
            raise type(error)("network", error.problem) from None
        if isinstance(network, nn.Module):
            device = next((parameter.device for parameter in network.parameters()), sample.device)
            outputs = probe_classes([network], sample[None].to(device), "X")
            if outputs != len(self.classes_):
                rule = f"must have as many outputs as there are classes, {len(self.classes_)}"
                raise ArgumentValueError("network", f"{rule}, got {outputs}")
        return network

    def _settings(self, samples: int) -> TrainSettings:
        """The parameters as the engine takes and checks them."""
        others = ("network", "ramp_epochs", "random_state")
        values = {name: getattr(self, name) for name in self.get_params(deep=False) if name not in others}
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        settings = TrainSettings(**values, seed=seed)
        ramp_epochs = self.ramp_epochs
        if ramp_epochs is None:
            steps = math.ceil(RAMP_STEPS / steps_per_epoch(samples, settings.batch_size, settings.recipe))
            ramp_epochs = min(max(LEAST_RAMP_EPOCHS, steps), settings.epochs // 2)
        settings = replace(settings, ramp_epochs=ramp_epochs)
        unfinished = unfinished_schedule(settings)
        if unfinished is not None:
            warnings.warn(unfinished, stacklevel=3)
        return settings


def _inputs(X: Any) -> Tensor:
    return csr_inputs(X, "X") if is_sparse(X) else torch.from_numpy(np.require(X, requirements=["C", "W"]))
