"""The epochs of a run as TensorBoard shows them; the package tensorboard is imported here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jocor_fast.errors import ArgumentValueError

FOLDER = "tensorboard"


class TensorBoardLog:
    """Writes the lines of metrics.jsonl as scalars, a tag a field (of lists, a tag a class); null is skipped.

    Args:
        run: the folder of the run; the events go into its folder `tensorboard`, where `tensorboard --logdir runs`
            shows each run under its name.

    Raises (when made):
        ValueError: the package cannot be imported.
    """

    def __init__(self, run: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # takes a second
        except ImportError as error:
            problem = f"needs the package tensorboard ({error}): pip install tensorboard"
            raise ArgumentValueError("tensorboard", problem) from error
        self._folder = run / FOLDER
        self._make_writer = SummaryWriter
        self._writer: Any = None

    def on_epoch(self, metrics: Mapping[str, Any]) -> None:
        """Add a finished epoch; where an earlier process of the run got further, its epochs from here on are hidden."""
        epoch = metrics["epoch"]
        if self._writer is None:
            self._writer = self._make_writer(str(self._folder), purge_step=epoch)
        for name, value in metrics.items():
            of_classes = value if isinstance(value, list) else ()
            scalars = {f"{name}/{number}": item for number, item in enumerate(of_classes)} or {name: value}
            for tag, scalar in scalars.items():
                if tag != "epoch" and scalar is not None:
                    self._writer.add_scalar(tag, scalar, epoch)
        self._writer.flush()

    def __enter__(self) -> TensorBoardLog:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._writer is not None:
            self._writer.close()
