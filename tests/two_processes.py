"""What test_processes.py has two processes do together, in each of them.

    python two_processes.py FOLDER                    all scenarios, into FOLDER/RANK.pt
    python two_processes.py FOLDER run               a run that takes some seconds, in FOLDER

Every function in `SCENARIOS` takes the processes and returns what the tests look at. The same functions, called with
`ALONE`, are what one process does.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import jocor_fast as jf
from engine_cases import (
    CLASSES,
    blobs,
    fit,
    held_out,
    pair_of,
    parameters,
    settings,
    small_cnn,
    small_mlp,
    small_tanh,
    train_epochs,
)
from image_cases import damage, loaded, write_clothing1m
from jocor_fast.data.images.bad_files import BadFiles
from jocor_fast.data.images.preprocessing import Preprocessing
from jocor_fast.data.samples import Samples
from jocor_fast.engine.epoch_log import EpochLog
from jocor_fast.engine.processes import Processes, SharedRequest, joined_processes
from jocor_fast.engine.state import TrainingState
from jocor_fast.errors import FailedElsewhere
from jocor_fast.methods import METHODS
from jocor_fast.runs.fit import EpochEvent

SAMPLES, BATCH = 150, 64  # two steps an epoch, and some left over
CPU = torch.device("cpu")


def two_convolutions() -> nn.Module:
    """On 8×8 colour images, without BatchNorm."""
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(144, CLASSES))


class Unused(nn.Module):
    """A network with a layer that it does not use, and buffers that are no numbers side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = small_tanh(), nn.Linear(3, 3)
        self.register_buffer("mask", torch.ones(2, 3, dtype=torch.bool).t())
        self.register_buffer("steps", torch.tensor(3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.used(inputs)
        return logits


def epochs(
    processes: Processes,
    network: Callable[[], nn.Module] = small_tanh,
    *,
    data: Samples | None = None,
    val: Samples | None = None,
    count: int = 1,
    **changes: Any,
) -> dict[str, Any]:
    """A few epochs in which the processes share batches of `BATCH`."""
    data = data or blobs(SAMPLES)
    assert isinstance(data.inputs, torch.Tensor)
    asked = settings(
        **{"batch_size": BATCH, "batch_scope": "global", "selection_scope": "global", "lr": 0.05, **changes}
    )
    networks = pair_of(network)[: METHODS[asked.method].num_networks]
    test = held_out(45, tuple(data.inputs.shape[1:]))
    state = TrainingState(asked, networks, data, test, val, CPU, processes)
    transition = torch.full((CLASSES, CLASSES), 0.1) + 0.6 * torch.eye(CLASSES)
    state.step.method.prepare(lambda *given: transition)
    watch = train_epochs(state, 1, count)
    statistics = state.history.statistics()
    return {
        "parameters": parameters(networks),
        "ids": [log["order"] for log in watch.logs],
        "selected": [log["selected"] for log in watch.logs],
        "lines": watch.lines,
        "seen": torch.from_numpy(statistics.seen),
        "loss": torch.from_numpy(statistics.loss),
    }


def images(processes: Processes, loader: str, *, spoilt: bool = False) -> dict[str, Any]:
    """The same on Clothing1M in small, of which four files cannot be read where it is `spoilt`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "clothing1m"
        keys = write_clothing1m(folder)
        if spoilt:
            damage(folder, keys)
        dataset = loaded("clothing1m", Path(name))
        assert dataset.test is not None
        bad_files, preprocessing = BadFiles(), Preprocessing((12, 12), crop=8, augment=True)
        data, held_out_part = (
            replace(part, inputs=replace(part.inputs, preprocessing=preprocessing, loader=loader, bad_files=bad_files))
            for part in (dataset.train, dataset.test)
        )
        networks = pair_of(two_convolutions)
        asked = settings(batch_size=16, batch_scope="global", selection_scope="global")
        watch = train_epochs(TrainingState(asked, networks, data, held_out_part, None, CPU, processes), 1, 2)
        ids = [log["order"] for log in watch.logs]
        return {"ids": ids, "lines": watch.lines, "parameters": parameters(networks), "bad": sorted(bad_files.reasons)}


def own_selection(processes: Processes) -> dict[str, Any]:
    """A step of plain gradient descent in which each process selects among its own rows."""
    return epochs(processes, optimizer="sgd", selection_scope="process", ramp_epochs=0, data=blobs(BATCH))


def own_loop(processes: Processes) -> dict[str, Any]:
    """The same step in a loop of one's own: the loss on the outputs of a DistributedDataParallel module."""
    data, networks = blobs(BATCH), nn.ModuleList(pair_of(small_tanh))
    assert isinstance(data.inputs, torch.Tensor)
    networks.forward = lambda inputs: [network(inputs) for network in networks]  # type: ignore[method-assign]
    together = DistributedDataParallel(networks)
    ids = processes.share_of(torch.arange(BATCH))
    out = jf.jocor_loss(*together(data.inputs[ids].float() / 255), data.labels[ids], forget_rate=0.4)
    out.loss.backward()
    torch.optim.SGD(networks.parameters(), lr=0.05).step()
    return {"ids": [ids], "selected": [out.selected[None]], "parameters": parameters(tuple(networks))}


def disagreement(processes: Processes, rows: tuple[int, ...]) -> dict[str, Any]:
    """A step of Decoupling in which the predictions differ only in these rows of the batch."""
    networks = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    for network, sign in zip(networks, (1.0, -1.0), strict=True):
        network.weight.data = torch.tensor([[1.0, sign], [0.0, 0.0]])  # the second input decides whether they differ
    inputs = torch.tensor([[1.0, 0.0]]).repeat(4, 1)
    inputs[list(rows), 1] = 3.0
    asked = settings(method="decoupling", batch_size=4, batch_scope="global", optimizer="sgd", lr=0.5)
    data = Samples(inputs, torch.zeros(4, dtype=torch.int64))
    state = TrainingState(asked, networks, data, None, None, CPU, processes)
    state.log = EpochLog(processes.share_of(torch.arange(4)), 1, 1)  # in their order
    train_epochs(state, 1)
    return {"parameters": parameters(networks)}


def request(processes: Processes) -> dict[str, Any]:
    """A request that reaches the last process alone, before its fourth step."""
    asked = SharedRequest(processes)
    answers = [asked.answered(processes.rank == processes.count - 1 and step == 3) for step in range(6)]
    return {"answers": answers}


def failure(processes: Processes) -> dict[str, Any]:
    """What the first process raises, and what that means for the others."""

    def fail() -> None:
        raise OSError("no space left")

    raised = []
    for attempt in (lambda: processes.from_first(fail), lambda: processes.run_on_local_rank_zero_first(fail)):
        try:
            attempt()
        except (OSError, FailedElsewhere) as error:  # noqa: PERF203
            raised.append((type(error).__name__, str(error)))
    return {"raised": raised, "after": processes.objects(processes.rank)}


def disagreements(processes: Processes) -> dict[str, Any]:
    """Runs whose processes are given different things."""
    first, (network, other) = processes.first, (small_mlp, small_tanh)
    given: dict[str, Any] = {
        "training labels": {"train": blobs(70, seed=processes.rank)},
        "test labels": {"test": held_out(21) if first else None},
        "output folder": {"output": "never made" if first else None},
        "checkpoint_every": {"checkpoint_every": 3 if first else None},
        "epochs": {"settings": settings(epochs=2 if first else 3)},
        "networks": {"networks": network if first else lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, CLASSES))},
    }
    said = {}
    for name, changes in given.items():
        whole = {"settings": settings(), "networks": other, "train": blobs(70), **changes}
        try:
            fit(**whole, processes=processes)
        except ValueError as error:
            said[name] = str(error)
    return {"said": said, "asked": list(given)}


