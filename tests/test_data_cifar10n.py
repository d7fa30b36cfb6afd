"""CIFAR-10N on frozen features: its files, which labels are trained on and which are the truth, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from jocor_fast.config.resolve import resolve
from jocor_fast.config.task import build_task
from jocor_fast.data.catalogue import find_dataset, load_dataset
from jocor_fast.data.memory.cifar10n import LABEL_SETS
from jocor_fast.errors import ConfigError, DataError

TRUE = np.arange(40) % 10
GIVEN = {key: (TRUE + (np.arange(40) < wrong)) % 10 for wrong, key in enumerate(LABEL_SETS.values(), start=4)}
DRAWN = np.random.default_rng(0).normal(3, [1, 0.5, 0.1], (60, 3))


def write_files(folder: Path, *, published: bool = False, **others: np.ndarray) -> Path:
    folder.mkdir(parents=True)
    np.savez(folder / "features.npz", x_train=DRAWN[:40].astype(np.float16), x_test=DRAWN[40:], **others)
    labels = {"clean_label": TRUE, **GIVEN}
    if published:
        torch.save(labels, folder / "CIFAR-10_human.pt")
    else:
        np.savez(folder / "cifar10n_labels.npz", **labels)
    return folder


@pytest.mark.parametrize("published", [True, False], ids=["pt", "npz"])
@pytest.mark.parametrize("below", ["", "cifar10", "cifar10n-worst"])
def test_the_given_labels_are_trained_on_and_the_true_ones_known(tmp_path: Path, below: str, published: bool) -> None:
    folder = write_files(tmp_path / "root" / below, published=published, y_test=TRUE[:20])
    assert find_dataset("cifar10n-worst", tmp_path / "root") == folder
    dataset = load_dataset("cifar10n-worst", tmp_path / "root")
    assert (dataset.num_classes, dataset.input_shape, dataset.val) == (10, (3,), None)
    assert dataset.train.labels.tolist() == GIVEN["worse_label"].tolist()
    assert dataset.train.clean_labels.tolist() == TRUE.tolist()
    assert dataset.test.labels.tolist() == TRUE[:20].tolist()
    inputs = dataset.train.arrays()[0]
    assert inputs.dtype == np.float32
    assert inputs.mean(0) == pytest.approx(np.zeros(3), abs=1e-5)
    assert inputs.var(0).mean() == pytest.approx(1, abs=1e-4)
    assert inputs.std(0)[0] > 3 * inputs.std(0)[2], "the columns keep their spreads"


def test_every_set_has_its_own_labels(tmp_path: Path) -> None:
    write_files(tmp_path / "cifar10", y_test=TRUE[:20])
    for name, key in LABEL_SETS.items():
        task = build_task(resolve({"dataset": f"cifar10n-{name}", "data_root": str(tmp_path)}))
        assert task.given_labels.tolist() == GIVEN[key].tolist()
        assert task.realised_noise_rate == (GIVEN[key] != TRUE).mean()
        assert task.nominal_noise_rate is None


def test_test_labels_may_lie_next_to_the_features(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "cifar10")
    with pytest.raises(DataError, match=r"features\.npz must hold the test images' labels as y_test$"):
        load_dataset("cifar10n-aggregate", tmp_path)
    np.savez(folder / "cifar10_jpeg.npz", test_labels=TRUE[20:].astype(np.uint8))
    assert load_dataset("cifar10n-aggregate", tmp_path).test.labels.tolist() == TRUE[20:].tolist()


def test_what_is_absent_or_does_not_fit_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^cifar10n-worst is not in .*CIFAR-10_human\.pt from https://github\.com"):
        load_dataset("cifar10n-worst", tmp_path)
    folder = write_files(tmp_path / "cifar10", y_test=TRUE[:20])
    np.savez(folder / "cifar10n_labels.npz", clean_label=TRUE[:30], worse_label=TRUE)
    with pytest.raises(DataError, match=r"clean_label holds 30 labels, the data set has 40 samples"):
        load_dataset("cifar10n-worst", tmp_path)
    with pytest.raises(ConfigError, match=r"the labels of cifar10n-worst are noisy as they are"):
        resolve({"dataset": "cifar10n-worst", "noise_rate": "0.2"})


def test_the_published_shares_are_wrong(data_root: Path) -> None:
    if find_dataset("cifar10n-worst", data_root) is None:
        pytest.skip("JOCOR_FAST_DATA has no features and labels of CIFAR-10N")
    train = load_dataset("cifar10n-worst", data_root).train
    assert (train.labels != train.clean_labels).double().mean() == pytest.approx(0.4021, abs=0.001)
