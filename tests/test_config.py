"""How flags, TOML files, recipes and presets become settings: values, sources, and what is refused."""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path

import numpy as np
import pytest

from jocor_fast.config.options import OPTIONS
from jocor_fast.config.resolve import read_config_file, resolve
from jocor_fast.engine.settings import TrainSettings
from jocor_fast.errors import ArgumentTypeError, ArgumentValueError, ConfigError, DataError, RunError
from jocor_fast.noise.matrices import read_transition

# Every option once: text of the flag, what it resolves to, and the flags that it needs beside it.
FLAGS = [
    ("dataset", "mnist", "mnist", {}),
    ("data_root", "/data", "/data", {}),
    ("labels", "noisy.npy", "noisy.npy", {}),
    ("clean_labels", "clean.npz:y", "clean.npz:y", {"labels": "noisy.npy"}),
    ("labels_are_clean", True, True, {}),
    ("noise", "pairflip", "pairflip", {"noise_rate": "0.45"}),
    ("noise_rate", "0.2", 0.2, {}),
    ("noise_seed", "7", 7, {}),
    ("noise_matrix", "q.npy", "q.npy", {}),
    ("method", "standard", "standard", {}),
    ("co_lambda", "0.65", 0.65, {}),
    ("selection_per_class", True, True, {}),
    ("balanced_ramp", True, True, {}),
    ("class_weights", "balanced", "balanced", {}),
    ("label_smoothing", "0.1", 0.1, {}),
    ("forget_rate", "0.3", 0.3, {}),
    ("ramp_epochs", "5", 5, {}),
    ("warmup_epochs", "7", 7, {}),
    ("transition_val_fraction", "0.5", 0.5, {"method": "f-correction"}),
    ("perturbation", "0.01", 0.01, {"method": "taks"}),
    ("gce_q", "0.5", 0.5, {"method": "gce"}),
    ("gce_truncation", "0.4", 0.4, {"method": "gce"}),
    ("gce_prune_from", "5", 5, {"method": "gce"}),
    ("gce_prune_every", "3", 3, {"method": "gce"}),
    ("sce_alpha", "3", 3.0, {"method": "sce"}),
    ("sce_beta", "3", 3.0, {"method": "sce"}),
    ("nce_rce_alpha", "3", 3.0, {"method": "nce-rce"}),
    ("nce_rce_beta", "3", 3.0, {"method": "nce-rce"}),
    ("cores_beta", "3", 3.0, {"method": "cores"}),
    ("cores_beta_from", "3", 3, {"method": "cores"}),
    ("cores_beta_ramp", "3", 3, {"method": "cores"}),
    ("cores_sieve_after", "3", 3, {"method": "cores"}),
    ("elr_memory", "0.5", 0.5, {"method": "elr"}),
    ("elr_strength", "2", 2.0, {"method": "elr"}),
    ("adaptation_warmup", "3", 3, {"method": "adaptation"}),
    ("relabel_from", "0.5", 0.5, {"method": "joint-optimization"}),
    ("prior_weight", "0.5", 0.5, {"method": "joint-optimization"}),
    ("entropy_weight", "0.5", 0.5, {"method": "joint-optimization"}),
    ("pencil_from", "0.5", 0.5, {"method": "pencil"}),
    ("pencil_until", "0.9", 0.9, {"method": "pencil"}),
    ("pencil_rate", "5", 5.0, {"method": "pencil"}),
    ("pencil_compatibility", "0.5", 0.5, {"method": "pencil"}),
    ("pencil_entropy", "0.5", 0.5, {"method": "pencil"}),
    ("nlnl_threshold", "0.25", 0.25, {"method": "nlnl"}),
    ("threads", "1", 1, {}),
    ("recipe", "published", "published", {}),
    ("model", "cnn", "cnn", {}),
    ("pretrained", "resnet.pt", "resnet.pt", {}),
    ("epochs", "17", 17, {}),
    ("batch_size", "64", 64, {}),
    ("lr", "1e-2", 0.01, {}),
    ("lr_plan", "clothing1m", "clothing1m", {}),
    ("decay_start", "3", 3, {}),
    ("max_batches", "401", 401, {}),
    ("beta1_after", "0.5", 0.5, {}),
    ("optimizer", "sgd", "sgd", {}),
    ("weight_decay", "1e-4", 1e-4, {}),
    ("augment", "crop-flip", "crop-flip", {}),
    ("seed", "5", 5, {}),
    ("val_fraction", "0.1", 0.1, {}),
    ("val_labels", "clean", "clean", {"val_fraction": "0.1"}),
    ("no_test", True, True, {}),
    ("image_size", "32", 32, {"dataset": "folder:photos"}),
    ("normalisation", "clothing1m", "clothing1m", {"dataset": "folder:photos"}),
    ("loader", "dali", "dali", {"dataset": "folder:photos"}),
    ("strict", True, True, {"dataset": "folder:photos"}),
    ("device", "cpu", "cpu", {}),
    ("precision", "float16", "float16", {}),
    ("no_graph", True, True, {}),
    ("compile", True, True, {}),
    ("selection_scope", "global", "global", {}),
    ("batch_scope", "global", "global", {}),
    ("output", "somewhere", "somewhere", {}),
    ("resume", True, True, {}),
    ("stop_after", "3", 3, {}),
    ("checkpoint_every", "100", 100, {}),
    ("tensorboard", True, True, {}),
]


