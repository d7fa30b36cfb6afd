"""Nothing is lost: checkpoints, resuming to the bit, damaged files, full disks, signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from engine_cases import (
    blobs,
    held_out,
    parameters,
    same_bits,
    settings,
    small_cnn,
    small_mlp,
    small_tanh,
    without_timings,
)
from jocor_fast.engine.errors import RunError
from jocor_fast.engine.run import EpochEvent, Run, fit
from jocor_fast.report import curves

pytestmark = pytest.mark.usefixtures("one_thread")

OF_FIT = ("extra_config", "checkpoint_every")
CHECKPOINTS = ("checkpoint.pt", "checkpoint-previous.pt")


class Killed(BaseException):
    """Stands for a process that ends without a word."""


KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], dict[str, Any]]] = {
    "paired": (small_mlp, (6,), {}),
    "separate": (small_tanh, (6,), {"optimizer": "sgd", "lr": 0.1}),
    "batchnorm, dropout, crops": (small_cnn, (3, 8, 8), {"augment": "crop-flip"}),
    "two choices, float16": (small_cnn, (3, 8, 8), {"method": "coteaching-plus", "precision": "float16"}),
    "standard, published": (small_mlp, (6,), {"method": "standard", "recipe": "published", "decay_start": 2}),
}


@pytest.fixture(autouse=True)
def curves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The picture takes longer than these runs, and is tested elsewhere."""
    monkeypatch.setattr(curves, "draw_curves", lambda metrics, path: path.write_bytes(b"drawn"))


def train(kind: str, output: Path | None, *, resume: bool = False, **rest: Any) -> Run:
    network, shape, changes = KINDS[kind]
    own = {name: rest.pop(name) for name in list(rest) if not name.startswith("on_") and name not in OF_FIT}
    sets = {"test": held_out(21, shape), "val": held_out(15, shape, seed=3)}
    return fit(settings(**changes, **own), network, blobs(70, shape), **sets, output=output, resume=resume, **rest)


def killed_after(epoch: int) -> Callable[[EpochEvent], None]:
    def on_epoch(event: EpochEvent) -> None:
        if event.epoch == epoch:
            raise Killed

    return on_epoch


def killed_at(epoch: int, step: int) -> Callable[[int, int, int], None]:
    def on_step(*at: int) -> None:
        if at[:2] == (epoch, step):
            raise Killed

    return on_step


def terminated_at(epoch: int, step: int) -> Callable[[int, int, int], None]:
    def on_step(*at: int) -> None:
        if at[:2] == (epoch, step):
            os.kill(os.getpid(), signal.SIGTERM)

    return on_step


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}


