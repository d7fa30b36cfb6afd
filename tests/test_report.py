"""Curves, tables and the progress on the screen, from plain metrics."""

from __future__ import annotations

import csv
import io
import json
import time
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from rich.console import Console

from children import PATIENCE
from engine_cases import blobs, held_out, settings, small_mlp
from jocor_fast.files.names import read_json, read_metrics
from jocor_fast.files.whole_file import write_text
from jocor_fast.report.curves import draw_comparison, draw_curves, save_figure
from jocor_fast.report.metrics import added_metrics
from jocor_fast.report.noise_matrix import draw_noise_matrices
from jocor_fast.report.screen import (
    Heartbeat,
    TrainingProgress,
    counted,
    epoch_line,
    final_table,
    phase,
    say,
    say_subjects,
)
from jocor_fast.report.summary import best_epoch, last_mean, mean_and_std
from jocor_fast.report.tables import TextTable, csv_text, percent, percent_with_std
from jocor_fast.runs.fit import fit

BLUE, ORANGE = (0x1F / 255, 0x77 / 255, 0xB4 / 255), (0xFF / 255, 0x7F / 255, 0x0E / 255)  # matplotlib's C0 and C1


def line(epoch: int, test: float | None = 0.5, precision: float | None = 0.75, **others: Any) -> dict[str, Any]:
    return {
        "epoch": epoch,
        "train_loss": 0.25,
        "keep_rate": 0.5,
        "test_accuracy": test,
        "label_precision": precision,
        "val_accuracy": None,
        "nonfinite_rows": 0,
        "seconds": 1.5,
        "eval_seconds": 0.5,
        **others,
    }


def pixels_of(path: Path, color: tuple[float, ...], rows: slice = slice(None)) -> int:
    """How many pixels of the image have this colour (lines are drawn in it, with softened edges)."""
    image = imread(path)[rows, :, :3]
    return int((np.abs(image - np.array(color)) < 0.02).all(axis=2).sum())


