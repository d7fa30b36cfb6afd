"""A run read back from its folder: its settings, and what it was trained on, made again from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .config import resolve
from .engine.errors import RunError
from .options import OPTIONS
from .run_files import CONFIG, read_json
from .task import Task, build_task


def read_config(folder: Path) -> dict[str, Any]:
    """The content of a run's config.json; a RunError where the folder holds no run."""
    content = read_json(folder / CONFIG)
    if content is None or not isinstance(content.get("settings"), dict):
        raise RunError(f"RUN: {folder} is not the folder of a run (it has no whole {CONFIG})")
    return content


def task_of_run(
    settings: Mapping[str, Any], data_root: str | None, announce: Callable[[str], None] | None = None
) -> Task | None:
    """What a run was trained on; None for a run of `jf.train` on somebody's arrays.

    Args:
        settings: those of its config.json.
        data_root: `--data-root`; None: where data sets lie if nothing is said.
        announce: called with a sentence before each download.

    Raises:
        ConfigError, DataError: the data, or the files that its labels came from, are no longer there or have changed.
    """
    if "dataset" not in settings:
        return None
    known = {name: value for name, value in settings.items() if name in OPTIONS and OPTIONS[name].kind != "switch"}
    flags = {name: str(value) for name, value in known.items() if value is not None}
    if data_root is not None:
        flags["data_root"] = data_root
    return build_task(resolve(flags), announce)