def metrics_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_same(resumed: Run, whole: Run, folder: Path) -> None:
    assert without_timings(resumed.metrics) == without_timings(whole.metrics)
    assert same_bits(parameters(resumed.networks), parameters(whole.networks))
    assert metrics_in(folder) == resumed.metrics
    assert resumed.summary["status"] == "finished"
    assert resumed.summary["best_by_validation"] == whole.summary["best_by_validation"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_goes_on_to_the_same_bits(kind: str, tmp_path: Path) -> None:
    whole = train(kind, None)
    with pytest.raises(Killed):
        train(kind, tmp_path, on_epoch=killed_after(2))
    with pytest.raises(Killed):  # in the middle of an epoch, which is done again from its start
        train(kind, tmp_path, resume=True, on_step=killed_at(4, 3))
    assert len(metrics_in(tmp_path)) == 3
    assert_same(train(kind, tmp_path, resume=True), whole, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", [1, 3, 4], ids=["first step", "third step", "last step"])
def test_sigterm_leaves_a_checkpoint_within_the_step_and_exits_143(kind: str, step: int, tmp_path: Path) -> None:
    whole = train(kind, None)
    steps: list[tuple[int, ...]] = []
    kill = terminated_at(3, step)

    def on_step(*at: int) -> None:
        steps.append(at)
        kill(*at)

    with pytest.raises(SystemExit) as exit_:
        train(kind, tmp_path, on_step=on_step)
    assert exit_.value.code == 143
    assert steps[-1] == (3, step, 4)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    assert len(metrics_in(tmp_path)) == (2 if step < 4 else 3)
    assert summary["last"] == metrics_in(tmp_path)[-1]

    later: list[tuple[int, ...]] = []
    resumed = train(kind, tmp_path, resume=True, on_step=lambda *at: later.append(at))
    assert later[0] == ((3, step + 1, 4) if step < 4 else (4, 1, 4))
    assert_same(resumed, whole, tmp_path)


def test_sigterm_before_the_first_epoch_is_over_can_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        train("paired", tmp_path, on_step=terminated_at(1, 2))
    assert json.loads((tmp_path / "summary.json").read_text())["last"] is None
    assert_same(train("paired", tmp_path, resume=True), train("paired", None), tmp_path)


def test_sigterm_in_the_last_epoch_finishes_the_run_and_exits_143(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as exit_:
        train("paired", tmp_path, on_step=terminated_at(6, 4))
    assert exit_.value.code == 143
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "finished"
    assert (tmp_path / "curves.png").exists()


def test_the_handler_is_put_back_however_a_run_ends(tmp_path: Path) -> None:
    received: list[int] = []
    previous = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        with pytest.raises(SystemExit):
            train("paired", tmp_path, on_step=terminated_at(1, 2))
        assert received == []
        os.kill(os.getpid(), signal.SIGTERM)
        assert received == [signal.SIGTERM]
        with pytest.raises(Killed):
            train("paired", tmp_path, resume=True, on_epoch=killed_after(2))
        train("paired", None, epochs=1, on_step=terminated_at(1, 1))  # no files: none of the run's business
        assert received == [signal.SIGTERM] * 2
    finally:
        signal.signal(signal.SIGTERM, previous)


def test_a_run_in_another_thread_leaves_signals_alone(tmp_path: Path) -> None:
    results: list[Run] = []
    thread = threading.Thread(target=lambda: results.append(train("paired", tmp_path, epochs=2)))
    thread.start()
    thread.join()
    assert results[0].summary["status"] == "finished"


def test_ctrl_c_says_interrupted_and_can_be_resumed(tmp_path: Path) -> None:
    def on_step(*at: int) -> None:
        if at[:2] == (3, 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train("paired", tmp_path, on_step=on_step)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["status"], summary["last"]["epoch"]) == ("interrupted", 2)
    assert_same(train("paired", tmp_path, resume=True), train("paired", None), tmp_path)


SCRIPT = """
import sys, time, torch
sys.path.insert(0, {tests!r})
from engine_cases import blobs, held_out, settings, small_mlp
from jocor_fast.engine.run import fit
torch.set_num_threads(1)

def on_step(epoch, step, steps):
    time.sleep(0.01)

def on_epoch(event):
    print(event.epoch, flush=True)

data = {{'test': held_out(21), 'output': {output!r}, 'resume': {resume}}}
fit(settings(epochs=30), small_mlp, blobs(70), **data, on_epoch=on_epoch, on_step=on_step)
"""


def process(output: Path, *, resume: bool = False) -> subprocess.Popen[str]:
    code = SCRIPT.format(tests=str(Path(__file__).parent), output=str(output), resume=resume)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_that_a_signal_ends_is_resumed_by_another(number: signal.Signals, tmp_path: Path) -> None:
    whole = fit(settings(epochs=30), small_mlp, blobs(70), test=held_out(21))
    child = process(tmp_path)
    assert child.stdout is not None
    for _ in range(3):
        assert child.stdout.readline(), child.communicate()[1]
    child.send_signal(number)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == (143 if number == signal.SIGTERM else -signal.SIGKILL), errors
    assert (tmp_path / "summary.json").exists() == (number == signal.SIGTERM)
    assert 3 <= len(metrics_in(tmp_path)) < 30

    child = process(tmp_path, resume=True)
    printed, errors = child.communicate(timeout=120)
    assert child.returncode == 0, errors
    assert printed.split()[-1] == "30"
    assert without_timings(metrics_in(tmp_path)) == without_timings(whole.metrics)


def test_a_checkpoint_loads_without_running_code(tmp_path: Path) -> None:
    train("paired", tmp_path, epochs=2)
    for name in (*CHECKPOINTS, "best.pt"):
        assert isinstance(torch.load(tmp_path / name, weights_only=True), dict)
    last, previous = (torch.load(tmp_path / name, weights_only=True) for name in CHECKPOINTS)
    assert (len(last["history"]), len(previous["history"])) == (2, 1)
    network = small_mlp()
    network.load_state_dict(last["training"]["networks"][0])
    assert not list(tmp_path.glob("*.partial"))


def flip_a_weight(path: Path) -> None:
    """A byte in the middle, amid the weights: torch.load takes no notice of it."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "a flipped byte": flip_a_weight,
    "missing": lambda path: path.unlink(),
    "something else": lambda path: path.write_text("{}"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_falls_back_to_the_previous(damage: Callable[[Path], Any], tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train("paired", tmp_path, on_epoch=killed_after(3))
    damage(tmp_path / "checkpoint.pt")
    there = (tmp_path / "checkpoint.pt").exists()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(Killed):
            train("paired", tmp_path, resume=True, on_epoch=killed_after(3))
    assert (tmp_path / "checkpoint-damaged.pt").exists() == there
    said = [
        str(warning.message)
        for warning in caught
        if "damaged: going on from checkpoint-previous.pt" in str(warning.message)
    ]
    assert len(said) == there
    histories = [len(torch.load(tmp_path / name, weights_only=True)["history"]) for name in CHECKPOINTS]
    assert histories == [3, 2]  # the damaged one did not become the previous one
    assert_same(train("paired", tmp_path, resume=True), train("paired", None), tmp_path)


def test_two_damaged_checkpoints_end_in_a_sentence_and_stay(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train("paired", tmp_path, on_epoch=killed_after(3))
    for name in CHECKPOINTS:
        (tmp_path / name).write_bytes(b"PK")
    before = contents(tmp_path)
    with pytest.raises(
        RunError, match=r"no whole checkpoint to resume from, damaged: checkpoint.pt .* and checkpoint-pre"
    ):
        train("paired", tmp_path, resume=True)
    assert contents(tmp_path) == before


def test_a_checkpoint_that_cannot_be_read_is_not_taken_for_damaged(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train("paired", tmp_path, on_epoch=killed_after(3))
    (tmp_path / "checkpoint.pt").rename(tmp_path / "kept")
    (tmp_path / "checkpoint.pt").mkdir()
    with pytest.raises(RunError, match=r"output: .*checkpoint.pt cannot be read \(Is a directory\)"):
        train("paired", tmp_path, resume=True)


def test_the_metrics_after_the_checkpoint_are_removed_first(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train("paired", tmp_path, on_epoch=killed_after(2))
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"epoch": 3, "seconds": 1.0}\n{"epoch": 4, "sec')
    assert_same(train("paired", tmp_path, resume=True), train("paired", None), tmp_path)


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    first = train("paired", tmp_path)
    before = contents(tmp_path)
    again = train("paired", tmp_path, resume=True)
    assert contents(tmp_path) == before
    assert (again.metrics, again.summary) == (first.metrics, first.summary)
    assert same_bits(parameters(again.networks), parameters(first.networks))


def test_a_run_killed_before_its_summary_gets_one(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train("paired", tmp_path, on_epoch=killed_after(6))
    assert not (tmp_path / "summary.json").exists()
    assert_same(train("paired", tmp_path, resume=True), train("paired", None), tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "finished"


@pytest.mark.parametrize("finished", [False, True])
def test_other_settings_end_in_a_sentence_that_names_them(finished: bool, tmp_path: Path) -> None:
    if finished:
        train("paired", tmp_path)
    else:
        with pytest.raises(Killed):
            train("paired", tmp_path, on_epoch=killed_after(2))
    before = contents(tmp_path)
    with pytest.raises(RunError, match=r"other settings: lr \(then 0.01, now 0.02\), seed \(then 0, now 1\)$"):
        train("paired", tmp_path, resume=True, lr=0.02, seed=1)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("finished", [False, True])
def test_other_networks_end_in_a_sentence_that_names_a_layer(finished: bool, tmp_path: Path) -> None:
    if finished:
        train("separate", tmp_path)
    else:
        with pytest.raises(Killed):
            train("separate", tmp_path, on_epoch=killed_after(2))
    before = contents(tmp_path)
    deeper = tuple(nn.Sequential(*small_tanh()[:3], nn.Linear(16, 16), nn.Linear(16, 4)) for _ in range(2))
    weights = parameters(deeper)
    changes = KINDS["separate"][2]
    with pytest.raises(RunError, match=r"other networks: 3\.weight of network 1 \(then \(4, 16\), now \(16, 16\)\)$"):
        fit(settings(**changes), deeper, blobs(70), output=tmp_path, resume=True)
    assert same_bits(parameters(deeper), weights)  # modules that were handed in are not overwritten in part
    assert contents(tmp_path) == before


def test_a_run_from_before_a_setting_existed_goes_on_where_that_has_its_default(tmp_path: Path) -> None:
    def interrupted(folder: Path, **options: object) -> None:
        with pytest.raises(Killed):
            train("paired", folder, on_epoch=killed_after(2), **options)
        checkpoint = torch.load(folder / "checkpoint.pt", weights_only=True)
        for name in ("weight_decay", "val_fraction"):
            del checkpoint["identity"][name]
        torch.save(checkpoint, folder / "checkpoint.pt")

    def extra(value: float, source: str) -> dict[str, object]:
        return {"extra_config": {"settings": {"val_fraction": value}, "sources": {"val_fraction": source}}}

    interrupted(tmp_path / "upgraded", **extra(0.0, "default"))
    assert len(train("paired", tmp_path / "upgraded", resume=True, **extra(0.0, "default")).metrics) == 6
    interrupted(tmp_path / "changed", **extra(0.0, "default"))
    with pytest.raises(
        RunError, match=r"settings: weight_decay \(then None, now 0.1\), val_fraction \(then None, now 0.2\)$"
    ):
        train("paired", tmp_path / "changed", resume=True, weight_decay=0.1, **extra(0.2, "flag"))


def test_other_settings_of_the_caller_and_other_labels_are_named_too(tmp_path: Path) -> None:
    def go(dataset: str, seed: int, *, resume: bool, on_epoch: Any = None) -> Run:
        extra = {"settings": {"dataset": dataset}}
        return fit(
            settings(),
            small_mlp,
            blobs(40, seed=seed),
            output=tmp_path,
            extra_config=extra,
            resume=resume,
            on_epoch=on_epoch,
        )

    with pytest.raises(Killed):
        go("mnist", 0, resume=False, on_epoch=killed_after(1))
    with pytest.raises(RunError, match=r"dataset \(then 'mnist', now 'digits'\)$"):
        go("digits", 0, resume=True)
    with pytest.raises(
        RunError, match=r"training labels \(then '40 with checksum \w{8}', now '40 with checksum \w{8}'\)$"
    ):
        go("mnist", 1, resume=True)
    assert go("mnist", 0, resume=True).summary["status"] == "finished"


def test_a_folder_that_holds_a_run_is_refused_unless_it_is_resumed(tmp_path: Path) -> None:
    train("paired", tmp_path, epochs=1)
    before = contents(tmp_path)
    with pytest.raises(RunError, match="holds a run already; resume it, or give another folder"):
        train("paired", tmp_path, epochs=1)
    assert contents(tmp_path) == before


def test_resume_without_a_checkpoint_starts_afresh(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train("paired", tmp_path, lr=0.5, on_step=killed_at(1, 2))
    (tmp_path / "notes.txt").write_text("mine")
    assert_same(train("paired", tmp_path, resume=True), train("paired", None), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["settings"]["lr"] == 0.01
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert_same(
        train("paired", tmp_path / "new" / "folder", resume=True), train("paired", None), tmp_path / "new" / "folder"
    )


def test_a_folder_that_cannot_be_made_or_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError, match=r"output: .*file/run cannot be written \(Not a directory\)"):
        train("paired", tmp_path / "file" / "run")
    (tmp_path / "run" / "config.json.partial").mkdir(parents=True)
    with pytest.raises(RunError, match=r"output: .*config.json cannot be written \(Is a directory\)"):
        train("paired", tmp_path / "run")


FULL_DISK = """
import resource, sys
sys.path.insert(0, {tests!r})
from engine_cases import blobs, held_out, settings, small_mlp
from jocor_fast.engine.errors import RunError
from jocor_fast.engine.run import fit

def on_epoch(event):
    if event.epoch == 3:  # from now on no file may grow past 4 kB: the next checkpoint fails as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))

try:
    fit(settings(), small_mlp, blobs(70), test=held_out(21), output={output!r}, on_epoch=on_epoch)
except RunError as error:
    sys.exit(str(error))
"""


def test_a_full_disk_ends_in_a_sentence_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    code = FULL_DISK.format(tests=str(Path(__file__).parent), output=str(tmp_path))
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert child.returncode == 1
    assert (
        "checkpoint.pt cannot be written (File too large), what was there is kept"
        in child.stderr.strip().splitlines()[-1]
    )
    assert not list(tmp_path.glob("*.partial"))
    last = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert len(last["history"]) == 3
    whole = fit(settings(), small_mlp, blobs(70), test=held_out(21))
    resumed = fit(settings(), small_mlp, blobs(70), test=held_out(21), output=tmp_path, resume=True)
    assert_same(resumed, whole, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_killed_within_an_epoch_goes_on_from_the_last_checkpoint_of_so_many_steps(
    kind: str, tmp_path: Path
) -> None:
    whole = train(kind, None, epochs=3, batch_size=8)
    with pytest.raises(Killed):
        train(kind, tmp_path, epochs=3, batch_size=8, checkpoint_every=3, on_step=killed_at(2, 8))
    stored = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["training"]["log"]
    assert stored["step"] == 6
    resumed = train(kind, tmp_path, epochs=3, batch_size=8, checkpoint_every=2, resume=True)
    assert_same(resumed, whole, tmp_path)


def test_a_checkpoint_is_not_replaced_by_one_of_broken_networks(tmp_path: Path) -> None:
    networks = small_tanh(), small_tanh()

    def on_step(epoch: int, step: int, steps: int) -> None:
        if (epoch, step) == (2, 4):
            with torch.no_grad():
                next(networks[1].parameters()).fill_(float("nan"))

    run = fit(
        settings(epochs=3, batch_size=8), networks, blobs(70), output=tmp_path, checkpoint_every=3, on_step=on_step
    )
    assert run.summary["status"] == "diverged"
    assert run.summary["diverged"]["epoch"] == 2
    assert run.summary["diverged"]["batch"] == 5
    training = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["training"]
    assert training["log"]["step"] == 3
    assert all(value.isfinite().all() for network in training["networks"] for value in network.values())


@pytest.mark.parametrize("steps", [0, -1])
def test_checkpoints_every_so_many_steps_need_a_step(steps: int) -> None:
    with pytest.raises(ValueError, match=f"checkpoint_every must be at least 1, got {steps}"):
        fit(settings(), small_mlp, blobs(70), checkpoint_every=steps)


def test_a_run_of_two_processes_is_not_gone_on_with_by_one(tmp_path: Path) -> None:
    train("paired", tmp_path, epochs=2)
    checkpoint = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    checkpoint["identity"]["processes"] = 2
    torch.save(checkpoint, tmp_path / "checkpoint.pt")
    with pytest.raises(RunError, match=r"holds a run of other settings: processes \(then 2, now 1\)"):
        train("paired", tmp_path, epochs=2, resume=True)
    del checkpoint["identity"]["processes"]  # as before there could be several
    torch.save(checkpoint, tmp_path / "checkpoint.pt")
    assert train("paired", tmp_path, epochs=2, resume=True).summary["status"] == "finished"
