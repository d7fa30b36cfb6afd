"""A warning, while a run trains, of classes of which its selection hardly keeps a sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jocor_fast.data.classes import first_names
from jocor_fast.engine.loop import EpochEvent, Observer
from jocor_fast.engine.metrics import Metrics
from jocor_fast.engine.settings import TrainSettings
from jocor_fast.methods import METHODS

LEAST_SHARE = 0.02  # of the average class's share
EPOCHS = 3  # one after the other, in which a class is to be found dropped


class DroppedClasses(Observer):
    """Warns once of classes that a selection of all together drops, from the third epoch at the whole forget rate on.

    Networks that begin without a class give its samples large losses, are then trained on none of them, and do not
    learn it later: of MNIST with 80 % of the labels wrong, runs that end seven to ten points below the others drop a
    class within the first ten epochs (benchmarks/results/mnist-causes).
    """

    def __init__(
        self,
        settings: TrainSettings,
        names: Sequence[str] | None,
        asked: Callable[[str], str],
        warn: Callable[[str], None],
    ) -> None:
        """Set up for a run.

        Args:
            settings: of the run.
            names: what the classes are called; None: by their numbers.
            asked: how a setting of this name is asked for.
            warn: is given the sentence.
        """
        self._names, self._warn = names, warn
        method = METHODS[settings.method]
        ways = {"balanced_ramp": "while the ramp lasts", "selection_per_class": "throughout"}
        if settings.balanced_ramp or method.chooses_samples:
            del ways["balanced_ramp"]
        self._remedies = ", ".join(f"{asked(name)} {when}" for name, when in ways.items())
        self._first = max(settings.ramp_epochs, 1) + EPOCHS - 1
        self._watches = method.selects and not settings.selection_per_class

    def on_epoch(self, event: EpochEvent) -> None:
        if not self._watches or event.first_stage or event.epoch < self._first:
            return
        dropped = sorted(set.intersection(*(set(dropped_classes(line)) for line in event.lines[-EPOCHS:])))
        if not dropped:
            return
        self._watches = False
        named = first_names([str(number) if self._names is None else self._names[number] for number in dropped])
        self._warn(
            f"of the samples labelled {named} hardly any was selected in the last {EPOCHS} epochs, and what is not "
            f"trained on is not learnt; what keeps the same share of each class: {self._remedies}"
        )


def dropped_classes(line: Metrics) -> list[int]:
    """Return the classes of a line of metrics.jsonl that are selected hardly ever, unlike the others."""
    found = line.get("selected_share_per_class") or ()  # older runs did not note it
    shares = {number: share for number, share in enumerate(found) if share is not None}
    if not shares:
        return []
    average = sum(shares.values()) / len(shares)
    return [number for number, share in shares.items() if share < LEAST_SHARE * average]
