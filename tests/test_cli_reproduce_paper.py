"""`jocor-fast reproduce` for the paper's experiments: the flags, the plan, and what is adopted, shared and refused."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from jocor_fast.cli.program import main
from jocor_fast.config.resolve import Config, resolve
from jocor_fast.config.task import build_task
from jocor_fast.data.catalogue import DATASETS
from jocor_fast.data.samples import Samples
from jocor_fast.engine.settings import TrainSettings
from jocor_fast.methods import METHODS
from jocor_fast.noise_kinds import Noise
from jocor_fast.paper import plan, run_queue
from jocor_fast.paper.experiment_runs import default_jobs
from jocor_fast.paper.experiments import EXPERIMENTS, Cell
from reproduction_cases import metrics_line, write_accuracies, write_run, write_tiny_mnist

HALF = Noise("symmetric", 0.5)
MNIST = ["reproduce", "mnist", "--noise", "symmetric-0.5", "--device", "cpu", "--output", "out"]


@pytest.fixture(autouse=True)
def without_data(in_an_empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And without more than a moment for the steps that are measured."""
    monkeypatch.delenv("JOCOR_FAST_DATA", raising=False)
    monkeypatch.setenv("HOME", str(in_an_empty_folder))
    monkeypatch.setattr(plan, "MEASURED_SECONDS", 0.001)


def mnist_cell(method: str, **settings: Any) -> Cell:
    (cell,) = EXPERIMENTS["mnist"].cells((method,), (HALF,), device="cpu", **settings)
    return cell


def rows(folder: Path = Path("out")) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "table.csv").read_text(encoding="utf-8").splitlines()))


def test_an_experiment_of_the_paper_from_its_command_to_its_files(capsys: pytest.CaptureFixture[str]) -> None:
    """One real run, one that is finished already, and one seed of it that diverged."""
    write_tiny_mnist(Path("data", "mnist"))
    write_accuracies(Path("out"), mnist_cell("standard", epochs=2, val_fraction=0.25), [0.53])
    write_run(
        Path("out"), mnist_cell("standard", epochs=2, val_fraction=0.25), 2, [metrics_line(1, 0.1)], status="diverged"
    )
    quick = ["--methods", "jocor,standard", "--seeds", "1", "--epochs", "2", "--val-fraction", "0.25"]
    command = [*MNIST, *quick, "--data-root", "data"]
    assert main([*command, "--report", "best"]) == 0
    out = capsys.readouterr().out
    assert "MNIST, the paper's table 2: JoCoR and Standard, seed 1" in out
    assert "1 run (1 of 2 is finished already), 1 at a time, in out" in out
    folder = Path("out", "mnist-symmetric-0.5", "jocor", "seed1")
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))["settings"]
    assert (settings["co_lambda"], settings["forget_rate"], settings["noise_seed"]) == (0.95, 0.5, 1)
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    found = {(row["noise"], row["rate"], row["method"]): row for row in rows()}
    assert len(found) == 24, "the table holds every cell of the experiment"
    jocor, standard = (found["symmetric", "0.5", method] for method in ("jocor", "standard"))
    assert float(jocor["mean"]) == summary["best_by_validation"]["test_accuracy"]
    assert standard["status"] == "1/2 (seed 2: diverged)"
    assert found["asymmetric", "0.4", "jocor"]["status"] == "not run"
    assert Path("out", "curves.png").exists()

    # Of a finished experiment only table and figure are made again, now with the means over the last epochs.
    assert main(command) == 0
    assert "all 2 runs are finished already" in capsys.readouterr().out
    jocor = next(row for row in rows() if (row["rate"], row["method"]) == ("0.5", "jocor"))
    assert float(jocor["mean"]) == pytest.approx(summary["last_10_mean"]["test_accuracy"])
    assert float(jocor["paper_mean"]) == pytest.approx(0.9664)


