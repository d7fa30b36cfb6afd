"""The paper's eight methods: each against a plain PyTorch loop of three steps; and all from end to end on digits."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine_cases import (
    CLASSES,
    blobs,
    first_batches,
    fit,
    held_out,
    pair_of,
    parameters,
    run,
    same_bits,
    settings,
    small_mlp,
    small_tanh,
)
from jocor_fast import num_keep
from jocor_fast.data.catalogue import load_dataset
from jocor_fast.data.samples import ResidentInputs, Samples, split_ids
from jocor_fast.engine.evaluate import predicted_probabilities
from jocor_fast.engine.optimizer import FusedAdam, PlainSGD
from jocor_fast.engine.plan import plan_epoch
from jocor_fast.errors import RunError
from jocor_fast.machine import derived_seed
from jocor_fast.methods import METHODS, Keep
from jocor_fast.noise.estimate import anchor_percentile, estimate_transition
from jocor_fast.runs.fit import Run

SEED, BATCH, KEPT = 5, 16, 10
PAPERS = [name for name, method in METHODS.items() if method.__module__ == "jocor_fast.methods.paper"]
ROBUST = ("gce", "sce", "nce-rce", "cores")
ONE_NETWORK = ("standard", "standard-plus", "f-correction", *ROBUST)


def smallest(losses: Tensor, k: int) -> Tensor:
    return losses.detach().argsort(stable=True)[:k]


def plain_loss(method: str, z: list[Tensor], y: Tensor, transition: Tensor | None) -> Tensor:
    """A method's loss as one would write it down from the papers: no masks, no kernels, softmax and logarithm."""
    ce = [F.cross_entropy(logits, y, reduction="none") for logits in z]
    if method == "standard":
        return ce[0].mean()
    if method in ("gce", "sce", "nce-rce", "cores"):
        log_p = z[0].log_softmax(1)
        p = (-ce[0]).exp()
        reverse = 4 * math.log(10) * (1 - p)
        normalised = ce[0] / -log_p.sum(1)
        of_method = {"gce": (1 - p**0.7) / 0.7, "sce": 0.1 * ce[0] + reverse, "nce-rce": normalised + reverse}
        return of_method.get(method, ce[0]).mean()
    if method == "standard-plus":
        return ce[0][smallest(ce[0], KEPT)].mean()
    if method == "f-correction":
        return -(z[0].softmax(1) @ transition).gather(1, y[:, None]).log().mean()
    if method == "joint-only":
        return (ce[0] + ce[1])[smallest(ce[0] + ce[1], KEPT)].mean()
    rows = (z[0].argmax(1) != z[1].argmax(1)).nonzero().flatten()
    if method == "decoupling":
        return ce[0][rows].mean() + ce[1][rows].mean() if len(rows) else 0 * (z[0].sum() + z[1].sum())
    among, k = torch.arange(len(y)), KEPT
    if method == "coteaching-plus" and len(rows):
        among, k = rows, num_keep(len(rows), 0.4)
    one, two = among[smallest(ce[0][among], k)], among[smallest(ce[1][among], k)]
    return ce[0][two].mean() + ce[1][one].mean()


@pytest.mark.parametrize("network", [small_mlp, small_tanh], ids=["paired", "separate"])
@pytest.mark.parametrize("method", [*(name for name in PAPERS if name != "jocor"), *ROBUST])
def test_three_steps_equal_a_plain_loop(method: str, network: Any) -> None:
    """Case 33. By SGD: Adam would not show a loss divided twice. (JoCoR: test_engine_step.py, TAkS: below.)"""
    data, transition = blobs(48), None
    mine, theirs = pair_of(network), pair_of(network)
    if method in ONE_NETWORK:
        mine, theirs = mine[:1], theirs[:1]
    changes = {
        "method": method,
        "ramp_epochs": 0,
        "forget_rate": 0.4,
        "epochs": 1,
        "seed": SEED,
        "optimizer": "sgd",
        "lr": 0.3,
    }
    result = fit(settings(**changes), mine, data)
    if method == "f-correction":
        transition = torch.tensor(result.summary["transition"], dtype=torch.float32)

    plain = torch.optim.SGD([p for net in theirs for p in net.parameters()], 0.3)
    for inputs, labels in first_batches(data, BATCH, seed=SEED):
        plain.zero_grad()
        plain_loss(method, [net(inputs) for net in theirs], labels, transition).backward()
        plain.step()

    for ours, expected in zip(mine, theirs, strict=True):
        torch.testing.assert_close(dict(ours.state_dict()), dict(expected.state_dict()), rtol=1e-4, atol=1e-5)


