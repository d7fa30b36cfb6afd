"""`jocor-fast audit RUN`: the labels that are probably wrong, as a list, a picture, a page, and corrected."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from jocor_fast.cli.flags import declare_alone, parse_count
from jocor_fast.config.stored_run import read_config, task_of_run
from jocor_fast.config.task import Task
from jocor_fast.data.arrays import user_path
from jocor_fast.data.images.source import ImageFiles
from jocor_fast.data.images.thumbnails import data_uri, file_uri, image_file_uri, is_image
from jocor_fast.diagnosis.audit_page import audit_page
from jocor_fast.diagnosis.doubts import HeldOut, caveat, doubts
from jocor_fast.diagnosis.wrong_labels import Audit, audit_history
from jocor_fast.errors import ConfigError, RunError
from jocor_fast.files.names import AUDIT, MOST_CLASSES_IN_JSON, NOISE_MATRIX, TRAINING_FILES, read_metrics
from jocor_fast.files.whole_file import write_array, write_json, write_text
from jocor_fast.report.metrics import TEST, VALIDATION
from jocor_fast.report.noise_matrix import draw_noise_matrices
from jocor_fast.report.screen import phase, say, say_subjects, warn
from jocor_fast.report.tables import csv_text, percent
from jocor_fast.runs.folder import history_in, read_whole_checkpoint

SUMMARY = "find the labels of a run that are probably wrong"
USAGE = "RUN [OPTIONS]"
HOW_TO_GO_ON = "run it again"
DESCRIPTION = """\
Rank the training labels of a run by how probably they are wrong, estimate how
many are and what the classes are taken for, and suggest the right ones. Written
are suspicious.csv (all samples, the most suspicious first), audit.json,
noise-matrix.png and audit.html, a page that needs no server: pictures class by
class, to be looked through and exported as corrected labels. Networks that have
memorised wrong labels do not find them, and what networks cannot learn they
take for wrong. Only samples that they were not trained on show either: where
there are test data, or the run held some out (--val-fraction), a warning tells
of networks that do no better on those than chance, and a note of those whose
errors on test data are many."""

LIST, PAGE, CORRECTED, MATRIX = "suspicious.csv", "audit.html", "corrected.csv", "noise-matrix.npy"
MOST_IMAGES = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="RUN", nargs="*", help="folder of a run")
    parser.add_argument(
        "--apply",
        action="store_true",
        help=f"write {CORRECTED} too, with every label that is probably wrong replaced: a file for train --labels",
    )
    parser.add_argument("--images", metavar="N", help=f"samples on the page (default: {MOST_IMAGES})")
    parser.add_argument("--output", metavar="DIR", help="folder for the files (default: RUN/audit)")
    declare_alone(parser, "data_root")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Write the files and say what was found; 0, or a ConfigError, DataError or RunError."""
    if len(arguments.runs) != 1:
        raise ConfigError(f"audit takes the folder of one run, got {len(arguments.runs) or 'none'}")
    most = parse_count("--images", arguments.images, MOST_IMAGES, least=0)
    folder = Path(arguments.runs[0])
    output = folder / "audit" if arguments.output is None else user_path(arguments.output)
    with phase(console, "reading the run and its data"):
        audited = AuditedRun.of(folder, arguments.data_root, console)
    output.mkdir(parents=True, exist_ok=True)
    files = {"picture": NOISE_MATRIX, "list": LIST, "report": AUDIT, "page": PAGE}
    files |= {"matrix": MATRIX} if audited.is_large else {}
    files |= {"corrected": CORRECTED} if arguments.apply else {}
    with phase(console, "writing", "files") as update:
        for number, name in enumerate(files.values()):
            update(number, len(files))
            audited.write(output / name, most)
    held_out = audited.held_out(read_metrics(folder))
    for sentence in doubts(audited.found, held_out, audited.names):
        warn(f"{folder} {sentence}")
    _say(console, audited, caveat(audited.found, held_out), output, files)
    return 0