def test_a_dry_run_plans_and_measures_without_the_data_and_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    write_accuracies(Path("out"), mnist_cell("jocor"), [0.96])
    before = sorted(Path().rglob("*"))
    command = ["reproduce", "mnist", "--device", "cpu", "--output", "out", "--noise", "symmetric-0.5,asymmetric-0.4"]
    assert main([*command, "--methods", "jocor,standard", "--seeds", "2", "--jobs", "3", "--dry-run"]) == 0
    assert sorted(Path().rglob("*")) == before
    out = capsys.readouterr().out
    cells = [line.split() for line in out.splitlines() if line.lstrip().startswith(("Symmetry", "Asymmetry"))]
    assert [cell[:6] for cell in cells] == [
        ["Symmetry-50%", "JoCoR", "0.95", "0.5", "1/2", "200"],
        ["Symmetry-50%", "Standard", "n/a", "n/a", "0/2", "400"],
        ["Asymmetry-40%", "JoCoR", "0.95", "0.198", "0/2", "400"],
        ["Asymmetry-40%", "Standard", "n/a", "n/a", "0/2", "400"],
    ]
    assert all(float(cell[6]) > 0 for cell in cells)
    commands = [line.strip() for line in out.splitlines() if line.strip().startswith("jocor-fast train ")]
    assert len(commands) == 7
    assert commands[-1] == (
        "jocor-fast train --dataset mnist --noise asymmetric --noise-rate 0.4 --noise-seed 2 --method standard "
        "--seed 2 --device cpu --output out/mnist-asymmetric-0.4/standard/seed2 --resume"
    )
    assert "7 of 8 runs left, 3 at a time with 1 thread each: about " in out
    assert "from a few measured steps" in out