def test_joint_only_is_jocor_without_agreement_bit_for_bit() -> None:
    """Case 33. And its own λ is 0, whatever the setting says."""
    joint, jocor = (
        run(method=method, co_lambda=co_lambda, epochs=2) for method, co_lambda in (("joint-only", 0.9), ("jocor", 0.0))
    )
    assert same_bits(parameters(joint.networks), parameters(jocor.networks))
    other = run(method="jocor", co_lambda=0.9, epochs=2)
    assert not same_bits(parameters(joint.networks), parameters(other.networks))


def outcome(method: str, z: list[Tensor], y: Tensor, keep: Keep, **changes: Any) -> Any:
    made = METHODS[method].of(settings(method=method, **changes).as_dict())
    made.start(y, CLASSES)
    return made.loss(tuple(z), y, keep._replace(samples=torch.arange(len(y))))


def random_batch(rows: int = 24, seed: int = 0) -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    z = [torch.randn(rows, CLASSES, generator=generator, requires_grad=True) for _ in range(2)]
    return z, torch.randint(CLASSES, (rows,), generator=generator)


@pytest.mark.parametrize("method", [name for name in METHODS if name != "f-correction"])
def test_what_a_step_hands_over(method: str) -> None:
    z, y = random_batch()
    z = z[: METHODS[method].num_networks]
    step = outcome(method, z, y, Keep(9, 0.625))
    assert len(step.selected) == METHODS[method].num_choices
    assert all(mask.shape == (24,) and mask.dtype == torch.bool for mask in step.selected)
    assert step.per_sample.shape == (24,)
    assert not step.per_sample.requires_grad
    assert step.loss.requires_grad
    ce = sum(F.cross_entropy(logits, y, reduction="none") for logits in z)
    if method in PAPERS and method != "jocor":
        torch.testing.assert_close(step.per_sample, ce.detach())
    if method != "joint-optimization" and METHODS[method].num_choices == 1:
        torch.testing.assert_close(step.loss.detach(), step.per_sample[step.selected[0]].mean())
    if METHODS[method].selects and method not in ("coteaching-plus", "taks"):
        assert [mask.sum().item() for mask in step.selected] == [9] * METHODS[method].num_choices


@pytest.mark.parametrize("recipe", ["paper", "published"])
def test_co_teaching_plus_counts_k_among_the_differing_rows_once_it_is_warm(recipe: str) -> None:
    """Case 31; rounded as the recipe rounds."""
    z, y = random_batch()
    differing = z[0].argmax(1) != z[1].argmax(1)
    warm, plus = (
        outcome("coteaching-plus", z, y, Keep(9, 0.625, epoch), recipe=recipe, warmup_epochs=1) for epoch in (1, 2)
    )
    same = outcome("coteaching", z, y, Keep(9, 0.625))
    assert all(map(torch.equal, warm.selected, same.selected))
    exact = (1 - 0.625) * int(differing.sum())
    assert exact != int(exact)
    kept = math.ceil(exact) if recipe == "paper" else math.floor(exact)
    for mask in plus.selected:
        assert mask.sum().item() == kept
        assert not (mask & ~differing).any()


@pytest.mark.parametrize("method", ["standard-plus", "coteaching", "coteaching-plus", "joint-only", "jocor"])
def test_a_step_takes_its_numbers_from_the_device(method: str) -> None:
    z, y = random_batch()
    z = z[: METHODS[method].num_networks]
    on_device = Keep(torch.tensor(9), torch.tensor(0.625, dtype=torch.float64))
    for one, other in zip(
        outcome(method, z, y, Keep(9, 0.625)).selected, outcome(method, z, y, on_device).selected, strict=True
    ):
        assert torch.equal(one, other)