def toml(folder: Path, text: str) -> str:
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_table_of_flags_covers_every_option() -> None:
    assert sorted(name for name, *_ in FLAGS) == sorted(OPTIONS)


@pytest.mark.parametrize(("name", "text", "value", "beside"), FLAGS, ids=[name for name, *_ in FLAGS])
def test_a_flag_sets_its_option(name: str, text: str | bool, value: object, beside: dict[str, str]) -> None:
    config = resolve({**beside, name: text})
    assert (config.value(name), config.sources[name]) == (value, "flag")
    assert type(config.value(name)) is type(value)
    assert resolve(beside).value(name) != value
    if name in {setting.name for setting in fields(TrainSettings)}:
        assert getattr(config.training, name) == value


@pytest.mark.parametrize(("name", "text", "value", "beside"), FLAGS, ids=[name for name, *_ in FLAGS])
def test_a_toml_key_does_what_the_flag_does(
    name: str, text: str | bool, value: object, beside: dict[str, str], tmp_path: Path
) -> None:
    literal = f'"{value}"' if isinstance(value, str) else str(value).lower()
    config = resolve(beside, toml(tmp_path, f"{name} = {literal}\n"))
    assert (config.value(name), config.sources[name]) == (value, "config")


def test_a_flag_overrides_the_file(tmp_path: Path) -> None:
    config = resolve({"epochs": "3"}, toml(tmp_path, 'epochs = 9\nmethod = "standard"\n'))
    assert (config.training.epochs, config.sources["epochs"]) == (3, "flag")
    assert (config.training.method, config.sources["method"]) == ("standard", "config")


def test_what_is_not_given_is_the_default_of_the_engine() -> None:
    config = resolve({"dataset": "mnist", "co_lambda": "0.9", "decay_start": "80"})
    for setting in fields(TrainSettings):
        if setting.default is not MISSING and setting.name not in ("co_lambda", "decay_start"):
            assert config.value(setting.name) == setting.default, setting.name
            assert config.sources[setting.name] == "default"