def halves(path: Path) -> tuple[slice, slice]:
    height = len(imread(path))
    return slice(0, height // 2), slice(height // 2, None)


def test_curves_draw_accuracy_above_precision(tmp_path: Path) -> None:
    path = tmp_path / "curves.png"
    draw_curves([line(epoch, epoch / 20, 1 - epoch / 20) for epoch in range(1, 20)], path)
    above, below = halves(path)
    assert pixels_of(path, BLUE, above) > 50
    assert pixels_of(path, BLUE, below) > 50
    assert pixels_of(path, ORANGE) == 0
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["curves.png"]


def test_curves_draw_validation_where_there_is_some(tmp_path: Path) -> None:
    path = tmp_path / "curves.png"
    draw_curves([line(epoch, val_accuracy=0.4) for epoch in range(1, 20)], path)
    above, below = halves(path)
    assert pixels_of(path, ORANGE, above) > 50
    assert pixels_of(path, ORANGE, below) == 0


def test_curves_leave_out_what_is_unknown(tmp_path: Path) -> None:
    both, one = tmp_path / "both.png", tmp_path / "one.png"
    draw_curves([line(epoch) for epoch in range(1, 20)], both)
    draw_curves([line(epoch, precision=None) for epoch in range(1, 20)], one)
    assert len(imread(one)) == len(imread(both)) // 2
    assert pixels_of(one, BLUE) > 50


@pytest.mark.parametrize("draw", [draw_curves, lambda run, path: draw_comparison({"photos": {"JoCoR": [run]}}, path)])
def test_curves_of_a_run_without_accuracy_and_precision_show_its_loss(
    draw: Callable[[list[dict[str, Any]], Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "curves.png"
    draw([line(epoch, None, None, train_loss=1 / epoch) for epoch in range(1, 20)], path)
    assert pixels_of(path, BLUE) > 50


def test_curves_of_validation_alone_are_drawn(tmp_path: Path) -> None:
    path = tmp_path / "curves.png"
    draw_curves([line(epoch, None, None, val_accuracy=epoch / 20) for epoch in range(1, 20)], path)
    assert pixels_of(path, ORANGE) > 50
    assert pixels_of(path, BLUE) == 0


@pytest.mark.parametrize(("metrics", "dots"), [([line(1)], True), ([line(1, None, None)], True), ([], False)])
def test_curves_of_one_epoch_or_none(metrics: list[dict[str, Any]], dots: bool, tmp_path: Path) -> None:
    path = tmp_path / "curves.png"
    draw_curves(metrics, path)
    assert (pixels_of(path, BLUE) > 0) == dots


@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_epochs_are_whole_numbers_on_the_axis(epochs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr("jocor_fast.report.curves.save_figure", lambda figure, *_: drawn.append(figure))
    draw_curves([line(epoch) for epoch in range(1, epochs + 1)], tmp_path / "curves.png")
    axis = drawn[0].axes[-1]
    low, high = axis.get_xlim()
    assert [tick for tick in axis.get_xticks() if low <= tick <= high] == list(range(1, epochs + 1))


def test_names_in_any_script_and_of_any_length_leave_room_and_warn_of_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Figure] = []

    def kept(figure: Figure, path: Path) -> None:
        drawn.append(figure)
        save_figure(figure, path)

    monkeypatch.setattr("jocor_fast.report.noise_matrix.save_figure", kept)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_noise_matrices({"photos": np.eye(3)}, tmp_path / "matrix.png", ["猫", "x" * 250, "a\nb\x1b"])
    axis = drawn[0].axes[0]
    assert [label.get_text() for label in axis.get_xticklabels()] == ["猫", "x" * 23 + "…", "a?b?"]
    assert axis.get_position().height > 0.4


def test_what_is_said_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    say(Console(), "0 = \x1b[2Jcat\x07, 1 = dög\x9b31m, 2 = cow\nwrong     0 labels")
    assert capsys.readouterr().out == "0 = \\x1b[2Jcat\\x07, 1 = dög\\x9b31m, 2 = cow\\x0awrong     0 labels\n"


def test_curves_leave_pyplot_alone(tmp_path: Path) -> None:
    before = matplotlib.pyplot.get_fignums()
    draw_curves([line(1)], tmp_path / "curves.png")
    assert matplotlib.pyplot.get_fignums() == before


def test_comparison_has_a_colour_a_method_and_a_band_where_runs_differ(tmp_path: Path) -> None:
    runs = [[line(epoch, base) for epoch in range(1, 20)] for base in (0.4, 0.6)]
    band = tuple(1 - 0.25 * (1 - channel) for channel in BLUE)
    spread, alike = tmp_path / "spread.png", tmp_path / "alike.png"
    draw_comparison({"noise": {"JoCoR": runs, "Standard": [runs[0]]}}, spread)
    draw_comparison({"noise": {"JoCoR": [runs[0], runs[0]], "Standard": [runs[1]]}}, alike)
    for path in (spread, alike):
        assert pixels_of(path, BLUE) > 50
        assert pixels_of(path, ORANGE) > 50
    assert pixels_of(spread, band) > 1000
    assert pixels_of(alike, band) < 100


def test_the_shade_of_a_share_stays_between_none_and_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr("jocor_fast.report.curves.save_figure", lambda figure, *_: drawn.append(figure))
    runs = [[line(1, *values), line(2, *values)] for values in ((0.99, 0.0), (1.0, 0.01), (1.0, 0.0), (0.8, 0.0))]
    draw_comparison({"noise": {"JoCoR": runs}}, tmp_path / "comparison.png")
    for axis, edge in zip(drawn[0].axes, (100.0, 0.0), strict=True):
        heights = axis.collections[0].get_paths()[0].vertices[:, 1]
        assert (heights.min() >= 0.0, heights.max() <= 100.0) == (True, True)
        assert edge in heights


def test_comparison_takes_runs_of_different_length_and_panels_without_runs(tmp_path: Path) -> None:
    path = tmp_path / "comparison.png"
    runs = [[line(1), line(2)], [line(1)]]
    draw_comparison({"one": {"JoCoR": runs}, "none yet": {}}, path)
    assert pixels_of(path, BLUE) > 0


@pytest.mark.parametrize(
    ("values", "mean", "std"),
    [([], None, None), ([0.5], 0.5, None), ([0.25, 0.75], 0.5, 0.125**0.5), ([0.1, 0.2, 0.3], 0.2, 0.1)],
)
def test_std_is_that_of_a_sample(values: list[float], mean: float | None, std: float | None) -> None:
    found = mean_and_std(values)
    assert found == (pytest.approx(mean) if mean is not None else None, pytest.approx(std) if std is not None else None)


def test_best_epoch_is_the_first_of_equals_and_none_without_test_labels() -> None:
    metrics = [line(1, 0.4), line(2, 0.9), line(3, 0.9), line(4, None)]
    best = best_epoch(metrics)
    assert best is not None
    assert best["epoch"] == 2
    assert best_epoch([line(1, None)]) is None


def test_a_line_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"epoch": 1}) + '\n{"epoch": 2, "te', encoding="utf-8")
    assert read_metrics(tmp_path) == [{"epoch": 1}]


def test_a_broken_json_file_is_no_summary(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    assert read_json(path) is None
    path.write_text('{"status": ', encoding="utf-8")
    assert read_json(path) is None
    path.write_text('{"status": "finished"}', encoding="utf-8")
    assert read_json(path) == {"status": "finished"}


def test_fractions_are_percent_on_the_screen() -> None:
    assert percent(0.93402) == "93.40"
    assert percent(None) == "n/a"
    assert percent_with_std(0.934, 0.0021) == "93.40 ± 0.21"
    assert percent_with_std(0.934, None) == "93.40"
    assert percent_with_std(None, None) == "n/a"


def test_a_table_in_markdown_is_aligned() -> None:
    table = TextTable(("method", "accuracy"), [("Standard", "71.69 ± 4.62"), ("JoCoR", "n/a")], title="T", note="N")
    assert table.markdown() == (
        "**T**\n\n"
        "| method   |     accuracy |\n"
        "|----------|-------------:|\n"
        "| Standard | 71.69 ± 4.62 |\n"
        "| JoCoR    |          n/a |\n\n"
        "N\n"
    )


def test_a_narrow_column_in_markdown_has_the_three_dashes_that_readers_ask_for() -> None:
    assert TextTable(("λ", "k"), [("1", "2")]).markdown() == "| λ   |   k |\n|-----|----:|\n| 1   |   2 |\n"


def test_a_table_on_the_screen_takes_brackets_as_text() -> None:
    console = Console(file=io.StringIO(), width=60)
    console.print(TextTable(("name", "value"), [("[red]", "[1]")], title="[bold]").rich())
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[red]" in text
    assert "[1]" in text
    assert "[bold]" in text


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (
            60,
            """\
A title

 method              mean   runs
 ───────────────────────────────
 Co teaching  71.69 ± 4.6    3/3
 JoCoR                n/a  10/10

A note
""",
        ),
        (
            29,  # numbers are broken at their blanks, and names are not
            """\
A title

 method          mean   runs
 ───────────────────────────
 Co teaching  71.69 ±    3/3
                  4.6
 JoCoR            n/a  10/10

A note
""",
        ),
    ],
    ids=["whole", "narrow"],
)
def test_a_table_on_the_screen_is_aligned_and_keeps_names_whole(width: int, expected: str) -> None:
    rows = [("Co teaching", "71.69 ± 4.6", "3/3"), ("JoCoR", "n/a", "10/10")]
    console = Console(file=io.StringIO(), width=width)
    console.print(TextTable(("method", "mean", "runs"), rows, title="A title", note="A note").rich())
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "".join(f"{line.rstrip()}\n" for line in text.splitlines()) == expected


