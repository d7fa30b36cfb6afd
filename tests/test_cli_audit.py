"""`jocor-fast audit`: its files, and that what it corrects can be trained on."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import jocor_fast as jf
from engine_cases import blobs, small_tanh
from image_cases import write_clothing1m
from jocor_fast.cli.program import main
from jocor_fast.config.resolve import resolve
from jocor_fast.config.task import build_task
from jocor_fast.data.labels import read_labels
from jocor_fast.engine.history import SampleHistory
from jocor_fast.methods import StepLoss

pytestmark = pytest.mark.usefixtures("curves_at_once")
NOISE = {"noise_rate": "0.4", "noise": "symmetric", "val_fraction": "0.1", "val_labels": "noisy"}


def words(options: dict[str, str]) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]


@pytest.fixture
def matrix_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For audits of whose files nothing is looked at."""
    draw = "jocor_fast.report.noise_matrix.draw_noise_matrices"
    monkeypatch.setattr(draw, lambda matrices, path, names: path.write_bytes(b"drawn"))


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the digits, 40 % wrong, a tenth held out, with its audit."""
    run = tmp_path_factory.mktemp("audit") / "run"
    assert main(["train", *words(NOISE), "--epochs=12", "--device=cpu", f"--output={run}"]) == 0
    assert main(["audit", str(run), "--apply", "--images=50"]) == 0
    return run


def test_the_list_names_every_sample_once_the_most_suspicious_first(audited: Path) -> None:
    task, found = build_task(resolve(NOISE)), jf.audit(audited)
    rows = list(csv.DictReader((audited / "audit" / "suspicious.csv").open()))
    ids = np.array([int(row["id"]) for row in rows])
    assert (ids == task.train_ids[found.ranking]).all()
    assert len(set(ids)) == len(rows) == 1293
    assert ([int(row["given"]) for row in rows] == task.given_labels[ids]).all()
    assert [int(row["suggested"]) for row in rows] == found.suggested[found.ranking].tolist()
    scores = [float(row["score"]) for row in rows]
    assert scores == sorted(scores, reverse=True)
    assert [row["wrong"] for row in rows] == [str(bool(wrong)).lower() for wrong in found.wrong[found.ranking]]
    assert [int(row["prediction_2"]) for row in rows] == found.prediction[1][found.ranking].tolist()
    assert [int(row["times_selected"]) for row in rows] == found.selected[found.ranking].tolist()
    assert list(rows[0])[:2] == ["id", "path"]
    wrong = task.given_labels != task.dataset.train.arrays()[1]
    assert wrong[ids[:400]].mean() > 0.95


def test_the_report_has_the_share_its_range_and_the_matrix(audited: Path) -> None:
    report, found = json.loads((audited / "audit" / "audit.json").read_text()), jf.audit(audited)
    assert report["share"] == found.share
    assert report["share_range"] == list(found.share_range)
    assert report["flagged"] == int(found.wrong.sum())
    assert report["classes"] == [str(number) for number in range(10)]
    np.testing.assert_array_equal(report["noise_matrix"], found.noise_matrix)
    realised = build_task(resolve(NOISE)).realised_noise_rate
    assert realised is not None
    assert report["share_range"][0] < realised < report["share_range"][1]
    assert (audited / "audit" / "noise-matrix.png").stat().st_size > 5000
    assert not (audited / "audit" / "noise-matrix.npy").exists()


def test_the_page_holds_its_pictures_and_all_labels(audited: Path) -> None:
    page = (audited / "audit" / "audit.html").read_text(encoding="utf-8")
    (text,) = re.findall(r'<script type="application/json" id="data">(.*)</script>', page)
    data = json.loads(text)
    assert data["given"] == build_task(resolve(NOISE)).given_labels.tolist()
    assert len(data["samples"]) == 50
    assert len(re.findall(r"^.*data:image/png;base64,.*$", page.partition('class="pictures">')[2], re.MULTILINE)) == 50
    assert len(data["hidden"]) == int(jf.audit(audited).wrong.sum()) - sum(s["wrong"] for s in data["samples"])
    assert "http" not in page  # nothing is loaded from anywhere


def test_applied_suggestions_are_labels_that_train_reads(audited: Path, tmp_path: Path) -> None:
    task, found = build_task(resolve(NOISE)), jf.audit(audited)
    corrected = audited / "audit" / "corrected.csv"
    labels = read_labels(str(corrected), task.dataset.train.arrays()[1], 10).noisy
    assert (labels[task.train_ids] == found.suggested).all()
    held_out = np.setdiff1d(np.arange(len(labels)), task.train_ids)
    assert (labels[held_out] == task.given_labels[held_out]).all()
    before = (task.given_labels != task.dataset.train.arrays()[1]).mean()
    assert (labels != task.dataset.train.arrays()[1]).mean() < before / 3
    command = ["train", f"--labels={corrected}", "--forget-rate=0.1", "--epochs=1", f"--output={tmp_path / 'again'}"]
    assert main(command) == 0


def test_a_run_of_ones_own_arrays_is_audited_without_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = blobs(80)
    names = np.array(["cat", "dog", "eel", "fox"])[data.labels.numpy()]
    with pytest.warns(UserWarning, match="labels are numbered in sorted order"):
        jf.train(
            small_tanh,
            (data.inputs, names),
            forget_rate=0.4,
            ramp_epochs=0,
            epochs=3,
            batch_size=16,
            output=tmp_path / "own",
        )
    assert main(["audit", str(tmp_path / "own"), "--apply", f"--output={tmp_path / 'found'}"]) == 0
    assert "own has seen each sample 3 times only: not much to judge by" in capsys.readouterr().err
    rows = list(csv.DictReader((tmp_path / "found" / "suspicious.csv").open()))
    assert {row["given"] for row in rows} == {"cat", "dog", "eel", "fox"}
    assert len((tmp_path / "found" / "corrected.csv").read_text().splitlines()) == 81
    assert "<img" in (tmp_path / "found" / "audit.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("matrix_at_once")
def test_networks_that_have_memorised_random_labels_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "random.npy", np.random.default_rng(0).integers(0, 10, 1437))
    flags = [f"--labels={tmp_path / 'random.npy'}", "--forget-rate=0.5", "--epochs=30", "--device=cpu"]
    run = tmp_path / "run"
    assert main(["train", *flags, "--no-test", "--val-fraction=0.2", f"--output={run}"]) == 0
    assert main(["audit", str(run)]) == 0
    warning = capsys.readouterr().err
    assert "% of the held-out labels, where" in warning
    assert "the networks have memorised the labels" in warning


def test_the_matrix_of_many_classes_is_a_file_of_its_own(tmp_path: Path) -> None:
    """2,000 classes: audit.json had 43 MB."""
    run, labels = tmp_path / "run", torch.arange(20_000) % 2000
    predicted = (labels + (torch.arange(20_000) % 10 == 0)) % 2000
    history = SampleHistory(labels, 2)
    columns = (20, 10, 1, 1, 0.3, 0.3, predicted, predicted)  # seen, selected, weight, loss, probabilities, predictions
    for place, value in enumerate(columns):
        history.table[:, place] = value
    run.mkdir()
    (run / "config.json").write_text(json.dumps({"settings": {}}))
    torch.save({"training": {"networks": [], "history": history.state_dict()}}, run / "checkpoint.pt")
    assert main(["audit", str(run), "--images=0"]) == 0
    assert (run / "audit" / "audit.json").stat().st_size < 100_000
    report = json.loads((run / "audit" / "audit.json").read_text())
    assert (report["noise_matrix"], report["noise_matrix_file"]) == (None, "noise-matrix.npy")
    np.testing.assert_array_equal(np.load(run / "audit" / "noise-matrix.npy"), jf.audit(run).noise_matrix)


def test_images_in_files_are_named_and_shown(tmp_path: Path) -> None:
    keys = write_clothing1m(tmp_path / "data" / "clothing1m")
    (tmp_path / "data" / "clothing1m" / keys[0]).write_bytes(b"no image")
    settings = {"dataset": "clothing1m", "loader": "pillow", "device": "cpu", "forget_rate": "0.2"}
    task = build_task(resolve({**settings, "data_root": str(tmp_path / "data")}))
    history = SampleHistory(task.train.labels, 2)
    other = (task.train.labels + 1) % 4
    logits = 5 * torch.nn.functional.one_hot(other, 4).float()
    everything = torch.ones(len(other))
    outcome = StepLoss(torch.tensor(0.0), (everything.bool(),), torch.tensor(0), everything, logits=(logits, logits))
    history.record(torch.arange(len(other)), task.train.labels, [outcome])
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text(json.dumps({"settings": settings}))
    torch.save({"training": {"networks": [], "history": history.state_dict()}}, run / "checkpoint.pt")
    assert main(["audit", str(run), f"--data-root={tmp_path / 'data'}", "--apply"]) == 0
    rows = list(csv.DictReader((run / "audit" / "suspicious.csv").open()))
    assert task.dataset.files is not None
    paths = task.dataset.train.inputs.paths
    assert sorted(row["path"] for row in rows) == sorted(paths)
    assert all(paths[int(row["id"])] == row["path"] for row in rows)
    corrected = run / "audit" / "corrected.csv"
    assert [row["path"] for row in csv.DictReader(corrected.open())] == list(paths)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # as of columns that are not read
        read_labels(str(corrected), task.given_labels, 4)
    page = (run / "audit" / "audit.html").read_text(encoding="utf-8")
    pictures = page.partition('class="pictures">')[2].partition("<")[0].split("\n")
    assert len(pictures) == len(paths)
    assert sum(picture.startswith("data:image/png;base64,") for picture in pictures) == len(paths) - 1
    assert '"names":["T-Shirt","Shirt","Knitwear","Chiffon"]' in page


def folder_of_images(folder: Path, names: list[str]) -> None:
    generator = np.random.default_rng(0)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 256, (12, 12, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / name)


PHOTOS = [f"{name}/{number}.png" for name in ("cat", "dog") for number in range(8)]
QUICK = ["--forget-rate=0.1", "--model=mlp", "--image-size=8", "--batch-size=8", "--epochs=1", "--device=cpu"]


def test_other_files_behind_the_same_labels_are_other_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the place of an image that was removed another one has come: the numbers of those between have moved."""
    folder_of_images(tmp_path / "photos", PHOTOS)
    run, data = tmp_path / "run", f"--dataset=folder:{tmp_path / 'photos'}"
    command = ["train", data, *QUICK, "--loader=pillow", f"--output={run}"]
    assert main(command) == 0
    assert main(["audit", str(run)]) == 0
    (tmp_path / "photos" / "cat" / "0.png").rename(tmp_path / "photos" / "cat" / "new.png")
    capsys.readouterr()
    assert main(["audit", str(run)]) == 1
    assert f"the image files that {run} was trained on are others now, or in another order" in capsys.readouterr().err
    assert main([*command, "--resume"]) == 1
    assert "holds a run of other settings: training files (then '16 with checksum " in capsys.readouterr().err


