"""The paper's settings by name, and what an experiment consists of."""

from __future__ import annotations

import pytest

from jocor_fast.config import resolve
from jocor_fast.experiments import EXPERIMENTS, METHOD_TITLES, PRESETS, Cell, Noise, preset_co_lambda
from jocor_fast.methods import METHODS
from jocor_fast.options import OPTIONS
from jocor_fast.schedules import steps_per_epoch


@pytest.mark.parametrize("rate", [0.5, 0.1 * 5, 1 - 0.5, 0.5 + 1e-15])
def test_a_rate_that_is_a_product_finds_its_co_lambda(rate: float) -> None:
    assert preset_co_lambda("cifar10", "symmetric", rate) == 0.9


@pytest.mark.parametrize(
    ("dataset", "noise", "rate"),
    [
        ("cifar10", "symmetric", 0.45),
        ("cifar10", "symmetric-inclusive", 0.5),
        ("cifar10", None, None),
        ("digits", "symmetric", 0.5),
    ],
)
def test_data_and_noise_that_the_authors_did_not_name_have_no_co_lambda(
    dataset: str, noise: str | None, rate: float | None
) -> None:
    assert preset_co_lambda(dataset, noise, rate) is None


def test_presets_name_options_and_give_reasons() -> None:
    for preset in PRESETS.values():
        assert set(preset.settings) <= set(OPTIONS)
        assert set(preset.settings) == set(preset.reasons)


def test_every_method_has_a_title() -> None:
    assert set(METHODS) <= set(METHOD_TITLES)


def test_digits_are_what_the_issue_says() -> None:
    """MLP, batch 32, 200 epochs, T_k 10, λ 0.9, symmetry 50 %, three seeds, Standard and JoCoR."""
    experiment = EXPERIMENTS["digits"]
    cells = experiment.cells()
    assert [cell.method for cell in cells] == ["standard", "jocor"]
    assert experiment.seeds == 3
    settings = cells[1].run_settings(seed=2)
    assert settings == {
        "dataset": "digits", "noise": "symmetric", "noise_rate": 0.5, "noise_seed": 2, "method": "jocor", "seed": 2,
        "model": "mlp", "batch_size": 32, "epochs": 200, "ramp_epochs": 10, "co_lambda": 0.9,
    }  # fmt: skip


def test_the_ramp_of_digits_has_a_few_hundred_steps() -> None:
    """At the paper's batch of 128 it has 110, and JoCoR loses to Standard."""
    settings = EXPERIMENTS["digits"].cells()[0].run_settings(1)
    assert settings["ramp_epochs"] * steps_per_epoch(1437, settings["batch_size"]) >= 400


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_run_of_an_experiment_is_one_that_train_accepts(name: str) -> None:
    for cell in EXPERIMENTS[name].cells(device="cpu"):
        config = resolve({name: str(value) for name, value in cell.run_settings(1).items()})
        assert config["device"] == "cpu"


def test_overrides_replace_settings_of_all_cells() -> None:
    cells = EXPERIMENTS["digits"].cells(("jocor",), epochs=2)
    assert [(cell.method, cell.run_settings(1)["epochs"]) for cell in cells] == [("jocor", 2)]


def test_runs_of_different_cells_and_seeds_lie_apart() -> None:
    cells = [Cell("mnist", Noise(kind, rate), "jocor", {}) for kind in ("symmetric", "pairflip") for rate in (0.2, 0.5)]
    folders = {cell.run_folder(seed) for cell in cells for seed in (1, 2)}
    assert len(folders) == 8
    assert cells[0].run_folder(1) == "mnist-symmetric-0.2/jocor/seed1"
    assert cells[0].noise.title == "Symmetry-20%"