@pytest.mark.parametrize("dataset", ["mnist", "cifar10", "cifar100"])
def test_the_papers_data_are_trained_as_in_the_paper(dataset: str) -> None:
    """Batch 128, 200 epochs, T_k 10, Adam at 1e-3 that falls from epoch 80 on, no augmentation."""
    config = resolve({"dataset": dataset, "noise_rate": "0.5"})
    expected = {
        "batch_size": 128, "epochs": 200, "decay_start": 80, "ramp_epochs": 10, "optimizer": "adam", "lr": 1e-3,
        "weight_decay": 0.0, "augment": "none", "recipe": "paper",
    }  # fmt: skip
    assert {name: config.value(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("dataset", "noise", "rate", "co_lambda", "source"),
    [
        ("cifar10", "symmetric", "0.2", 0.9, "preset"),
        ("cifar10", "symmetric", ".5", 0.9, "preset"),
        ("cifar10", "asymmetric", "0.4", 0.9, "preset"),
        ("cifar10", "symmetric", "0.8", 0.65, "preset"),
        ("cifar10", "symmetric", "0.3", 0.9, "default"),
        ("cifar10", "pairflip", "0.2", 0.9, "default"),
        ("cifar100", "symmetric", "0.2", 0.85, "preset"),
        ("cifar100", "asymmetric-published", "0.4", 0.85, "preset"),
        ("mnist", "symmetric", "0.5", 0.95, "preset"),
        ("mnist", "pairflip", "0.45", 0.95, "preset"),
        ("fashion-mnist", "symmetric", "0.5", 0.9, "default"),
        ("digits", "symmetric", "0.5", 0.9, "default"),
        ("npz:scans.npz", "symmetric", "0.5", 0.9, "default"),
    ],
)
def test_co_lambda_is_what_the_authors_named_else_the_default(
    dataset: str, noise: str, rate: str, co_lambda: float, source: str
) -> None:
    """Case 49."""
    config = resolve({"dataset": dataset, "noise": noise, "noise_rate": rate})
    assert (config.training.co_lambda, config.sources["co_lambda"]) == (co_lambda, source)


def test_a_given_co_lambda_beats_the_preset() -> None:
    config = resolve({"dataset": "mnist", "noise_rate": "0.5", "co_lambda": "0.3"})
    assert (config.training.co_lambda, config.sources["co_lambda"]) == (0.3, "flag")


def test_the_published_recipe_has_the_published_co_lambda() -> None:
    config = resolve({"dataset": "mnist", "noise_rate": "0.5", "recipe": "published"})
    assert (config.training.co_lambda, config.sources["co_lambda"]) == (0.1, "recipe")


@pytest.mark.parametrize(
    ("dataset", "recipe", "epochs", "decay_start", "source"),
    [
        ("mnist", "paper", "200", 80, "default"),
        ("mnist", "published", "200", 80, "default"),
        ("cifar100", "paper", "200", 80, "default"),
        ("cifar100", "published", "200", 100, "recipe"),
        ("cifar10", "paper", "9", 3, "default"),
    ],
)
def test_decay_starts_where_the_recipe_says(
    dataset: str, recipe: str, epochs: str, decay_start: int, source: str
) -> None:
    config = resolve({"dataset": dataset, "recipe": recipe, "epochs": epochs})
    assert (config.training.decay_start, config.sources["decay_start"]) == (decay_start, source)


def test_digits_get_small_batches_by_preset_and_others_do_not() -> None:
    digits, mnist = resolve({}), resolve({"dataset": "mnist"})
    assert (digits.training.batch_size, digits.sources["batch_size"]) == (32, "preset")
    assert (mnist.training.batch_size, mnist.sources["batch_size"]) == (128, "default")
    assert "small data" in digits.origin("batch_size")


@pytest.mark.parametrize(
    ("flags", "noise", "rate"),
    [
        ({}, "clean", 0.0),
        ({"noise": "clean"}, "clean", 0.0),
        ({"noise_rate": "0.5"}, "symmetric", 0.5),
        ({"noise": "pairflip", "noise_rate": "0"}, "pairflip", 0.0),
        ({"noise_matrix": "q.npy"}, None, None),
        ({"labels": "noisy.npy"}, None, None),
    ],
)
def test_noise_that_is_not_spelled_out(flags: dict[str, str], noise: str | None, rate: float | None) -> None:
    config = resolve(flags)
    assert (config.noise, config.noise_rate) == (noise, rate)
    assert config.noise_seed == (None if "labels" in flags else 0)


@pytest.mark.parametrize(
    ("flags", "folder"),
    [
        ({"noise_rate": "0.5", "seed": "3"}, "runs/digits-jocor-symmetric-0.5-seed3"),
        ({"noise_rate": "0.1234567"}, "runs/digits-jocor-symmetric-0.1234567-seed0"),
        ({"noise_rate": "0.1234568"}, "runs/digits-jocor-symmetric-0.1234568-seed0"),
        ({"method": "standard"}, "runs/digits-standard-clean-seed0"),
        ({"dataset": "npz:some/scans.npz", "labels": "dir/noisy.npz:y"}, "runs/scans-jocor-noisy.npz-y-seed0"),
        ({"noise_matrix": "dir/q.npy"}, "runs/digits-jocor-q-seed0"),
    ],
)
def test_the_default_folder_tells_runs_apart(flags: dict[str, str], folder: str) -> None:
    assert resolve(flags).output == folder


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("epochs = 'nine'", "epochs in {} must be a whole number, got 'nine'"),
        ("epochs = 9.0", "epochs in {} must be a whole number, got 9.0"),
        ("epochs = true", "epochs in {} must be a whole number, got True"),
        ("lr = '1e-3'", "lr in {} must be a number, got '1e-3'"),
        ("lr = false", "lr in {} must be a number, got False"),
        (f"lr = 1{'0' * 400}", "lr in {} must be a number, got 1000"),
        (f"lr = 1{'0' * 5000}", "--config {} is not valid TOML: "),
        ("resume = 'yes'", "resume in {} must be true or false, got 'yes'"),
        ("dataset = 3", "dataset in {} must be text, got 3"),
        ("output = ''", "output in {} must be text, got ''"),
        ('output = "a\\u0000b"', "output in {} must be text, got 'a\\x00b'"),
        ("method = 'jocr'", "method in {} must be one of "),
        ("method = ['jocor']", "method in {} must be one of "),
        ("epochs = 0", "epochs in {} must be at least 1, got 0"),
        ("co_lambda = 1.5", "co_lambda in {} must lie in [0, 1], got 1.5"),
        ("val_fraction = 1", "val_fraction in {} must lie in [0, 1), got 1"),
        ("epoch = 9", "--config {} has an unknown key: epoch (did you mean epochs?)"),
        ("batch-size = 9\nxyz = 1", "--config {} has unknown keys: batch-size (did you mean batch_size?), xyz"),
        ("config = 'other.toml'", "--config {} has an unknown key: config"),
        ("[train]\nepochs = 1", "--config {} has an unknown key: train"),
        ("epochs = = 3", "--config {} is not valid TOML: "),
        ("labels = 'a.npy'\nnoise_rate = 0.5", "labels in {} and noise_rate in {} exclude each other: "),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_and_the_key(text: str, sentence: str, tmp_path: Path) -> None:
    path = toml(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        resolve({}, path)
    assert str(refused.value).startswith(sentence.replace("{}", path))


def test_an_int_in_the_file_is_a_number(tmp_path: Path) -> None:
    content = read_config_file(toml(tmp_path, "lr = 1\n"))
    assert content == {"lr": 1.0}
    assert type(content["lr"]) is float


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir(), lambda path: path.write_bytes(b"\xff")])
def test_a_file_that_cannot_be_read_is_named(make, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    make(path)
    with pytest.raises(ConfigError, match=r"^--config .*run\.toml (cannot be read: |must be a text file in UTF-8)"):
        resolve({}, str(path))


def test_errors_name_the_flag_or_the_key_of_the_argument_at_fault(tmp_path: Path) -> None:
    path = toml(tmp_path, "seed = 1\n")
    config = resolve({"lr": "0.1", "noise_rate": "0.5"}, path)

    def text(error: Exception, *options: str, **arguments: str) -> str:
        with pytest.raises(type(error)) as refused, config.naming(*options, **arguments):
            raise error
        return str(refused.value)

    assert text(RunError("is full", "output"), "output") == "--output: is full"
    assert text(RunError("is full", "output")) == "output: is full"
    assert text(DataError("labels must be there"), "labels") == "labels must be there"
    with pytest.raises(ConfigError, match=r"^--noise-rate must lie in \[0, 1\)$"), config.naming(rate="noise_rate"):
        raise ArgumentValueError("rate", "must lie in [0, 1)")
    with pytest.raises(ConfigError) as refused, config.naming("seed"):
        raise ArgumentTypeError("seed", "must be small")
    assert str(refused.value) == f"seed in {path} must be small"


def test_a_file_that_windows_saved_is_read(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_bytes(b"\xef\xbb\xbfepochs = 3\r\nseed = 5\r\n")
    assert read_config_file(str(file)) == {"epochs": 3, "seed": 5}


def test_a_home_that_no_shell_has_written_out_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a file, and after "=" on the command line; a folder that is called ~ would be in the way for long."""
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "run.toml"
    file.write_text('output = "~/runs/first"\n', encoding="utf-8")
    assert resolve({}, "~/run.toml").output == str(tmp_path / "runs" / "first")
    assert resolve({"output": "~/other"}).output == str(tmp_path / "other")
    np.save(tmp_path / "q.npy", np.eye(3))
    assert read_transition("~/q.npy", 3).shape == (3, 3)


@pytest.mark.parametrize("folder", [".", "../photos.v2", "./"])
def test_a_run_on_the_current_folder_is_called_by_its_name(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "photos.v2").mkdir()
    monkeypatch.chdir(tmp_path / "photos.v2")
    config = resolve({"dataset": f"folder:{folder}", "forget_rate": "0.1"})
    assert config.output == "runs/photos.v2-jocor-as-labelled-seed0"


def test_pillow_had_another_name() -> None:
    folder = {"dataset": "folder:photos", "forget_rate": "0.1"}
    assert resolve({**folder, "loader": "torchvision"}).loader == "pillow"
    with pytest.raises(ConfigError, match="--loader must be one of auto, dali, pillow, got 'opencv'"):
        resolve({**folder, "loader": "opencv"})
