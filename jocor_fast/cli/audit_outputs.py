"""What `jocor-fast audit` writes, whatever it audits: the files, labels after review, and corrected copies."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from jocor_fast.cli.flags import parse_count
from jocor_fast.data.arrays import user_path
from jocor_fast.diagnosis.corrected_folder import check_new, check_outside
from jocor_fast.diagnosis.export import EXPORTS
from jocor_fast.errors import ConfigError, DataError, called
from jocor_fast.files.names import CORRECTED, MOST_IMAGES
from jocor_fast.files.whole_file import check_writable
from jocor_fast.report.screen import phase, say

if TYPE_CHECKING:
    from jocor_fast.diagnosis.audit_files import AuditFiles

_FLAGS = {"write_folder": "--write-folder"}


@dataclass(frozen=True)
class Outputs:
    """What to write.

    Attributes:
        most: samples on the page.
        corrected: whether to write the corrected labels too.
        reviewed: a file of labels that take the place of the suggested ones.
        export: a key of `EXPORTS`, or None.
        folder: of the corrected copy, or None.
        dry_run: whether to list what the copy would hold, and write nothing.
        links: whether the copy may consist of hard links.
    """

    most: int
    corrected: bool
    reviewed: Path | None
    export: str | None
    folder: Path | None
    dry_run: bool
    links: bool = True

    @staticmethod
    def of(arguments: argparse.Namespace) -> Outputs:
        """Return what the flags say; a ConfigError, DataError or OSError before anything is read or computed."""
        most = parse_count("--images", arguments.images, MOST_IMAGES, least=0)
        if arguments.export not in (None, *EXPORTS):
            raise ConfigError(f"--export must be one of {', '.join(EXPORTS)}, got {arguments.export!r}")
        if arguments.dry_run and arguments.write_folder is None:
            raise ConfigError("--dry-run goes with --write-folder")
        if arguments.copy_files and arguments.write_folder is None:
            raise ConfigError("--copy-files goes with --write-folder")
        folder, reviewed = (
            None if text is None else user_path(text) for text in (arguments.write_folder, arguments.reviewed)
        )
        if folder is not None:
            with called(_FLAGS):
                check_new(folder)
            check_writable(folder)
        links = not arguments.copy_files
        return Outputs(most, arguments.apply, reviewed, arguments.export, folder, arguments.dry_run, links)

    def check(self, title: str, paths: Sequence[str] | None, folder: Path) -> None:
        """Raise a ConfigError or DataError if samples with such paths, from that folder on, cannot be copied so."""
        if paths is None and (self.folder is not None or self.export is not None):
            raise DataError(f"{title}: its samples lie in no image files that could be copied or exported")
        if paths is not None and self.folder is not None:
            with called(_FLAGS):
                check_outside(self.folder, folder, paths)

    def write(self, files: AuditFiles, output: Path, console: Console) -> Mapping[str, str]:
        """Write the files into a folder, and the corrected copy; return what was written, by what it is."""
        if self.reviewed is not None:
            from jocor_fast.data.labels import read_reviewed

            reviewed = read_reviewed(self.reviewed, files.labels, len(files.given_labels))
            files = replace(files, reviewed=reviewed)
        copied = {}
        if self.folder is not None:
            plan = files.corrected_folder()
            copied = {"copy": f"{self.folder}: {plan.summary}"}
            if self.dry_run:
                for line in plan.lines():
                    say(console, line)
                return {**copied, "dry run": "nothing is written"}
            with phase(console, "copying", "images") as update:
                linked = plan.write(self.folder, update, links=self.links)
            if linked:
                copied["links"] = "hard links: a program that changes an image in place changes the original too"
        with phase(console, "writing", "files") as update:
            written = files.write_all(
                output, corrected=self.corrected, most=self.most, export=self.export, on_file=update
            )
        return written | copied


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--apply",
        action="store_true",
        help=f"write {CORRECTED} too, with every label that is probably wrong replaced: a file for train --labels",
    )
    parser.add_argument(
        "--write-folder",
        metavar="DIR",
        help="write a corrected copy of the image folder too, each image in the folder of its corrected class; the "
        "original files stay as they are. The copy is of hard links where there can be some: it takes no space, and "
        "what changes an image in place changes the original too",
    )
    parser.add_argument("--copy-files", action="store_true", help="write --write-folder as independent files")
    parser.add_argument("--dry-run", action="store_true", help="list what --write-folder would move, and write nothing")
    parser.add_argument(
        "--reviewed",
        metavar="FILE",
        help="labels.csv of the page, in place of the suggestions; rows it lacks are dropped",
    )
    parser.add_argument("--export", metavar="FORMAT", help=f"write a file for another tool too: {', '.join(EXPORTS)}")
    parser.add_argument("--images", metavar="N", help=f"samples on the page (default: {MOST_IMAGES})")
