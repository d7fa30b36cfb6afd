"""`jocor-fast info`: what a bug report needs, and nothing that can fail."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import pytest
import torch

import jocor_fast as jf
from jocor_fast.cli.program import main
from jocor_fast.data.catalogue import find_dataset

MNIST = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def info(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["info", *arguments]) == 0
    return capsys.readouterr().out


def test_info_names_the_build_the_versions_and_the_device(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text, build = info(capsys, "--data-root", str(tmp_path)), jf.build_info()
    assert text.startswith(f"jocor_fast  {jf.__version__}, compiled against torch {build['torch']}")
    assert f"CPU: {build['cpu_instruction_sets'][0]} in use" in text
    assert (f"CUDA: toolkit {build['cuda']}" if build["cuda"] else f"CUDA: none, {build['reason']}") in text
    assert f"torch       {torch.__version__}" in text
    assert "--device auto is " in text
    assert "docs        the folder docs of the source" in text
    for name in ("numpy", "scikit-learn", "scipy", "tensorboard", "lightning", "cleanlab"):
        assert f"{name} " in text


def test_info_says_which_data_sets_there_are_and_where(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    batches = tmp_path / "cifar10" / "cifar-10-batches-py"
    for folder, names in ((batches, ["data_batch_1"]), (tmp_path / "mnist", MNIST), (tmp_path, ["cifar100.npz"])):
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            (folder / name).write_bytes(gzip.compress(b""))
    text = info(capsys, "--data-root", str(tmp_path))
    found = {"mnist": tmp_path / "mnist", "cifar10": batches, "cifar100": tmp_path / "cifar100.npz"}
    for name, place in found.items():
        assert find_dataset(name, tmp_path) == place
        assert f"{name}: {place}" in text
    assert f"data root   {tmp_path}" in text
    assert "fashion-mnist: not found" in text
    assert "digits: part of scikit-learn" in text


def test_info_says_that_a_user_without_a_home_has_no_folder_of_data_sets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JOCOR_FAST_DATA", raising=False)
    monkeypatch.setenv("HOME", "~")
    assert "data root   none: no folder of data sets is known, as this user has no home" in info(capsys)


def test_info_tells_a_package_that_fails_from_one_that_is_absent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("torchvision")
    monkeypatch.setitem(sys.modules, "torchvision", None)  # Python's way to say that it cannot be imported
    monkeypatch.setattr("jocor_fast.cli.info.LOADERS", {"torchvision": ("torchvision",), "nothing": ("no-such",)})
    text = info(capsys, "--data-root", str(tmp_path))
    assert "cannot be imported: import of torchvision halted" in text
    assert "nothing is not installed" in text
