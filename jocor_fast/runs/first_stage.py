"""The first stage of F-correction: a Standard network, whose predictions of the training samples give the matrix T."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from jocor_fast.data.samples import InputSource
from jocor_fast.engine.evaluate import EVALUATION_BATCH
from jocor_fast.engine.networks import evaluating
from jocor_fast.engine.settings import TrainSettings
from jocor_fast.machine import derived_seed
from jocor_fast.noise.estimate import anchor_percentile, estimate_transition


def first_stage_settings(settings: TrainSettings) -> TrainSettings:
    """Those of the whole run but for the method and the seed: the stages share no weights, no order."""
    return replace(settings, method="standard", seed=derived_seed(settings.seed, 2))


@torch.no_grad()
def estimate_from_network(
    network: nn.Module, source: InputSource, device: torch.device, file_batch: int = EVALUATION_BATCH
) -> Tensor:
    """T, float64 [C, C] on the CPU, from a trained network and the inputs of the training samples.

    `file_batch` is how many a source of files was opened for.
    """
    order = torch.arange(len(source), device=device)
    rows = file_batch if source.reads_files else EVALUATION_BATCH
    with evaluating([network]):
        logits = [network(source.network_input(stored)) for _, stored in source.batches(order, rows)]
    probabilities = torch.cat(logits).double().softmax(1).cpu().numpy()
    return torch.from_numpy(estimate_transition(probabilities, anchor_percentile(probabilities.shape[1])))
