"""The files of a run, and what other commands leave: their names, and how they are read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CONFIG, METRICS, SUMMARY, CURVES = "config.json", "metrics.jsonl", "summary.json", "curves.png"
CHECKPOINT, PREVIOUS_CHECKPOINT, BEST = "checkpoint.pt", "checkpoint-previous.pt", "best.pt"
BAD_FILES = "bad_files.txt"
FIRST_STAGE = "first-stage"  # a folder of the same kind, of a method that trains in two
TRAINING_FILES = "training files"  # in a checkpoint's "identity": which files the samples are, None of arrays
LOG_NAME = "train.log"  # what a run that another command started has printed
AUDIT, NOISE_ESTIMATE, LAMBDA_SEARCH, PREPARED = "audit.json", "noise-estimate.json", "search.json", "prepared.json"
OURS = frozenset({METRICS, AUDIT, NOISE_ESTIMATE, LAMBDA_SEARCH, PREPARED})  # a folder with one has pictures of ours
COMPARISON, NOISE_MATRIX = "comparison.png", "noise-matrix.png"  # what `plot` draws; its folder holds nothing else
CORRECTED = "corrected.csv"  # of an audit: labels to train on
ERROR_PREFIX = "jocor-fast: error: "
MOST_CLASSES_IN_JSON = 100  # the noise matrix of more is a file of its own: of 2,000 it would be 43 MB of text
MOST_IMAGES = 1000  # on the page of an audit


def number_in_name(number: float) -> str:
    """Return a number as names have it, and tables that tell numbers apart: as %g writes it where that says all of it.

    Two numbers never have one name.
    """
    short = f"{number:g}"
    return short if float(short) == number else repr(float(number))


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Return the lines of RUN/metrics.jsonl up to one that is not whole; no file: no lines.

    The last may be still under way, or was cut by a full disk or a crash, which can leave zeros in its place.
    """
    try:
        text = (run / METRICS).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    lines: list[dict[str, Any]] = []
    for line in text[: text.rfind("\n") + 1].splitlines():
        try:
            content = json.loads(line)
        except ValueError:
            break
        if not isinstance(content, dict):
            break
        lines.append(content)
    return lines


def read_summary(run: Path) -> dict[str, Any]:
    """Return RUN/summary.json; empty where there is none, or it is not whole."""
    return read_json(run / SUMMARY) or {}


def read_error(run: Path, start: int = 0) -> str | None:
    """Return the sentence in RUN/train.log, from byte `start` on, that the run ended with; None where there is none."""
    try:
        text = (run / LOG_NAME).read_bytes()[start:].decode(errors="replace")
    except FileNotFoundError:
        return None
    errors = [line for line in text.splitlines() if line.startswith(ERROR_PREFIX)]
    return errors[-1].removeprefix(ERROR_PREFIX) if errors else None


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a file such as summary.json; None where there is no such file or it is not whole."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return value if isinstance(value, dict) else None
