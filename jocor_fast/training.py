"""`jocor_fast.train`: training from Python, with one's own networks and arrays."""

from __future__ import annotations

import copy
import logging
import os
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from jocor_fast.arguments import at_least, check_switch
from jocor_fast.config.predictor import networks_of
from jocor_fast.config.stored_run import read_config
from jocor_fast.data.arrays import user_path
from jocor_fast.data.classes import as_array, label_values, number_classes
from jocor_fast.data.samples import Samples, as_network_input, check_inputs, input_warnings
from jocor_fast.data.sparse import csr_inputs, is_sparse, take_rows
from jocor_fast.data.torch_dataset import DatasetInputs
from jocor_fast.engine.networks import NetworkSource, probe_classes
from jocor_fast.engine.plan import unfinished_schedule
from jocor_fast.engine.processes import joined_processes
from jocor_fast.engine.settings import OptimizerSource, TrainSettings, device_name
from jocor_fast.errors import ArgumentTypeError, ArgumentValueError
from jocor_fast.files.names import read_metrics, read_summary
from jocor_fast.machine import own_modes, resolve_device, usable_cores
from jocor_fast.runs.dropped_classes import DroppedClasses
from jocor_fast.runs.fit import EpochEvent, Observer, Recording, Run, fit
from jocor_fast.runs.folder import history_in, read_whole_checkpoint

_TABLE_SHOWN = 20
_LOGGER = logging.getLogger("jocor_fast")


