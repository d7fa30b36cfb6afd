"""The audit's page in a real browser: what it shows, keys, decisions that survive, and the export."""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import re
import sys
import time
from collections.abc import Iterator
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from chromium import BROWSERS, Chromium, find_browser

NAMES = ["cat", 'dog, "big"', "<!--<script></script>"]
# What the cards say, page by page: {id: the name of the class, or "drop"}.
ON_SCREEN = """(() => {
  const labels = {};
  while (!byId("previous").disabled) byId("previous").click();
  for (;; byId("next").click()) {
    for (const card of document.querySelectorAll("article")) {
      const chosen = card.querySelector("button.chosen")?.lastChild.textContent;
      labels[card.dataset.id] = chosen ?? card.querySelector("select").selectedOptions[0].text;
    }
    if (byId("next").disabled) return labels;
  }
})()"""
STATUS = 'byId("status").textContent'
FIRST = 'document.querySelector("article").dataset.id'
FOCUSED = 'document.activeElement.closest("article")?.dataset.id'


def an_audit(samples: int = 399, seed: int = 0) -> tuple[Audit, np.ndarray]:
    """Three classes, of which half of the labels of each is wrong; and the true labels."""
    generator = np.random.default_rng(seed)
    true = np.arange(samples) % 3
    labels = np.where(generator.random(samples) < 0.5, generator.integers(3, size=samples), true)
    prediction = np.stack([true, true])
    probability = np.where(prediction == labels, 0.98, 0.02) + generator.uniform(-0.01, 0.01, (2, samples))
    seen = np.full(samples, 10)
    return audit_history(SampleStatistics(labels, seen, seen // 2, np.ones(samples), probability, prediction)), true


def a_page(found: Audit, most: int, picture: Any = None, long: str = "", **files: Any) -> str:
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
        **files,
    )


def content(page: str) -> Any:
    (data,) = re.findall(r'<script type="application/json" id="data">(.*)</script>', page)
    return json.loads(data)


@pytest.mark.parametrize(("most", "shown"), [(0, 0), (2, 2), (90, 90), (1000, 125)])
def test_the_most_suspicious_of_all_classes_are_shown(most: int, shown: int) -> None:
    found, _ = an_audit()
    assert found.wrong.sum() == 125
    assert shown_samples(found, most).tolist() == found.ranking[:shown].tolist()


def test_no_name_ends_the_script_that_holds_it_or_keeps_it_from_ending() -> None:
    found, _ = an_audit(12)
    page = a_page(found, most=5)
    assert content(page)["names"] == NAMES
    assert page.count("<script") == page.count("</script>") == 4


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """A window, which keeps what pages store; it writes downloads into its folder `downloads`."""
    require_browser()
    with Chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def require_browser() -> None:
    if find_browser() is None:
        assert os.environ.get("JOCOR_FAST_BROWSER") != "required", "a browser was installed, and is not found"
        pytest.skip(f"needs a browser: none of {', '.join(BROWSERS)} is installed")


def opened(browser: Chromium, page: str, folder: Path, name: str = "page.html") -> Chromium:
    (folder / name).write_text(page, encoding="utf-8")
    browser.open(folder / name)
    assert not browser.problems
    return browser


def exported(browser: Chromium, folder: Path) -> list[dict[str, str]]:
    """The rows of the file that the page's button downloads."""
    browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    browser.click("#export")
    deadline = time.monotonic() + PATIENCE
    while not (folder / "labels.csv").exists():
        assert time.monotonic() < deadline
        browser.run("new Promise((done) => setTimeout(done, 50))")
    text = (folder / "labels.csv").read_text(encoding="utf-8")
    (folder / "labels.csv").unlink()
    return list(csv.DictReader(io.StringIO(text)))


def corrected(found: Audit, changes: dict[int, str] | None = None, most: int | None = None) -> dict[str, str]:
    """The labels to expect in an export: those that are shown as suggested, or as they were changed to."""
    shown = set(shown_samples(found, len(found.given) if most is None else most).tolist())
    labels = [
        NAMES[s if row in shown else g] for row, (g, s) in enumerate(zip(found.given, found.suggested, strict=True))
    ]
    named = {str(row): label for row, label in enumerate(labels)} | {str(k): v for k, v in (changes or {}).items()}
    return {row: label for row, label in named.items() if label != "drop"}


def as_dict(rows: list[dict[str, str]]) -> dict[str, str]:
    return {row["id"]: row["label"] for row in rows}


def test_a_class_name_of_ten_letters_stays_on_one_line(browser: Chromium, tmp_path: Path) -> None:
    found, _ = an_audit()
    opened(browser, a_page(found, 48).replace('"cat"', '"automobile"'), tmp_path)
    lines = """[...document.querySelectorAll(".choice > button")].map((button) => {
      const name = document.createRange();
      name.selectNodeContents(button.lastChild);
      return button.lastChild.textContent === "automobile" ? name.getClientRects().length : 1;
    })"""
    try:
        for width in range(480, 1400, 60):
            browser.call(
                "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False
            )
            assert set(browser.run(lines)) == {1}, width
    finally:
        browser.call("Emulation.clearDeviceMetricsOverride")


def test_pictures_load_and_filters_choose_among_all_classes(browser: Chromium, tmp_path: Path) -> None:
    found, _ = an_audit()
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8)
    opened(browser, a_page(found, 100, lambda number: data_uri(pixels + number % 7, 1 / 255)), tmp_path)
    assert browser.run("[...document.images].filter((image) => image.naturalWidth > 0).length") == 48 + 1
    assert browser.run("document.images.length") == 48 + 2  # and the viewer's, which is empty
    assert browser.run('byId("page").textContent') == "page 1 of 3, 100 samples"
    assert browser.run(FIRST) == str(found.ranking[0])
    assert browser.run(STATUS) == "0 of 100 decided · 100 to change"
    shown = shown_samples(found, 100)
    for select, value, expected in (
        ("given", "0", shown[found.given[shown] == 0]),
        ("label", "1", shown[(found.given[shown] == 0) & (found.suggested[shown] == 1)]),
        ("given", "", shown[found.suggested[shown] == 1]),
        ("show", "keep", []),
        ("show", "open", shown[found.suggested[shown] == 1]),
    ):
        browser.run(f'byId("{select}").value = "{value}"; byId("{select}").dispatchEvent(new Event("change"))')
        assert set(browser.run(ON_SCREEN)) == set(map(str, expected))


