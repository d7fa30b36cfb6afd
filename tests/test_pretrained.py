"""Weights to start from: which files are taken, what stays drawn, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import torch
from torch import nn

from jocor_fast.data import DataError
from jocor_fast.models import build_model, mlp
from jocor_fast.pretrained import read_weights


def saved(path: Path, content: Any) -> str:
    torch.save(content, path)
    return str(path)


@pytest.mark.parametrize("wrapped", ["plain", "state_dict", "model", "parallel", "best.pt of a run"])
def test_weights_are_taken_however_they_were_saved(tmp_path: Path, wrapped: str) -> None:
    state = mlp(6, 4).state_dict()
    content: Any = {
        "plain": state,
        "state_dict": {"state_dict": state, "epoch": 3},
        "model": {"model": state},
        "parallel": {f"module.{name}": value for name, value in state.items()},
        "best.pt of a run": {"epoch": 3, "networks": [state, mlp(6, 4).state_dict()]},
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
    with pytest.raises(ValueError, match=r"pretrained: there is no 1.weight among the weights"):
        build_model("mlp", (6,), 4, weights=other)
    wider = read_weights(saved(tmp_path / "b.pt", mlp(7, 5, 8).state_dict()), "mlp")
    with pytest.raises(ValueError, match="pretrained: the weights are of another network, no layer has the shape"):
        build_model("mlp", (6,), 4, weights=wider)


def test_a_file_that_holds_no_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent.pt does not exist"):
        read_weights(str(tmp_path / "absent.pt"), "mlp")
    (tmp_path / "text.pt").write_text("no weights")
    with pytest.raises(DataError, match=r"text.pt is not a file of weights"):
        read_weights(str(tmp_path / "text.pt"), "mlp")
    for content in ({}, {"a": 1}, torch.zeros(3), [1]):
        with pytest.raises(DataError, match=r"numbers.pt holds no weights by name"):
            read_weights(saved(tmp_path / "numbers.pt", content), "mlp")


def test_default_weights_are_those_of_torchvision_and_need_the_network_once(monkeypatch: pytest.MonkeyPatch) -> None:
    models = pytest.importorskip("torchvision.models")
    with pytest.raises(ValueError, match="pretrained must be a file for model 'mlp'"):
        read_weights("default", "mlp")
    asked: list[str] = []

    def unreachable(url: str, **options: Any) -> Any:
        asked.append(url)
        raise URLError("no network")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", unreachable)
    with pytest.raises(ValueError, match=r"pretrained: https://.*resnet18.* cannot be downloaded .*no network"):
        read_weights("default", "resnet18")
    assert asked == [models.ResNet18_Weights.DEFAULT.url]
