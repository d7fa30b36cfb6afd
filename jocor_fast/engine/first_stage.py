"""The first stage of F-correction: a Standard network, whose predictions of the training samples give the matrix T."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from jocor_fast.engine.evaluate import EVALUATION_BATCH
from jocor_fast.engine.networks import evaluating
from jocor_fast.engine.samples import InputSource
from jocor_fast.engine.settings import TrainSettings
from jocor_fast.transition_estimate import anchor_percentile, estimate_transition

NAME = "standard"  # of its method


def first_stage_settings(settings: TrainSettings) -> TrainSettings:
    """Those of the whole run but for the method and the seed, which is its own: the stages share no weights, no order.

    The seed follows from the run's through NumPy's SeedSequence, which is the same everywhere.
    """
    (word,) = np.random.SeedSequence([settings.seed, 2]).generate_state(1, np.uint64)
    return replace(settings, method=NAME, seed=int(word >> np.uint64(1)))


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