def test_where_the_files_of_a_list_lie_may_change(tmp_path: Path) -> None:
    folder_of_images(tmp_path / "scratch1", PHOTOS)
    options = [*QUICK, "--loader=pillow", f"--output={tmp_path / 'run'}"]

    def listed(folder: Path) -> str:
        rows = "".join(f"{folder / name},{name[:3]}\n" for name in PHOTOS)
        (tmp_path / "list.csv").write_text(f"path,label\n{rows}")
        return f"--dataset=csv:{tmp_path / 'list.csv'}"

    assert main(["train", listed(tmp_path / "scratch1"), *options]) == 0
    (tmp_path / "scratch1").rename(tmp_path / "scratch2")
    assert main(["train", listed(tmp_path / "scratch2"), *options, "--resume"]) == 0
    assert main(["audit", str(tmp_path / "run")]) == 0


def test_a_checkpoint_from_before_files_were_noted_goes_on_and_is_audited(tmp_path: Path) -> None:
    folder_of_images(tmp_path / "photos", PHOTOS)
    run, data = tmp_path / "run", f"--dataset=folder:{tmp_path / 'photos'}"
    command = ["train", data, *QUICK, "--epochs=2", "--loader=pillow", f"--output={run}"]
    assert main([*command, "--stop-after=1"]) == 0
    checkpoint = torch.load(run / "checkpoint.pt", weights_only=True)
    del checkpoint["identity"]["training files"]
    torch.save(checkpoint, run / "checkpoint.pt")
    assert main([*command, "--resume"]) == 0
    torch.save(checkpoint, run / "checkpoint.pt")
    assert main(["audit", str(run)]) == 0