@pytest.mark.parametrize(("width", "words_a_line"), [(60, [12, 12, 8]), (140, [20, 12])])
def test_a_title_and_a_note_take_the_place_that_the_screen_has_and_not_that_of_the_table(
    width: int, words_a_line: list[int]
) -> None:
    title, note = "A title that is longer than the table is wide", " ".join(["word"] * 32)
    console = Console(file=io.StringIO(), width=width)
    console.print(TextTable(("method", "mean"), [("JoCoR", "n/a")], title=title, note=note).rich())
    shown = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert shown[0] == title
    assert [len(line.split()) for line in shown if "word" in line] == words_a_line


def test_a_long_csv_takes_little_more_memory_than_its_text():
    rows = ({"id": number, "label": str(number)} for number in range(50_000))
    tracemalloc.start()
    text = csv_text(("id", "label"), rows)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 4 * len(text)


def test_csv_keeps_every_digit_and_leaves_out_what_does_not_apply() -> None:
    rows = [{"a": 0.1 + 0.2, "b": None, "c": 'x, "y"'}, {"a": 0, "c": ""}]
    read = list(csv.DictReader(io.StringIO(csv_text(("a", "b", "c"), rows))))
    assert [float(row["a"]) for row in read] == [0.1 + 0.2, 0.0]
    assert [row["b"] for row in read] == ["", ""]
    assert read[0]["c"] == 'x, "y"'


