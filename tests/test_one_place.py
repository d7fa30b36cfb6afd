"""What is added in one place works everywhere: jf.train, the command line, its help, comparisons and the files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import jocor_fast as jf
from checkpoint_cases import Killed, killed_at
from children import python
from engine_cases import blobs, fit, parameters, same_bits, settings, small_tanh
from jocor_fast.arguments import as_real
from jocor_fast.cli import main
from jocor_fast.engine.metrics import METRICS, Epoch, Metric
from jocor_fast.errors import RunError
from jocor_fast.methods import GROUP, METHODS, History, Keep, Method, StepLoss, register
from jocor_fast.option import option
from jocor_fast.schedules import LR_PLANS

pytestmark = pytest.mark.usefixtures("curves_at_once")

RUN = ("train", "--noise-rate=0.2", "--epochs=3", "--device=cpu", "--seed=1")


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def a_run(**changes: Any) -> Any:
    labels = torch.arange(60) % 3
    inputs = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)) + 3 * labels[:, None]
    return jf.train(
        lambda: nn.Linear(4, 3), (inputs, labels), forget_rate=0.2, epochs=3, ramp_epochs=1, batch_size=20, **changes
    )


@pytest.fixture
def toy_method() -> Iterator[str]:
    @register("toy")
    class Toy(Method):
        """Cross-entropy of two networks, times a factor."""

        title = "Toy"
        selects = False
        factor: float = option(1.0, GROUP, "X", "factor on the loss", check=as_real)

        def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
            rows = torch.stack([nn.functional.cross_entropy(z, labels, reduction="none") for z in logits]).sum(0)
            return StepLoss(
                self.factor * rows.mean(), (torch.ones_like(labels).bool(),), torch.zeros(()).long(), rows.detach()
            )

    yield "toy"
    del METHODS["toy"]


def test_a_method_is_one_class(toy_method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, twice = a_run(method=toy_method), a_run(method=toy_method, factor=2)
    assert len(plain.networks) == 2
    assert twice.metrics[0]["train_loss"] > 1.5 * plain.metrics[0]["train_loss"]
    with pytest.raises(TypeError, match="factor must be a float, got str"):
        a_run(method=toy_method, factor="2")
    with pytest.raises(TypeError, match="factor must be left out: method 'jocor' has no such option"):
        a_run(factor=2.0)
    assert main([*RUN, "--method=toy", "--factor=3", f"--output={tmp_path / 'toy'}"]) == 0
    assert main([*RUN, "--factor=3", f"--output={tmp_path / 'jocor'}"]) == 0
    out, error = capsys.readouterr()
    assert "method    Toy, recipe paper, seed 1" in out
    assert "factor    3 (flag)" in out
    assert "--factor changes nothing: jocor has no factor" in error
    settings = [json.loads((tmp_path / run / "config.json").read_text())["settings"] for run in ("toy", "jocor")]
    assert [each.get("factor") for each in settings] == [3.0, None]
    assert main(["plot", str(tmp_path), f"--output={tmp_path}"]) == 0
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert f"{list(METHODS)[-2]}, toy" in said
    assert "--factor X factor on the loss (method toy) (default: 1)" in said
    summary = json.loads((tmp_path / "toy" / "summary.json").read_text())
    assert (summary["status"], lines(tmp_path / "toy")[-1]["keep_rate"]) == ("finished", 1.0)
    assert main([*RUN, "--method=toy", "--factor=3", "--resume", f"--output={tmp_path / 'toy'}"]) == 0
    assert main([*RUN, "--method=toy", "--resume", f"--output={tmp_path / 'toy'}"]) == 1
    assert "factor (then 3.0, now 1.0)" in capsys.readouterr().err
    assert main([*RUN, "--method=toy", "--factor=x", f"--output={tmp_path / 'other'}"]) == 2
    assert "--factor must be a number, got 'x'" in capsys.readouterr().err
    assert main([*RUN, "--method=toys", f"--output={tmp_path / 'other'}"]) == 2
    assert f"{list(METHODS)[-2]}, toy, got 'toys'" in capsys.readouterr().err


@pytest.fixture
def method_with_state() -> Iterator[str]:
    @register("toy")
    class Toy(Method):
        """Cross-entropy at a temperature that is learnt; samples of large losses so far weigh less, later ones more."""

        title = "Toy"
        num_networks = 1
        selects = False
        epochs: int

        def start(self, labels: Tensor, classes: int) -> None:
            self.state = {
                "weight": torch.ones(len(labels), device=labels.device),
                "seen": torch.zeros_like(labels),
                "scale": torch.ones((), device=labels.device, requires_grad=True),
            }

        def phase(self, epoch: int) -> bool:
            return 2 * epoch > self.epochs

        def begin_epoch(self, keep: Keep, history: History) -> None:
            losses, given = history.losses().nan_to_num(), history.probabilities()[0].nan_to_num()
            wrong = history.predictions()[0] != history.labels
            self.state["weight"].copy_((2 if self.phase(keep.epoch) else 1) / (1 + losses + given + wrong))

        def loss(self, logits: tuple[Tensor, ...], labels: Tensor, keep: Keep) -> StepLoss:
            assert keep.samples is not None
            self.state["seen"].index_add_(0, keep.samples, torch.ones_like(labels))
            rows = nn.functional.cross_entropy(self.state["scale"] * logits[0], labels, reduction="none")
            rows = rows * self.state["weight"].index_select(0, keep.samples)
            everything = torch.ones_like(labels, dtype=torch.bool)
            return StepLoss(rows.mean(), (everything,), (~everything).sum(), rows.detach())

        def summary(self) -> dict[str, Any]:
            return {"scale": self.state["scale"].item()}

    yield "toy"
    del METHODS["toy"]


def test_a_method_has_a_state_that_is_trained_and_resumed_to_the_same_bits(
    method_with_state: str, tmp_path: Path
) -> None:
    chosen, data = settings(method=method_with_state, epochs=4), blobs(70)
    whole = fit(chosen, small_tanh, data, output=tmp_path / "whole")
    output = tmp_path / "killed"
    with pytest.raises(Killed):
        fit(chosen, small_tanh, data, output=output, checkpoint_every=3, on_step=killed_at(3, 4))
    assert torch.load(output / "checkpoint.pt", weights_only=True)["training"]["log"]["step"] == 3
    resumed = fit(chosen, small_tanh, data, output=output, resume=True)
    assert same_bits(parameters(resumed.networks), parameters(whole.networks))
    runs = [torch.load(tmp_path / run / "checkpoint.pt", weights_only=True) for run in ("whole", "killed")]
    kept, again = (run["training"]["method"] for run in runs)
    assert list(kept) == ["weight", "seen", "scale"]
    assert same_bits(list(kept.values()), list(again.values()))
    assert kept["scale"] != 1
    assert resumed.summary["scale"] == kept["scale"].item()
    assert kept["seen"].tolist() == resumed.history.seen.tolist()
    assert len(kept["weight"].unique()) > 60


def test_a_checkpoint_from_before_a_method_had_its_state_is_refused(method_with_state: str, tmp_path: Path) -> None:
    fit(settings(method=method_with_state, epochs=2), small_tanh, blobs(70), output=tmp_path)
    checkpoint = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    del checkpoint["training"]["method"]
    torch.save(checkpoint, tmp_path / "checkpoint.pt")
    with pytest.raises(RunError, match="its checkpoint is older than scale, seen, weight of method toy"):
        fit(settings(method=method_with_state, epochs=2), small_tanh, blobs(70), output=tmp_path, resume=True)


@pytest.mark.parametrize(
    ("module", "before", "field"),
    [
        (
            "engine/settings.py",
            "    precision: str",
            "toy: int = option(3, TRAINING, 'N', 'a toy', check=arguments.not_negative_int)",
        ),
        ("config/options.py", "    no_test: bool", "toy: int = option(3, VALIDATION, 'N', 'a toy')"),
    ],
)
def test_an_option_is_one_field(module: str, before: str, field: str, tmp_path: Path) -> None:
    package = Path(shutil.copytree(Path(jf.__file__).parent, tmp_path / "jocor_fast"))
    source = (package / module).read_text()
    assert source.count(before) == 1
    (package / module).write_text(source.replace(before, f"    {field}\n{before}"))
    (tmp_path / "run.toml").write_text("toy = 4\n")
    lines = (["--toy=5", "--output=flag"], ["--config=run.toml", "--output=config"], ["--output=default"])
    refused = (["--toy=5", "--resume", "--output=default"], ["--toy=x"])
    code = f"""
