"""Files that are whole or not there, whoever else writes them at the same moment."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from children import copied
from jocor_fast.files.whole_file import write_bytes


def test_of_two_that_write_one_file_at_the_same_moment_both_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, rename = tmp_path / "table.md", os.replace

    def rename_after_the_other(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "replace", rename)
        write_bytes(table, b"the other's, and longer")
        assert table.read_bytes() == b"the other's, and longer"
        rename(source, target)

    monkeypatch.setattr(os, "replace", rename_after_the_other)
    write_bytes(table, b"the first one's")
    assert table.read_bytes() == b"the first one's"
    assert os.listdir(tmp_path) == ["table.md"]


def test_a_name_as_long_as_names_may_be_can_be_written(tmp_path: Path) -> None:
    write_bytes(tmp_path / ("x" * 251 + ".jpg"), b"image")
    assert os.listdir(tmp_path) == ["x" * 251 + ".jpg"]


def test_a_file_that_cannot_take_its_name_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "table.md").mkdir()
    with pytest.raises(IsADirectoryError, match=r"table\.md"):
        write_bytes(tmp_path / "table.md", b"text")
    assert os.listdir(tmp_path) == ["table.md"]


def test_what_a_killed_process_was_writing_is_removed_by_the_next_that_writes_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not what one that is alive is writing, or one of another machine, nor a file that is somebody's own."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda *paths: os.kill(os.getpid(), signal.SIGKILL))
        child = copied(lambda: write_bytes(tmp_path / "table.md", b"half"))
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    (left,) = os.listdir(tmp_path)
    host, killed = socket.gethostname(), left.rsplit("-", 2)[1]
    assert left.startswith(f".{host}-{killed}-")
    others = {f".{host}-{os.getpid()}-0123abcd.partial", f".not-{host}-{killed}-0123abcd.partial", ".mine.partial"}
    for name in others:
        (tmp_path / name).touch()
    write_bytes(tmp_path / "figure.png", b"whole")
    assert set(os.listdir(tmp_path)) == {"figure.png", *others}