@pytest.mark.parametrize("name", ["a\rb", "a\nb", "a\r\nb", "a\r"])
def test_csv_holds_names_with_ends_of_lines_in_them(name: str) -> None:
    text = csv_text(("id", "label"), [{"id": 0, "label": name}, {"id": 1, "label": "c"}])
    assert list(csv.reader(io.StringIO(text, newline=""), strict=True)) == [["id", "label"], ["0", name], ["1", "c"]]
    assert text.endswith("\n1,c\n")


def test_text_replaces_a_file_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "table.md"
    write_text(path, "old")
    write_text(path, "λ")
    assert path.read_text(encoding="utf-8") == "λ"
    assert [entry.name for entry in tmp_path.iterdir()] == ["table.md"]


def test_the_line_of_an_epoch() -> None:
    assert epoch_line(line(7, 0.9512, 0.934), 200) == (
        "epoch   7/200  loss 0.2500  test 95.12 %  label precision 93.40 %  kept 50 %  2.0 s"
    )
    unknown = epoch_line(line(7, None, None, train_loss=None, nonfinite_rows=3, val_accuracy=0.5), 7)
    assert unknown == ("epoch 7/7  loss n/a  validation 50.00 %  kept 50 %  2.0 s  3 rows with a non-finite loss")


def test_the_final_table_has_best_beside_mean_beside_last() -> None:
    metrics = [line(1, 0.5, 0.6), line(2, 0.9, 0.8, val_accuracy=0.7), line(3, 0.7, 0.7)]
    summary = {
        "last_10_mean": {"test_accuracy": 0.7, "label_precision": None, "epochs": 3},
        "best_by_validation": {"epoch": 2, "val_accuracy": 0.7, "test_accuracy": 0.9},
    }
    table = final_table(metrics, summary)
    assert table.columns == ("", "best epoch", "mean of last 3", "last epoch", "by validation")
    assert table.rows == [
        ("epoch", "2", "1 to 3", "3", "2"),
        ("test accuracy", "90.00 %", "70.00 %", "70.00 %", "90.00 %"),
        ("label precision", "80.00 %", "n/a", "70.00 %", "80.00 %"),
        ("validation", "70.00 %", "n/a", "n/a", "70.00 %"),
    ]
    assert "not a result to report" in table.note


def test_the_final_table_without_test_labels() -> None:
    summary = {"last_10_mean": {"test_accuracy": None, "label_precision": 0.5, "epochs": 1}, "best_by_validation": None}
    table = final_table([line(1, None, 0.5)], summary)
    assert table.rows == [
        ("epoch", "n/a", "1 to 1", "1"),
        ("label precision", "n/a", "50.00 %", "50.00 %"),
    ]
    assert table.note == ""


