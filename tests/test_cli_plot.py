"""`jocor-fast plot`: which runs become which line, and the noise matrix of what they were trained on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from jocor_fast.cli.program import main
from jocor_fast.data.catalogue import load_dataset
from jocor_fast.noise import corrupt, pairflip
from jocor_fast.report.comparison import find_runs, grouped
from jocor_fast.report.noise_matrix import draw_noise_matrices, realised_matrix

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

HALF = {"dataset": "digits", "noise": "symmetric", "noise_rate": 0.5, "noise_seed": 0, "method": "jocor", "seed": 0}


def write_run(name: str, settings: Mapping[str, Any], accuracy: float = 0.5, **summary: Any) -> Path:
    folder = Path(name)
    folder.mkdir(parents=True)
    lines = [{"epoch": epoch, "test_accuracy": accuracy, "label_precision": 0.7} for epoch in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"settings": dict(settings)}), encoding="utf-8")
    (folder / "summary.json").write_text(json.dumps({"status": "finished", **summary}), encoding="utf-8")
    return folder


def lines_of(*folders: str) -> dict[str, dict[str, int]]:
    """{column: {line: number of repetitions}}."""
    runs = [run for folder in folders for run in find_runs(Path(folder))]
    return {title: {name: len(each) for name, each in lines.items()} for title, lines in grouped(runs).items()}


def test_runs_that_differ_in_seeds_alone_are_one_line_and_others_are_named_by_what_differs() -> None:
    for seed in (1, 2, 3):
        write_run(f"all/jocor{seed}", {**HALF, "seed": seed, "noise_seed": seed, "co_lambda": 0.9, "forget_rate": 0.5})
    write_run("all/standard", {**HALF, "method": "standard", "co_lambda": 0.9, "forget_rate": 0.0})
    write_run("all/small", {**HALF, "co_lambda": 0.1, "forget_rate": 0.5})
    assert lines_of("all") == {
        "digits, Symmetry-50%": {"JoCoR, λ 0.9": 3, "JoCoR, λ 0.1": 1, "Standard, λ 0.9": 1},
    }
    assert lines_of("all/jocor1", "all/standard") == {"digits, Symmetry-50%": {"JoCoR": 1, "Standard": 1}}
    assert lines_of("all/jocor1", "all/jocor2") == {"digits, Symmetry-50%": {"JoCoR": 2}}


@pytest.mark.parametrize("known", [{"sources": {"forget_rate": "default"}}, {"noise_estimate": {"rate": 0.4}}])
def test_runs_whose_share_to_leave_out_follows_from_their_labels_differ_in_seeds_alone(known: dict[str, Any]) -> None:
    for seed in (1, 2):
        folder = write_run(f"all/jocor{seed}", {**HALF, "seed": seed, "forget_rate": 0.4 + seed / 100})
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        (folder / "config.json").write_text(json.dumps({**config, **known}), encoding="utf-8")
    assert lines_of("all") == {"digits, Symmetry-50%": {"JoCoR": 2}}
    write_run("all/given", {**HALF, "forget_rate": 0.3})
    assert lines_of("all")["digits, Symmetry-50%"]["τ 0.3"] == 1


def test_plot_prints_the_numbers_of_the_lines_that_it_draws(capsys: pytest.CaptureFixture[str]) -> None:
    for seed, accuracy in ((1, 0.5), (2, 0.7)):
        write_run(f"all/jocor{seed}", {**HALF, "seed": seed}, accuracy)
    write_run("all/standard", {**HALF, "method": "standard"}, 0.4)
    write_run("all/fifth", {**HALF, "noise_rate": 0.2}, 0.9)
    assert main(["plot", "all"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert sorted(line for line in lines if line[:1] == ["digits,"] and "noise" not in line) == [
        ["digits,", "Symmetry-20%", "JoCoR", "90.00", "70.00", "1"],
        ["digits,", "Symmetry-50%", "JoCoR", "60.00", "±", "14.14", "70.00", "±", "0.00", "2"],
        ["digits,", "Symmetry-50%", "Standard", "40.00", "70.00", "1"],
    ]


def test_a_run_that_is_named_twice_is_drawn_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (1, 2):
        write_run(f"all/jocor{seed}", {**HALF, "seed": seed})
    Path("link").symlink_to("all/jocor2")
    assert main(["plot", "all", "all/jocor1", str(tmp_path / "all"), "link"]) == 0
    assert capsys.readouterr().out.startswith("2 runs ")


def test_the_first_stage_of_a_run_is_no_run_of_its_own() -> None:
    write_run("all/corrected", {**HALF, "method": "f-correction"})
    write_run("all/corrected/first-stage", {"method": "standard", "seed": 0})
    assert lines_of("all") == {"digits, Symmetry-50%": {"F-correction": 1}}
    assert lines_of("all/corrected/first-stage") == {"own data": {"Standard": 1}}  # asked for by name


def test_each_data_and_noise_has_a_column_and_names_of_its_own() -> None:
    write_run("a", {**HALF, "forget_rate": 0.5})
    write_run("b", {**HALF, "noise_rate": 0.2, "forget_rate": 0.2})
    write_run("c", {**HALF, "noise": "clean", "noise_rate": 0.0, "lr": 0.001})
    write_run("d", {**HALF, "noise": "clean", "noise_rate": 0.0, "lr": 0.01})
    write_run("e", {"method": "jocor", "seed": 0})
    write_run("f", {**HALF, "dataset": "clothing1m", "noise": None, "noise_rate": None})
    assert lines_of("a", "b", "c", "d", "e", "f") == {
        "digits, Symmetry-50%": {"JoCoR": 1},
        "digits, Symmetry-20%": {"JoCoR": 1},
        "digits, no noise added": {"lr 0.001": 1, "lr 0.01": 1},
        "own data": {"JoCoR": 1},
        "clothing1m": {"JoCoR": 1},
    }


def test_plot_writes_the_comparison_and_the_noise_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--epochs", "1", "--device", "cpu", "--noise-rate", "0.5", "--output", "one"]) == 0
    write_run("two", {**HALF, "method": "f-correction"}, transition=np.eye(10).tolist())
    capsys.readouterr()
    assert main(["plot", "one", "two", "--output", "figures"]) == 0
    out = capsys.readouterr().out
    assert f"2 runs    {Path('figures', 'comparison.png')}" in out
    assert imread(Path("figures", "comparison.png")).std() > 0.05
    wide = imread(Path("figures", "noise-matrix.png")).shape
    assert wide[1] > 1.7 * wide[0], "the truth and the estimate beside it"
    assert main(["plot", "one"]) == 0
    single = imread("noise-matrix.png").shape
    assert single[1] < 1.5 * single[0]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"method": "jocor"}, "no noise matrix of own data: its true labels are unknown"),
        ({**HALF, "noise": "clean", "noise_rate": 0.0}, "digits, no noise added: no label is wrong"),
        (
            {**HALF, "labels": "gone.npy", "noise": None, "noise_rate": None, "noise_seed": None},
            "gone.npy does not exist",
        ),
    ],
    ids=["own data", "clean", "labels are gone"],
)
def test_plot_says_why_there_is_no_noise_matrix(
    settings: dict[str, Any], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run("run", settings)
    assert main(["plot", "run"]) == 0
    assert why in capsys.readouterr().out
    assert Path("comparison.png").exists()
    assert not Path("noise-matrix.png").exists()


def test_the_realised_matrix_has_the_share_of_each_label_by_true_class() -> None:
    clean = load_dataset("digits").train.labels.numpy()
    noisy = corrupt(clean, pairflip(10, 0.3), seed=0)
    matrix = realised_matrix(clean, noisy, 10)
    assert matrix.sum(axis=1) == pytest.approx(np.ones(10))
    for c in range(10):
        assert matrix[c, c] == pytest.approx((noisy[clean == c] == c).mean())
        assert matrix[c, (c + 1) % 10] == pytest.approx(1 - matrix[c, c])
    assert realised_matrix(np.array([0]), np.array([1]), 3).tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 0]]


def test_a_heat_map_is_darker_where_more_labels_are(tmp_path: Path) -> None:
    """Of two classes: the upper left and lower right quarter of the field are dark, the others light."""
    draw_noise_matrices({"Q": np.array([[1.0, 0.0], [0.0, 1.0]])}, tmp_path / "q.png", ["cat", "dog"])
    image = imread(tmp_path / "q.png")[:, :, :3]
    blue = (image[:, :, 2] - image[:, :, 0]) > 0.25  # the darkest of the colour map
    rows, columns = np.nonzero(blue[:, : int(0.7 * blue.shape[1])])
    left = columns < columns.min() + (columns.max() - columns.min()) / 2
    assert rows[left].mean() < rows[~left].mean() - 50
    assert (abs(left.mean() - 0.5)) < 0.05
    draw_noise_matrices({"a": np.eye(100), "b": np.eye(100)}, tmp_path / "many.png")
    assert (tmp_path / "many.png").stat().st_size > 5_000