def test_keys_decide_and_go_on_to_the_next_sample(browser: Chromium, tmp_path: Path) -> None:
    found, _ = an_audit(seed=1)
    opened(browser, a_page(found, 60), tmp_path)
    ids = [str(row) for row in shown_samples(found, 60)]
    for key, place in (("ArrowRight", 1), ("k", 2), ("s", 3), ("d", 4), ("ArrowLeft", 3), ("ArrowLeft", 2), ("u", 2)):
        browser.press(key)
        assert browser.run(FOCUSED) == ids[place] or key == "u"
    assert browser.run(STATUS) == "2 of 60 decided · 58 to change · 1 to drop"  # 1 kept, 2 undone, 3 dropped
    browser.press("n")
    assert browser.run(FIRST) == ids[48]
    browser.press("ArrowLeft")
    assert browser.run(FOCUSED) == ids[47]
    browser.press("ArrowRight")
    assert browser.run(FOCUSED) == ids[48]
    browser.press("p")
    browser.click("#confirm")
    assert browser.run(STATUS) == "48 of 60 decided · 58 to change · 1 to drop"
    assert browser.run('byId("page").textContent') == "page 2 of 2, 60 samples"
    browser.run("window.confirm = () => true")
    browser.click("#reset")
    assert browser.run(STATUS) == "0 of 60 decided · 60 to change"
    assert not browser.problems


