"""The audit's page in a headless browser: pictures load, filters, keys and the export work."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from children import PATIENCE
from jocor_fast.data.images.thumbnails import data_uri, is_image
from jocor_fast.diagnosis.audit_page import audit_page, shown_samples
from jocor_fast.diagnosis.wrong_labels import Audit, audit_history
from jocor_fast.engine.history import SampleStatistics

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
NAMES = ["cat", 'dog, "big"', "<!--<script></script>"]

# Runs when the page has: presses keys and buttons as people do, and leaves what it saw where --dump-dom shows it.
PROBE = """
<script>
addEventListener("load", () => {  // all in one go, so that --dump-dom, which waits for the page to load, has it
  const seen = {};
  const grid = () => [...document.querySelectorAll(".card")];
  const press = (key) => document.body.dispatchEvent(
    new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
  const choose = (id, value) => { byId(id).value = value; byId(id).dispatchEvent(new Event("change")); };
  const state = () => ({page: byId("page").textContent, first: grid()[0]?.dataset.id, cards: grid().length,
                        given: byId("given").selectedOptions[0].text, status: byId("status").textContent});
  seen.pictures = [...document.images].filter((image) => image.complete && image.naturalWidth > 0).length;
  seen.images = document.images.length;
  seen.start = state();
  press("ArrowDown"); seen.next_class = state();
  press("ArrowUp"); press("ArrowUp"); seen.all = state();
  press("ArrowRight"); seen.second_page = state();
  press("PageDown"); press("PageDown"); press("ArrowRight"); seen.last_page = state();
  press("ArrowLeft"); seen.back = state();
  choose("other", "1"); seen.suggested_dog = state();
  choose("other", ""); choose("decision", "keep"); seen.kept = state();
  choose("decision", "");
  const target = grid()[0];
  seen.clicked = target.dataset.id;
  seen.before = [target.querySelector("b").textContent, target.getAttribute("aria-pressed")];
  target.click();
  seen.after = [target.querySelector("b").textContent, target.getAttribute("aria-pressed")];
  let exported;
  window.Blob = class { constructor(parts) { exported = parts.join(""); } };
  URL.createObjectURL = () => "#";
  byId("export").click();
  seen.csv = exported;
  byId("hidden").click(); byId("export").click();
  seen.csv_with_hidden = exported;
  seen.widths = [document.documentElement.scrollWidth, window.innerWidth];
  const left = document.createElement("pre");
  left.id = "probe";
  left.textContent = JSON.stringify(seen);
  document.body.append(left);
});
</script>
"""


def an_audit(samples: int = 399) -> tuple[Audit, np.ndarray]:
    """Three classes, of which half of the labels of each is wrong; and the true labels."""
    generator = np.random.default_rng(0)
    true = np.arange(samples) % 3
    labels = np.where(generator.random(samples) < 0.5, generator.integers(3, size=samples), true)
    prediction = np.stack([true, true])
    probability = np.where(prediction == labels, 0.98, 0.02) + generator.uniform(-0.01, 0.01, (2, samples))
    seen = np.full(samples, 10)
    return audit_history(SampleStatistics(labels, seen, seen // 2, np.ones(samples), probability, prediction)), true


def a_page(found: Audit, most: int, picture: Any = None, paths: Any = None, long: str = "") -> str:
    names = [name + long for name in NAMES]
    return audit_page(
        found,
        title="test" + long,
        labels=names,
        names=names,
        ids=np.arange(len(found.given)),
        given_labels=found.given,
        picture=picture,
        matrix_picture=data_uri(np.zeros((4, 4), dtype=np.uint8), 1 / 255),
        most=most,
        paths=paths,
    )


@pytest.mark.parametrize(("most", "shown"), [(0, 0), (2, 2), (3, 3), (8, 6)])
def test_no_more_samples_are_shown_than_were_asked_for(most: int, shown: int) -> None:
    """Where there are more classes than that, the most suspicious of them; 8 of three classes are two of each."""
    found, _ = an_audit()
    chosen = shown_samples(found, most)
    assert len(chosen) == shown
    assert chosen.tolist() == [row for row in found.ranking if row in set(chosen.tolist())]


def test_no_name_ends_the_script_that_holds_it_or_keeps_it_from_ending() -> None:
    found, _ = an_audit(12)
    (data,) = re.findall(r"^const data = (.*);$", a_page(found, most=5), flags=re.MULTILINE)
    assert "<" not in data
    assert json.loads(data)["names"] == NAMES


def probed(page: str, folder: Path, width: int = 800) -> dict[str, Any]:
    """What the probe saw of a page in a browser."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"needs a browser: none of {', '.join(BROWSERS)} is installed")
    path = folder / "page.html"
    path.write_text(page.replace("</body>", f"{PROBE}</body>"), encoding="utf-8")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    command += [f"--window-size={width},900", "--dump-dom", path.as_uri()]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    left = re.search(r'<pre id="probe">(.*?)</pre>', ended.stdout, flags=re.DOTALL)
    assert left, ended.stderr[-2000:]
    content: dict[str, Any] = json.loads(unescape(left[1]))
    return content


def labels_of(text: str) -> list[str]:
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["id"] for row in rows] == [str(number) for number in range(len(rows))]
    return [row["label"] for row in rows]