def test_the_warm_up_of_co_teaching_plus_ends_after_its_epochs() -> None:
    chosen = settings(method="coteaching-plus", warmup_epochs=2)
    method, plan = METHODS["coteaching-plus"].of(chosen.as_dict()), plan_epoch(chosen, 3, 100)
    assert [method.phase(epoch) for epoch in (1, 2, 3)] == [True, True, False]
    assert plan.rates.keep == Keep(plan.num_keep, 1 - plan.keep_rate, 3)


# --- Decoupling where nothing differs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_case_32_where_nobody_disagrees_no_parameter_moves(optimizer: str) -> None:
    """Not by the moments of earlier steps either, nor by weight decay."""
    start = torch.linspace(-1, 1, 6)
    mine = nn.Parameter(start.clone())
    steps = {"adam": FusedAdam, "sgd": PlainSGD}[optimizer]([mine], weight_decay=0.1)
    mine.grad = torch.ones(6)
    steps.step(lr=0.1, beta1=0.9, skip=torch.tensor(0.0))
    moved = mine.detach().clone()
    assert not torch.equal(moved, start)
    state = [value.clone() for values in steps.state_dict().values() for value in values]
    mine.grad = torch.zeros(6)
    steps.step(lr=0.1, beta1=0.9, skip=torch.tensor(1.0))
    assert torch.equal(mine, moved)
    assert same_bits(state, [value for values in steps.state_dict().values() for value in values])


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_decoupling_whose_networks_always_agree_has_trained_nothing_and_not_diverged(precision: str) -> None:
    networks = pair_of(small_tanh)
    networks[1].load_state_dict(networks[0].state_dict())
    before = parameters(networks)
    changes = {"method": "decoupling", "epochs": 2, "weight_decay": 0.1, "precision": precision}
    with pytest.warns(UserWarning, match="same weights"):
        result = fit(settings(**changes), networks, blobs(40))
    assert result.summary["status"] == "finished"
    assert [line["train_loss"] for line in result.metrics] == [None, None]
    assert same_bits(before, parameters(networks))


# --- F-correction -----------------------------------------------------------------------------------------------------


def f_correction(
    output: Path | None = None,
    data: Samples | None = None,
    epochs: int = 3,
    held_out_share: float = 0.2,
    **arguments: Any,
) -> Run:
    options = {"transition_val_fraction": held_out_share}
    return fit(
        settings(method="f-correction", epochs=epochs, method_options=options), small_tanh, data or blobs(70),
        test=held_out(45), output=output, **arguments,
    )  # fmt: skip


def transition_of(network: nn.Module, source: ResidentInputs) -> Tensor:
    probabilities = predicted_probabilities(network, source, torch.device("cpu"))
    return torch.from_numpy(estimate_transition(probabilities, anchor_percentile(CLASSES)))


def test_f_correction_estimates_at_the_best_epoch_by_held_out_noisy_labels(tmp_path: Path) -> None:
    """Case 34: the estimate, not the truth. The first stage is a Standard run with a seed of its own."""
    data, seed = blobs(70), derived_seed(0, 2)
    result = f_correction(tmp_path / "run", epochs=8)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    first = json.loads((tmp_path / "run" / "first-stage" / "config.json").read_text())["settings"]
    assert (first["method"], first["epochs"], first["seed"]) == ("standard", 8, seed)
    kept, held = split_ids(70, 14, seed)
    chosen_by = Samples(data.inputs[held], data.labels[held])
    alone, network = settings(method="standard", epochs=8, seed=seed), small_tanh()
    found = fit(alone, small_tanh, data.subset(kept), val=chosen_by, output=tmp_path / "alone").summary
    assert found["best_by_validation"]["epoch"] < 8, "the last epoch must not be the best in this test"
    network.load_state_dict(torch.load(tmp_path / "alone" / "best.pt", weights_only=True)["networks"][0])
    expected = transition_of(network, ResidentInputs(data.inputs, 1 / 255, torch.device("cpu")))
    assert summary["transition"] == result.summary["transition"] == expected.tolist()
    assert f_correction(epochs=8).summary["transition"] == expected.tolist(), "without a folder"
    assert {line["keep_rate"] for line in result.metrics} == {1.0}
    assert [line["epoch"] for line in result.metrics] == list(range(1, 9))


