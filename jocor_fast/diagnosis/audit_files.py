"""The files of an audit: the list, the report, the picture of the noise matrix, the page, and corrected data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from jocor_fast.data.dataset import Dataset
from jocor_fast.data.images.thumbnails import data_uri, file_uri, image_file_uri, is_image
from jocor_fast.diagnosis.audit_page import audit_page
from jocor_fast.diagnosis.corrected_folder import DROPPED, CorrectedFolder
from jocor_fast.diagnosis.export import EXPORTS, Sample
from jocor_fast.diagnosis.wrong_labels import Audit
from jocor_fast.files.names import AUDIT, CORRECTED, MOST_CLASSES_IN_JSON, MOST_IMAGES, NOISE_MATRIX
from jocor_fast.files.whole_file import write_array, write_bytes, write_json, write_text
from jocor_fast.report.noise_matrix import draw_noise_matrices
from jocor_fast.report.tables import csv_text

LIST, PAGE, MATRIX = "suspicious.csv", "audit.html", "noise-matrix.npy"
_EXPORTED = {name: write for files in EXPORTS.values() for name, write in files.values()}


def pictures_of(dataset: Dataset) -> Callable[[int], str | None] | None:
    """Return how to show a training sample, as `audit_page` takes it; None where samples are no images."""
    files, samples = dataset.files, dataset.train
    if files is not None:
        return lambda number: image_file_uri(files.folder / files.paths[number])
    if not is_image(dataset.input_shape):
        return None
    return lambda number: data_uri(samples.arrays()[0][number], samples.input_scale)


@dataclass(frozen=True, eq=False)
class AuditFiles:
    """An audit, and what its readers know of the data.

    Attributes:
        title: what was audited.
        labels: what a file of labels calls each class.
        names: what people call it.
        ids: int64 [n], the number in the data set of each sample of the audit.
        given_labels: int64 [N], the labels of the whole data set.
        paths: the file of each sample of the data set; None where they lie in none.
        folder: what the paths start from.
        others: the paths of further images of the data set, which a corrected copy keeps.
        reviewed: int64 [N], labels in the place of the suggested ones, or DROPPED.
        picture: see `audit_page`.
    """

    title: str
    found: Audit
    labels: Sequence[str]
    names: Sequence[str]
    ids: np.ndarray
    given_labels: np.ndarray
    paths: Sequence[str] | None = None
    folder: Path = Path()
    others: Sequence[str] = ()
    reviewed: np.ndarray | None = None
    picture: Callable[[int], str | None] | None = None

    def write_all(
        self,
        folder: Path,
        *,
        corrected: bool,
        most: int = MOST_IMAGES,
        export: str | None = None,
        on_file: Callable[[int, int], None] | None = None,
    ) -> dict[str, str]:
        """Write the files into a folder, which is made where it is missing.

        Args:
            corrected: whether to write the corrected labels too.
            most: samples on the page.
            export: a key of `EXPORTS`, for samples in image files; None: no such files.
            on_file: called before each file with how many are written and their total.

        Returns:
            The files by what they are.
        """
        exports = {} if export is None else EXPORTS[export]
        matrix = {"matrix": MATRIX} if self.is_large else {}
        files = {"picture": NOISE_MATRIX, "list": LIST, "report": AUDIT, "page": PAGE, **matrix}
        files |= {"corrected": CORRECTED} if corrected else {}
        files |= {what: name for what, (name, _) in exports.items()}
        folder.mkdir(parents=True, exist_ok=True)
        for number, name in enumerate(files.values()):
            if on_file is not None:
                on_file(number, len(files))
            self._write(folder / name, most)
        return {what: str(folder / name) for what, name in files.items()}

    def corrected_folder(self) -> CorrectedFolder:
        """Return what a corrected copy of the image files holds."""
        assert self.paths is not None
        return CorrectedFolder.of(self.folder, self.paths, self.corrected, self.names, self.others)

    @cached_property
    def corrected(self) -> np.ndarray:
        """The labels of the whole data set with the suggested or reviewed ones in their places."""
        corrected = self.given_labels.copy()
        corrected[self.ids] = self.found.suggested
        return corrected if self.reviewed is None else self.reviewed

    @property
    def is_large(self) -> bool:
        """Whether the noise matrix is a file of its own."""
        return len(self.names) > MOST_CLASSES_IN_JSON

    def _write(self, path: Path, most: int) -> None:
        """Write the file of that name; the page shows the picture, written before it, and `most` samples."""
        if path.name == NOISE_MATRIX:
            draw_noise_matrices({f"{self.title}, estimated": self.found.noise_matrix}, path, self.names)
        elif path.name == MATRIX:
            write_array(path, self.found.noise_matrix)
        elif path.name == AUDIT:
            write_json(path, self._report())
        elif path.name in _EXPORTED:
            write_bytes(path, _EXPORTED[path.name](list(self._samples()), self.names))
        else:
            texts = {LIST: self._list_text, CORRECTED: self._corrected_text}
            text = texts[path.name]() if path.name in texts else self._page_text(path.with_name(NOISE_MATRIX), most)
            write_text(path, text)

    def _list_text(self) -> str:
        """Return suspicious.csv."""
        predictions = [f"prediction_{number}" for number in range(1, 1 + len(self.found.prediction))]
        columns = ("id", "path", "given", "suggested", "score", "wrong", *predictions, "times_selected", "times_seen")
        return csv_text(columns, self._rows(predictions))

    def _rows(self, predictions: Sequence[str]) -> Iterator[dict[str, Any]]:
        found, labels, ids = self.found, self.labels, self.ids
        scores = np.round(found.score, 6)
        for row in found.ranking.tolist():
            yield {
                "id": int(ids[row]),
                "path": None if self.paths is None else self.paths[ids[row]],  # data in memory come from no files
                "given": labels[found.given[row]],
                "suggested": labels[found.suggested[row]],
                "score": float(scores[row]),
                "wrong": str(bool(found.wrong[row])).lower(),
                **{
                    name: labels[predicted[row]] if predicted[row] >= 0 else None
                    for name, predicted in zip(predictions, found.prediction, strict=True)
                },
                "times_selected": int(found.selected[row]),
                "times_seen": int(found.seen[row]),
            }

    def _report(self) -> dict[str, Any]:
        """Return the content of audit.json."""
        found = self.found
        return {
            "data": self.title,
            "samples": len(found.given),
            "flagged": int(found.wrong.sum()),
            "share": found.share,
            "share_range": list(found.share_range),
            "classes": list(self.names),
            "noise_matrix": None if self.is_large else found.noise_matrix.tolist(),
            **({"noise_matrix_file": MATRIX} if self.is_large else {}),
        }

    def _corrected_text(self) -> str:
        """Return the corrected labels of the whole data set, and the files of its samples."""
        rows = (
            {"id": number, "label": self.labels[label], "path": None if self.paths is None else self.paths[number]}
            for number, label in enumerate(self.corrected.tolist())
            if label != DROPPED
        )
        return csv_text(("id", "label", "path")[: 2 if self.paths is None else 3], rows)

    def _samples(self) -> Iterator[Sample]:
        """Yield the audited samples for other tools, the most suspicious first, without those that are dropped."""
        paths, found = self.paths, self.found
        assert paths is not None
        for row in found.ranking.tolist():
            number = int(self.ids[row])
            if self.corrected[number] != DROPPED:
                yield Sample(
                    number,
                    (self.folder / paths[number]).absolute(),
                    given=int(found.given[row]),
                    label=int(self.corrected[number]),
                    suspicion=float(found.score[row]),
                    wrong=bool(found.wrong[row]),
                )

    def _page_text(self, matrix: Path, most: int) -> str:
        """Return the page, with the picture of the matrix in it."""
        return audit_page(
            self.found,
            title=self.title,
            labels=self.labels,
            names=self.names,
            ids=self.ids,
            given_labels=self.given_labels,
            picture=self.picture,
            matrix_picture=file_uri(matrix),
            most=most,
            paths=self.paths,
            folder=self.folder,
        )
