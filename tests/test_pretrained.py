"""Weights to start from: which files are taken, what stays drawn, and what is refused."""

from __future__ import annotations

import re
import warnings
import zipfile
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torch
from torch import nn

from jocor_fast.cli.program import main
from jocor_fast.models.networks import build_model, mlp
from jocor_fast.models.pretrained import ACCEPTED, read_weights


def saved(path: Path, content: Any) -> str:
    torch.save(content, path)
    return str(path)


@pytest.mark.parametrize(
    "wrapped", ["plain", "state_dict", "model", "parallel", "best.pt of a run", "checkpoint.pt of one"]
)
def test_weights_are_taken_however_they_were_saved(tmp_path: Path, wrapped: str) -> None:
    state = mlp(6, 4).state_dict()
    content: Any = {
        "plain": state,
        "state_dict": {"state_dict": state, "epoch": 3},
        "model": {"model": state},
        "parallel": {f"module.{name}": value for name, value in state.items()},
        "best.pt of a run": {"epoch": 3, "networks": [state, mlp(6, 4).state_dict()]},
        "checkpoint.pt of one": {"training": {"networks": [state], "step": 7}, "input": None},
    }[wrapped]
    weights = read_weights(saved(tmp_path / "weights.pt", content), "mlp")
    network = build_model("mlp", (6,), 4, weights=weights)
    assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())


def test_a_last_layer_for_other_classes_is_drawn_anew_for_each_network(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    torch.manual_seed(0)
    source = build_model("shufflenet_v2_x0_5", (3, 32, 32), 10)
    weights = read_weights(saved(tmp_path / "weights.pt", source.state_dict()), "shufflenet_v2_x0_5")
    first, second = (
        build_model("shufflenet_v2_x0_5", (32, 32), 4, weights=weights)[1] for _ in range(2)
    )  # gray images
    assert first.fc.out_features == 4
    assert not torch.equal(first.fc.weight, second.fc.weight)
    for name, value in source.state_dict().items():
        if not name.startswith("fc."):
            assert torch.equal(first.state_dict()[name], value), name


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    other = read_weights(saved(tmp_path / "a.pt", nn.Linear(3, 3).state_dict()), "mlp")
    with pytest.raises(ValueError, match=r"must hold the weights of mlp, got .*a.pt, which has no 1.weight"):
        build_model("mlp", (6,), 4, weights=other)
    wider = read_weights(saved(tmp_path / "b.pt", mlp(7, 5, 8).state_dict()), "mlp")
    with pytest.raises(ValueError, match=r"got .*b.pt, which has no layer of the right shape"):
        build_model("mlp", (6,), 4, weights=wider)


def no_weights(path: Path, kind: str) -> None:
    """A file that holds no weights, in one of the ways in which people come by such files."""
    if kind == "text":
        path.write_text("no weights")
    elif kind == "empty":
        path.touch()
    elif kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a", "b")
    elif kind == "npz":
        with path.open("wb") as file:
            np.savez(file, a=np.zeros(3))
    elif kind == "cut off":
        torch.save(mlp(64, 10).state_dict(), path)
        path.write_bytes(path.read_bytes()[:-700])
    elif kind == "script":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.script(nn.Linear(2, 2)).save(str(path))
    elif kind == "folder":
        path.mkdir()
    elif kind != "absent":
        sparse = {**mlp(64, 10).state_dict(), "1.weight": torch.zeros(256, 64).to_sparse()}
        module, other = nn.Linear(2, 2), nn.Linear(3, 3).state_dict()
        torch.save({"module": module, "tensor": torch.zeros(3), "sparse": sparse, "other": other}[kind], path)


@pytest.mark.parametrize(
    "kind",
    ["absent", "text", "empty", "zip", "npz", "cut off", "script", "folder", "module", "tensor", "sparse", "other"],
)
def test_a_file_that_is_no_weights_file_is_one_sentence_of_ours(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "w.pt"
    no_weights(file, kind)
    assert main(["train", f"--pretrained={file}", "--epochs=1", f"--output={tmp_path / 'run'}"]) == 1 + (
        kind == "other"
    )
    error = capsys.readouterr().err
    wanted = " must hold the weights of mlp, got" if kind == "other" else ":"
    assert error.startswith(f"jocor-fast: error: --pretrained{wanted} {file}")
    assert error.count("\n") == 1
    assert not re.search(r"enforce|inline_container|PytorchStream|torch\.load|weights_only|central directory", error)
    accepted = "which has no 1.weight" if kind == "other" else ACCEPTED
    assert error.endswith(f"{accepted}\n")
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_where_the_weights_that_it_began_with_are_gone(tmp_path: Path) -> None:
    file = Path(saved(tmp_path / "w.pt", mlp(64, 10).state_dict()))
    quick = ["--epochs=2", "--batch-size=256", "--device=cpu", "--noise-rate=0.2"]

    def train(name: str, *options: str) -> int:
        return main(["train", f"--pretrained={file}", *quick, f"--output={tmp_path / name}", *options])

    assert train("whole") == 0
    assert train("paused", "--stop-after=1") == 0
    file.unlink()
    assert train("new", "--resume") == 1  # it has to begin with them
    assert train("paused", "--resume") == 0
    whole, resumed = (
        torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)["training"]["networks"]
        for name in ("whole", "paused")
    )
    for first, second in zip(whole, resumed, strict=True):
        assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_default_weights_are_those_of_torchvision_and_need_the_network_once(monkeypatch: pytest.MonkeyPatch) -> None:
    models = pytest.importorskip("torchvision.models")
    with pytest.raises(ValueError, match="pretrained must be a file for model 'mlp'"):
        read_weights("default", "mlp")
    asked: list[str] = []

    def unreachable(url: str, **options: Any) -> Any:
        asked.append(url)
        raise URLError("no network")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", unreachable)
    with pytest.raises(ValueError, match=r"pretrained must be a file where https://.*resnet18.*no network"):
        read_weights("default", "resnet18")
    assert asked == [models.ResNet18_Weights.DEFAULT.url]