def test_f_correction_without_held_out_labels_estimates_at_the_last_epoch(tmp_path: Path) -> None:
    result = f_correction(tmp_path / "run", held_out_share=0)
    alone = fit(settings(method="standard", epochs=3, seed=derived_seed(0, 2)), small_tanh, blobs(70))
    expected = transition_of(alone.networks[0], ResidentInputs(blobs(70).inputs, 1 / 255, torch.device("cpu")))
    assert result.summary["transition"] == expected.tolist()
    with pytest.raises(ValueError, match=r"^transition_val_fraction must lie in \[0, 1\), got 1"):
        f_correction(held_out_share=1)


def test_a_module_handed_in_is_trained_by_the_second_stage_alone() -> None:
    """The first one trains a copy: the seeds differ, the initial weights are those that were handed in."""
    network, copy_of_it = pair_of(small_tanh)
    copy_of_it.load_state_dict(network.state_dict())
    options = {"transition_val_fraction": 0}
    result = fit(settings(method="f-correction", epochs=1, batch_size=70, method_options=options), network, blobs(70))
    assert result.networks == (network,)
    chosen = settings(method="standard", epochs=1, batch_size=70, seed=derived_seed(0, 2))
    first = fit(chosen, copy_of_it, blobs(70))
    source = ResidentInputs(blobs(70).inputs, 1 / 255, torch.device("cpu"))
    expected = transition_of(first.networks[0], source)
    torch.testing.assert_close(torch.tensor(result.summary["transition"], dtype=torch.float64), expected)


@pytest.mark.parametrize("stops_in", ["first stage", "second stage"])
def test_f_correction_goes_on_in_either_stage(tmp_path: Path, stops_in: str) -> None:
    class Stopped(Exception):
        pass

    stage, whole = "", f_correction(tmp_path / "whole")

    def on_stage(text: str) -> None:
        nonlocal stage
        stage = text

    def stop(event: Any) -> None:
        if stage.startswith(stops_in) and event.epoch == 2:
            raise Stopped

    with pytest.raises(Stopped):
        f_correction(tmp_path / "run", on_stage=on_stage, on_epoch=stop)
    with pytest.raises(RunError, match="holds a run already"):
        f_correction(tmp_path / "run")
    epochs: list[int] = []
    resumed = f_correction(tmp_path / "run", resume=True, on_epoch=lambda event: epochs.append(event.epoch))
    assert epochs == ([3, 1, 2, 3] if stops_in == "first stage" else [3])
    assert same_bits(parameters(resumed.networks), parameters(whole.networks))
    assert resumed.summary["transition"] == whole.summary["transition"]
    again = f_correction(tmp_path / "run", resume=True, on_epoch=stop)
    assert again.summary == resumed.summary


