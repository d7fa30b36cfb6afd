"""How flags, a TOML file, the recipe and presets become the settings of a run, each with its source.

A value comes from the first of: its flag, the configuration file, the recipe, the data set's preset, the default.
Values are checked where they are used: training settings by `engine.settings.TrainSettings`, the others by
`data` and `noise`; their errors are given the name of the flag or key (`Config.naming`).
"""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from jocor_fast.config.options import OPTIONS, RUN_FIELDS, TRAINING_FIELDS, RunOptions
from jocor_fast.config.presets import PRESETS, PUBLISHED_CO_LAMBDA, Preset, preset_co_lambda
from jocor_fast.data.arrays import user_path
from jocor_fast.data.catalogue import entry_of, split_name
from jocor_fast.engine.settings import ADAPTIVE, BALANCED, TrainSettings, method_options
from jocor_fast.errors import ConfigError, DataError, RunError, called, did_you_mean
from jocor_fast.files.names import number_in_name
from jocor_fast.machine import resolve_device
from jocor_fast.noise_kinds import check_rate
from jocor_fast.option import Option
from jocor_fast.schedules import RECIPES, default_decay_start

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Source = Literal["flag", "config", "recipe", "preset", "default"]
NOISE_OPTIONS = ("noise", "noise_rate", "noise_seed", "noise_matrix")
ENGINE_ARGUMENTS = (
    *TRAINING_FIELDS,
    "model",
    "pretrained",
    "output",
    "resume",
    "stop_after",
    "checkpoint_every",
    "strict",
)
FILE_OPTIONS = ("image_size", "normalisation", "loader")


@dataclass(kw_only=True)
class Config(RunOptions):
    """The options of a run, with the source of each and the reason of those that were not given.

    Attributes:
        training: the settings of the engine. Its forget rate is 0 while `forget_rate` is None or to be estimated first.
        sources: where the value of each option comes from.
        reasons: why a value that was not given is what it is, where there is more to say than "it is the default".
        file: the configuration file, for messages.
    """

    training: TrainSettings = field(default_factory=lambda: TrainSettings(forget_rate=0.0))
    sources: dict[str, Source] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    file: str | None = None

    def value(self, name: str) -> Any:
        """Return the value of an option by its name."""
        if name in RUN_FIELDS:
            return getattr(self, name)
        return self.training.as_dict().get(name, OPTIONS[name].default)  # of an option of another method

    def copy(self) -> Config:
        """Return the same options, to be changed on their own."""
        return replace(self, sources=dict(self.sources), reasons=dict(self.reasons))

    def given(self, name: str) -> bool:
        """Whether the user said it, by flag or in the file."""
        return self.sources[name] in ("flag", "config")

    def decide(self, name: str, value: Any, source: Source = "default", reason: str = "") -> None:
        """Set a value, its source and its reason; a wrong one is a ConfigError."""
        self.sources[name] = source
        if reason:
            self.reasons[name] = reason
        if name in RUN_FIELDS:
            setattr(self, name, value)
        if name not in RUN_FIELDS or (name == "forget_rate" and _for_the_engine(value)):
            with self.naming(name):
                self.training = TrainSettings.of({**self.training.as_dict(), name: value})

    def label(self, name: str) -> str:
        """How a message names a setting: by its flag, or by its key and file."""
        return f"{name} in {self.file}" if self.sources[name] == "config" else OPTIONS[name].flag

    def origin(self, name: str) -> str:
        """Where a value is from, for the screen: "flag", "preset: the authors' value for mnist"."""
        reason = self.reasons.get(name)
        return f"{self.sources[name]}: {reason}" if reason else self.sources[name]

    @contextlib.contextmanager
    def naming(self, *options: str, **arguments: str) -> Iterator[None]:
        """Name what is at fault by its flag or key; a wrong value is a ConfigError.

        Args:
            options: those whose names are the library's too.
            arguments: {library's name: option}.
        """
        names = dict(zip(options, options, strict=True)) | arguments
        try:
            with called({argument: self.label(option) for argument, option in names.items() if option in OPTIONS}):
                yield
        except (DataError, ConfigError):
            raise
        except ValueError as error:  # about several arguments, or none of an option's name
            raise ConfigError(str(error)) from error

    @contextlib.contextmanager
    def engine_complaints(self) -> Iterator[None]:
        """The same for whatever the engine is given; memory that runs out is a RunError that says what needs less."""
        try:
            with self.naming(*ENGINE_ARGUMENTS):
                yield
        except (MemoryError, RuntimeError) as error:
            import torch

            on_the_cpu = "can't allocate memory" in str(error)  # which has no class of its own
            if isinstance(error, RunError) or not (
                isinstance(error, (MemoryError, torch.OutOfMemoryError)) or on_the_cpu
            ):
                raise
            smaller = "--batch-size or --image-size" if self.image_size is not None else "--batch-size"
            device = resolve_device(self.training.device)
            raise RunError(f"out of memory on {device}: a smaller {smaller} needs less") from error


