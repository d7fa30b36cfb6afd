"""The page of an audit: one HTML file, without a server, to review the most suspicious samples."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from jocor_fast.diagnosis.wrong_labels import Audit

TEMPLATE, PLACE_OF_DATA = "audit_page.html", "DATA_OF_THE_AUDIT"
FIRST_PICTURES, OTHER_PICTURES, FIRST = "FIRST_PICTURES", "OTHER_PICTURES", 48


def audit_page(
    found: Audit,
    *,
    title: str,
    labels: Sequence[str],
    names: Sequence[str],
    ids: np.ndarray,
    given_labels: np.ndarray,
    picture: Callable[[int], str | None] | None,
    matrix_picture: str,
    most: int,
    paths: Sequence[str] | None = None,
    folder: Path = Path(),
) -> str:
    """Return the page's text.

    Decisions are kept by the browser under a key that stands for the audit, not for the file.

    Args:
        labels: how a file of labels calls each class; the page exports these.
        names: what the page calls each class.
        ids: int64 [n], the number in the data set of each sample of the audit.
        given_labels: int64 [N], the labels of the whole data set.
        picture: the address of a sample's picture, by its number in the data set (None: its file cannot be read); None
            where samples are no images.
        matrix_picture: the address of the picture of the noise matrix.
        paths: the file of each sample of the data set; None where they lie in none.
        folder: what the paths start from.
    """
    shown = shown_samples(found, most)
    hidden = np.setdiff1d(np.flatnonzero(found.wrong), shown, assume_unique=True)
    kept = json.dumps([title, list(labels)]), given_labels, ids, found.suggested, found.score
    key = hashlib.sha256(b"".join(np.asarray(part).tobytes() for part in kept)).hexdigest()[:16]
    content = {
        "key": key,
        "title": title,
        "pictured": picture is not None,
        "labels": list(labels),
        "names": list(names),
        "given": given_labels.tolist(),
        "paths": None if paths is None else list(paths),
        "share": found.share,
        "shareRange": found.share_range,
        "flagged": int(found.wrong.sum()),
        "audited": len(ids),
        "matrix": matrix_picture,
        "samples": [_sample(found, row, int(ids[row]), paths, folder) for row in shown.tolist()],
        "hidden": [[int(ids[row]), int(found.suggested[row])] for row in hidden.tolist()],
    }
    # In a script "</script" would end it, and after "<!--<script" nothing would, whatever they stand in.
    data = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    template = resources.files(__package__).joinpath(TEMPLATE).read_text(encoding="utf-8")
    pictures = ["" if picture is None else picture(int(ids[row])) or "" for row in shown.tolist()]
    # Most pictures, a line each, come last and are no JSON: the page is drawn before the browser has read them.
    text = template.replace(PLACE_OF_DATA, data).replace(FIRST_PICTURES, "\n".join(pictures[:FIRST]))
    return text.replace(OTHER_PICTURES, "\n".join(pictures[FIRST:]))


def shown_samples(found: Audit, most: int) -> np.ndarray:
    """Return the samples to show, the most suspicious first: `most` of those that a network contradicts.

    It does all whose label is taken for wrong.
    """
    doubtful = ((found.prediction != found.given) & (found.prediction >= 0)).any(axis=0)
    return found.ranking[doubtful[found.ranking]][:most]


def _sample(
    found: Audit,
    row: int,
    number: int,
    paths: Sequence[str] | None,
    folder: Path,
) -> Mapping[str, Any]:
    other = int(found.suggested[row])
    contradictions = [int(p[row]) for p in found.prediction if p[row] not in (-1, found.given[row])]
    if not found.wrong[row] and contradictions:
        other = contradictions[0]  # what would be suggested if the label were taken for wrong
    return {
        "id": number,
        "given": int(found.given[row]),
        "other": other,
        "score": round(float(found.score[row]), 4),
        "wrong": bool(found.wrong[row]),
        "predicted": found.prediction[:, row].tolist(),
        "selected": int(found.selected[row]),
        "seen": int(found.seen[row]),
        "original": None if paths is None else (folder / paths[number]).absolute().as_uri(),
    }
