"""benchmarks/mnist_causes.py: the faults by their numbers, and runs of each experiment, from names to tables."""

from __future__ import annotations

import csv
import gzip
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import jocor_fast as jf
from jocor_fast.files.names import read_json, read_summary
from jocor_fast.methods import METHODS, Keep, StepLoss

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from mnist_causes import make  # noqa: E402
from mnist_causes_runs import CAP, Runs, of_table  # noqa: E402
from mnist_causes_tables import EXPERIMENTS, TABLES_BELOW, collect  # noqa: E402
from published_faults import FALLBACK_STEPS, FaultyCoTeachingPlus, with_faults, with_transition  # noqa: E402
from reproduction_cases import write_tiny_mnist  # noqa: E402

ROWS, CLASSES = 12, 4
GENERATOR = torch.Generator().manual_seed(3)
LOGITS = (torch.randn(ROWS, CLASSES, generator=GENERATOR), torch.randn(ROWS, CLASSES, generator=GENERATOR))
LABELS = torch.arange(ROWS) % CLASSES


def started(*faults: str, recipe: str = "paper") -> FaultyCoTeachingPlus:
    method = with_faults(*faults).of({"recipe": recipe, "warmup_epochs": 0})
    assert isinstance(method, FaultyCoTeachingPlus)
    method.start(LABELS, CLASSES)
    return method


def step(method: FaultyCoTeachingPlus, *logits: torch.Tensor, forget_rate: float = 0.25, epoch: int = 1) -> StepLoss:
    return method.loss(logits or LOGITS, LABELS, Keep(9, forget_rate, epoch))


def test_without_faults_it_is_coteaching_plus() -> None:
    method = METHODS["coteaching-plus"].of({"recipe": "paper", "warmup_epochs": 0})
    ours, theirs = method.loss(LOGITS, LABELS, Keep(9, 0.25)), step(started())
    assert torch.equal(ours.loss, theirs.loss)
    assert all(map(torch.equal, ours.selected, theirs.selected))


def test_the_second_softmax_is_a_cross_entropy_of_probabilities() -> None:
    out = step(started("softmax"))
    p1, p2 = (logits.double().softmax(1) for logits in LOGITS)
    first, second = (cross_entropy(p, LABELS, reduction="none") for p in (p1, p2))
    differ = (p1.argmax(1) != p2.argmax(1)).nonzero()[:, 0]
    k = jf.num_keep(len(differ), 0.25)
    by_first, by_second = (differ[losses[differ].argsort()[:k]] for losses in (first, second))
    assert 1 < k < len(differ)
    assert out.loss.item() == pytest.approx((first[by_second].mean() + second[by_first].mean()).item(), rel=1e-6)


def test_the_second_division_is_by_k() -> None:
    plain, divided = step(started()), step(started("division"))
    k = int(plain.selected[0].sum())
    assert k > 1
    assert divided.loss.item() == pytest.approx(plain.loss.item() / k, rel=1e-6)