from jocor_fast.cli import main
assert [main([*{RUN}, *line]) for line in {lines}] == [0, 0, 0]
assert [main([*{RUN}, *line]) for line in {refused}] == [1, 2]
main(["train", "--help"])
"""
    done = python("-c", code, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    configs = {run: json.loads((tmp_path / run / "config.json").read_text()) for run in ("flag", "config", "default")}
    found = {run: (config["settings"]["toy"], config["sources"]["toy"]) for run, config in configs.items()}
    assert found == {"flag": (5, "flag"), "config": (4, "config"), "default": (3, "default")}
    assert "--toy N a toy (default: 3)" in " ".join(done.stdout.split())
    assert "toy (then 3, now 5)\n" in done.stderr
    assert done.stderr.endswith("--toy must be a whole number, got 'x'\n")


@pytest.fixture
def toy_schedule() -> Iterator[str]:
    LR_PLANS["halving"] = lambda epoch, *, epochs: 0.5 ** (epoch - 1)
    yield "halving"
    del LR_PLANS["halving"]


def test_a_schedule_is_one_function(toy_schedule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = [*RUN, f"--lr-plan={toy_schedule}", f"--output={tmp_path / 'run'}"]
    assert main([*run, "--decay-start=2"]) == 0
    out, error = capsys.readouterr()
    assert "learning rate 0.001, 0.0005, 0.00025 in turn (flag)" in out
    assert "--decay-start changes nothing: --lr-plan halving sets when the learning rate falls" in error
    assert [line["lr"] for line in lines(tmp_path / "run")] == [0.001, 0.0005, 0.00025]
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert "linear, clothing1m, halving" in " ".join(capsys.readouterr().out.split())


@pytest.fixture
def toy_metric() -> Iterator[str]:
    def highest_loss(epoch: Epoch) -> Tensor:
        return epoch.log.losses.max()

    METRICS["toy_share"] = Metric(lambda _, numbers: 1 / (1 + max(map(max, numbers))), highest_loss)
    yield "toy_share"
    del METRICS["toy_share"]


def test_a_metric_is_one_entry(toy_metric: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert all(0 < line[toy_metric] < 1 for line in a_run().metrics)
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"
    assert main([*RUN, "--tensorboard", f"--output={run}"]) == 0
    shares = [line[toy_metric] for line in lines(run)]
    table = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip().startswith("toy share")]
    assert [row[-1] for row in table] == [f"{shares[-1]:.4f}"]
    board = EventAccumulator(str(run / "tensorboard"))
    board.Reload()
    assert [event.value for event in board.Scalars(toy_metric)] == pytest.approx(shares)


# What an author of a data set writes: a function and an entry. It has to be there before the command line is.
TOYS = """
import sys
from pathlib import Path
import numpy as np
import torch
from jocor_fast.data.catalogue import DATASETS, load_dataset
from jocor_fast.data.dataset import Dataset, Entry, Wanted, in_memory
from jocor_fast.data.images.source import ImageFiles
from jocor_fast.data.samples import Samples

