"""Files that are whole or not there, whoever else writes them at the same moment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jocor_fast.whole_file import write_bytes


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
