"""A run read back from its folder: its settings, and what it was trained on, made again from them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jocor_fast.config.options import OPTIONS
from jocor_fast.config.resolve import resolve
from jocor_fast.data.arrays import split_key
from jocor_fast.data.catalogue import split_name
from jocor_fast.engine.settings import BALANCED
from jocor_fast.errors import RunError
from jocor_fast.files.names import CONFIG, read_json
from jocor_fast.models.pretrained import DEFAULT

if TYPE_CHECKING:
    from jocor_fast.config.task import Task

TRAINED_WITH = ("pretrained", "device", "loader", "precision", "class_weights")
# Options that are a file, or may be.
PATHS = ("dataset", "labels", "clean_labels", "noise_matrix", "pretrained", "class_weights")
WORDS = {"pretrained": DEFAULT, "class_weights": BALANCED}  # that stand for no file
FOLDER = "folder"  # in config.json: the folder that relative paths among the settings are relative to


def read_config(folder: Path) -> dict[str, Any]:
    """The content of a run's config.json; a RunError where the folder holds no run."""
    content = read_json(folder / CONFIG)
    if content is None or not isinstance(content.get("settings"), dict):
        if not folder.exists():
            raise RunError(f"{folder} does not exist: train a run first", "RUN")
        raise RunError(f"{folder} is not the folder of a run (it has no whole {CONFIG})", "RUN")
    return content


def task_of_run(
    config: Mapping[str, Any], data_root: str | None, announce: Callable[[str], None] | None = None
) -> Task | None:
    """Return what a run was trained on; None for a run of `jf.train` on arrays.

    What it was trained with is not asked for: neither a GPU nor DALI nor the weights that it began with need be there.
    Paths that the run was given are looked for where it was started, then from here.

    Args:
        config: the content of its config.json.
        data_root: `--data-root`; None: where data sets lie if nothing is said.

    Raises:
        ConfigError, DataError: the data, or the files that its labels came from, are no longer there or have changed.
    """
    from jocor_fast.config.task import build_task

    settings = config.get("settings", {})
    if "dataset" not in settings:
        return None
    known = {name: value for name, value in settings.items() if name in OPTIONS and OPTIONS[name].kind != "switch"}
    flags = {name: str(value) for name, value in known.items() if value is not None and name not in TRAINED_WITH}
    if settings.get("loader") is not None:
        flags["loader"] = "pillow"  # which is always there
    if config.get(FOLDER) is not None:
        flags.update({name: _found(name, flags[name], config[FOLDER]) for name in PATHS if name in flags})
    if data_root is not None:
        flags["data_root"] = data_root
    switches = {"labels_are_clean": True} if settings.get("labels_are_clean") else {}
    return build_task(resolve({**flags, **switches}), announce)


def is_relative(name: str, value: str | None) -> bool:
    """Whether the value of one of `PATHS` is a path that means another file in another folder."""
    return value is not None and _absolute(name, value, os.curdir) != _absolute(name, value, os.pardir)


def names_the_same(name: str, then: str | None, folder: str | None, now: str | None) -> bool:
    """Whether two values of one of `PATHS` are one file: one from `folder` (None: unknown), the other from here."""
    if then is None or now is None:
        return then == now
    return _absolute(name, then, folder or "?") == _absolute(name, now, os.getcwd())  # "?/x" is no absolute path


def _found(name: str, value: str, folder: str) -> str:
    """The value with its path from `folder`, if there is something, else as it is."""
    there = _absolute(name, value, folder)
    path = _parts(name, there)[1]
    return there if os.path.exists(split_key(path)[0]) else value


def _absolute(name: str, value: str, folder: str) -> str:
    prefix, path = _parts(name, value)
    return prefix + os.path.normpath(os.path.join(folder, os.path.expanduser(path))) if path else value


def _parts(name: str, value: str) -> tuple[str, str]:
    """The value as what stands before a path, and the path; no path where it is a name of ours."""
    if name == "dataset":
        return split_name(value)
    return (value, "") if value == WORDS.get(name) else ("", value)
