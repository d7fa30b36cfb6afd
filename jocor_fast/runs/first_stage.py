"""The first stage of a method that has two: its settings, and what its network predicts of the training samples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from jocor_fast.data.samples import InputSource
from jocor_fast.engine.evaluate import EVALUATION_BATCH
from jocor_fast.engine.networks import evaluating
from jocor_fast.engine.settings import TrainSettings
from jocor_fast.machine import derived_seed


def first_stage_settings(settings: TrainSettings, method: str) -> TrainSettings:
    """Return those of the whole run but for the method and the seed: the stages share no weights, no order."""
    return replace(settings, method=method, seed=derived_seed(settings.seed, 2))


@torch.no_grad()
def predicted_probabilities(
    network: nn.Module, source: InputSource, device: torch.device, file_batch: int = EVALUATION_BATCH
) -> np.ndarray:
    """Return a network's probabilities of the training samples, float64 [N, C].

    `file_batch` is how many a source of files was opened for.
    """
    order = torch.arange(len(source), device=device)
    rows = file_batch if source.reads_files else EVALUATION_BATCH
    with evaluating([network]):
        logits = [network(source.network_input(stored)) for _, stored in source.batches(order, rows)]
    probabilities: np.ndarray = torch.cat(logits).double().softmax(1).cpu().numpy()
    return probabilities