def arrays(wanted: Wanted) -> Dataset:
    rows = np.random.default_rng(0).integers(0, 255, (60, 6, 6)).astype(np.uint8)
    labels = np.arange(60) % 3
    return in_memory(wanted.name, {"train": (rows, labels), "test": (rows[:9], labels[:9])}, 3)

def photos(wanted: Wanted) -> Dataset:
    folder = next(folder for folder in wanted.folders if folder.is_dir())
    files = ImageFiles(folder, sorted(path.name for path in folder.glob("*.png")))
    labels = torch.arange(len(files)) % 2
    return Dataset(wanted.name, Samples(files, labels), ("day", "night"), notes=("a toy",), source=str(folder))

DATASETS["toy"] = Entry("toy", arrays, place="made up", model="cnn")
DATASETS["toys"] = Entry(
    "toys", photos, lambda folders: next(filter(Path.is_dir, folders), None), holds_files=True, labels="given"
)
DATASETS["any:"] = Entry("any:", arrays, path="FILE", help="with anything in it", labels="given")

from jocor_fast.cli import main
for command in sys.argv[1:]:
    print("$", command)
    try:
        code = main(command.split())
    except SystemExit as ended:
        code = ended.code
    print("exit code", code)
"""


def test_a_data_set_is_one_entry(tmp_path: Path) -> None:
    (tmp_path / "root" / "toys").mkdir(parents=True)
    for number in range(8):
        Image.new("RGB", (16, 16), (20 * number, 0, 0)).save(tmp_path / "root" / "toys" / f"{number}.png")
    trained = "--model=mlp --batch-size=4 --device=cpu"
    photos = f"--dataset=toys --image-size=8 --loader=pillow --epochs=1 --forget-rate=0.2 {trained}"
    commands = {
        f"train --dataset=toy --epochs=2 --noise-rate=0.2 {trained} --output=arrays": "toy: 60 training, 9 test ",
        "audit arrays": "60 training samples",
        f"train --data-root=root {photos} --output=photos": "the share of wrong labels is unknown",
        "predict photos root/toys/0.png": "root/toys/0.png,",
        "prepare --dataset=toys --data-root=root --output=small/toys --size=8": "note: a toy toys is in small/toys",
        f"train --data-root=small {photos} --output=again": "toys: 8 training, no test samples, 2 classes",
        f"train --dataset=any:x --epochs=1 --noise-rate=0.2 {trained} --output=path": "any:x: 60 training",
        "train --help": "; toy; toys; any:FILE with anything in it",
        "estimate-noise --help": "cnn for cifar10 and cifar100 and toy, ",
        "info --data-root=root": "toy: made up toys: root/toys",
    }
    refused = {
        "train --dataset=other": "csv:FILE, toy, toys or any:FILE, got 'other'",
        "prepare --dataset=toy --output=x": "must be clothing1m, folder:DIR, csv:FILE or toys, got 'toy'",
    }
    done = python("-c", TOYS, *commands, *refused, cwd=tmp_path)
    printed = [" ".join(text.split()) for text in done.stdout.split("$ ")[1:]]
    for (command, expected), text in zip(commands.items(), printed, strict=False):
        assert expected in text, (command, text, done.stderr)
        assert text.endswith("exit code 0"), (command, text, done.stderr)
    for command, expected in refused.items():
        assert expected in done.stderr, command
    settings = json.loads((tmp_path / "arrays" / "config.json").read_text())["settings"]
    assert settings["dataset"] == "toy"
    assert json.loads((tmp_path / "again" / "summary.json").read_text())["status"] == "finished"


# What authors of a method and of an experiment write, each below the package's own. A run is a process of its own.
METHOD = '''

@register("toy")
class Toy(Standard):
    """Standard by another name."""

    title = "Toy"
'''
EXPERIMENT = """
EXPERIMENTS = {
    **EXPERIMENTS,
    "toys": Experiment("toys", "Toys", "digits", (Noise("symmetric", 0.2),), (), 0.1, {"epochs": 1}, seeds=1),
}
"""


def test_a_method_and_an_experiment_are_reproduced(tmp_path: Path) -> None:
    package = Path(shutil.copytree(Path(jf.__file__).parent, tmp_path / "jocor_fast"))
    for module, text in (("methods/__init__.py", METHOD), ("paper/experiments.py", EXPERIMENT)):
        (package / module).write_text((package / module).read_text() + text)
    commands = (
        ["reproduce", "toys", "--methods=toy", "--device=cpu", "--output=toys"],
        ["reproduce", "toys", "--methods=toy,jocor", "--device=cpu", "--output=toys", "--dry-run"],
        ["reproduce", "digits", "--methods=toy", "--seeds=1", "--epochs=1", "--device=cpu", "--output=digits"],
    )
    code = f"""
from jocor_fast.cli import main
assert [main(command) for command in {commands}] == [0, 0, 0]
main(["reproduce", "--help"])
"""
    done = python("-c", code, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    for words in ("Toys: Toy, seed 1", "toys Toys: all methods of `train` 1 seed each", "Symmetry-20% Toy n/a n/a 1/1"):
        assert words in said
    for folder, methods in (("toys", list(METHODS)), ("digits", ["standard", "jocor"])):
        rows = [line.split(",") for line in (tmp_path / folder / "table.csv").read_text().splitlines()[1:]]
        assert [row[3] for row in rows] == [*methods, "toy"]
        assert (rows[-1][4], rows[-1][-1]) == ("1", "1/1")
