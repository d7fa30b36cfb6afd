"""The audit's page with 10,000 samples in a headless Chromium: loading, turning pages, deciding, and the export.

    python benchmarks/audit_page.py

writes audit-page.md and audit-page.json into benchmarks/results/audit-page. The pictures are JPEGs of 96×96 pixels with
the detail of photographs. Times run until the browser has drawn what follows from a click. Decisions on every fiftieth
sample are compared with those after a reload, and every label on the screen with the export.
"""

from __future__ import annotations

import csv
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from chromium import Chromium
from jocor_fast.data.images.thumbnails import picture_uri
from jocor_fast.diagnosis.audit_page import audit_page
from jocor_fast.diagnosis.wrong_labels import Audit, audit_history
from jocor_fast.engine.history import SampleStatistics
from jocor_fast.report.tables import TextTable
from photos import pink_noise
from record import RESULTS, described, parser, write

SHOWN, SAMPLES, CLASSES, DISTINCT, LOADS, TURNS = 10_000, 50_000, 10, 200, 7, 100
# Milliseconds from each click to the second frame after it: the first may have been under way.
FRAMES = """(async (selector, times) => {
  const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  const spent = [];
  for (let i = 0; i < times; i++) {
    const start = performance.now();
    document.querySelector(selector).click();
    await frame();
    spent.push(performance.now() - start);
  }
  return spent;
})"""
# Notes when the cards of the first page and their pictures have been drawn.
WATCH = """(() => {
  const look = () => {
    const pictures = [...document.querySelectorAll("article img")];
    if (pictures.length && pictures.every((picture) => picture.naturalWidth)) window.drawn ??= performance.now();
    else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})()"""
LOADED = "[window.drawn, performance.getEntriesByType('navigation')[0].loadEventEnd]"
DECIDE = """(() => {
  let turn = 0;
  decisions.clear();
  for (const sample of data.samples.filter((_, place) => place % 50 === 0))
    decide(sample, [DROP, sample.given, (sample.given + 1) % 10][turn++ % 3]);
})()"""
# What the cards say, page by page: {id: the name of the class, or "drop"}.
ON_SCREEN = """(() => {
  const labels = {};
  for (turnTo(0);; turnTo(page + 1)) {
    for (const card of document.querySelectorAll("article")) {
      const chosen = card.querySelector("button.chosen")?.lastChild.textContent;
      labels[card.dataset.id] = chosen ?? card.querySelector("select").selectedOptions[0].text;
    }
    if (byId("next").disabled) return labels;
  }
})()"""


def an_audit() -> Audit:
    """Half of the labels are wrong, and both networks know."""
    generator = np.random.default_rng(0)
    true = generator.integers(CLASSES, size=SAMPLES)
    labels = np.where(generator.random(SAMPLES) < 0.5, generator.integers(CLASSES, size=SAMPLES), true)
    probability = np.where(true == labels, 0.98, 0.02) + generator.uniform(-0.01, 0.01, (2, SAMPLES))
    seen = np.full(SAMPLES, 10)
    return audit_history(SampleStatistics(labels, seen, seen // 2, np.ones(SAMPLES), probability, np.stack([true] * 2)))


def write_page(path: Path) -> Audit:
    """Write the page, and return its audit."""
    found, generator = an_audit(), np.random.default_rng(1)
    pictures = [picture_uri(Image.fromarray(pink_noise(128, 128, generator))) for _ in range(DISTINCT)]
    names = [f"class {number}" for number in range(CLASSES)]
    text = audit_page(
        found,
        title="bench",
        labels=names,
        names=names,
        ids=np.arange(SAMPLES),
        given_labels=found.given,
        picture=lambda number: pictures[number % DISTINCT],
        matrix_picture=pictures[0],
        most=SHOWN,
        paths=[f"class {label}/{number:05}.jpg" for number, label in enumerate(found.given)],
    )
    path.write_text(text, encoding="utf-8")
    return found


def load_times(page: Path, folder: Path) -> tuple[list[float], list[float]]:
    """Milliseconds until the first cards are drawn, and until all is read, each in a browser of its own."""
    drawn, read = [], []
    for number in range(LOADS):
        with Chromium(folder / f"profile{number}") as browser:
            browser.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
            browser.open(page)
            first, last = browser.run(LOADED)
            drawn.append(first)
            read.append(last)
    return drawn, read


def check_decisions(browser: Chromium, folder: Path) -> int:
    """Decide, reload, export, and return how many labels on the screen were compared; an AssertionError otherwise."""
    browser.run(DECIDE)
    status = browser.run('byId("status").textContent')
    assert status.startswith(f"{SHOWN // 50} of {SHOWN:,} decided"), status
    browser.reload()
    assert browser.run('byId("status").textContent') == status
    on_screen = browser.run(ON_SCREEN)
    browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    browser.click("#export")
    while not (folder / "labels.csv").exists():
        time.sleep(0.1)
    with (folder / "labels.csv").open(newline="", encoding="utf-8") as file:
        exported = {row["id"]: row["label"] for row in csv.DictReader(file)}
    assert {number: exported.get(number, "drop") for number in on_screen} == on_screen
    return len(on_screen)


def main(output: Path) -> None:
    """Measure, and write the results."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        folder, page = Path(scratch), Path(scratch, "audit.html")
        write_page(page)
        size = page.stat().st_size
        drawn, read = load_times(page, folder)
        with Chromium(folder / "profile") as browser:
            browser.open(page)
            turns = browser.run(f'{FRAMES}("#next", {TURNS})')
            decisions = browser.run(f"{FRAMES}(\"article [data-label='-1']\", {TURNS})")
            compared = check_decisions(browser, folder)
            assert not browser.problems, browser.problems
    measured = {"until the first cards are drawn, with their pictures": drawn, "until the whole file is read": read}
    measured |= {"turning a page": turns, "deciding": decisions}
    rows = [
        (what, f"{statistics.median(times):.0f} ms", f"{max(times):.0f} ms", str(len(times)))
        for what, times in measured.items()
    ]
    table = TextTable(("what", "median", "longest", "times"), rows).markdown()
    head = (__doc__ or "").split("\n    python")[0].strip()
    text = "\n".join(
        (
            f"# {head}\n",
            f"{SHOWN:,} of {SAMPLES:,} samples are on the page, a file of {size / 1e6:.0f} MB with its pictures.\n",
            table,
            f"Decisions on {SHOWN // 50} samples were there after a reload, and all {compared:,} labels on the screen",
            f"are those of the export.\n\n{described('threads')}; load average before: {load:.1f}",
            "",
        )
    )
    write("audit-page", text, {"bytes": size, "load_average": load, "milliseconds": measured}, output)


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.set_defaults(output=RESULTS / "audit-page")
    main(arguments.parse_args().output)
