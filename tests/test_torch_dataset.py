"""`jf.train` on a torch Dataset: what it trains to, what its transforms draw, and what ends it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import jocor_fast as jf
from engine_cases import blobs, held_out, parameters, same_bits, small_cnn, without_timings
from jocor_fast.data.torch_dataset import DatasetInputs

QUICK: dict[str, Any] = {"forget_rate": 0.4, "epochs": 3, "ramp_epochs": 2, "batch_size": 16, "device": "cpu"}
DATA = blobs(70, (3, 8, 8))
TEST = held_out(45, (3, 8, 8))


class Samples(Dataset[Any]):
    """`give(i)` of each of so many samples."""

    def __init__(self, count: int, give: Callable[[int], Any]) -> None:
        self.count = count
        self.give = give

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, sample: int) -> Any:
        return self.give(sample)


def restless(sample: int) -> Tensor:
    """A sample that every generator which transforms draw from has a part in."""
    draws = torch.rand(1).item() + np.random.rand() + random.random()  # noqa: NPY002
    return DATA.inputs[sample].float() / 255 + 0.1 * draws


def trained(dataset: Dataset[Any], num_workers: int = 0, **changes: Any) -> jf.Run:
    return jf.train(small_cnn, (dataset, DATA.labels), num_workers=num_workers, **{**QUICK, **changes})


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_dataset_trains_to_the_bits_of_the_same_samples_in_memory(num_workers: int) -> None:
    """Dropout, BatchNorm, evaluation and all; items may come alone or with their labels."""
    arrays = jf.train(small_cnn, (DATA.inputs, DATA.labels), test_data=(TEST.inputs, TEST.labels), **QUICK)
    with_labels = TensorDataset(DATA.inputs, DATA.labels)
    alone = Samples(45, lambda sample: TEST.inputs[sample].numpy())
    run = trained(with_labels, num_workers, test_data=(alone, TEST.labels))
    assert same_bits(parameters(run.networks), parameters(arrays.networks))
    assert without_timings(run.metrics) == without_timings(arrays.metrics)
    assert all(0 <= line["wait_share"] <= 1 for line in run.metrics)


def test_what_transforms_draw_does_not_depend_on_the_number_of_workers_and_differs_by_seed() -> None:
    dataset = Samples(70, restless)
    seen: list[float] = []
    noted = Samples(70, lambda sample: seen.append(value := restless(sample)) or value)
    first = trained(noted)
    assert len({float(value.sum()) for value in seen[2:]}) == len(seen[2:])  # but for the two tried before the run
    assert same_bits(parameters(first.networks), parameters(trained(dataset, 2).networks))
    assert not same_bits(parameters(first.networks), parameters(trained(dataset, seed=1).networks))


def test_the_same_batch_is_another_in_another_epoch_and_the_same_when_it_is_read_again() -> None:
    source = DatasetInputs("train_data", Samples(70, restless), 0, seed=0).open(torch.device("cpu"), 8, training=True)
    once, again, later = (next(source.batches(torch.arange(8), 8, epoch)).stored for epoch in (1, 1, 2))
    assert torch.equal(once, again)
    assert not torch.equal(once, later)


def test_the_callers_generators_are_left_as_they_were() -> None:
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    jf.train(small_cnn, (Samples(70, restless), DATA.labels), num_workers=0, **QUICK)
    assert states == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # noqa: NPY002


def test_a_run_that_was_ended_within_an_epoch_goes_on_with_what_it_would_have_seen(tmp_path: Path) -> None:
    untouched = trained(Samples(70, restless), output=tmp_path / "untouched")
    given = iter(range(10**6))

    def ended(sample: int) -> Tensor:
        if next(given) == 2 + 64 + 16 + 3:  # in the second epoch
            os.kill(os.getpid(), signal.SIGTERM)
        return restless(sample)

    with pytest.raises(SystemExit):
        trained(Samples(70, ended), output=tmp_path / "ended")
    steps = torch.load(tmp_path / "ended" / "checkpoint.pt")["training"]["log"]["step"]
    assert 0 < steps < 4
    resumed = trained(Samples(70, restless), output=tmp_path / "ended", resume=True)
    assert same_bits(parameters(resumed.networks), parameters(untouched.networks))
    assert without_timings(resumed.metrics) == without_timings(untouched.metrics)


def test_f_correction_takes_its_matrix_from_a_dataset() -> None:
    labels = DATA.labels
    on_memory = jf.train(small_tanh_of_images, (DATA.inputs, labels), method="f-correction", **QUICK)
    run = jf.train(
        small_tanh_of_images, (TensorDataset(DATA.inputs), labels), method="f-correction", num_workers=0, **QUICK
    )
    assert run.summary["transition"] == on_memory.summary["transition"]


def small_tanh_of_images() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))


def broken(sample: int) -> Tensor:
    if sample == 33:
        raise OSError("scan 33 is cut off")
    return DATA.inputs[sample]


def of_two_shapes(sample: int) -> Tensor:
    return DATA.inputs[sample][:, : 7 + sample % 2]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sample_that_cannot_be_had_ends_the_run_with_its_number_and_where_it_arose(num_workers: int) -> None:
    with pytest.raises(
        ValueError, match=r"^train_data: sample 33 cannot be had: OSError: scan 33 is cut off$"
    ) as error:
        trained(Samples(70, broken), num_workers)
    assert "in broken" in str(error.value.__cause__)


@pytest.mark.parametrize(
    ("give", "message"),
    [
        (lambda sample: Image.new("RGB", (8, 8)), "must be a tensor or an array, got Image; let its transforms end in"),
        (lambda sample: {"image": DATA.inputs[sample]}, "sample 0 must be a tensor or an array, got dict$"),
        (lambda sample: (), "sample 0 must be a tensor or an array, got tuple$"),
        (
            lambda sample: DATA.inputs[sample].bool(),
            "sample 0 must be uint8, floating, int32 or int64, got torch.bool$",
        ),
        (lambda sample: np.array(["a"]), "sample 0: can't convert np.ndarray of type numpy.str_"),
        (lambda sample: DATA.inputs[sample].to_sparse(), "sample 0 must be a dense tensor, got a sparse_coo one$"),
        (of_two_shapes, r"samples of a batch must be of one shape, got \(3, 7, 8\) and \(3, 8, 8\)$"),
    ],
)
def test_samples_that_no_network_takes_are_refused_before_the_run(give: Callable[[int], Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"^train_data: .*{message}"):
        trained(Samples(70, give))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(DATA.inputs)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (TensorDataset(DATA.inputs), TypeError, r"must be a pair \(.*, got TensorDataset; give \(dataset, labels\)$"),
        ((Stream(), DATA.labels), TypeError, "inputs must be a Dataset with a length, got Stream$"),
        ((Samples(0, restless), DATA.labels[:0]), ValueError, "at least one sample, got a Dataset of none$"),
        ((TensorDataset(DATA.inputs), DATA.labels[:9]), ValueError, "for each of its 70 inputs, got 9 labels$"),
        ((DataLoader(TensorDataset(DATA.inputs)), DATA.labels), TypeError, "got a DataLoader; give its dataset$"),
    ],
)  # fmt: skip
def test_data_that_are_no_dataset_with_labels_are_refused(data: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^train_data.*{message}"):
        jf.train(small_cnn, data, num_workers=0, **QUICK)


def test_a_negative_number_of_workers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^num_workers must be at least 0, got -1$"):
        trained(TensorDataset(DATA.inputs), -1)


SCRIPT = """
import os, signal, sys, torch, jocor_fast as jf
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 200
    def __getitem__(self, sample):
        if torch.utils.data.get_worker_info() is not None and sample == 100:
            os.killpg(0, signal.SIGTERM)  # as a scheduler does, or `timeout`
        return torch.full((4,), float(sample))
if __name__ == "__main__":
    labels = torch.arange(200) % 2
    jf.train(lambda: torch.nn.Linear(4, 2), (Slow(), labels), forget_rate=0.2, epochs=50, output=sys.argv[1],
             batch_size=20, num_workers=2, device="cpu")
"""


def test_a_signal_to_the_whole_process_group_ends_the_run_at_a_checkpoint(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, str(tmp_path)],
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (process.returncode, process.stderr) == (143, "")
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "interrupted"