def test_an_audit_needs_nothing_of_what_the_run_was_trained_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run comes from a machine with a GPU and DALI, and began with weights that are gone."""
    folder_of_images(tmp_path / "photos", PHOTOS)
    run = tmp_path / "run"
    command = ["train", f"--dataset=folder:{tmp_path / 'photos'}", *QUICK, "--loader=pillow", f"--output={run}"]
    assert main(command) == 0
    config = json.loads((run / "config.json").read_text())
    config["settings"] |= {"device": "cuda:7", "loader": "dali", "pretrained": "gone.pt", "precision": "bfloat16"}
    (run / "config.json").write_text(json.dumps(config))
    monkeypatch.setitem(sys.modules, "jocor_fast.data.images.dali_decoder", None)  # cannot be imported
    assert main(["audit", str(run)]) == 0
    assert len((run / "audit" / "suspicious.csv").read_text().splitlines()) == 17


def test_relative_paths_of_a_run_are_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    folder_of_images(project / "photos", PHOTOS)
    (project / "labels.csv").write_text("id,label\n" + "".join(f"{n},{'cat' if n % 3 else 'dog'}\n" for n in range(16)))
    elsewhere.mkdir()
    options = [*QUICK, "--epochs=2", "--loader=pillow"]
    monkeypatch.chdir(project)
    assert (
        main(["train", "--dataset=folder:photos", "--labels=labels.csv", *options, "--output=run", "--stop-after=1"])
        == 0
    )
    monkeypatch.chdir(elsewhere)
    assert main(["audit", "../project/run"]) == 0
    there = ["--dataset=folder:../project/photos", "--labels=../project/labels.csv", "--output=../project/run"]
    assert main(["train", *there, *options, "--resume"]) == 0
    config = json.loads((project / "run" / "config.json").read_text())
    assert (config["settings"]["dataset"], config["folder"]) == ("folder:photos", str(project))
    assert len((project / "run" / "metrics.jsonl").read_text().splitlines()) == 2
    assert main(["audit", "../project/run"]) == 0
    moved = tmp_path / "moved"
    project.rename(moved)  # as ever, what lies beside is then found from there
    monkeypatch.chdir(moved)
    assert main(["audit", "run"]) == 0
    command = ["train", "--dataset=folder:photos", "--labels=labels.csv", *options, "--output=run", "--resume"]
    capsys.readouterr()
    assert main(command) == 0
    assert "this run is finished already" in capsys.readouterr().out


def test_the_weights_alone_are_no_run_to_audit_or_to_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    command = ["train", *words(NOISE), "--epochs=1", "--batch-size=256", "--device=cpu", f"--output={run}"]
    assert main(command) == 0
    os.replace(run / "best.pt", run / "checkpoint.pt")
    capsys.readouterr()
    assert main(["audit", str(run)]) == 1
    assert "holds no whole checkpoint.pt" in capsys.readouterr().err
    assert main([*command, "--resume"]) == 1
    assert "has no whole checkpoint to resume from, damaged: checkpoint.pt" in capsys.readouterr().err


def test_wrong_use_ends_in_a_sentence(audited: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def says(code: int, *arguments: str) -> str:
        assert main(["audit", *arguments]) == code
        captured = capsys.readouterr()
        assert captured.err.count("\n") == 1
        return captured.err

    assert "audit takes the folder of one run, got none" in says(2)
    assert "got 2" in says(2, "a", "b")
    assert "is not the folder of a run (it has no config.json); images in a folder for" in says(1, str(tmp_path))
    assert "nowhere does not exist: train a run first" in says(1, str(tmp_path / "nowhere"))
    assert "--images must be a whole number from 0 to 1,000,000,000, got 'many'" in says(
        2, str(audited), "--images=many"
    )
    (tmp_path / "config.json").write_text((audited / "config.json").read_text())
    assert "holds no whole checkpoint.pt" in says(1, str(tmp_path))
    changed = json.loads((audited / "config.json").read_text())
    changed["settings"]["noise_seed"] = 7
    (tmp_path / "config.json").write_text(json.dumps(changed))
    (tmp_path / "checkpoint.pt").write_bytes((audited / "checkpoint.pt").read_bytes())
    assert "are others now: has their file changed?" in says(1, str(tmp_path))


def test_names_that_are_no_text_end_neither_training_nor_the_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of classes and files: bytes that are not UTF-8, and dollars, which matplotlib takes for formulas."""
    generator, strange = np.random.default_rng(0), b"caf\xe9 $_$"
    for name, base in ((strange, 60), (b"dog", 200)):
        folder = os.fsencode(tmp_path) + b"/photos/" + name
        os.makedirs(folder)
        for number in range(12):
            pixels = base + generator.integers(-40, 40, (12, 12, 3))
            with open(folder + b"/\xe9%d.png" % number, "wb") as file:
                Image.fromarray(pixels.astype(np.uint8)).save(file, "PNG")
    screen = io.TextIOWrapper(io.BytesIO(), encoding="ascii")  # which has no τ
    monkeypatch.setattr("sys.stdout", screen)
    run = tmp_path / "run"
    options = ["--forget-rate=0.1", "--model=mlp", "--image-size=8", "--batch-size=8", "--epochs=1", "--device=cpu"]
    command = ["train", f"--dataset=folder:{tmp_path / 'photos'}", *options, "--loader=pillow", f"--output={run}"]
    assert main(command) == 0
    assert main([*command, "--resume"]) == 0
    assert main(["audit", str(run), "--apply"]) == 0
    screen.flush()
    assert rb"\u03c4         0.1 from epoch 10 on" in screen.buffer.getvalue()  # type: ignore[attr-defined]
    rows = (run / "audit" / "suspicious.csv").read_bytes().splitlines()[1:]
    assert {row.split(b",")[1] for row in rows if strange in row} >= {strange + b"/\xe9%d.png" % n for n in range(12)}
    assert json.loads((run / "config.json").read_text())["label_table"] == [os.fsdecode(strange), "dog"]
    corrected = run / "audit" / "corrected.csv"
    assert corrected.read_bytes().count(b"\n") == 25
    corrected.write_bytes(b"id,label\n" + b"".join(b"%d,%s\n" % (n, strange if n % 2 else b"dog") for n in range(24)))
    again = ["train", command[1], f"--labels={corrected}", *options, f"--output={tmp_path / 'again'}"]
    assert main(again) == 0
    given = torch.load(tmp_path / "again" / "checkpoint.pt", weights_only=True)["training"]["history"]["labels"]
    assert given.tolist() == [1, 0] * 12
