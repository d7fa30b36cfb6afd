"""The paper's settings by name, and what an experiment consists of."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from jocor_fast.config.options import OPTIONS
from jocor_fast.config.presets import PRESETS, preset_co_lambda
from jocor_fast.config.resolve import resolve
from jocor_fast.engine.plan import plan_epoch
from jocor_fast.methods import METHODS
from jocor_fast.noise_kinds import Noise
from jocor_fast.paper.experiments import EXPERIMENTS, Cell
from jocor_fast.paper.run_queue import flags_of
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
        known = set(OPTIONS)
        assert set(preset.settings) <= set(preset.reasons) <= known  # some give the reason of a default


def test_clothing1m_is_trained_as_the_paper_says_and_what_it_leaves_open_has_a_reason() -> None:
    config = resolve({"dataset": "clothing1m", "forget_rate": "0.3"})
    settings = config.training
    assert (settings.batch_size, settings.epochs, settings.ramp_epochs, settings.optimizer) == (64, 15, 5, "adam")
    rates = [plan_epoch(settings, epoch, 1_000_000).lr for epoch in range(1, 16)]
    assert rates == pytest.approx([8e-4] * 5 + [5e-4] * 5 + [5e-5] * 5)
    assert [plan_epoch(settings, epoch, 1_000_000).keep_rate for epoch in (1, 5, 15)] == pytest.approx([0.94, 0.7, 0.7])
    assert plan_epoch(settings, 1, 1_000_000).steps == 15_625
    assert (settings.co_lambda, config.pretrained, config.normalisation) == (0.9, None, "imagenet")
    for name in ("co_lambda", "pretrained", "normalisation"):
        assert config.sources[name] == "default"
        assert config.reasons[name]


def test_every_method_has_a_title_of_its_own() -> None:
    assert len({method.title for method in METHODS.values()}) == len(METHODS)


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
        assert config.training.device == "cpu"


def test_overrides_replace_settings_of_all_cells() -> None:
    cells = EXPERIMENTS["digits"].cells(("jocor",), epochs=2)
    assert [(cell.method, cell.run_settings(1)["epochs"]) for cell in cells] == [("jocor", 2)]


def test_runs_of_different_cells_and_seeds_lie_apart() -> None:
    cells = [Cell("mnist", Noise(kind, rate), "jocor", {}) for kind in ("symmetric", "pairflip") for rate in (0.2, 0.5)]
    folders = {cell.run_folder(seed) for cell in cells for seed in (1, 2)}
    assert len(folders) == 8
    assert cells[0].run_folder(1) == "mnist-symmetric-0.2/jocor/seed1"
    assert cells[0].noise.title == "Symmetry-20%"


def test_no_two_numbers_have_one_name() -> None:
    """The next number that there is, too."""
    for number, name in ((0.5, "0.5"), (0.05, "0.05"), (0.0, "0"), (1.0, "1"), (1e-7, "1e-07"), (1 / 3, str(1 / 3))):
        nearly = math.nextafter(number, 0.4)
        names = [
            [Cell("mnist", Noise("symmetric", value), "jocor", {}).run_folder(1) for value in (number, nearly)],
            [Cell("mnist", HALF, "jocor", {}, value).run_folder(1) for value in (number, nearly)],
            [Cell("mnist", HALF, "jocor", {}, value).title for value in (number, nearly)],
        ]
        for first, second in names:
            assert first != second
            assert re.search(rf"\b{name}\b", first)


HALF = Noise("symmetric", 0.5)


def test_the_tables_have_the_papers_cells() -> None:
    six = ["standard", "f-correction", "decoupling", "coteaching", "coteaching-plus", "jocor"]
    for name, fourth in (("mnist", "asymmetric"), ("cifar10", "asymmetric"), ("cifar100", "asymmetric-published")):
        cells = EXPERIMENTS[name].cells()
        noises = [Noise("symmetric", 0.2), HALF, Noise("symmetric", 0.8), Noise(fourth, 0.4)]
        assert [(cell.noise, cell.method) for cell in cells] == [(noise, method) for noise in noises for method in six]
        assert (EXPERIMENTS[name].seeds, cells[0].noise.title, cells[-1].noise.title) == (
            5,
            "Symmetry-20%",
            "Asymmetry-40%",
        )
    assert [(cell.noise.title, cell.method) for cell in EXPERIMENTS["clothing1m"].cells()] == [
        ("Real noise", method) for method in six
    ]


def test_runs_that_experiments_have_in_common_lie_in_one_place_with_the_same_settings() -> None:
    table = {cell.run_folder(1): cell.run_settings(1) for cell in EXPERIMENTS["mnist"].cells()}
    ablation = {cell.run_folder(1): cell.run_settings(1) for cell in EXPERIMENTS["ablation"].cells()}
    lambdas = {cell.run_folder(1): cell.run_settings(1) for cell in EXPERIMENTS["lambda"].cells()}
    jocor, coteaching = (f"mnist-symmetric-0.5/{method}/seed1" for method in ("jocor", "coteaching"))
    assert set(table) & set(ablation) == {jocor, coteaching}
    assert set(table) & set(lambdas) == {jocor}
    assert table[jocor] == ablation[jocor] == lambdas[jocor]
    assert sorted(set(lambdas) - {jocor}) == [
        f"mnist-symmetric-0.5/jocor-lambda-{text}/seed1" for text in ("0.05", "0.35", "0.65")
    ]


def test_the_lambdas_are_those_of_the_papers_figure() -> None:
    resolved = [
        resolve({name: str(value) for name, value in cell.run_settings(1).items()}).training.co_lambda
        for cell in EXPERIMENTS["lambda"].cells()
    ]
    assert resolved == [0.05, 0.35, 0.65, 0.95]


def test_the_ablation_on_cifar10_shares_the_runs_of_its_table() -> None:
    cells = EXPERIMENTS["ablation"].on("cifar10").cells()
    table = {cell.run_folder(2): cell.run_settings(2) for cell in EXPERIMENTS["cifar10"].cells()}
    shared = [cell for cell in cells if cell.run_folder(2) in table]
    assert [cell.method for cell in shared] == ["jocor", "coteaching"]
    for cell in shared:
        assert cell.run_settings(2) == table[cell.run_folder(2)]
    assert EXPERIMENTS["ablation"].on("cifar10").title == "Ablation on CIFAR-10, as in the paper's figures"


def test_the_noise_is_drawn_anew_for_each_seed_but_once_in_the_published_recipe() -> None:
    for recipe, draws in (({}, [1, 2, 3]), ({"recipe": "paper"}, [1, 2, 3]), ({"recipe": "published"}, [0, 0, 0])):
        (cell,) = EXPERIMENTS["mnist"].cells(("jocor",), (HALF,), **recipe)
        assert [cell.run_settings(seed)["noise_seed"] for seed in (1, 2, 3)] == draws
        assert [cell.run_settings(seed)["seed"] for seed in (1, 2, 3)] == [1, 2, 3]


@pytest.mark.parametrize("recipe", ["paper", "published"])
def test_lambda_is_the_authors_under_both_recipes(recipe: str) -> None:
    """The published code's own default, 0.1, is none that they reported results with."""
    for name, noise, co_lambda in (
        ("mnist", HALF, 0.95),
        ("cifar10", HALF, 0.9),
        ("cifar10", Noise("symmetric", 0.8), 0.65),
        ("cifar100", HALF, 0.85),
    ):
        (cell,) = EXPERIMENTS[name].cells(("jocor",), (noise,), recipe=recipe)
        config = resolve({name: str(value) for name, value in cell.run_settings(1).items()})
        assert config.training.co_lambda == co_lambda