def _for_the_engine(forget_rate: float | str | None) -> bool:
    """Whether it is what a run can begin with."""
    return forget_rate == ADAPTIVE or isinstance(forget_rate, float)


def resolve(flags: Mapping[str, str | bool], file: str | None = None) -> Config:
    """Settings from flags (option name → text, or True for a switch) and a TOML file, the rest filled in.

    Raises:
        ConfigError: an option is unknown, of the wrong type, out of range, or contradicts another one.
    """
    values: dict[str, Any] = {name: option.default for name, option in OPTIONS.items()}
    from_file = read_config_file(file) if file is not None else {}
    from_flags = {name: flag_value(OPTIONS[name], text) for name, text in flags.items()}
    config = Config(file=file, sources=dict.fromkeys(values, "default"))
    given_by: tuple[tuple[Source, dict[str, Any]], ...] = (("config", from_file), ("flag", from_flags))
    for source, given in given_by:
        values.update(given)
        config.sources.update(dict.fromkeys(given, source))
    for name in RUN_FIELDS:
        setattr(config, name, values.pop(name))
    with config.naming("dataset"):
        entry_of(config.dataset)  # an unknown name is at fault before anything else
    _check_conflicts(config)
    _decide_noise(config)
    if not 0 <= config.val_fraction < 1:  # NaN fails both comparisons
        raise ConfigError(f"{config.label('val_fraction')} must lie in [0, 1), got {config.val_fraction:g}")
    _decide_training(config, values)
    values["forget_rate"] = config.forget_rate if _for_the_engine(config.forget_rate) else 0.0
    values["class_weights"] = BALANCED if config.class_weights == BALANCED else None  # a file is read with the data
    with config.naming(*TRAINING_FIELDS, *method_options(), "forget_rate", "class_weights"):
        config.training = TrainSettings.of(values)
    output = config.output if config.given("output") else str(Path("runs") / default_run_name(config))
    config.output = str(user_path(output))  # in a file, and after "=", no shell knows what ~ is
    return config


def read_config_file(file: str) -> dict[str, Any]:
    """The options in a TOML file, their names and types checked.

    Raises:
        ConfigError: the file cannot be read, is no TOML, or holds an unknown key or a value of the wrong type.
    """
    try:
        content = tomllib.loads(user_path(file).read_text(encoding="utf-8-sig"))  # as Windows' editors save it too
    except OSError as error:
        raise ConfigError(f"--config {file} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--config {file} must be a text file in UTF-8") from error
    except ValueError as error:  # TOMLDecodeError, or Python's of a number with too many digits
        raise ConfigError(f"--config {file} is not valid TOML: {error}") from error
    unknown = {name: closest_option(name) for name in content if name not in OPTIONS}
    if unknown:
        keys = "an unknown key" if len(unknown) == 1 else "unknown keys"
        named = [f"{name} (did you mean {meant}?)" if meant else name for name, meant in unknown.items()]
        raise ConfigError(f"--config {file} has {keys}: {', '.join(named)}")
    try:
        return {name: OPTIONS[name].typed(value) for name, value in content.items()}
    except ValueError as error:
        name, _, rest = str(error).partition(" ")
        raise ConfigError(f"{name} in {file} {rest}") from None


def closest_option(name: str) -> str | None:
    """The option that a misspelt flag or key probably means, by its name with underscores."""
    return next(iter(difflib.get_close_matches(name.replace("-", "_"), OPTIONS, n=1)), None)


def flag_value(option: Option, text: str | bool) -> Any:
    """Return the value of a flag's text; ConfigError if it is not of the option's kind."""
    try:
        return option.typed(text) if isinstance(text, bool) else option.parse(text)
    except ValueError:
        hint = did_you_mean(str(text), option.choices)
        raise ConfigError(f"{option.flag} must be {option.expected}, got {text!r}{hint}") from None


def _check_conflicts(config: Config) -> None:
    def exclude(first: str, second: str, why: str) -> None:
        if config.given(first) and config.given(second):
            raise ConfigError(f"{config.label(first)} and {config.label(second)} exclude each other: {why}")

    entry = config.entry
    for name in NOISE_OPTIONS:
        exclude("labels", name, "labels from a file are noisy as they are")
        if config.given(name) and entry.labels == "noisy":
            raise ConfigError(f"{config.label(name)} adds noise, and the labels of {entry.name} are noisy as they are")
    exclude("noise_matrix", "noise", "the matrix is the noise")
    exclude("noise_matrix", "noise_rate", "the matrix holds the rates")
    for name in NOISE_OPTIONS:
        exclude("clean_labels", name, "noise is drawn on labels that count as clean")
    exclude("clean_labels", "labels_are_clean", "both say which labels are the true ones")
    if config.given("clean_labels") and not config.given("labels") and entry.labels == "true":
        raise ConfigError(f"{config.label('clean_labels')} needs --labels: the labels of {config.dataset} are clean")
    if config.labels_are_clean and entry.labels == "noisy":
        raise ConfigError(f"{config.label('labels_are_clean')} cannot hold for {entry.name}, whose labels are noisy")
    if config.given("val_labels") and not config.given("val_fraction"):
        raise ConfigError(f"{config.label('val_labels')} needs --val-fraction")
    for name in (*FILE_OPTIONS, "strict"):
        if config.given(name) and not entry.holds_files:
            raise ConfigError(f"{config.label(name)} is for image files, and {config.dataset} lies in memory")