def train(
    networks: NetworkSource,
    train_data: tuple[Any, Any],
    *,
    test_data: tuple[Any, Any] | None = None,
    val_data: tuple[Any, Any] | None = None,
    clean_labels: Any = None,
    method: str = "jocor",
    forget_rate: float | str,
    co_lambda: float = 0.9,
    ramp_epochs: int = 10,
    epochs: int = 200,
    batch_size: int = 128,
    lr: float = 1e-3,
    recipe: str = "paper",
    seed: int = 0,
    device: str | torch.device = "auto",
    precision: str = "float32",
    output: str | os.PathLike[str] | None = None,
    resume: bool = False,
    num_workers: int | None = None,
    class_weights: Any = None,
    label_smoothing: float = 0.0,
    selection_per_class: bool = False,
    balanced_ramp: bool = False,
    optimizer: str | OptimizerSource = "adam",
    weight_decay: float = 0.0,
    on_epoch: Callable[[dict[str, Any]], object] | None = None,
    class_names: Sequence[str] | None = None,
    max_batches: int | None = None,
    beta1_after: float | None = None,
    threads: int | None = None,
    **method_options: Any,
) -> Run:
    """Train networks on noisily labelled data (paper, algorithm 1, for method "jocor").

    Prints nothing, but logs a line an epoch, as "jocor_fast": `logging.basicConfig(level=logging.INFO)` shows it.

    In a script that torchrun starts in several processes, they train together: each is given all of the data, takes
    `batch_size` rows of a step, and selects among those.

    >>> import torch
    >>> import jocor_fast as jf
    >>> labels = torch.arange(200) % 2
    >>> inputs = torch.randn(200, 4, generator=torch.Generator().manual_seed(0)) + 3 * labels[:, None]
    >>> wrong = labels.clone()
    >>> wrong[:40] = 1 - wrong[:40]  # a fifth
    >>> run = jf.train(
    ...     lambda: torch.nn.Linear(4, 2), (inputs, wrong), clean_labels=labels, test_data=(inputs, labels),
    ...     forget_rate=0.2, epochs=40, batch_size=20, lr=0.05,
    ... )
    >>> run.metrics[-1]["test_accuracy"] > 0.95 and run.metrics[-1]["label_precision"] > 0.9
    True

    Args:
        networks: a pair of nn.Module (one for a one-network method), trained in place from the weights they have; or a
            function without arguments that builds one, called once a network under the seed.
        train_data: (inputs [N, ...], noisy labels [N]), arrays or tensors. Inputs: uint8 (the networks get them divided
            by 255), floating (they get float32), int32 or int64 (as they are), or a sparse matrix of SciPy [N, D] (they
            get float32; a perceptron's first layer does not read the zeros). Labels: whole numbers, each one of the
            networks' outputs; strings, and numbers beyond the outputs, are numbered in sorted order, and a warning says
            how. What is too large for memory, or has random transforms, comes as (dataset, labels): a map-style
            `torch.utils.data.Dataset` whose item i is the input of sample i, or a tuple that begins with it.
        test_data: the same, with true labels: measured on after every epoch, chooses nothing.
        val_data: the same: chooses the best epoch.
        clean_labels: [N], the true labels of train_data, where they are known: for label precision alone.
        method: a key of `jocor_fast.methods.METHODS`. "f-correction" trains twice: first a standard network (a copy of
            the module that was handed in), whose predictions give the transition matrix.
        forget_rate: τ in [0, 1), the share of each batch to leave out once the ramp is over (a method that does not
            select by loss does not use it). "adaptive": the share of wrong labels as the run estimates it after each
            epoch of the ramp; `forget_rate` in the metrics is its course. Give a number where you know it.
        co_lambda: λ in [0, 1], the weight of the agreement between the networks.
        ramp_epochs: T_k ≥ 0, epochs until the full forget rate. It should span a few hundred steps: on small data take
            a small batch_size. A run of fewer epochs never comes to that rate, which a warning says.
        epochs: passes over the data (recipe "published" trains one fewer). The learning rate falls to zero from
            0.4 · epochs on.
        batch_size: rows of a step.
        lr: the optimiser's learning rate.
        recipe: "paper" or "published" (the authors' code, where it differs).
        seed: batches, dropout, and the initial weights of networks that a function builds. The latter two draw from
            torch's own generators, which are put back afterwards; they are the process's, so runs in several
            threads at once disturb each other: give each a process.
        device: "auto", "cpu", "cuda" or "cuda:N".
        precision: "float32", "bfloat16" or "float16".
        class_weights: how much the samples of each class count in the loss: C numbers, or "balanced": inverse to how
            many there are of it, by the noisy labels. Samples are ranked without them.
        label_smoothing: ε in [0, 1], the part of each label to spread evenly over the classes.
        selection_per_class: whether each class keeps the same share of its samples, so that a rare one is not left out
            as a whole. Which of a class with few rows in a batch are kept follows from its samples' losses so far.
        balanced_ramp: whether each class keeps the same share of its samples while the ramp lasts: none is then
            dropped before it is learnt.
        output: folder for config.json, metrics.jsonl, summary.json, curves.png and checkpoints; None writes nothing.
        resume: go on from the checkpoint in `output`.
        num_workers: processes that read a Dataset, 0: this one; None: as many as there are cores. What its transforms
            draw at random (by torch, NumPy or Python's `random`) follows from `seed`, with any number of workers.
        optimizer: "adam", "sgd" (without momentum), or a function of a list of parameters that returns a torch
            optimiser: `lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)`. Its learning rates are its own, in place of
            `lr`, and fall as the schedule says.
        weight_decay: L2 penalty of "adam" and "sgd".
        on_epoch: called after every epoch (by the first of several processes) with its line of metrics.
        class_names: names of the classes 0 … C−1, which config.json keeps and `jocor-fast audit` shows.
        max_batches: train on at most so many batches an epoch; None: all whole ones (recipe "published": 401).
        beta1_after: Adam's β1, in [0, 1), from epoch 0.4 · epochs on, where the learning rate begins to fall; None: 0.9
            as before (recipe "published": 0.1).
        threads: on the CPU. None: those that torch has (`torch.get_num_threads()`), or one for the steps while that is
            faster, as on cores that other programs use, and where it changes no bit of the result.
        method_options: further options of the method, by their names in `METHODS[method].options`.

    Returns:
        Run: networks (in evaluation mode), metrics (a dict an epoch), summary, history, settings.

    Raises:
        TypeError, ValueError: an argument is wrong, or a Dataset cannot give a sample.
        jocor_fast.errors.RunError: the output folder holds a run, cannot be written, or cannot be resumed.
        SystemExit: 143, after SIGTERM, in the main thread and with an output folder: the run can be resumed.
    """
    settings = TrainSettings(
        method=method,
        forget_rate=forget_rate,
        co_lambda=co_lambda,
        ramp_epochs=ramp_epochs,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        recipe=recipe,
        seed=seed,
        device=str(device) if isinstance(device, torch.device) else device,
        precision=precision,
        optimizer=optimizer,
        weight_decay=weight_decay,
        class_weights=class_weights,
        label_smoothing=label_smoothing,
        selection_per_class=selection_per_class,
        balanced_ramp=balanced_ramp,
        max_batches=max_batches,
        beta1_after=beta1_after,
        threads=threads,
        method_options=method_options,
    )
    if on_epoch is not None and not callable(on_epoch):
        raise ArgumentTypeError("on_epoch", f"must be a function of a dict, got {type(on_epoch).__name__}")
    if output is not None:
        if not isinstance(output, (str, os.PathLike)):
            raise ArgumentTypeError("output", f"must be a str, a path or None, got {type(output).__name__}")
        if not os.fspath(output):
            raise ArgumentValueError("output", "must name a folder, got ''")
        output = user_path(output)
    resume = check_switch("resume", resume)
    pairs = {"train_data": train_data, "test_data": test_data, "val_data": val_data}
    workers = usable_cores() if num_workers is None else at_least("num_workers", num_workers, 0)
    inputs = {name: _inputs(name, pair, workers, settings.seed) for name, pair in pairs.items() if pair is not None}
    first = {name: _first(given) for name, given in inputs.items()}
    _warn_of_other_scales(first)
    for sentence in input_warnings("train_data", inputs["train_data"]):
        warnings.warn(sentence, stacklevel=2)
    given = {name: pair[1] for name, pair in pairs.items() if pair is not None}
    if clean_labels is not None:
        given["clean_labels"] = clean_labels
    labels, table = _class_numbers(given, networks, first["train_data"])
    if class_names is not None:
        table = _names(class_names, table, _outputs(networks, first["train_data"]))
    warn_of_classes = DroppedClasses(settings, table, "{}=True".format, partial(_LOGGER.warning, "%s"))
    told = [_Logged(), warn_of_classes, *([] if on_epoch is None else [_Told(on_epoch)])]
    for name, tensor in labels.items():
        samples = len(inputs.get(name, inputs["train_data"]))
        if len(tensor) != samples:
            raise ValueError(f"{name} must have one label for each of its {samples} inputs, got {len(tensor)} labels")
    unfinished = unfinished_schedule(settings)
    if unfinished is not None:
        warnings.warn(unfinished, stacklevel=2)
    evaluation = {name: Samples(inputs[name], labels[name]) for name in inputs if name != "train_data"}
    with joined_processes(settings.device) as processes:
        return fit(
            settings,
            networks,
            Samples(inputs["train_data"], labels["train_data"], labels.get("clean_labels")),
            test=evaluation.get("test_data"),
            val=evaluation.get("val_data"),
            recording=Recording(
                folder=output, resume=resume, config={} if table is None else {"label_table": list(table)}
            ),
            processes=processes,
            observers=told if processes.first else [],
        )