def test_cifar100_asymmetry_is_the_published_variant_with_half_the_rate_to_forget() -> None:
    (cell,) = EXPERIMENTS["cifar100"].cells(("jocor",), (Noise("asymmetric-published", 0.4),))
    settings = cell.run_settings(1)
    assert (settings["noise"], settings["noise_rate"], settings["forget_rate"]) == ("asymmetric-published", 0.4, 0.2)
    (symmetric,) = EXPERIMENTS["cifar100"].cells(("jocor",), (HALF,))
    assert "forget_rate" not in symmetric.run_settings(1)
    (standard,) = EXPERIMENTS["cifar100"].cells(("standard",), (Noise("asymmetric-published", 0.4),))
    assert "forget_rate" not in standard.run_settings(1), "it has no use for τ"
    measured = replace(standard, settings={**standard.settings, "val_labels": "small-loss"})
    assert measured.run_settings(1)["forget_rate"] == 0.2, "but what it is validated on has"
    assert any("rate/2" in note for note in EXPERIMENTS["cifar100"].notes)


def test_clothing1m_adds_no_noise_and_says_what_to_forget_where_a_method_selects() -> None:
    jocor, standard = EXPERIMENTS["clothing1m"].cells(("jocor", "standard"))
    settings = jocor.run_settings(3)
    assert not {"noise", "noise_rate", "noise_seed"} & set(settings)
    assert settings["forget_rate"] == 0.38
    assert "forget_rate" not in standard.run_settings(3)
    assert jocor.run_folder(3) == "clothing1m-real/jocor/seed3"


def test_cifar10n_runs_all_methods_on_each_set_of_labels_without_the_true_ones() -> None:
    experiment = EXPERIMENTS["cifar10n"]
    cells = experiment.cells()
    sets = ["aggregate", "random1", "random2", "random3", "worst"]
    assert [(cell.noise.name, cell.method) for cell in cells] == [(name, method) for name in sets for method in METHODS]
    assert experiment.seeds == 5
    jocor, standard = experiment.cells(("jocor", "standard"), (Noise("worst", None),))
    settings = jocor.run_settings(2)
    assert (settings["dataset"], settings["forget_rate"], settings["seed"]) == ("cifar10n-worst", 0.41, 2)
    assert not {"noise", "noise_rate", "noise_seed"} & set(settings)
    assert "forget_rate" not in standard.run_settings(2)
    assert jocor.run_folder(2) == "cifar10n-worst/jocor/seed2"
    config = resolve({name: str(value) for name, value in settings.items()})
    assert (config.noise, config.noise_rate, config.sources["forget_rate"]) == (None, None, "flag")


def test_taks_drops_on_mnist_what_its_authors_searched_for_and_elsewhere_the_wrong_labels() -> None:
    cells = {name: EXPERIMENTS[name].cells(("taks",)) for name in ("mnist", "fashion-mnist")}
    assert [(cell.settings["forget_rate"], cell.settings["perturbation"]) for cell in cells["mnist"]] == [
        (0.35, 0.005), (0.65, 0.005), (0.85, 0.005), (0.3, 0.001),
    ]  # fmt: skip
    assert all("forget_rate" not in cell.settings for cell in cells["fashion-mnist"])
    assert "--forget-rate 0.65" in " ".join(flags_of(cells["mnist"][1].run_settings(1)))
