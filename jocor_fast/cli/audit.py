"""`jocor-fast audit RUN`: the labels that are probably wrong, as a list, a picture, a page, and corrected."""

from __future__ import annotations

import argparse
import math
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
from jocor_fast.data.dataset import Dataset
from jocor_fast.data.images.image_set import ImageDataset, ImageList
from jocor_fast.data.images.thumbnails import data_uri, file_uri, image_file_uri, is_image
from jocor_fast.diagnosis.audit_page import audit_page
from jocor_fast.diagnosis.wrong_labels import Audit, audit_history
from jocor_fast.errors import ConfigError, RunError
from jocor_fast.files.names import AUDIT, NOISE_MATRIX, TRAINING_FILES, read_metrics
from jocor_fast.files.whole_file import write_json, write_text
from jocor_fast.report.noise_matrix import draw_noise_matrices
from jocor_fast.report.screen import counted, say, say_subjects, warn
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
learnt wrong labels by heart do not find them, and what networks cannot learn
they take for wrong. Only samples that they were not trained on show either:
where there are test data, or the run held some out (--val-fraction), networks
that do no better on those than chance are warned of, and those whose errors on
test data explain most of what was found."""

LIST, PAGE, CORRECTED = "suspicious.csv", "audit.html", "corrected.csv"
MOST_IMAGES = 1000
# On MNIST the F1 score of what is found still grows from epoch 20 (.90 to .98) to epoch 40 (.91 to .985).
FEW_STEPS = 10
FEW_ERRORS = 0.25
LEAST_OF_A_CLASS = 0.1
CLASSES_NAMED = 5


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
    audited = AuditedRun.of(folder, arguments.data_root, console)
    output.mkdir(parents=True, exist_ok=True)
    files = {"picture": NOISE_MATRIX, "list": LIST, "report": AUDIT, "page": PAGE}
    audited.draw_matrix(output / NOISE_MATRIX)
    write_text(output / LIST, audited.list_text())
    write_json(output / AUDIT, audited.report())
    write_text(output / PAGE, audited.page_text(output / NOISE_MATRIX, most))
    if arguments.apply:
        files["corrected"] = CORRECTED
        write_text(output / CORRECTED, audited.corrected_text())
    metrics = read_metrics(folder)
    reservation = _reservation(audited.found) or _by_heart(audited, metrics) or _own_errors(audited, metrics)
    for sentence in (reservation, _classes_given_up(audited)):
        if sentence is not None:
            warn(f"{folder} {sentence}")
    _say(console, audited, output, files)
    return 0


def _reservation(found: Audit) -> str | None:
    """Why not to believe what was found, None where nothing speaks against it."""
    seen = int(np.median(found.seen))
    if seen < FEW_STEPS:
        return f"has seen each sample {counted(seen, 'time')} only: not much to judge by"
    agreement = float(np.mean(found.prediction == found.given))
    by_chance = float(np.bincount(found.given).max()) / len(found.given)
    if agreement <= _upper_bound(by_chance, len(found.given)):
        return (
            f"has networks that predict {percent(agreement)} % of the labels, where always the most frequent one would "
            f"be {percent(by_chance)} %: they have learnt nothing to judge by"
        )
    return None


def _by_heart(audited: AuditedRun, metrics: Sequence[Mapping[str, Any]]) -> str | None:
    """Why not to believe networks that know the labels which they were trained on and no others.

    Of pure noise, JoCoR keeps the labels that its networks happen to agree with, and then learns these. Its history
    looks like that of a good run at a high rate of noise: digits with random labels and with 80 % noise are told apart
    by the accuracy on other samples, .07 to .13 and .30 to .42, and by nothing in the history.
    """
    if audited.task is None or not metrics:
        return None
    parts = {"test": audited.task.test, "val": audited.task.val}
    measured = [
        part for part, data in parts.items() if data is not None and metrics[-1][f"{part}_accuracy"] is not None
    ]
    data = parts[measured[0]] if measured else None
    if data is None or data.keep_rate < 1:
        return None
    accuracy, count = float(metrics[-1][f"{measured[0]}_accuracy"]), len(data.labels)
    by_chance = int(data.labels.bincount().max()) / count
    agreement = float(np.mean(audited.found.prediction == audited.found.given))
    # The second condition: where so few samples were held out that chance decides, nothing is claimed.
    if accuracy > _upper_bound(by_chance, count) or agreement <= _upper_bound(accuracy, count):
        return None
    return (
        f"has networks that predict {percent(agreement)} % of the labels that they were trained on, but "
        f"{percent(accuracy)} % of the {'test' if data is parts['test'] else 'held-out'} labels, where always the most "
        f"frequent one would be {percent(by_chance)} %: what they have learnt, they have learnt by heart, and the list "
        "is no better than chance"
    )


def _own_errors(audited: AuditedRun, metrics: Sequence[Mapping[str, Any]]) -> str | None:
    """Why not to believe networks that contradict labels of test data, which count as right, nearly as often.

    Of the share r of wrong labels and of those right ones on which the networks err, as on a share e of the test data,
    r + (1 - r) e are contradicted. Nothing is said where they err rarely, or most of what was found is beyond that.
    """
    if audited.task is None or audited.task.test is None or not metrics or metrics[-1]["test_accuracy"] is None:
        return None
    errors, share = 1 - float(metrics[-1]["test_accuracy"]), audited.found.share
    explained = max(0.0, (share - errors) / (1 - errors)) if errors < 1 else 0.0
    if errors <= FEW_ERRORS or explained >= share / 2:
        return None
    return (
        f"has networks that err on {percent(errors)} % of the test samples: if they do on the training samples too, "
        f"as few as {percent(explained)} % of the labels may be wrong, not {percent(share)} %"
    )


def _classes_given_up(audited: AuditedRun) -> str | None:
    """Which classes not to believe it of: those of which hardly a label would remain, or come from others."""
    found, classes = audited.found, len(audited.names)
    given, suggested = (np.bincount(labels, minlength=classes) for labels in (found.given, found.suggested))
    given_up = [audited.names[number] for number in np.flatnonzero(suggested < LEAST_OF_A_CLASS * given).tolist()]
    if not given_up:
        return None
    more = len(given_up) - CLASSES_NAMED
    named = ", ".join(given_up[:CLASSES_NAMED]) + f" and {more} more" * (more > 0)
    return (
        f"would label hardly any sample {named}, as where networks have not learnt a class, being rare or "
        "under too many wrong labels: look at what is labelled so before that is replaced"
    )


def _upper_bound(share: float, count: int) -> float:
    """Three standard deviations above the share of `count` samples."""
    return share + 3 * math.sqrt(share * (1 - share) / count)


@dataclass(frozen=True)
class AuditedRun:
    """A run's audit, and what is known of its data set.

    Attributes:
        title: what was trained on.
        found: the audit, over the samples that were trained on.
        task: the data; None for a run of `jf.train`, whose arrays nobody kept.
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

    def list_text(self) -> str:
        predictions = [f"prediction_{number}" for number in range(1, 1 + len(self.found.prediction))]
        columns = ("id", "path", "given", "suggested", "score", *predictions, "times_selected", "times_seen")
        return csv_text(columns, list(self._rows(predictions)))

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
                **{
                    name: labels[predicted[row]] if predicted[row] >= 0 else None
                    for name, predicted in zip(predictions, found.prediction, strict=True)
                },
                "times_selected": int(found.selected[row]),
                "times_seen": int(found.seen[row]),
            }

    def report(self) -> dict[str, Any]:
        """The content of audit.json."""
        found = self.found
        return {
            "data": self.title,
            "samples": len(found.given),
            "flagged": int(found.wrong.sum()),
            "share": found.share,
            "share_range": list(found.share_range),
            "classes": list(self.names),
            "noise_matrix": found.noise_matrix.tolist(),
        }

    def corrected_text(self) -> str:
        """The labels of the whole training set with the suggestions in their places."""
        corrected = self.given_labels.copy()
        corrected[self.ids] = self.found.suggested
        rows = [{"id": number, "label": self.labels[label]} for number, label in enumerate(corrected.tolist())]
        return csv_text(("id", "label"), rows)

    def draw_matrix(self, path: Path) -> None:
        draw_noise_matrices({f"{self.title}, estimated": self.found.noise_matrix}, path, self.names)

    def page_text(self, matrix: Path, most: int) -> str:
        """The page, with the picture of the matrix in it."""
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

    def _files(self) -> ImageList | None:
        """The files that the samples lie in, if they lie in files."""
        dataset = None if self.task is None else self.task.dataset
        return dataset.train if isinstance(dataset, ImageDataset) else None

    def _picture(self) -> Callable[[int], str | None] | None:
        """How to show a sample; None where samples are no images."""
        files = self._files()
        if files is not None:
            return lambda number: image_file_uri(files.folder / files.paths[number])
        if self.task is None or not isinstance(self.task.dataset, Dataset):
            return None
        dataset = self.task.dataset
        if not is_image(dataset.input_shape):
            return None
        return lambda number: data_uri(dataset.train_inputs[number], dataset.input_scale)


def _say(console: Console, audited: AuditedRun, output: Path, files: dict[str, str]) -> None:
    found = audited.found
    low, high = found.share_range
    subjects = {
        "data": f"{audited.title}: {len(found.given):,} training samples",
        "wrong": f"{int(found.wrong.sum()):,} labels, {percent(found.share)} %, are probably wrong "
        f"(between {percent(low)} and {percent(high)} %)",
        **{what: str(output / name) for what, name in files.items()},
    }
    say_subjects(console, subjects)