def single_rows(processes: Processes) -> dict[str, Any]:
    """A batch of which each process has one row, for networks with BatchNorm."""
    pair = pair_of(lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, CLASSES), nn.BatchNorm1d(CLASSES)))
    try:
        fit(settings(batch_size=2, batch_scope="global"), pair, blobs(70), processes=processes)
    except ValueError as error:
        return {"said": str(error)}
    return {"said": None}


def ended_at_the_end(processes: Processes) -> dict[str, Any]:
    """SIGTERM that reaches the last process alone, when the last epoch is over."""

    def on_epoch(event: EpochEvent) -> None:
        if event.epoch == 2 and processes.rank == processes.count - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    with tempfile.TemporaryDirectory() as folder:
        try:
            fit(settings(epochs=2), small_mlp, blobs(70), output=folder, processes=processes, on_epoch=on_epoch)
        except SystemExit as end:
            return {"code": end.code}
    return {"code": None}


def whole_run(processes: Processes, output: Path | None = None, *, resume: bool = False, **rest: Any) -> dict[str, Any]:
    """A run with dropout and BatchNorm."""
    run = fit(
        settings(epochs=30, batch_size=8),
        small_cnn,
        blobs(70, (3, 8, 8)),
        test=held_out(31, (3, 8, 8)),
        output=output,
        resume=resume,
        checkpoint_every=3,
        processes=processes,
        **rest,
    )
    return {"parameters": parameters(run.networks), "lines": run.metrics}


