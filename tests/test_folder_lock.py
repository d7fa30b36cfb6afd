"""One run at a time trains into a folder, and nothing of the lock is in anybody's way."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from children import copied
from engine_cases import blobs, fit, settings, small_mlp
from jocor_fast.cli.program import main
from jocor_fast.errors import RunError
from jocor_fast.runs.fit import EpochEvent, Run
from jocor_fast.runs.folder import RunFolder

pytestmark = pytest.mark.usefixtures("curves_at_once")


def train(output: Path, **arguments: object) -> Run:
    return fit(settings(epochs=2), small_mlp, blobs(70), output=output, **arguments)  # type: ignore[arg-type]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def is_locked(folder: Path) -> bool:
    try:
        RunFolder(folder).release()
    except RunError:
        return True
    return False


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[int]:
    """Another process, which trains into tmp_path / "run"."""
    reader, writer = os.pipe()

    def hold() -> None:
        folder = RunFolder(tmp_path / "run")
        os.write(writer, b"1")
        signal.pause()
        folder.release()

    child = copied(hold)
    assert os.read(reader, 1)
    yield child
    with contextlib.suppress(ProcessLookupError):  # the test may have killed it
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_second_process_ends_in_one_sentence_until_the_first_is_gone_however_it_goes(
    tmp_path: Path, holder: int, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    before = files(run)
    for resume in ([], ["--resume"]):
        assert main(["train", "--epochs", "1", "--device", "cpu", "--output", str(run), *resume]) == 1
        assert capsys.readouterr().err == (
            f"jocor-fast: error: --output: another run (process {holder} on {os.uname().nodename}) writes into "
            f"{run}; wait until it ends, or stop it, or give another folder\n"
        )
    assert files(run) == before
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    assert (run / ".lock").exists()  # it could not remove it; that it is there means nothing
    train(run)
    assert not list(run.glob(".lock*"))


def test_two_runs_of_one_process_are_kept_apart_too(tmp_path: Path) -> None:
    first = RunFolder(tmp_path)
    with pytest.raises(RunError, match=rf"another run \(process {os.getpid()} on .*writes into {tmp_path};"):
        train(tmp_path)
    first.release()
    train(tmp_path)


def test_the_first_stage_has_a_lock_of_its_own_while_the_run_has_the_whole(tmp_path: Path) -> None:
    refused = []

    def on_epoch(event: EpochEvent) -> None:
        refused.extend(name for name in (".", "first-stage") if is_locked(tmp_path / name))

    fit(settings(method="f-correction", epochs=1), small_mlp, blobs(70), output=tmp_path, on_epoch=on_epoch)
    assert refused == [".", "first-stage", "."]  # while the first stage is trained, then while the second is
    assert not list(tmp_path.rglob(".lock"))


def test_a_run_whose_folder_was_removed_does_not_write_into_the_one_that_another_began(tmp_path: Path) -> None:
    run = tmp_path / "run"
    others = []

    def on_epoch(event: EpochEvent) -> None:
        shutil.rmtree(run)
        others.append(RunFolder(run))
        (run / "checkpoint.pt").write_text("the other's")

    with pytest.raises(RunError, match="another run"):
        train(run, on_epoch=on_epoch)
    assert (run / "checkpoint.pt").read_text() == "the other's"
    assert others[0]._lock.is_held()
    others[0].release()


def test_a_run_goes_on_where_its_lock_file_alone_was_removed(tmp_path: Path) -> None:
    run = train(tmp_path, on_epoch=lambda event: (tmp_path / ".lock").unlink())
    assert run.summary["status"] == "finished"
    assert not (tmp_path / ".lock").exists()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_trained_into_without(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*arguments: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    assert train(tmp_path).summary["status"] == "finished"
    assert not (tmp_path / ".lock").exists()


def test_another_users_lock_file_that_cannot_be_opened_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".lock").touch()
    opened = os.open

    def refused(path: str, *arguments: int, **options: int) -> int:
        if str(path).endswith(".lock"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refused)
    assert train(tmp_path).summary["status"] == "finished"
    assert (tmp_path / ".lock").exists()


def test_a_child_process_of_a_run_does_not_keep_its_lock(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    folder = RunFolder(tmp_path)
    child = os.fork()
    if child == 0:  # as the workers of a program that calls jocor_fast.train
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    folder.release()
    RunFolder(tmp_path).release()
    os.close(writing)
    os.waitpid(child, 0)


def test_commands_that_read_a_run_do_so_while_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--noise-rate", "0.4", "--epochs", "2", "--device", "cpu", "--output", "run"]) == 0
    under_way = RunFolder("run")
    before = files(tmp_path / "run")
    assert main(["plot", "run"]) == 0
    assert main(["audit", "run", "--output", "audit"]) == 0
    np.save("digits.npy", load_digits().images[:3].astype(np.uint8))
    assert main(["predict", "run/checkpoint.pt", "digits.npy", "--device", "cpu"]) == 0
    assert files(tmp_path / "run") == before
    under_way.release()