def test_where_none_differ_the_fallback_takes_the_whole_batch_and_later_nothing() -> None:
    same = LOGITS[0]
    method, epoch = started("fallback"), 100
    whole = 2 * cross_entropy(same, LABELS).item()
    for batch in range(FALLBACK_STEPS // epoch + 1):
        out = step(method, same, same, epoch=epoch)
        early = epoch * batch < FALLBACK_STEPS
        assert out.loss.item() == pytest.approx(whole if early else 0.0, rel=1e-6)
        assert [int(mask.sum()) for mask in out.selected] == [ROWS * early] * 2
    assert out.skip is None, "Adam's moments move the networks by a loss of zero"
    assert step(started(), same, same).loss.item() < whole, "ours keeps the share R of the batch"
    assert torch.equal(step(method, epoch=epoch).loss, step(started()).loss), "where some differ it changes nothing"


def test_where_rounding_down_keeps_none_the_fallback_keeps_all_that_differ() -> None:
    second = LOGITS[0].clone()
    second[:3] = second[:3].flip(1)
    differ = LOGITS[0].argmax(1) != second.argmax(1)
    assert int(differ.sum()) == 3
    out = step(started("fallback", recipe="published"), LOGITS[0], second, forget_rate=0.75)
    assert torch.equal(out.selected[0], differ)
    assert int(step(started(recipe="published"), LOGITS[0], second, forget_rate=0.75).selected[0].sum()) == 1


@pytest.mark.parametrize("second", ["none", "before", "after"])
def test_a_second_softmax_before_and_after_the_transition_matrix(second: str) -> None:
    matrix = jf.noise.pairflip(CLASSES, 0.4)
    method = with_transition(lambda: matrix, second).of({"transition_val_fraction": 0.2})
    method.prepare(lambda *_: pytest.fail("T is given"))
    logits = LOGITS[0].clone().requires_grad_()
    out = method.loss((logits,), LABELS, Keep(ROWS, 0.0))

    def softmax(numbers: np.ndarray) -> np.ndarray:
        powers = np.exp(numbers)
        return np.asarray(powers / powers.sum(1, keepdims=True))

    p = softmax(LOGITS[0].double().numpy())
    noisy = {"none": p @ matrix, "before": softmax(p) @ matrix, "after": softmax(p @ matrix)}[second]
    rows = -np.log(noisy[np.arange(ROWS), LABELS.numpy()])
    assert out.per_sample.numpy() == pytest.approx(rows, rel=1e-5)
    assert out.loss.item() == pytest.approx(rows.mean(), rel=1e-5)
    out.loss.backward()
    assert logits.grad is not None
    assert logits.grad.abs().sum() > 0


@pytest.fixture
def no_methods_left() -> Iterator[None]:
    """Drops the methods that the runs register."""
    known = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(known)


def test_a_run_of_each_experiment_and_their_tables(
    in_an_empty_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    curves_at_once: None,
    no_methods_left: None,
) -> None:
    write_tiny_mnist(Path("data", "mnist"), 256, 32)
    monkeypatch.setenv("JOCOR_FAST_DATA", "data")
    estimated = of_table("symmetric-0.5", "f-correction", 1)
    names = [
        "1/symmetric-0.5/standard-cap-beta1/seed1",
        "2/symmetric-0.8/coteaching-plus-published-recipe-published/seed1",
        estimated,
        "3/symmetric-0.5/f-correction-estimated-t-softmax-after-cap/seed1",
        "3/asymmetric-0.4/f-correction-true-t-softmax-before/seed1",
        "4/symmetric-0.8/jocor-lambda-0.65/seed1",
    ]
    output = Path("runs")
    assert make(names, output, epochs=2) == 0
    configs = {name: (read_json(output / name / "config.json") or {})["settings"] for name in names}
    assert {settings["batch_size"] for settings in configs.values()} == {128}
    assert (configs[names[0]]["max_batches"], configs[names[0]]["beta1_after"]) == (401, 0.1)
    assert (configs[names[1]]["noise_seed"], configs[names[1]]["forget_rate"]) == (0, 0.8)
    assert configs[names[5]]["co_lambda"] == 0.65
    matrices = [read_summary(output / name)["transition"] for name in names[2:5]]
    assert matrices[0] == matrices[1], "one estimate for all runs"
    assert not (output / names[3] / "first-stage").exists()
    assert matrices[2] == jf.noise.transition_matrix("asymmetric", 10, 0.4, "mnist").tolist()

    written = (output / names[0] / "metrics.jsonl").stat().st_mtime_ns
    assert make(names[:1], output) == 0
    assert (output / names[0] / "metrics.jsonl").stat().st_mtime_ns == written, "a finished run is skipped"
    left = [run.name for run in Runs().in_order() if run.folder(output) is None]
    assert not set(left) & set(names)

    folder = Path("results")
    collect(output, folder)
    readme = folder / "README.md"
    readme.write_text(readme.read_text(encoding="utf-8").replace(TABLES_BELOW, f"Found.\n\n{TABLES_BELOW}"))
    collect(output, folder)
    text = readme.read_text(encoding="utf-8")
    assert text.count("Found.") == 1
    assert all(f"\n## {title}\n" in text for title, _ in EXPERIMENTS)
    assert "not run" in text
    accuracy = read_summary(output / names[4])["last_10_mean"]["test_accuracy"]
    row = next(line for line in text.splitlines() if line.startswith("| the true T, softmax before T |"))
    assert row.split(" | ")[4] == f"{100 * accuracy:.2f}: {100 * (accuracy - 0.8977):+.2f}"
    runs = {line["run"]: line for line in csv.DictReader((folder / "runs.csv").read_text().splitlines())}
    assert set(runs) == set(names)
    assert runs[names[0]]["max_batches"] == str(CAP["max_batches"])
    epochs = list(csv.DictReader(gzip.decompress((folder / "epochs.csv.gz").read_bytes()).decode().splitlines()))
    assert len(epochs) == sum(int(line["epochs"]) for line in runs.values())
    written = {file.name: file.read_bytes() for file in folder.iterdir()}
    collect(Path("empty"), folder)  # what was collected before stays
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == written


def test_the_queue_begins_with_single_seeds_and_names_every_run_once(tmp_path: Path) -> None:
    runs = Runs().in_order()
    assert len({run.name for run in runs}) == len(runs)
    assert {number for run in runs for number in run.experiments} == {1, 2, 3, 4, 5, 6}
    assert all(run.name.endswith("/seed1") for run in runs[:70])
    with pytest.raises(SystemExit, match="no run is named 1/none"):
        make(["1/none"], tmp_path)
