"""`jocor-fast audit RUN`: the labels that are probably wrong, as a list, a picture, a page, and corrected."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from jocor_fast.cli import audit_features, audit_outputs
from jocor_fast.cli.audit_outputs import Outputs
from jocor_fast.cli.flags import declare_alone
from jocor_fast.config.options import OPTIONS
from jocor_fast.config.stored_run import read_config, task_of_run
from jocor_fast.data.arrays import user_path
from jocor_fast.diagnosis.corrected_folder import other_images
from jocor_fast.errors import ConfigError, RunError
from jocor_fast.files.names import CONFIG, TRAINING_FILES, read_metrics
from jocor_fast.report.metrics import TEST, VALIDATION
from jocor_fast.report.screen import phase, say, say_subjects, warn
from jocor_fast.report.tables import percent

if TYPE_CHECKING:
    import numpy as np

    from jocor_fast.config.task import Task
    from jocor_fast.diagnosis.audit_files import AuditFiles
    from jocor_fast.diagnosis.doubts import HeldOut
    from jocor_fast.diagnosis.wrong_labels import Audit

SUMMARY = "find labels that are probably wrong, of a run or of embeddings"
USAGE = "[RUN] [OPTIONS]"
HOW_TO_GO_ON = "run it again"
DESCRIPTION = """\
Rank the training labels of a run by how probably they are wrong, estimate how
many are and which classes are confused, and suggest corrections. The files are
suspicious.csv (all samples, the most suspicious first), audit.json,
noise-matrix.png and audit.html, a page that needs no server: keep or change the
labels of the most suspicious samples, or drop samples, and export the labels.
--reviewed takes them back; --write-folder and --export pass them on. In
suspicious.csv, score is the probability that the given label is wrong, and
times_selected of times_seen are the steps in which the networks chose the
sample to learn from.

Networks miss wrong labels that they have memorised, and suspect right labels
of samples that they cannot learn. Unseen samples reveal both: with test data or
held-out data (--val-fraction), a warning reports accuracy no better than
chance, and a note reports a high test error.

With --features, --labels and --output, no run is needed: the samples are
embeddings from any encoder. Small networks, each trained on two thirds of
them, judge the rest.

With --dataset and --pretrained, the embeddings are computed first, and kept in
features.npz for the next call:
    jocor-fast audit --dataset folder:photos --model resnet18 \\
        --pretrained resnet18.pt"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="RUN", nargs="*", help="folder of a run")
    audit_outputs.add_arguments(parser)
    parser.add_argument(
        "--output", metavar="DIR", help="folder for the files (default: RUN/audit; with --dataset runs/audit-NAME)"
    )
    declare_alone(parser, "data_root")
    audit_features.add_arguments(parser)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Write the files and say what was found; 0, or a ConfigError, DataError or RunError."""
    outputs = Outputs.of(arguments)
    network = [name for name in audit_features.OF_NETWORK if name in arguments]
    if "dataset" in network:
        return audit_features.run_by_network(arguments, outputs, console)
    if network:
        raise ConfigError(f"{OPTIONS[network[0]].flag} goes with --dataset")
    if arguments.features is not None or arguments.labels is not None:
        return audit_features.run(arguments, outputs, console)
    for name in audit_features.OPTIONAL:
        if getattr(arguments, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} goes with --features")
    if len(arguments.runs) != 1:
        raise ConfigError(f"audit takes the folder of one run, got {len(arguments.runs) or 'none'}")
    from jocor_fast.diagnosis.doubts import caveat, doubts

    folder = Path(arguments.runs[0])
    if folder.is_dir() and not (folder / CONFIG).exists():
        images = f"images in a folder for each class are audited by --dataset folder:{folder} --pretrained default"
        raise RunError(f"{folder} is not the folder of a run (it has no {CONFIG}); {images}", "RUN")
    output = folder / "audit" if arguments.output is None else user_path(arguments.output)
    with phase(console, "reading the run and its data"):
        audited = AuditedRun.of(folder, arguments.data_root, console)
    written = audited.files()
    outputs.check(written.title, written.paths, written.folder)
    files = outputs.write(written, output, console)
    held_out = audited.held_out(read_metrics(folder))
    for sentence in doubts(audited.found, held_out, audited.names):
        warn(f"{folder} {sentence}")
    _say(console, audited, caveat(audited.found, held_out), files)
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
        import numpy as np

        from jocor_fast.diagnosis.wrong_labels import audit_history
        from jocor_fast.runs.folder import history_in, read_whole_checkpoint

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
        import numpy as np

        return np.arange(len(self.found.given)) if self.task is None else self.task.train_ids

    @property
    def given_labels(self) -> np.ndarray:
        """The labels of the whole training set, held-out samples included."""
        return self.found.given if self.task is None else self.task.given_labels

    def held_out(self, metrics: Sequence[Mapping[str, Any]]) -> HeldOut | None:
        """Return what the run measured on test data, else on held-out samples; None where it did on neither."""
        from jocor_fast.diagnosis.doubts import HeldOut

        if self.task is None or not metrics:
            return None
        for name, data, field in (("test", self.task.test, TEST), ("held-out", self.task.val, VALIDATION)):
            if data is not None and metrics[-1][field] is not None:
                # Of a part that was chosen by its loss, the accuracy says nothing.
                return HeldOut(name, metrics[-1][field], data.labels.numpy()) if data.keep_rate == 1 else None
        return None

    def files(self) -> AuditFiles:
        """Return what writes the files."""
        from jocor_fast.diagnosis.audit_files import AuditFiles, pictures_of

        files = None if self.task is None else self.task.dataset.files
        return AuditFiles(
            self.title,
            self.found,
            self.labels,
            self.names,
            ids=self.ids,
            given_labels=self.given_labels,
            paths=None if files is None else files.paths,
            folder=Path() if files is None else files.folder,
            others=() if self.task is None else other_images(self.task.dataset),
            picture=None if self.task is None else pictures_of(self.task.dataset),
        )


def _say(console: Console, audited: AuditedRun, note: str | None, files: Mapping[str, str]) -> None:
    found = audited.found
    low, high = found.share_range
    subjects = {
        "data": f"{audited.title}: {len(found.given):,} training samples",
        "wrong": f"{int(found.wrong.sum()):,} labels, {percent(found.share)} %, are probably wrong "
        f"(between {percent(low)} and {percent(high)} %)",
        **({} if note is None else {"note": note}),
        **files,
    }
    say_subjects(console, subjects)