def test_in_a_browser_pictures_load_and_keys_filters_and_the_export_work(tmp_path: Path) -> None:
    found, true = an_audit()
    shown = shown_samples(found, 90)
    assert (np.bincount(found.given[shown]) == 30).all()
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8)
    seen = probed(a_page(found, 90, lambda number: data_uri(pixels + number % 7, 1 / 255)), tmp_path)
    assert seen["pictures"] == seen["images"] == 30 + 1  # those of the first class, and the noise matrix
    assert seen["start"]["given"] == "cat"
    assert seen["start"]["page"] == "page 1 of 1, 30 samples"
    assert seen["start"]["first"] == str(shown[found.given[shown] == 0][0])
    assert seen["start"]["status"] == f"{found.wrong[shown].sum()} labels to be changed"
    assert seen["next_class"]["given"] == 'dog, "big"'
    assert seen["all"]["page"] == "page 1 of 3, 90 samples"
    assert seen["all"]["first"] == str(shown[0])
    assert seen["second_page"]["first"] == str(shown[40])
    assert seen["last_page"]["page"] == "page 3 of 3, 90 samples"
    assert seen["last_page"]["cards"] == 10
    assert seen["back"]["first"] == str(shown[40])
    assert seen["suggested_dog"]["page"].endswith(f" {(found.suggested[shown] == 1).sum()} samples")
    assert seen["kept"]["cards"] == 0
    clicked = int(seen["clicked"])
    given, suggested = NAMES[found.given[clicked]], NAMES[found.suggested[clicked]]
    assert seen["before"] == [f"{given} → {suggested}", "true"]
    assert seen["after"] == [f"{given}, kept", "false"]
    expected = found.given.copy()
    expected[shown] = found.suggested[shown]
    expected[clicked] = found.given[clicked]
    assert labels_of(seen["csv"]) == [NAMES[label] for label in expected]
    expected = found.suggested.copy()
    expected[clicked] = found.given[clicked]
    assert labels_of(seen["csv_with_hidden"]) == [NAMES[label] for label in expected]
    assert (found.suggested == true).all()


def test_long_names_are_not_cut_off_in_a_narrow_window(tmp_path: Path) -> None:
    found, _ = an_audit()
    seen = probed(a_page(found, 1, long="/folder" * 12), tmp_path, width=500)
    content, window = seen["widths"]
    assert content <= window
    assert seen["start"]["status"] == "1 label to be changed"


def test_only_what_somebody_doubts_is_shown() -> None:
    found, true = an_audit()
    sure = SampleStatistics(true, found.seen, found.selected, np.ones(399), np.ones((2, 399)), found.prediction)
    clean = audit_history(sure)
    assert not clean.wrong.any()
    assert not len(shown_samples(clean, 90))
    assert '"samples":[],"hidden":[]' in a_page(clean, 90)
    assert '"picture":null,"path":null' in a_page(found, 90)


def test_a_sample_that_lies_in_a_file_is_shown_with_its_path() -> None:
    found, _ = an_audit()
    paths = [f"cat/{number}.jpg" for number in range(399)]
    page = a_page(found, 90, paths=paths)
    first = int(shown_samples(found, 90)[0])
    assert f'"id":{first},' in page
    assert f'"path":"cat/{first}.jpg"' in page


@pytest.mark.parametrize(
    ("sample", "scale", "size"),
    [
        (np.full((28, 28), 255, dtype=np.uint8), 1 / 255, (28, 28)),
        (np.zeros((3, 32, 20), dtype=np.uint8), 1 / 255, (20, 32)),
        (np.linspace(-2, 2, 16, dtype=np.float32).reshape(1, 4, 4), 1.0, (4, 4)),
        (np.zeros((3, 200, 100), dtype=np.uint8), 1 / 255, (48, 96)),
    ],
)
def test_samples_of_every_kind_become_pictures_of_at_most_96_pixels(
    sample: np.ndarray, scale: float, size: tuple[int, int]
) -> None:
    assert is_image(sample.shape)
    uri = data_uri(sample, scale)
    picture = Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))
    assert picture.size == size
    if sample.dtype == np.float32:
        assert picture.getextrema() == (0, 255)
    assert not is_image((64,))