def _decide_noise(config: Config) -> None:
    """Where labels or a matrix come from a file, kind and rate do not apply and are None.

    Nor do they where the labels are noisy as they are, or are those of the user's own images, by folder or list, and no
    noise is asked for: they are not claimed to be clean. (Which draw to take asks for none.)
    """
    asked = any(config.given(name) for name in NOISE_OPTIONS if name != "noise_seed")
    as_labelled = config.entry.holds_files or config.entry.labels == "noisy"
    if config.labels is not None or (as_labelled and not asked):
        for name in NOISE_OPTIONS:
            if not config.given(name):
                config.decide(name, None)
        return
    if config.noise_matrix is not None:
        return
    if config.noise_rate is not None:
        with config.naming(rate="noise_rate"):
            check_rate(config.noise_rate)
    if not config.given("noise"):
        config.decide("noise", "symmetric" if config.given("noise_rate") else "clean")
    if config.noise != "clean":
        if not config.given("noise_rate"):
            kind = f"{config.label('noise')} {config.noise}"
            raise ConfigError(f"{kind} needs --noise-rate, the share of labels to flip")
    elif not config.given("noise_rate"):
        config.decide("noise_rate", 0.0)
    elif config.noise_rate:
        raise ConfigError(f"{config.label('noise_rate')} must be 0 for clean labels, got {config.noise_rate}")


def _decide_training(config: Config, values: dict[str, Any]) -> None:
    """Put what recipe and data set say into training values that were not given, the recipe before the preset."""

    def decide(name: str, value: Any, source: Source, reason: str) -> None:
        if not config.given(name):
            values[name], config.sources[name], config.reasons[name] = value, source, reason

    dataset, recipe = config.dataset, values["recipe"]
    named = preset_co_lambda(dataset, config.noise, config.noise_rate)
    if recipe == "published":
        decide("co_lambda", PUBLISHED_CO_LAMBDA, "recipe", "the published code's default")
    elif named is not None:
        decide("co_lambda", named, "preset", f"the authors' value for {dataset}")
    preset = PRESETS.get(dataset, Preset())
    for name, value in preset.settings.items():
        decide(name, value, "preset", preset.reasons[name])
    for name, reason in preset.reasons.items():
        if config.sources[name] == "default":
            config.reasons.setdefault(name, reason)
    if not config.entry.holds_files:
        for name in FILE_OPTIONS:
            setattr(config, name, None)
    elif not config.given("normalisation"):
        config.reasons["normalisation"] = OPTIONS["normalisation"].why
    if values["epochs"] >= 1 and recipe in RECIPES and not config.given("decay_start"):
        values["decay_start"] = default_decay_start(values["epochs"], recipe=recipe, dataset=dataset)
        if values["decay_start"] != default_decay_start(values["epochs"]):
            decide("decay_start", values["decay_start"], "recipe", f"where the published code starts on {dataset}")


def default_run_name(config: Config) -> str:
    """The folder of a run that was given none: what tells runs apart, as "digits-jocor-symmetric-0.5-seed0"."""
    training, noise = config.training, name_of_noise(config)
    return f"{name_of_data(config.dataset)}-{training.method}-{noise}-seed{training.seed}"


def name_of_noise(config: Config) -> str:
    """Return the noise of a run as names of folders have it: "symmetric-0.5", or the name of a file of labels."""
    if config.labels is not None:
        return Path(config.labels).name.replace(":", "-")
    if config.noise_matrix is not None:
        return Path(config.noise_matrix).stem
    if config.noise is None:
        return "as-labelled"
    return config.noise + (f"-{number_in_name(config.noise_rate)}" if config.noise_rate else "")


def name_of_data(dataset: str) -> str:
    """Return the name of a data set as names of folders have it: "photos" for "folder:my/photos"."""
    path_in_name = split_name(dataset)[1]
    if not path_in_name:
        return dataset
    path = Path(os.path.abspath(user_path(path_in_name)))  # which may be the current folder
    return path.name if path.is_dir() else path.stem  # folders may have dots in their names