def shown_on(width: int, *, terminal: bool = True, environment: dict[str, str] | None = None) -> str:
    """What a run of three epochs shows on a console."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=width, _environ=environment or {"TERM": "xterm"})
    with TrainingProgress(console, 3) as progress:
        for epoch in (1, 2, 3):
            progress.on_step(epoch, 1, 2)
            progress.on_epoch(line(epoch, 0.9512, 0.934))
    return file.getvalue()


@pytest.mark.parametrize(
    ("width", "there", "missing"),
    [
        (120, ["epoch 3/3", "loss 0.2500", "test 95.12 %", "precision 93.40 %", "━", "left"], []),
        (80, ["epoch 3/3", "loss 0.2500", "test 95.12 %", "precision 93.40 %", "━", "left"], []),
        (70, ["epoch 3/3", "test 95.12 %", "precision 93.40 %", "━"], ["loss"]),
        (40, ["epoch 3/3", "test 95.12 %", "left"], ["loss", "precision", "━"]),
    ],
)
def test_a_terminal_gets_a_bar_that_fits(width: int, there: list[str], missing: list[str]) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=width, color_system=None, _environ={"TERM": "xterm"})
    with TrainingProgress(console, 3) as progress:
        progress.on_epoch(line(3, 0.9512, 0.934))
    last = file.getvalue().split("\x1b[2K")[-2] if "\x1b[2K" in file.getvalue() else file.getvalue()
    for text in there:
        assert text in last, last
    for text in missing:
        assert text not in last, last
    assert "…" not in last


@pytest.mark.parametrize("width", [120, 80, 70])
def test_a_bar_shows_the_loss_where_nothing_else_is_known(width: int) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=width, color_system=None, _environ={"TERM": "xterm"})
    with TrainingProgress(console, 3) as progress:
        progress.on_epoch(line(3, None, None))
    assert "loss 0.2500" in file.getvalue()
    assert "n/a" not in file.getvalue()


@pytest.mark.parametrize(("width", "loss"), [(120, True), (80, False)])
def test_a_run_on_files_shows_its_speed_and_its_waiting(
    width: int, loss: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """640 samples in ten steps of 0.25 seconds, 0.05 of which are spent waiting."""
    clock = [100.0]
    monkeypatch.setattr("jocor_fast.report.screen.time.monotonic", lambda: clock[0])
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=width, color_system=None, _environ={"TERM": "xterm"})
    with TrainingProgress(console, 3, batch_size=64) as progress:
        for step in range(1, 11):
            progress.on_wait(0.05)
            progress.on_step(1, step, 20)
            clock[0] += 0.25
        progress.on_epoch(line(1, 0.9512, 0.934))
    last = file.getvalue().split("\x1b[2K")[-2] if "\x1b[2K" in file.getvalue() else file.getvalue()
    assert "256/s, 22 % waiting" in last, last  # the first step starts the clock: its waiting counts, its time does not
    assert ("loss" in last) is loss
    assert "…" not in last
    read = {**line(1, 0.9512, 0.934), "samples_per_second": 256.1, "wait_share": 0.22}
    assert "256/s, 22 % waiting  3 bad files" in epoch_line({**read, "bad_files": 3}, 3)
    assert epoch_line({**read, "bad_files": 1, "nonfinite_rows": 1}, 3).endswith(
        "1 bad file  1 row with a non-finite loss"
    )


@pytest.mark.parametrize(
    ("terminal", "environment"),
    [(False, {"TERM": "xterm"}), (True, {"TERM": "dumb"})],
    ids=["a pipe", "a dumb terminal"],
)
def test_elsewhere_every_epoch_is_a_line_however_narrow(terminal: bool, environment: dict[str, str]) -> None:
    text = shown_on(30, terminal=terminal, environment=environment)
    assert text.splitlines() == [epoch_line(line(epoch, 0.9512, 0.934), 3) for epoch in (1, 2, 3)]


def test_no_color_is_respected() -> None:
    assert "\x1b[38;" in shown_on(80, environment={"TERM": "xterm-256color"})
    assert "\x1b[38;" not in shown_on(80, environment={"TERM": "xterm-256color", "NO_COLOR": "1"})


def test_a_table_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "table.md").mkdir()
    with pytest.raises(OSError, match="table"):
        write_text(tmp_path / "table.md", "no file can take the place of a folder")
    assert [path.name for path in tmp_path.iterdir()] == ["table.md"]


def test_a_line_is_said_as_it_is_whatever_is_in_it() -> None:
    console = Console(file=io.StringIO(), width=20)
    say(console, "2 runs, in runs/:cat:/[bold]/a folder with a long name")
    say_subjects(console, {"τ": "0.2 [link]", "table": "runs/:cat:/table.md"}, width=7)
    assert console.file.getvalue() == (  # type: ignore[attr-defined]
        "2 runs, in runs/:cat:/[bold]/a folder with a long name\nτ       0.2 [link]\ntable   runs/:cat:/table.md\n"
    )


def test_a_file_that_cannot_be_written_is_named_as_it_is_meant_to_be(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "absent" / "table.md", tmp_path / "folder"):
        with pytest.raises(OSError, match="directory") as raised:
            write_text(path, "text")
        assert raised.value.filename == str(path)


def test_one_of_a_thing_is_not_several() -> None:
    assert [counted(number, "epoch") for number in (0, 1, 2)] == ["0 epochs", "1 epoch", "2 epochs"]


def test_a_metric_that_is_added_to_the_lines_is_shown_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss's minimum, say: its name alone says how it is called."""
    metrics = [line(epoch, least_loss=1 / epoch) for epoch in range(1, 20)]
    drawn: list[Figure] = []
    monkeypatch.setattr("jocor_fast.report.curves.save_figure", lambda figure, *_: drawn.append(figure))
    draw_curves(metrics, tmp_path / "curves.png")
    draw_comparison({"digits": {"JoCoR": [metrics]}}, tmp_path / "comparison.png")
    assert [[axis.get_ylabel() for axis in figure.axes] for figure in drawn] == [
        ["test accuracy (%)", "label precision (%)", "least loss"]
    ] * 2
    assert "  least loss 0.0526  " in epoch_line(metrics[-1], 19)
    summary = {"last_10_mean": last_mean(metrics), "best_by_validation": None}
    assert ("least loss", "1.0000", "n/a", "0.0526") in final_table(metrics, summary).rows