@dataclass(frozen=True)
class AuditedRun:
    """A run's audit, and what is known of its data set.

    Attributes:
        title: what was trained on.
        found: the audit, over the samples that were trained on.
        task: the data; None for a run of `jf.train`, whose arrays are not kept.
        labels: what a file of labels calls each class.
        names: what people call it.
    """

    title: str
    found: Audit
    task: Task | None
    labels: Sequence[str]
    names: Sequence[str]

    @staticmethod
    def of(folder: Path, data_root: str | None, console: Console) -> AuditedRun:
        """Read the run and load its data again."""
        config = read_config(folder)
        checkpoint = read_whole_checkpoint(folder)
        history = history_in(folder, checkpoint)
        task = task_of_run(config, data_root, partial(say, console))
        if task is not None and not np.array_equal(task.train.labels.numpy(), history.labels):
            raise RunError(f"the labels that {folder} was trained on are others now: has their file changed?", "RUN")
        files = checkpoint.get("identity", {}).get(TRAINING_FILES)
        if task is not None and files is not None and files != task.train.inputs.checksum:  # type: ignore[union-attr]
            raise RunError(f"the image files that {folder} was trained on are others now, or in another order", "RUN")
        found = audit_history(history, None if task is None else task.dataset.num_classes)
        table = config.get("label_table")
        labels = table if table is not None else [str(number) for number in range(len(found.noise_matrix))]
        names = labels if task is None else task.dataset.class_names
        return AuditedRun(folder.name if task is None else task.dataset.name, found, task, labels, names)

    @property
    def ids(self) -> np.ndarray:
        """The number in the data set of each sample of the audit."""
        return np.arange(len(self.found.given)) if self.task is None else self.task.train_ids

    @property
    def given_labels(self) -> np.ndarray:
        """The labels of the whole training set, held-out samples included."""
        return self.found.given if self.task is None else self.task.given_labels

    def held_out(self, metrics: Sequence[Mapping[str, Any]]) -> HeldOut | None:
        """Return what the run measured on test data, else on held-out samples; None where it did on neither."""
        if self.task is None or not metrics:
            return None
        for name, data, field in (("test", self.task.test, TEST), ("held-out", self.task.val, VALIDATION)):
            if data is not None and metrics[-1][field] is not None:
                # Of a part that was chosen by its loss, the accuracy says nothing.
                return HeldOut(name, metrics[-1][field], data.labels.numpy()) if data.keep_rate == 1 else None
        return None

    @property
    def is_large(self) -> bool:
        """Whether the noise matrix is a file of its own."""
        return len(self.names) > MOST_CLASSES_IN_JSON

    def write(self, path: Path, most: int) -> None:
        """Write the file of that name; the page, the last, shows the picture and `most` samples."""
        if path.name == NOISE_MATRIX:
            draw_noise_matrices({f"{self.title}, estimated": self.found.noise_matrix}, path, self.names)
        elif path.name == MATRIX:
            write_array(path, self.found.noise_matrix)
        elif path.name == AUDIT:
            write_json(path, self.report())
        else:
            texts = {LIST: self.list_text, CORRECTED: self.corrected_text}
            text = texts[path.name]() if path.name in texts else self.page_text(path.with_name(NOISE_MATRIX), most)
            write_text(path, text)

    def list_text(self) -> str:
        """Return suspicious.csv."""
        predictions = [f"prediction_{number}" for number in range(1, 1 + len(self.found.prediction))]
        columns = ("id", "path", "given", "suggested", "score", "wrong", *predictions, "times_selected", "times_seen")
        return csv_text(columns, self._rows(predictions))

    def _rows(self, predictions: Sequence[str]) -> Iterator[dict[str, Any]]:
        found, labels, ids, files = self.found, self.labels, self.ids, self._files()
        scores = np.round(found.score, 6)
        for row in found.ranking.tolist():
            yield {
                "id": int(ids[row]),
                "path": None if files is None else files.paths[ids[row]],  # data in memory come from no files
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

    def report(self) -> dict[str, Any]:
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

    def corrected_text(self) -> str:
        """Return the labels of the whole training set with the suggestions in their places, and their files."""
        corrected, files = self.given_labels.copy(), self._files()
        corrected[self.ids] = self.found.suggested
        rows = [{"id": number, "label": self.labels[label]} for number, label in enumerate(corrected.tolist())]
        if files is None:
            return csv_text(("id", "label"), rows)
        return csv_text(("id", "label", "path"), [{**row, "path": files.paths[row["id"]]} for row in rows])

    def page_text(self, matrix: Path, most: int) -> str:
        """Return the page, with the picture of the matrix in it."""
        files = self._files()
        return audit_page(
            self.found,
            title=self.title,
            labels=self.labels,
            names=self.names,
            ids=self.ids,
            given_labels=self.given_labels,
            picture=self._picture(),
            matrix_picture=file_uri(matrix),
            most=most,
            paths=None if files is None else files.paths,
        )

    def _files(self) -> ImageFiles | None:
        """The files that the samples lie in, if they lie in files."""
        return None if self.task is None else self.task.dataset.files

    def _picture(self) -> Callable[[int], str | None] | None:
        """Return how to show a sample; None where samples are no images."""
        files = self._files()
        if files is not None:
            return lambda number: image_file_uri(files.folder / files.paths[number])
        if self.task is None or not is_image(self.task.dataset.input_shape):
            return None
        samples = self.task.dataset.train
        return lambda number: data_uri(samples.arrays()[0][number], samples.input_scale)


def _say(console: Console, audited: AuditedRun, note: str | None, output: Path, files: Mapping[str, str]) -> None:
    found = audited.found
    low, high = found.share_range
    subjects = {
        "data": f"{audited.title}: {len(found.given):,} training samples",
        "wrong": f"{int(found.wrong.sum()):,} labels, {percent(found.share)} %, are probably wrong "
        f"(between {percent(low)} and {percent(high)} %)",
        **({} if note is None else {"note": note}),
        **{what: str(output / name) for what, name in files.items()},
    }
    say_subjects(console, subjects)