def test_a_run_from_before_labels_were_held_out_goes_on_without(tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    def stop(event: Any) -> None:
        if event.epoch == 2 and (tmp_path / "run" / "checkpoint.pt").exists():  # of the second stage
            raise Stopped

    whole = f_correction(tmp_path / "whole", held_out_share=0)
    with pytest.raises(Stopped):
        f_correction(tmp_path / "run", held_out_share=0, on_epoch=stop)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    checkpoint = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    for settings_of_it in (config["settings"], checkpoint["identity"]):
        del settings_of_it["transition_val_fraction"]
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    torch.save(checkpoint, tmp_path / "run" / "checkpoint.pt")
    resumed = f_correction(tmp_path / "run", resume=True)
    assert same_bits(parameters(resumed.networks), parameters(whole.networks))
    assert f_correction(tmp_path / "run", resume=True).summary == resumed.summary


def test_a_first_stage_that_diverges_ends_the_run_as_diverged(tmp_path: Path) -> None:
    broken = Samples(torch.full((32, 6), torch.nan), torch.zeros(32, dtype=torch.int64))
    result = f_correction(tmp_path / "run", data=broken)
    assert result.summary["status"] == "diverged"
    assert result.summary["diverged"]["reason"].startswith("in the first stage, ")
    assert (result.metrics, result.summary["transition"]) == ([], None)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "diverged"


# --- TAkS -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("perturbation", [0.0, 0.05])
def test_taks_equals_a_plain_loop_over_the_smallest_sums_of_losses(perturbation: float) -> None:
    data, mine, theirs = blobs(60), pair_of(small_tanh)[0], pair_of(small_tanh)[0]
    changes = {"method": "taks", "forget_rate": 0.4, "epochs": 4, "decay_start": 9, "optimizer": "sgd", "lr": 0.3}
    chosen = settings(**changes, seed=SEED, method_options={"perturbation": perturbation})
    result = fit(chosen, mine, data)
    inputs, labels, count = data.inputs.float() / 255, data.labels, num_keep(60, 0.4)
    plain, generator = torch.optim.SGD(theirs.parameters(), 0.3), torch.Generator().manual_seed(SEED)
    sums, right = torch.zeros(60), []
    for epoch in range(1, 5):
        order, noise = torch.randperm(60, generator=generator), torch.randn(60, generator=generator)
        if epoch > 1:
            largest, predicted = theirs(inputs).detach().softmax(1).max(1)
            sums += torch.where(predicted == labels, (1 - largest) / 2, (1 + largest) / 2)
        objective = noise if epoch == 1 else sums + perturbation * math.sqrt(count * 4) * noise
        kept = set(smallest(objective, count).tolist())
        rows = torch.tensor([row for row in order.tolist() if row in kept])[: count // BATCH * BATCH]
        right.append((labels == data.clean_labels)[rows].double().mean().item())
        for batch in rows.split(BATCH):
            plain.zero_grad()
            F.cross_entropy(theirs(inputs[batch]), labels[batch]).backward()
            plain.step()
    torch.testing.assert_close(dict(mine.state_dict()), dict(theirs.state_dict()), rtol=1e-4, atol=1e-5)
    assert [line["label_precision"] for line in result.metrics] == pytest.approx(right)
    assert {line["keep_rate"] for line in result.metrics} == {0.6}


def test_taks_has_no_ramp_and_trains_on_as_many_batches_as_it_chooses() -> None:
    chosen = settings(method="taks", forget_rate=0.8, ramp_epochs=10, batch_size=100)
    plan = plan_epoch(chosen, 1, 1000)
    assert (chosen.ramp_epochs, plan.samples, plan.steps, plan.batch_size) == (0, 200, 2, 100)
    assert plan.keep_rate == pytest.approx(0.2)
    with pytest.raises(ValueError, match="forget_rate must be a number for method 'taks'"):
        settings(method="taks", forget_rate="adaptive")
    few = plan_epoch(chosen, 1, 400)
    assert (few.samples, few.steps, few.batch_size) == (80, 1, 80)


# --- end to end -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_digits_with_a_fifth_of_the_labels_wrong(method: str) -> None:
    digits = load_dataset("digits")
    clean = digits.train.labels
    generator = torch.Generator().manual_seed(0)
    flipped = torch.rand(len(clean), generator=generator) < 0.2
    noisy = torch.where(flipped, (clean + torch.randint(1, 10, clean.shape, generator=generator)) % 10, clean)
    inputs = digits.train.inputs.flatten(1)

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    result = fit(
        settings(method=method, forget_rate=0.2, epochs=12, batch_size=32, lr=3e-3),
        network,
        Samples(inputs, noisy, clean, digits.train.input_scale),
        test=replace(digits.test, inputs=digits.test.inputs.flatten(1)),
    )
    last = result.metrics[-1]
    assert result.summary["status"] == "finished"
    # Decoupling sees half as many samples as others; negative learning takes hundreds of epochs.
    assert last["test_accuracy"] > {"decoupling": 0.6, "nlnl": 0.2}.get(method, 0.85)
    assert last["nonfinite_rows"] == 0
    if METHODS[method].selects:
        assert last["label_precision"] > 0.85
    elif method not in ("decoupling", "nlnl"):
        assert last["label_precision"] == pytest.approx(1 - flipped.float().mean().item(), abs=0.01)