class _Logged(Observer):
    def on_threads(self, sentence: str) -> None:
        _LOGGER.info("%s", sentence)

    def on_epoch(self, event: EpochEvent) -> None:
        if _LOGGER.isEnabledFor(logging.INFO):
            from jocor_fast.report.screen import epoch_line  # whose import takes longer than the first steps

            _LOGGER.info("%s%s", "first stage: " * event.first_stage, epoch_line(event.metrics, event.epochs))


class _Told(Observer):
    def __init__(self, tell: Callable[[dict[str, Any]], object]) -> None:
        self.tell = tell

    def on_epoch(self, event: EpochEvent) -> None:
        if not event.first_stage:
            self.tell(copy.deepcopy(event.metrics))  # the run keeps its own


def load_run(
    folder: str | os.PathLike[str], *, networks: NetworkSource | None = None, device: str | torch.device = "cpu"
) -> Run:
    """Return the run in a folder as it was after its last checkpoint; nothing in its files is executed.

    >>> import tempfile
    >>> import torch
    >>> import jocor_fast as jf
    >>> data, folder = (torch.randn(64, 4), torch.arange(64) % 2), tempfile.mkdtemp()
    >>> run = jf.train(lambda: torch.nn.Linear(4, 2), data, forget_rate=0.2, ramp_epochs=1, epochs=2, output=folder)
    >>> again = jf.load_run(folder, networks=lambda: torch.nn.Linear(4, 2))
    >>> torch.equal(again.networks[0].weight, run.networks[0].weight.cpu()), again.metrics == run.metrics
    (True, True)

    Args:
        folder: of `jocor-fast train`, or of `train(…, output=folder)`.
        networks: for a run of `train`, which does not know how its networks are built: modules like them (which get the
            weights of the run), or a function that builds one.
        device: of the networks.

    Returns:
        Run: as `train` returns it; `audit` takes it.

    Raises:
        jocor_fast.errors.RunError: the folder holds no run or no whole checkpoint, or its networks cannot be built.
    """
    path = user_path(folder)
    settings = read_config(path)["settings"]
    checkpoint = read_whole_checkpoint(path)
    states, described = checkpoint["training"]["networks"], checkpoint.get("input")
    with torch.random.fork_rng(devices=[]):
        modules = networks_of(path, described, states, resolve_device(device_name(device)), networks)
    return Run(modules, read_metrics(path), read_summary(path), history_in(path, checkpoint), settings)


def _names(class_names: Sequence[str], table: tuple[str, ...] | None, outputs: int) -> tuple[str, ...]:
    """The names of the classes, checked; `table` holds the labels where these were numbered."""
    if isinstance(class_names, str) or not all(isinstance(name, str) for name in class_names):
        raise ArgumentTypeError("class_names", "must be a sequence of str")
    if table is not None:
        raise ArgumentValueError(
            "class_names", "must be left out where the labels are no class numbers, as they name it"
        )
    if outputs and len(class_names) != outputs:
        wanted = f"a name for each of the networks' {outputs} outputs"
        raise ArgumentValueError("class_names", f"must hold {wanted}, got {len(class_names)}")
    return tuple(class_names)