@pytest.fixture
def measured_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step takes 0.1 s, and evaluating a sample 1 ms."""
    monkeypatch.setattr(plan.StepTimes, "_measured", lambda *arguments: (0.1, 0.001))


@pytest.mark.usefixtures("measured_before")
def test_all_means_every_method_under_every_noise(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*MNIST[:2], *MNIST[4:], "--methods", "all", "--seeds", "1", "--jobs", "1", "--dry-run"]) == 0
    out = capsys.readouterr().out
    commands = [line for line in out.splitlines() if line.strip().startswith("jocor-fast train ")]
    flags = ("--noise", "--noise-rate", "--method")
    runs = {tuple(words[words.index(flag) + 1] for flag in flags) for words in map(str.split, commands)}
    noises = [("symmetric", "0.2"), ("symmetric", "0.5"), ("symmetric", "0.8"), ("asymmetric", "0.4")]
    assert runs == {(*noise, method) for noise in noises for method in METHODS}
    assert len(commands) == len(runs)


@pytest.mark.usefixtures("measured_before")
@pytest.mark.parametrize(
    ("name", "epoch", "all_runs"),
    [
        ("cifar10", "49 s", "10 h 53 min"),  # 390 steps and 10,000 test images; 200 epochs, 4 cells, 1 at a time
        ("cifar100", "49 s", "10 h 53 min"),
        ("clothing1m", "26 min", "6 h 37 min"),  # 15,625 steps, validation and test images; 15 epochs
        ("ablation", "57 s", "3 h 9 min"),  # 468 steps
        ("lambda", "57 s", "12 h 37 min"),
    ],
)
def test_every_experiment_can_be_planned(
    name: str, epoch: str, all_runs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", name, "--methods", "jocor", "--seeds", "1", "--device", "cpu", "--jobs", "1", "--dry-run"]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert epoch in out
    assert f"about {all_runs}, from a few measured steps" in out
    dataset = EXPERIMENTS[name].dataset
    noise = "real" if name == "clothing1m" else "symmetric-0.5"
    assert f"--output runs/reproduce-{dataset}/{dataset}-{noise}/jocor" in out
    published = "--noise asymmetric-published --noise-rate 0.4 --noise-seed 1 --method jocor --seed 1 --forget-rate 0.2"
    assert (published in out) == (name == "cifar100")
    assert ("τ = rate/2" in out) == (name == "cifar100")


@pytest.mark.parametrize(
    ("failing", "expected"),
    [
        (("jocor", "standard"), "2 of 2 runs left, 2 at a time with 1 thread each: how long they take is not known"),
        (("standard",), "2 of 2 runs left, 2 at a time with 1 thread each: at least 3 h 9 min, from a few measured"),
    ],
)
def test_a_plan_does_not_add_up_times_that_are_not_known(
    failing: tuple[str, ...], expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a network that needs torchvision where there is none; the whole was said to take 0 s."""

    def measured(times: plan.StepTimes, config: Config, *rest: object) -> tuple[float, float]:
        if config.training.method in failing:
            raise ValueError("it cannot be built here")
        return 0.1, 0.001

    monkeypatch.setattr(plan.StepTimes, "_measured", measured)
    command = ["reproduce", "mnist", "--noise", "symmetric-0.5", "--methods", "jocor,standard", "--seeds", "1"]
    assert main([*command, "--device", "cpu", "--jobs", "2", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "no estimate for some of them: it cannot be built here" in out
    assert expected in out


@pytest.mark.usefixtures("measured_before")
def test_both_stages_of_f_correction_count(capsys: pytest.CaptureFixture[str]) -> None:
    """Its first stage has as many epochs as the run itself, in a folder of its own."""
    (cell,) = EXPERIMENTS["mnist"].cells(("f-correction",), (HALF,), device="cpu")
    first = write_run(Path("out"), cell, 1, status=None) / "first-stage"
    first.mkdir()
    lines = [json.dumps(metrics_line(epoch, 0.5)) for epoch in range(1, 151)]
    (first / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert main([*MNIST, "--methods", "f-correction", "--seeds", "1", "--dry-run"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "F-correction" in line and "0/1" in line)
    assert line.split()[:6] == ["Symmetry-50%", "F-correction", "n/a", "n/a", "0/1", "250"]


@pytest.mark.usefixtures("measured_before")
def test_the_published_recipe_has_a_folder_and_a_draw_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    command = [*MNIST[:-2], "--methods", "jocor", "--seeds", "2", "--recipe", "published", "--dry-run"]
    command += ["--max-batches", "300", "--beta1-after", "0.9"]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert out.count("--noise-seed 0 --method jocor") == 2
    assert "--output runs/reproduce-mnist-published/mnist-symmetric-0.5/jocor/seed2" in out
    assert out.count("--co-lambda 0.95") == 2
    assert out.count("--recipe published --max-batches 300 --beta1-after 0.9") == 2


@pytest.mark.parametrize(("name", "table"), [("ablation", "ablation"), ("lambda", "lambda")])
def test_experiments_share_runs_and_keep_tables_apart(
    name: str, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for cell in (mnist_cell("jocor"), *EXPERIMENTS[name].cells(("jocor",), device="cpu")):
        if not Path("out", cell.run_folder(1)).exists():
            write_accuracies(Path("out"), cell, [0.96])
    for experiment in ("mnist", name):
        command = ["reproduce", experiment, "--methods", "jocor", "--noise", "symmetric-0.5", "--seeds", "1"]
        assert main([*command, "--device", "cpu", "--output", "out"]) == 0
        assert "finished already" in capsys.readouterr().out
    assert len(rows()) == 24
    assert {row["status"] for row in rows(Path("out", table))} == (
        {"1/1", "not run"} if name == "ablation" else {"1/1"}
    )
    assert Path("out", table, "curves.png").exists()


def test_a_run_that_was_made_by_hand_is_adopted(capsys: pytest.CaptureFixture[str]) -> None:
    """`jocor-fast train` with the same settings, in the experiment's folder for it; case 37's five seeds."""
    for seed in (1, 2, 3, 4, 5):
        write_run(Path("out"), mnist_cell("jocor"), seed, [metrics_line(1, 0.95 + seed / 1000)])
        config = Path("out", "mnist-symmetric-0.5", "jocor", f"seed{seed}", "config.json")
        stored = json.loads(config.read_text(encoding="utf-8"))
        stored["settings"] |= {"device": "cuda", "of a later version": 1}
        del stored["settings"]["val_labels"]  # as an earlier version would have it
        config.write_text(json.dumps(stored), encoding="utf-8")
    assert main([*MNIST, "--methods", "jocor"]) == 0
    row = next(row for row in rows() if row["status"] == "5/5")
    assert float(row["mean"]) == pytest.approx(0.953)
    assert float(row["std"]) == pytest.approx(0.00158, abs=1e-5)


def test_a_run_of_other_settings_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Also one whose settings the experiment leaves to their defaults, and one that is only in the table."""
    write_run(Path("out"), mnist_cell("standard", batch_size=64), 1, [metrics_line(1, 0.5)])
    assert main([*MNIST, "--methods", "jocor", "--seeds", "1"]) == 1
    assert capsys.readouterr().err == (
        "jocor-fast: error: out/mnist-symmetric-0.5/standard/seed1 holds a run with batch_size 64 (now 128); choose "
        "another --output, or the same settings\n"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["mnist", "--noise", "symmetric-0.3"], 2, "--noise must name some of symmetric-0.2, symmetric-0.5"),
        (["mnist", "--noise", "loud"], 2, "--noise must name some of "),
        (["lambda", "--methods", "standard"], 2, "--methods must name some of jocor, got 'standard'"),
        (["mnist", "--dataset", "cifar10"], 2, "--dataset must be mnist for mnist, got 'cifar10'"),
        (["ablation", "--dataset", "cifar100"], 2, "--dataset must be mnist or cifar10 for ablation"),
        (["mnist", "--report", "best"], 2, "--report best needs --val-fraction above 0: test labels choose nothing"),
        (["mnist", "--report", "best", "--val-fraction", "0"], 2, "--report best needs --val-fraction above 0: "),
        (["mnist", "--report", "first"], 2, "--report must be one of best, last, got 'first'"),
        (["mnist", "--val-labels", "clean", "--methods", "jocor"], 2, "--val-labels needs --val-fraction"),
        (["mnist", "--val-fraction", "2", "--methods", "jocor"], 2, "--val-fraction must lie in [0, 1), got 2"),
        (["mnist", "--recipe", "best", "--methods", "jocor"], 2, "--recipe must be one of paper, published"),
        (
            ["mnist", "--jobs", "0", "--methods", "jocor"],
            2,
            "--jobs must be a whole number from 1 to 1,000,000,000, got '0'",
        ),
        (["cifar10", "--methods", "jocor"], 1, "cifar10"),  # not there: where to get it
        (["clothing1m", "--methods", "jocor"], 1, "clothing1m"),
    ],
)
def test_what_is_wrong_ends_in_one_sentence_before_any_run(
    arguments: list[str], code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", *arguments, "--device", "cpu"]) == code
    error = capsys.readouterr().err
    assert sentence in error
    assert error.startswith("jocor-fast: error: ")
    assert error.count("\n") == 1
    assert not list(Path().rglob("train.log"))


def test_runs_wait_passively_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Mapping[str, str]] = []
    monkeypatch.setattr(run_queue.subprocess, "Popen", lambda *args, env, **kwargs: started.append(env))
    for policy in (None, "ACTIVE"):
        monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
        if policy is not None:
            monkeypatch.setenv("OMP_WAIT_POLICY", policy)
        run_queue.QueuedRun("a run", Path("run"), {}, 1).start(threads=3)
    assert [(env["OMP_WAIT_POLICY"], env["OMP_NUM_THREADS"]) for env in started] == [("PASSIVE", "3"), ("ACTIVE", "3")]


@pytest.mark.parametrize(
    ("cores", "gigabytes", "jobs"), [(8, 64.0, 8), (8, 6.5, 2), (1, 0.5, 1)], ids=["cores", "memory", "at least one"]
)
def test_as_many_runs_at_once_as_cores_and_memory_allow(
    cores: int, gigabytes: float, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = {"SC_PHYS_PAGES": int(gigabytes * 2**18), "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(cores), raising=False)
    monkeypatch.setattr(os, "sysconf", lambda name: pages[name])
    assert default_jobs_of("cifar10", "cpu") == jobs


@pytest.mark.parametrize(
    ("name", "cores", "jobs"),
    [("mnist", 16, 4), ("lambda", 2, 2), ("cifar10", 16, 1), ("clothing1m", 16, 1)],
)
def test_runs_of_perceptrons_share_a_gpu(name: str, cores: int, jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(cores), raising=False)
    assert default_jobs_of(name, "cuda") == jobs
    assert EXPERIMENTS["ablation"].on("cifar10").gpu_runs == 1


def default_jobs_of(name: str, device: str) -> int:
    known = EXPERIMENTS[name]
    return default_jobs(torch.device(device), threads=known.threads, gigabytes=known.gigabytes, gpu_runs=known.gpu_runs)


def assert_shape_is_that_of(flags: dict[str, str | bool]) -> None:
    config = resolve({"noise_rate": "0.4", **flags})
    expected = plan.expected_forget_rate(config)
    entry = DATASETS[config.dataset]
    task, shape = build_task(config), entry.shape
    assert task.test is not None
    assert shape is not None
    assert (len(task.train.labels), len(task.test.labels)) == (shape.train, shape.test)
    assert (task.dataset.input_shape, config.model) == (shape.sample, entry.model)
    inputs = task.train.inputs
    assert isinstance(inputs, torch.Tensor)
    assert shape.filled == pytest.approx(int(inputs.count_nonzero()) / inputs.numel(), abs=0.001)
    assert expected == config.forget_rate


def test_the_estimate_knows_the_shape_of_digits() -> None:
    assert_shape_is_that_of({"dataset": "digits"})


def test_the_estimate_knows_the_shape_of_mnist_and_its_classes(data_root: Path) -> None:
    """Their sizes decide τ under asymmetric noise."""
    if not (data_root / "mnist").is_dir():
        pytest.skip("no MNIST in the folder that JOCOR_FAST_DATA names")
    assert_shape_is_that_of({"dataset": "mnist", "noise": "asymmetric", "data_root": str(data_root)})


def test_the_estimate_is_of_inputs_with_as_many_zeros_as_the_data_have(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[Samples] = []

    def fitted(settings: TrainSettings, networks: object, train: Samples, **rest: object) -> object:
        trained.append(train)
        return SimpleNamespace(metrics=[{"seconds": 1.0, "eval_seconds": 1.0}])

    monkeypatch.setattr(plan, "fit", fitted)
    for dataset, expected in {"mnist": 0.191, "fashion-mnist": 0.498, "cifar10": 1.0}.items():
        trained.clear()
        plan.StepTimes(1).of_epoch(resolve({"dataset": dataset, "noise": "symmetric", "noise_rate": "0.5"}))
        for samples in trained:
            assert isinstance(samples.inputs, torch.Tensor)
            filled = int(samples.inputs.count_nonzero()) / samples.inputs.numel()
            assert filled == pytest.approx(expected, abs=0.01)
        assert trained


def test_a_network_that_cannot_be_estimated_leaves_the_threads_as_they_were() -> None:
    before = torch.get_num_threads()
    times = plan.StepTimes(before + 1)
    assert times.of_epoch(resolve({"dataset": "digits", "model": "nonsense"})) is None
    assert "got 'nonsense'" in str(times.failures)
    assert torch.get_num_threads() == before


def test_a_run_that_is_killed_is_not_said_to_have_ended_as_it_did_before(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_queue.QueuedRun("JoCoR, seed 1", Path("out", "run"), {}, epochs=1)
    run.folder.mkdir(parents=True)
    (run.folder / "train.log").write_text("jocor-fast: error: out of memory on cpu\n")  # of an earlier attempt
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    monkeypatch.setattr(run, "command", lambda: [sys.executable, "-c", code])
    run_queue.run_all([run], jobs=1, threads=1, on_change=lambda run: None, on_poll=lambda: None)
    assert run.error == "it was killed by SIGKILL; its output is in out/run/train.log"