def slow_run(processes: Processes, output: Path) -> None:
    """The same, of some seconds, resumed if it has begun."""

    def on_epoch(event: EpochEvent) -> None:
        if processes.first:
            print("epoch", event.epoch, flush=True)

    whole_run(processes, output, resume=True, on_step=lambda *at: time.sleep(0.03), on_epoch=on_epoch)


def terminated(processes: Processes) -> dict[str, Any]:
    """The same, which SIGTERM stops within an epoch, by way of the last process; then it is resumed."""
    output, code = Path(sys.argv[1]) / "terminated", None

    def on_step(epoch: int, step: int, steps: int) -> None:
        if (epoch, step) == (7, 2) and processes.rank == processes.count - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        whole_run(processes, output, on_step=on_step)
    except SystemExit as end:
        code = end.code
    checkpoint = torch.load(output / "checkpoint.pt", weights_only=True)
    left = {"epochs": len(checkpoint["history"]), "others": len(checkpoint["training"]["others"])}
    return {"code": code, **left, **whole_run(processes, output, resume=True)}


def drawn(processes: Processes) -> dict[str, Any]:
    """A number that dropout could have drawn."""
    numbers: list[float] = []
    fit(
        settings(epochs=1),
        small_mlp,
        blobs(70),
        processes=processes,
        on_epoch=lambda event: numbers.append(torch.rand(1).item()),
    )
    return {"drawn": numbers}


SCENARIOS: dict[str, Callable[[Processes], dict[str, Any]]] = {
    # GCE by SGD: its gradients vanish on rows that are learnt, and Adam makes whole steps of the rounding that is left.
    **{
        f"method {name}": lambda processes, name=name: epochs(
            processes, method=name, count=2, optimizer="sgd" if name == "gce" else "adam"
        )
        for name in METHODS
    },
    "method per class": lambda processes: epochs(
        processes, selection_per_class=True, class_weights="balanced", count=2
    ),
    "method adaptive": lambda processes: epochs(processes, forget_rate="adaptive", count=3),
    "network paired": lambda processes: epochs(processes, small_mlp, count=2),
    "network convolutions": lambda processes: epochs(
        processes, two_convolutions, data=blobs(SAMPLES, (3, 8, 8)), augment="crop-flip"
    ),
    "network unused": lambda processes: epochs(processes, Unused, count=2),
    "small-loss validation": lambda processes: epochs(
        processes, val=Samples(blobs(61, seed=2).inputs, blobs(61, seed=2).labels, keep_rate=0.7)
    ),
    "own selection": own_selection,
    "own loop": own_loop,
    "both differ": lambda processes: disagreement(processes, (0, 1)),
    "one differs": lambda processes: disagreement(processes, (1,)),
    "none differ": lambda processes: disagreement(processes, ()),
    "request": request,
    "failure": failure,
    "disagreements": disagreements,
    "single rows": single_rows,
    "ended at the end": ended_at_the_end,
    "whole run": whole_run,
    "terminated": terminated,
    "drawn": drawn,
    "images pillow": lambda processes: images(processes, "pillow"),
    "images dali": lambda processes: images(processes, "dali"),
    "spoilt images pillow": lambda processes: images(processes, "pillow", spoilt=True),
    "spoilt images dali": lambda processes: images(processes, "dali", spoilt=True),
}


def run_all(processes: Processes) -> dict[str, Any]:
    """What each scenario gives; of one that fails, why."""
    results: dict[str, Any] = {}
    for name, scenario in SCENARIOS.items():
        try:
            results[name] = scenario(processes)
        except Exception as error:  # noqa: PERF203
            results[name] = {"failed": f"{type(error).__name__}: {error}"}
    return results


def gloo_threads() -> int:
    """How many threads of this process serve groups; 0 where there is no /proc."""
    return sum("pt_gloo" in name.read_text() for name in Path("/proc/self/task").glob("*/comm"))


if __name__ == "__main__":
    faulthandler.enable()
    torch.set_num_threads(1)
    folder, *words = sys.argv[1:]
    for _ in range(2 if words else 0):  # groups before, as those of other runs in the same script
        with joined_processes("cpu") as others:
            assert others.objects(others.rank) == [0, 1]
    with joined_processes("cpu") as together:
        if words:
            slow_run(together, Path(folder))
        else:
            results = run_all(together)
            threads = gloo_threads()
    if not words:
        results["threads"] = {"before": threads, "after": gloo_threads()}
        torch.save(results, Path(folder) / f"{together.rank}.pt")