def _inputs(name: str, pair: Any, num_workers: int, seed: int) -> Tensor | DatasetInputs:
    """The inputs of a pair (inputs, labels): a Dataset, or a tensor that shares their memory where it can."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        hint = "; give (dataset, labels)" if isinstance(pair, (Dataset, DataLoader)) else ""
        raise TypeError(f"{name} must be a pair (inputs, labels), got {type(pair).__name__}{hint}")
    inputs = pair[0]
    if isinstance(inputs, Dataset):
        if isinstance(inputs, IterableDataset) or not hasattr(inputs, "__len__"):
            raise TypeError(f"{name}: inputs must be a Dataset with a length, got {type(inputs).__name__}")
        if not len(inputs):
            raise ValueError(f"{name}: inputs must hold at least one sample, got a Dataset of none")
        return DatasetInputs(name, inputs, num_workers, seed)
    if isinstance(inputs, DataLoader):
        raise TypeError(f"{name}: inputs must be an array, a tensor or a Dataset, got a DataLoader; give its dataset")
    if is_sparse(inputs):
        return csr_inputs(inputs, f"{name}: inputs")
    if not isinstance(inputs, Tensor):
        array = as_array(inputs, f"{name}: inputs")
        if array.dtype.kind not in "biuf":
            raise TypeError(f"{name}: inputs must be numbers, got {array.dtype}")
        if array.dtype.itemsize > 8:  # torch knows no long double
            array = array.astype(np.float64)
        native = array.astype(array.dtype.newbyteorder("="), copy=False)  # torch takes no other order of bytes
        inputs = torch.from_numpy(np.require(native, requirements=["C", "W"]))
    check_inputs(f"{name}: inputs", inputs)
    return inputs.detach()


def _first(inputs: Tensor | DatasetInputs) -> Tensor:
    """A few of the inputs, dense."""
    if not isinstance(inputs, Tensor):
        return inputs.first()
    return take_rows(inputs, torch.arange(min(2, len(inputs)))).to_dense() if is_sparse(inputs) else inputs[:2]


def _warn_of_other_scales(first: dict[str, Tensor]) -> None:
    """Say where the networks are tried on numbers of another range than those that they learn from."""
    trained = first["train_data"].dtype
    for name, tensor in first.items():
        if (tensor.dtype == torch.uint8) != (trained == torch.uint8):
            warnings.warn(
                f"{name}: inputs are {tensor.dtype} and those of train_data {trained}: uint8 reaches the networks "
                "divided by 255, other numbers as they are",
                stacklevel=3,
            )


def _class_numbers(
    given: dict[str, Any], networks: NetworkSource, first: Tensor
) -> tuple[dict[str, Tensor], tuple[str, ...] | None]:
    """The labels as int64 class numbers, and the original labels in that order where they had to be numbered.

    `first` are a few of the training inputs, to try the networks.

    Numbers that the networks have outputs for are class numbers, whether or not each of them occurs.
    """
    values = {
        name: label_values(labels, name if name == "clean_labels" else f"{name}: labels")
        for name, labels in given.items()
    }
    numbered, table = number_classes(*values.values())
    if table is not None and all(array.dtype.kind == "i" and array.min(initial=0) >= 0 for array in values.values()):
        highest = max(int(array.max(initial=0)) for array in values.values())
        if highest < _outputs(networks, first):
            numbered, table = list(values.values()), None
    if table is not None:
        shown = ", ".join(f"{label} → {number}" for number, label in enumerate(table[:_TABLE_SHOWN]))
        more = f" and {len(table) - _TABLE_SHOWN} more" if len(table) > _TABLE_SHOWN else ""
        warnings.warn(f"labels are numbered in sorted order: {shown}{more}", stacklevel=3)
    return {name: torch.from_numpy(array.copy()) for name, array in zip(values, numbered, strict=True)}, table


def _outputs(networks: NetworkSource, first: Tensor) -> int:
    """How many outputs the networks have; a function is called for one that is thrown away.

    0 where they are no networks, which the run then says.
    """
    with own_modes(torch.device("cpu")), torch.random.fork_rng(devices=[]):
        network: object = networks
        if isinstance(networks, Sequence):
            network = networks[0] if networks else None
        elif not isinstance(networks, nn.Module) and callable(networks):
            network = networks()
        if not isinstance(network, nn.Module):
            return 0
        device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
        return probe_classes([network], as_network_input(first, 1 / 255).to(device), "train_data")
