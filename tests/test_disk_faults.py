"""Disks that are full, read-only or odd, and crashes amid a write: one sentence, exit code 1, nothing good is lost."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from checkpoint_cases import CHECKPOINTS, Killed, assert_same, contents, killed_after, limited_files, metrics_in
from engine_cases import blobs, fit, held_out, settings, small_mlp
from jocor_fast.cli.program import main
from jocor_fast.errors import RunError
from jocor_fast.files.names import read_metrics
from jocor_fast.report import curves
from jocor_fast.runs import folder as run_folder
from jocor_fast.runs.fit import EpochEvent, Run
from jocor_fast.runs.folder import RunFolder

pytestmark = pytest.mark.usefixtures("curves_at_once")
OVERHEAD = 300_000  # bytes that no file of a small run comes near


def train(output: Path | None, **arguments: Any) -> Run:
    sets = {"test": held_out(21), "val": held_out(15, seed=3)}
    return fit(settings(), small_mlp, blobs(70), **sets, output=output, **arguments)


def train_digits(output: Path, *arguments: str) -> int:
    return main(["train", "--epochs", "3", "--device", "cpu", "--output", str(output), *arguments])


def histories(folder: Path) -> list[int]:
    """How many epochs the checkpoint and the one before hold."""
    return [len(torch.load(folder / name, weights_only=True)["history"]) for name in CHECKPOINTS]


@contextmanager
def mounted(folder: Path, *how: str) -> Iterator[Path]:
    """A file system of the test's own; the test is skipped where this process may not mount."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *how, str(folder)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"cannot mount a file system of its own: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MB: of the digits' checkpoints, 0.5 MB each, it has room for three and not for a fourth."""
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=2m", "jocor-fast-test") as disk:
        yield disk


def fill(disk: Path, leave: int) -> Path:
    """A file of somebody else's, after which so many bytes are left, in whole pages."""
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    (disk / "somebody-else").write_bytes(b"\1" * (free - leave))
    return disk / "somebody-else"


def test_a_disk_that_fills_up_ends_the_run_in_a_sentence_and_it_goes_on_where_there_is_room(
    small_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = small_disk / "run"
    assert train_digits(run, "--stop-after", "2") == 0
    others = fill(small_disk, leave=OVERHEAD)
    before = contents(run)
    capsys.readouterr()
    assert train_digits(run, "--resume") == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"jocor-fast: error: --output: {run}/checkpoint.pt cannot be written (No space left on device); the existing "
        "file is kept"
    )
    changed = {name for name in contents(run) if contents(run)[name] != before.get(name)}
    assert changed == {"metrics.jsonl"}  # the line of the third epoch
    assert histories(run) == [2, 1]
    others.unlink()
    assert train_digits(run, "--resume") == 0
    assert train_digits(tmp_path / "whole") == 0
    resumed, whole = (
        torch.load(at / "checkpoint.pt", weights_only=True)["training"] for at in (run, tmp_path / "whole")
    )
    for mine, other in zip(resumed["networks"], whole["networks"], strict=True):
        assert all(torch.equal(mine[name], other[name]) for name in other)


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl"])
def test_a_disk_that_is_full_from_the_start_is_said_of_the_first_file(
    name: str, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = small_disk / "run"
    run.mkdir()
    fill(small_disk, leave=0 if name == "config.json" else 8192)  # a page for it, and one for the lock's
    assert train_digits(run) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"jocor-fast: error: --output: {run}/{name} cannot be written (No space left on device)")
    assert not list(run.glob("*.partial"))
    assert not (run / ".lock").exists()


def test_a_picture_that_a_full_disk_cuts_off_takes_no_place(small_disk: Path) -> None:
    figure = curves.new_figure(4, 4)
    (small_disk / "curves.png").write_bytes(b"earlier")
    fill(small_disk, leave=0)
    with pytest.raises(OSError, match="No space left on device"):
        curves.save_figure(figure, small_disk / "curves.png")
    assert sorted(path.name for path in small_disk.iterdir()) == ["curves.png", "somebody-else"]
    assert (small_disk / "curves.png").read_bytes() == b"earlier"