def test_no_metric_of_a_run_counts_as_added() -> None:
    run = fit(settings(epochs=1), small_mlp, blobs(70), test=held_out(21))
    assert added_metrics(run.metrics) == []


@pytest.fixture
def short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jocor_fast.report.screen.SILENCE_SECONDS", 0.2)


def printed(wanted: str, file: io.StringIO) -> None:
    """Wait until the text is in the file."""
    end = time.monotonic() + PATIENCE
    while wanted not in file.getvalue():
        assert time.monotonic() < end, file.getvalue()
        time.sleep(0.02)


@pytest.mark.usefixtures("short_silence")
def test_a_phase_that_calls_nothing_prints_how_far_it_is() -> None:
    console = Console(file=io.StringIO())
    with phase(console, "estimating the noise", "epochs") as update:
        printed("estimating the noise: 0 s so far\n", console.file)  # type: ignore[arg-type]
        update(1, 1_000_000)
        printed("estimating the noise: 1 of 1,000,000 epochs, ", console.file)  # type: ignore[arg-type]
        printed(" d ", console.file)  # type: ignore[arg-type]
    before = console.file.getvalue()  # type: ignore[attr-defined]
    time.sleep(0.5)
    assert console.file.getvalue() == before  # type: ignore[attr-defined]


@pytest.mark.usefixtures("short_silence")
def test_a_long_epoch_prints_its_steps_and_what_is_around_it_stays_silent() -> None:
    console = Console(file=io.StringIO())
    with Heartbeat(console, lambda: "around"), TrainingProgress(console, 3) as progress:
        progress.on_step(2, 1200, 5000)
        printed("epoch 2/3: 1,200 of 5,000 steps\n", console.file)  # type: ignore[arg-type]
        assert "around" not in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.usefixtures("short_silence")
def test_on_a_terminal_a_phase_is_one_bar() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, force_interactive=True, width=80)
    with phase(console, "resizing", "files") as update:
        update(1, 2)
        time.sleep(0.5)
    assert "so far" not in console.file.getvalue()  # type: ignore[attr-defined]
    assert "1/2" in console.file.getvalue()  # type: ignore[attr-defined]