def test_decisions_survive_a_reload_and_the_export_equals_what_is_on_screen(tmp_path: Path) -> None:
    require_browser()
    found, _ = an_audit(seed=2)
    kept, changed, dropped = map(int, shown_samples(found, 60)[[0, 7, 59]])
    other = next(c for c in range(3) if c not in (found.given[changed], found.suggested[changed]))
    decisions = {kept: NAMES[found.given[kept]], changed: NAMES[other], dropped: "drop"}
    status = "3 of 60 decided · 58 to change · 1 to drop"
    with Chromium(tmp_path / "profile") as browser:
        opened(browser, a_page(found, 60), tmp_path)
        browser.click(f'article[data-id="{kept}"] button[data-label="{found.given[kept]}"]')
        select = f"document.querySelector('article[data-id=\"{changed}\"] select')"
        browser.run(f"{select}.focus()")
        assert browser.run(f"[...{select}.options].map((option) => option.text)") == ["other…", *NAMES]
        browser.run(f'{select}.value = "{other}"; {select}.dispatchEvent(new Event("change"))')
        browser.press("n")
        browser.click(f'article[data-id="{dropped}"] button[data-label="-1"]')
        assert browser.run(STATUS) == status
        browser.reload()
        assert browser.run(STATUS) == status
    with Chromium(tmp_path / "profile") as browser:
        opened(browser, a_page(found, 60), tmp_path)
        assert browser.run(STATUS) == status
        on_screen = browser.run(ON_SCREEN)
        assert on_screen == {
            str(row): corrected(found, decisions).get(str(row), "drop") for row in shown_samples(found, 60)
        }
        rows = as_dict(exported(browser, tmp_path))
        assert rows == corrected(found, decisions, most=60)
        assert {row: rows.get(row, "drop") for row in on_screen} == on_screen
        browser.click("#hidden")
        assert as_dict(exported(browser, tmp_path)) == corrected(found, decisions)
        opened(browser, a_page(found, 300), tmp_path, "more.html")  # of the same audit
        assert browser.run(STATUS) == "3 of 129 decided · 127 to change · 1 to drop"
        opened(browser, a_page(an_audit(seed=3)[0], 60), tmp_path, "other.html")
        assert browser.run(STATUS).startswith("0 of 60 decided")


def test_a_click_on_a_picture_shows_the_original(browser: Chromium, tmp_path: Path) -> None:
    found, _ = an_audit(24, seed=5)
    paths = [f"a folder/ü#{number}.png" for number in range(24)]
    first, second, gone = shown_samples(found, 24)[:3].tolist()
    (tmp_path / "a folder").mkdir()
    for number, path in enumerate(paths):
        if number != gone:
            Image.new("RGB", (200, 100)).save(tmp_path / path)
    thumbnail = data_uri(np.zeros((8, 8), dtype=np.uint8), 1 / 255)
    opened(browser, a_page(found, 24, lambda number: thumbnail, paths=paths, folder=tmp_path), tmp_path)
    width = "new Promise((done) => setTimeout(() => done(document.querySelector('dialog img').naturalWidth), 300))"
    browser.click(f'article[data-id="{first}"] .picture')
    assert browser.run('byId("viewer").open')
    assert browser.run(width) == 200
    browser.press("s")
    assert browser.run(STATUS).startswith("1 of ")
    assert f"%23{second}.png" in browser.run("document.querySelector('dialog img').src")
    browser.press("Escape")
    assert not browser.run('byId("viewer").open')
    browser.click(f'article[data-id="{gone}"] .picture')
    assert browser.run(width) == 8
    browser.press("Escape")
    assert [row["path"] for row in exported(browser, tmp_path)] == paths


def test_of_ten_thousand_samples_one_page_is_in_the_document(browser: Chromium, tmp_path: Path) -> None:
    found, _ = an_audit(40_000)
    picture = data_uri(np.zeros((8, 8), dtype=np.uint8), 1 / 255)
    opened(browser, a_page(found, 10_000, lambda number: picture), tmp_path)
    assert browser.run('byId("page").textContent') == "page 1 of 209, 10,000 samples"
    browser.press("n")
    assert browser.run("document.querySelectorAll('article').length") == 48
    browser.press("k")
    assert browser.run(STATUS).startswith("1 of 10,000 decided")


def test_long_names_are_not_cut_off_in_a_narrow_window(tmp_path: Path) -> None:
    require_browser()
    found, _ = an_audit()
    with Chromium(tmp_path / "profile", width=500) as browser:
        opened(browser, a_page(found, 1, long="/folder" * 12), tmp_path)
        assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")
        assert browser.run(STATUS) == "0 of 1 decided · 1 to change"


def test_only_what_somebody_doubts_is_shown() -> None:
    found, true = an_audit()
    sure = SampleStatistics(true, found.seen, found.selected, np.ones(399), np.ones((2, 399)), found.prediction)
    clean = audit_history(sure)
    assert not clean.wrong.any()
    assert not len(shown_samples(clean, 90))
    assert content(a_page(clean, 90))["samples"] == content(a_page(clean, 90))["hidden"] == []
    assert content(a_page(found, 90))["samples"][0]["original"] is None


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