def test_a_folder_that_becomes_read_only_ends_the_run_in_a_sentence_and_it_goes_on_later(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with ExitStack() as later:

        def on_epoch(event: EpochEvent) -> None:
            if event.epoch == 3:
                remount(later.enter_context(mounted(run, "--bind", str(run))), "bind,ro")

        with pytest.raises(RunError, match=r"run/metrics.jsonl cannot be written \(Read-only file system\)"):
            train(run, on_epoch=on_epoch)
        assert histories(run) == [3, 2]
        with pytest.raises(RunError, match=r"run/metrics.jsonl cannot be written \(Read-only file system\)"):
            train(run, resume=True)
    assert_same(train(run, resume=True), train(None), run)
    assert not (run / ".lock").exists()


def test_on_a_read_only_disk_a_run_cannot_begin_and_a_finished_one_is_found_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with mounted(tmp_path / "disk", "-t", "tmpfs", "jocor-fast-test") as disk:
        assert train_digits(disk / "run") == 0
        (disk / "empty").mkdir()
        remount(disk, "ro")
        capsys.readouterr()
        for name in ("new", "empty"):
            assert train_digits(disk / name) == 1
            error = capsys.readouterr().err.splitlines()[-1]
            assert error == (
                f"jocor-fast: error: --output: {disk}/{name} cannot be written (Read-only file system); the existing "
                "file is kept"
            )
        assert train_digits(disk / "run", "--resume") == 0
        assert "finished already" in capsys.readouterr().out


def test_a_folder_that_may_no_longer_be_written_to_ends_the_run_in_a_sentence(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir(0o555)
    if os.access(run, os.W_OK):
        pytest.skip("permissions do not bind root; the tests of read-only disks say the same")
    run.chmod(0o755)

    def on_epoch(event: EpochEvent) -> None:
        if event.epoch == 3:
            run.chmod(0o555)

    for arguments in ({"on_epoch": on_epoch}, {"resume": True}):
        with pytest.raises(
            RunError, match=r"run/[\w.]+ cannot be written \(Permission denied\); the existing file is kept"
        ):
            train(run, **arguments)
        assert histories(run) == [3, 2]
    run.chmod(0o755)
    assert_same(train(run, resume=True), train(None), run)
    run.chmod(0o555)
    with pytest.raises(RunError, match=r"run/new cannot be written \(Permission denied\)|run/new/ cannot be"):
        train(run / "new")
    run.chmod(0o755)


def test_a_checkpoint_that_becomes_a_folder_ends_the_run_and_the_one_before_stays(tmp_path: Path) -> None:
    def on_epoch(event: EpochEvent) -> None:
        if event.epoch == 3:
            (tmp_path / "checkpoint.pt").unlink()
            (tmp_path / "checkpoint.pt").mkdir()

    with pytest.raises(
        RunError, match=r"checkpoint.pt cannot be written \(Is a directory\); the existing file is kept"
    ):
        train(tmp_path, on_epoch=on_epoch)
    assert not list(tmp_path.glob("*.partial"))
    (tmp_path / "checkpoint.pt").rmdir()
    assert_same(train(tmp_path, resume=True), train(None), tmp_path)  # from the second epoch on


def test_a_crash_between_the_names_leaves_the_last_checkpoint_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def dies(source: Path, target: Path) -> None:
        if target.name == "checkpoint.pt" and len(metrics_in(tmp_path)) == 4:
            raise Killed
        replace(source, target)

    monkeypatch.setattr(run_folder.os, "replace", dies)
    with pytest.raises(Killed):
        train(tmp_path)
    monkeypatch.undo()
    assert histories(tmp_path) == [3, 3]
    began: list[tuple[int, ...]] = []
    resumed = train(tmp_path, resume=True, on_step=lambda *at: began.append(at))
    assert began[0] == (4, 1, 4)
    assert_same(resumed, train(None), tmp_path)
    assert histories(tmp_path) == [6, 5]
    assert (tmp_path / "checkpoint.pt").stat().st_nlink == 1


def test_a_file_system_without_links_keeps_the_previous_checkpoint_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(source: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(run_folder.os, "link", link)
    train(tmp_path)
    assert histories(tmp_path) == [6, 5]


def test_what_a_killed_process_left_half_written_is_removed_and_other_files_are_not(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train(tmp_path, on_epoch=killed_after(2))
    for name in ("best.pt.partial", "checkpoint.pt.partial", "mine.partial"):
        (tmp_path / name).write_bytes(b"half")
    train(tmp_path, resume=True)
    assert [path.name for path in tmp_path.glob("*.partial")] == ["mine.partial"]


def test_a_run_that_is_killed_while_its_curves_are_drawn_gets_them_when_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*arguments: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_curves", dies)
        with pytest.raises(Killed):
            train(tmp_path)
    train(tmp_path, resume=True)
    assert (tmp_path / "curves.png").exists()


def test_a_line_of_metrics_that_is_cut_ends_the_run_in_a_sentence_and_breaks_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"

    def on_epoch(event: EpochEvent) -> None:
        if event.epoch == 3:
            limit((run / "metrics.jsonl").stat().st_size + 100)  # the next line is cut

    said = rf"{run}/metrics\.jsonl cannot be written \(File too large\); the existing file is kept"
    with limited_files() as limit, pytest.raises(RunError, match=said):
        train(run, on_epoch=on_epoch)
    text = (run / "metrics.jsonl").read_text()
    assert text.count("\n") == 3
    assert text.rpartition("\n")[2].startswith('{"epoch": 4, ')  # cut, indeed
    assert [line["epoch"] for line in read_metrics(run)] == [1, 2, 3]
    assert main(["plot", str(run), "--output", str(tmp_path / "figures")]) == 0
    assert_same(train(run, resume=True), train(None), run)


TAILS = {
    "cut": b'{"epoch": 3, "se',
    "zeros": b"\0" * 300,
    "zeros and an end": b"\0" * 300 + b"\n",
    "no text": b"\xff\xfe\n",
    "no object": b"[3]\n",
}


@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS)
def test_what_a_crash_leaves_at_the_end_of_metrics_is_not_read(tail: bytes, tmp_path: Path) -> None:
    lines = [{"epoch": epoch, "test_accuracy": 0.5} for epoch in (1, 2)]
    (tmp_path / "metrics.jsonl").write_bytes("".join(json.dumps(line) + "\n" for line in lines).encode() + tail)
    assert read_metrics(tmp_path) == lines


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_log_on_a_full_disk_is_an_error_and_not_a_crash(
    named_blobs: np.ndarray, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is noticed when a line is written, or when a buffer is at the end of the process."""
    arguments = ["train", "--dataset", "npz:blobs.npz", "--labels-are-clean", "--epochs=1"]
    with open("/dev/full", "w") as log:
        command = [sys.executable, "-m", "jocor_fast", *arguments]
        child = subprocess.run(command, stdout=log, stderr=subprocess.PIPE, text=True, check=False)
    assert (child.returncode, child.stderr) == (1, "jocor-fast: error: No space left on device\n")
    with contextlib.suppress(OSError), open("/dev/full", "w", buffering=1) as log:
        monkeypatch.setattr(sys, "stdout", log)
        assert main([*arguments, "--output=at-once"]) == 1
    assert capsys.readouterr().err == "jocor-fast: error: No space left on device\n"
