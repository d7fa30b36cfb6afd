"""`jocor-fast features` and `jocor-fast audit --dataset`: features by a pretrained network, and what they refuse."""

from __future__ import annotations

import contextlib
import csv
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torch

from image_cases import CLASS_NAMES, encoded, picture
from jocor_fast.cli.program import main
from jocor_fast.config.predictor import Predictor
from jocor_fast.data.arrays import read_array, read_npz
from jocor_fast.data.images.pillow_decoder import PillowDecoder
from jocor_fast.data.images.preprocessing import CENTRE, Preprocessing
from jocor_fast.diagnosis import encoder_features
from jocor_fast.errors import DataError
from jocor_fast.models.networks import build_encoder, build_model
from jocor_fast.models.pretrained import Weights, read_weights
from jocor_fast.runs.folder_lock import FolderLock

pytest.importorskip("torchvision")
MODEL, PER_CLASS = "shufflenet_v2_x0_5", 12
COUNT = PER_CLASS * len(CLASS_NAMES)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photos/CLASS/…, one of them in a wrong folder, and weights w.pt."""
    folder, generator = tmp_path_factory.mktemp("made"), np.random.default_rng(0)
    for label, name in enumerate(CLASS_NAMES):
        (folder / "photos" / name).mkdir(parents=True)
        for number in range(PER_CLASS):
            image = picture((label + 1) % 4 if label == number == 0 else label, (40, 36), generator)
            (folder / "photos" / name / f"{number:02d} ü,ß.jpg").write_bytes(encoded(image))
    torch.manual_seed(0)
    torch.save(build_model(MODEL, (3, 32, 32), 7).state_dict(), folder / "w.pt")
    torch.save(build_model("squeezenet1_1", (3, 32, 32), 7).state_dict(), folder / "squeezenet.pt")
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, which is the current one."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(name: str, *options: str) -> int:
    defaults = {"dataset": "folder:photos", "model": MODEL, "pretrained": "w.pt", "image-size": "32"}
    defaults |= {"batch-size": "8", "loader": "pillow", "device": "cpu"} | (
        {"output": "x.npz"} if name == "features" else {}
    )
    given = {option.partition("=")[0] for option in options}
    flags = [f"--{flag}={value}" for flag, value in defaults.items() if f"--{flag}" not in given]
    return main([name, *flags, *(option for option in options if not option.endswith("=-"))])


def features(*options: str) -> int:
    return command("features", *options)


def content(path: str = "x.npz") -> dict[str, np.ndarray]:
    with np.load(path) as archive:
        return dict(archive)


def table(path: str) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_features_are_what_the_last_layer_takes_of_test_images(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert features() == 0
    said = capsys.readouterr().out
    assert f"{COUNT} × 1,024 features: 0.2 MB in x.npz, and as much again until it is whole" in said
    found = content()
    assert found["features"].dtype == np.float32
    assert found["features"].shape == (COUNT, 1024)
    assert found["names"].tolist() == sorted(CLASS_NAMES)
    assert [path.partition("/")[0] for path in found["paths"]] == found["labels"].tolist()
    assert found["readable"].all()
    network = build_model(MODEL, (3, 32, 32), 7, weights=read_weights("w.pt", MODEL)).eval()
    decoder = PillowDecoder(Preprocessing().at_size(32), torch.device("cpu"))
    for row in (0, COUNT - 1):
        pixels = decoder.load(str(Path(str(found["folder"])) / found["paths"][row]), CENTRE).permute(2, 0, 1)
        with torch.no_grad():
            logits = network(decoder.network_input(pixels[None]))
            by_features = network.fc(torch.from_numpy(found["features"][row : row + 1]))
        torch.testing.assert_close(by_features, logits, rtol=1e-4, atol=1e-5)
    assert list(here.glob("*partial*")) == []


@pytest.mark.parametrize("model", ["resnet18", "mobilenet_v3_small", "densenet121", "mlp", "cnn"])
def test_an_encoder_ends_where_the_last_layer_began(model: str) -> None:
    shape = (3, 32, 32)
    torch.manual_seed(0)
    network = build_model(model, shape, 5).eval()
    encoder = build_encoder(model, shape, Weights("w.pt", model, network.state_dict()))
    last = [module for module in network.modules() if isinstance(module, torch.nn.Linear)][-1]
    inputs = torch.rand(2, *shape)
    with torch.no_grad():
        torch.testing.assert_close(last(encoder(inputs)), network(inputs))


def test_weights_without_a_last_layer_without_counters_and_in_old_spelling_are_taken(tmp_path: Path) -> None:
    """As of files from before BatchNorm counted, and torchvision's of densenet121."""
    torch.manual_seed(0)
    network = build_model("densenet121", (32, 32), 5).eval()
    old = {
        name.replace("norm1.", "norm.1.").replace("conv2.", "conv.2."): value
        for name, value in network[1].state_dict().items()
        if not name.startswith("classifier.") and not name.endswith("num_batches_tracked")
    }
    torch.save(old, tmp_path / "old.pt")
    encoder = build_encoder("densenet121", (32, 32), read_weights(str(tmp_path / "old.pt"), "densenet121"))
    inputs = torch.rand(1, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(network[1].classifier(encoder(inputs)), network(inputs))


class Killed(BaseException):
    """What stops a pass in these tests."""


@contextlib.contextmanager
def killed() -> Iterator[None]:
    """Let a pass be killed in its third batch."""
    whole = encoder_features.FeaturePass._missing

    def part(*arguments: Any) -> Iterator[np.ndarray]:
        for number, rows in enumerate(whole(*arguments)):
            if number == 2:
                raise Killed
            yield rows

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
        patch.setattr(encoder_features.FeaturePass, "_missing", part)
        yield
        pytest.fail("nothing was killed")


def spoil() -> list[str]:
    """Make files unreadable: some of the first batch, a whole batch, and the last ones; return their paths in order."""
    paths = sorted(str(path.relative_to("photos")) for path in Path("photos").rglob("*.jpg"))
    bad = [paths[number] for number in (1, 3, *range(16, 24), COUNT - 2, COUNT - 1)]
    for path in bad:
        (Path("photos") / path).write_bytes(b"")
    return bad


def test_a_killed_pass_resumes_to_the_same_bytes(here: Path) -> None:
    bad = spoil()
    with killed():
        features()
    rows = Path("x.npz.partial/rows")
    assert rows.stat().st_size == 2 * 8 * 1024 * 4
    with rows.open("ab") as file:
        file.write(b"\1" * 5000)  # of a batch that was not written to its end
    assert features() == 1, "an interrupted pass is not overwritten"
    assert features("--resume") == 0
    assert features("--output=whole.npz") == 0
    assert Path("x.npz").read_bytes() == Path("whole.npz").read_bytes()
    assert Path("x-bad_files.txt").read_bytes() == Path("whole-bad_files.txt").read_bytes()
    listed = Path("x-bad_files.txt").read_text().splitlines()
    assert sorted(line.partition("\t")[0] for line in listed) == bad


def test_unreadable_files_have_no_features_and_are_not_audited(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = spoil()
    assert features() == 0
    assert "12 files cannot be read and have no features, see x-bad_files.txt" in capsys.readouterr().err
    found = content()
    assert found["paths"][~found["readable"]].tolist() == bad
    assert np.array_equal(np.isnan(found["features"]).all(1), ~found["readable"])
    assert np.isfinite(found["features"][found["readable"]]).all()
    assert main(["audit", "--features=x.npz:features", "--output=audited", "--apply", "--device=cpu"]) == 0
    assert f"folder:photos: {COUNT - 12} rows" in capsys.readouterr().out
    rows = table("audited/suspicious.csv")
    assert {row["path"] for row in rows} == set(found["paths"]) - set(bad)
    assert all(found["paths"][int(row["id"])] == row["path"] for row in rows)
    assert [row["path"] for row in table("audited/corrected.csv")] == found["paths"].tolist()


def test_strict_ends_at_the_first_unreadable_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil()
    assert features("--strict") == 1
    assert capsys.readouterr().err.startswith("jocor-fast: error: --strict: photos/Chiffon/01 ü,ß.jpg cannot be used")
    assert list(here.glob("*partial*")) == []


def test_an_audit_in_one_go_shows_pictures_and_keeps_the_features(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("audit", "--apply") == 0
    folder = Path("runs/audit-photos")
    page = (folder / "audit.html").read_text()
    assert page.count("data:image/png;base64,") > 6
    assert (folder / "corrected.csv").exists()
    expected = {name: (folder / name).read_bytes() for name in ("features.npz", "suspicious.csv")}
    assert command("audit") == 0
    assert "features.npz has these features already" in capsys.readouterr().out
    assert main(["audit", f"--features={folder}/features.npz:features", "--output=again", "--device=cpu"]) == 0
    assert {name: (folder / name).read_bytes() for name in expected} == expected
    assert Path("again/suspicious.csv").read_bytes() == expected["suspicious.csv"]
    assert Path("again/audit.html").read_text() == page
    assert command("audit", "--image-size=64") == 1
    assert "features.npz was made with another image_size; give another file" in capsys.readouterr().err


def test_without_a_download_an_audit_leaves_nothing_and_names_the_way_without_one(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*arguments: object, **options: object) -> None:
        raise URLError("no network")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", refused)
    before = sorted(here.rglob("*"))
    assert command("audit", "--pretrained=default") == 2
    error = capsys.readouterr().err
    assert "cannot be downloaded (<urlopen error no network>)" in error
    assert "`jocor-fast train` learns from your data alone, and `jocor-fast audit RUN` finds" in error
    assert sorted(here.rglob("*")) == before


def test_labels_from_a_file_replace_those_of_the_features(here: Path) -> None:
    assert features() == 0
    np.save("y.npy", np.arange(COUNT) // PER_CLASS)
    assert main(["audit", "--features=x.npz:features", "--labels=y.npy", "--output=a", "--device=cpu"]) == 0
    assert json.loads(Path("a/audit.json").read_text())["classes"] == sorted(CLASS_NAMES)
    assert {row["given"] for row in table("a/suspicious.csv")} == set("0123")


def test_arrays_and_weights_of_a_run_do_as_well(in_an_empty_folder: Path) -> None:
    assert main(["train", "--noise-rate=0.2", "--epochs=1", "--device=cpu", "--output=run"]) == 0
    assert main(["audit", "--dataset=digits", "--pretrained=run/checkpoint.pt", "--device=cpu", "--output=a"]) == 0
    found = content("a/features.npz")
    (network, _), image = Predictor.load(Path("run"), torch.device("cpu")).networks, torch.zeros(1, 8, 8)
    assert found["features"].shape[1] == network[:-1](image).shape[1] == 256
    assert found["labels"].dtype == np.int64
    assert "data:image/png" in Path("a/audit.html").read_text()


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--dataset=-",), 2, "--dataset is needed: "),
        (("--pretrained=-",), 2, "--pretrained is needed: "),
        (("--output=-",), 2, "--output must be a file whose name ends in .npz, got nothing"),
        (("--output=x.npy",), 2, "--output must be a file whose name ends in .npz, got 'x.npy'"),
        (("--output=w.pt/x.npz",), 1, "HERE/w.pt: Not a directory"),
        (("--output=full.npz",), 1, "--output: full.npz exists; give another name"),
        (("--model=resnet17",), 2, "--model must be mlp, cnn or a torchvision classifier"),
        (("--model=squeezenet1_1", "--pretrained=squeezenet.pt"), 2, "--model must end in a linear layer, "),
        (("--model=resnet18",), 2, "--pretrained must hold the weights of resnet18, got w.pt, which has no"),
        (("--model=shufflenet_v2_x1_0",), 2, "--pretrained must hold the weights of shufflenet_v2_x1_0, got w.pt"),
        (("--pretrained=absent.pt",), 1, "--pretrained: absent.pt does not exist"),
        (("--pretrained=broken.pt",), 1, "--pretrained: the features of sample 0 are not finite"),
        (("--dataset=folder:empty",), 1, "empty must hold a folder of images for each class"),
        (("--dataset=folder:bad",), 1, "bad: none of 2 images, tried all over the data set, can be read"),
        (("--image-size=4",), 2, "--image-size must be at least 8, got 4"),
        (("--batch-size=0",), 2, "--batch-size must be at least 1, got 0"),
    ],
)  # fmt: skip
def test_wrong_use_is_one_sentence_and_leaves_nothing(
    options: tuple[str, ...], code: int, message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("empty", "bad/a", "bad/b"):
        Path(name).mkdir(parents=True)
    for name in ("full.npz", "bad/a/1.jpg", "bad/b/1.jpg"):
        Path(name).write_text("nothing")
    state = torch.load("w.pt", weights_only=True)
    state["conv5.0.weight"][0] = float("nan")
    torch.save(state, "broken.pt")
    before = sorted(here.rglob("*"))
    assert features(*options) == code
    error = capsys.readouterr().err.replace(str(here), "HERE")
    assert error.startswith(f"jocor-fast: error: {message}")
    assert error.count("\n") == 1
    assert sorted(here.rglob("*")) == before


def test_resuming_needs_the_same_settings_and_changes_nothing_once_it_is_whole(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with killed():
        features("--resume")  # there is nothing to resume yet
    assert features("--resume", "--batch-size=4", "--image-size=64") == 1
    assert "x.npz.partial was made with another image_size, batch_size; give another file" in capsys.readouterr().err
    assert features("--resume") == 0
    before = Path("x.npz").stat()
    assert features("--resume") == 0
    assert Path("x.npz").stat().st_mtime_ns == before.st_mtime_ns
    (here / "photos" / "Shirt" / "new.jpg").write_bytes(b"")
    assert features("--resume") == 1
    assert "x.npz was made with another dataset" in capsys.readouterr().err


def test_a_disk_with_too_little_room_is_said_before_the_pass(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**6, 9 * 10**5, 10**5))  # type: ignore[attr-defined]
    assert features() == 1
    assert "--output: x.npz needs 0.4 MB until it is whole, there is 0.1 MB" in capsys.readouterr().err
    assert list(here.glob("x.npz*")) == []


def test_two_passes_into_one_file_exclude_each_other(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = here / "x.npz.partial"
    folder.mkdir()
    lock = FolderLock(folder)
    lock.acquire()
    assert features("--resume") == 1
    assert "writes into x.npz.partial; wait until it ends" in capsys.readouterr().err
    lock.release()


def test_too_few_samples_or_classes_for_an_audit_are_one_sentence(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = sorted(Path("photos/Shirt").iterdir())
    for image in (*images[:10], images[10], images[11]):
        folder = Path("pair", "ab"[image == images[10]]) if image in images[10:] else Path("alone", "a")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(image, folder)
    for name, said in (
        ("pair", "have shape [N, D] with N ≥ 10, got (2, 1024)"),
        ("alone", "be of two classes at least, got one"),
    ):
        assert command("audit", f"--dataset=folder:{name}") == 2
        assert capsys.readouterr().err == f"jocor-fast: error: --dataset must {said}\n"


@pytest.mark.parametrize("others", [("run",), ("--features=x.npz:features",)])
def test_an_audit_is_of_one_thing(others: tuple[str, ...], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("audit", *others) == 2
    assert "audit takes the folder of a run, --features or --dataset, got two of them" in capsys.readouterr().err
    assert main(["audit", "run", "--pretrained=w.pt"]) == 2
    assert "--pretrained goes with --dataset" in capsys.readouterr().err


def test_arrays_of_an_archive_are_mapped_after_a_check(tmp_path: Path) -> None:
    values = np.arange(60_000.0).reshape(100, 600)
    np.savez(tmp_path / "x.npz", by_rows=values, by_columns=np.asfortranarray(values), empty=values[:0])
    np.savez_compressed(tmp_path / "small.npz", by_rows=values)
    for name in ("by_rows", "by_columns"):
        mapped = read_array(f"{tmp_path / 'x.npz'}:{name}", "features", mapped=True)
        assert isinstance(mapped, np.memmap)
        assert np.array_equal(mapped, values)
    assert read_array(f"{tmp_path / 'x.npz'}:empty", "features", mapped=True).shape == (0, 600)
    assert np.array_equal(read_array(f"{tmp_path / 'small.npz'}:by_rows", "features", mapped=True), values)
    data = bytearray((tmp_path / "x.npz").read_bytes())
    data[300_000] ^= 1
    (tmp_path / "x.npz").write_bytes(data)
    with pytest.raises(DataError, match=r"x.npz is not an .npz archive: Bad CRC-32"):
        read_npz(tmp_path / "x.npz", lambda keys: ["by_rows"], mapped=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.arange(5)}, "must hold as many labels as features, 48, got (5,)"),
        ({"labels": np.arange(COUNT)}, "labels must lie in 0 … 3, got 4 in row 4"),
        ({"labels": None}, "--features, --labels and --output together, got no --labels"),
    ],
)
def test_an_archive_that_was_changed_is_refused_in_a_sentence(
    change: dict[str, Any], message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert features() == 0
    np.savez("x.npz", **{name: value for name, value in {**content(), **change}.items() if value is not None})
    assert main(["audit", "--features=x.npz:features", "--output=a", "--device=cpu"]) in (1, 2)
    assert message in capsys.readouterr().err
