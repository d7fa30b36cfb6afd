"""A run that was killed goes on to the bits of one that was not; what it does not go on with is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from checkpoint_cases import KINDS, Killed, assert_same, contents, killed_after, killed_at, metrics_in, train, whole
from engine_cases import blobs, fit, parameters, same_bits, settings, small_mlp, small_tanh
from jocor_fast.errors import RunError
from jocor_fast.runs.fit import Run

pytestmark = pytest.mark.usefixtures("curves_at_once")


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_goes_on_to_the_same_bits(kind: str, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train(kind, tmp_path, on_epoch=killed_after(2))
    with pytest.raises(Killed):  # in the middle of an epoch, which is done again from its start
        train(kind, tmp_path, resume=True, on_step=killed_at(4, 3))
    assert len(metrics_in(tmp_path)) == 3
    assert_same(train(kind, tmp_path, resume=True), whole(kind), tmp_path)


def test_the_metrics_after_the_checkpoint_are_removed_first(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train("paired", tmp_path, on_epoch=killed_after(2))
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"epoch": 3, "seconds": 1.0}\n{"epoch": 4, "sec')
    assert_same(train("paired", tmp_path, resume=True), whole("paired"), tmp_path)


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
    assert_same(train("paired", tmp_path, resume=True), whole("paired"), tmp_path)
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
        return {"config": {"settings": {"val_fraction": value}, "sources": {"val_fraction": source}}}

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
            config=extra,
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
    with pytest.raises(RunError, match="holds a run already; resume=True continues it, or give another folder"):
        train("paired", tmp_path, epochs=1)
    assert contents(tmp_path) == before


def test_resume_without_a_checkpoint_starts_afresh(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train("paired", tmp_path, lr=0.5, on_step=killed_at(1, 2))
    (tmp_path / "notes.txt").write_text("mine")
    assert_same(train("paired", tmp_path, resume=True), whole("paired"), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["settings"]["lr"] == 0.01
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert_same(train("paired", tmp_path / "new" / "folder", resume=True), whole("paired"), tmp_path / "new" / "folder")


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_killed_within_an_epoch_goes_on_from_the_last_checkpoint_of_so_many_steps(
    kind: str, tmp_path: Path
) -> None:
    untouched = train(kind, None, epochs=3, batch_size=8)
    with pytest.raises(Killed):
        train(kind, tmp_path, epochs=3, batch_size=8, checkpoint_every=3, on_step=killed_at(2, 8))
    stored = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["training"]["log"]
    assert stored["step"] == 6
    resumed = train(kind, tmp_path, epochs=3, batch_size=8, checkpoint_every=2, resume=True)
    assert_same(resumed, untouched, tmp_path)


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
