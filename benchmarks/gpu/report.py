"""The folder of results: at most six files, each with the card, the driver, the clocks and the versions in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from gpu.bars import Measured, verdicts
from gpu.device import Facts, in_one_line
from gpu.parts import Outcome
from tables import csv_text

FILES = ("results.json", "bench.csv", "tests.xml", "curves.png", "log.txt", "summary.txt")
LEFT_OUT_SHOWN = 6


def write(folder: Path, facts: Facts, outcomes: Sequence[Outcome]) -> str:
    """Writes what there is to write, and returns the summary. bench.csv and tests.xml need their parts."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
    measured = Measured.of(item for outcome in outcomes for item in outcome.items)
    bars = verdicts(measured)
    results = {"facts": facts, "parts": list(map(as_json, outcomes)), "bars": bars}
    (folder / "results.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    if measured.rows:
        (folder / "bench.csv").write_text(csv_text(measured.rows, [in_one_line(facts)]))
    tests = [outcome for outcome in outcomes if outcome.part.name == "tests"]
    if tests:
        (folder / "tests.xml").write_bytes(junit_xml(tests[0], facts))
    (folder / "log.txt").write_text(log_text(facts, outcomes))
    text = summary(facts, outcomes, bars)
    (folder / "summary.txt").write_text(text)
    return text


def as_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "part": outcome.part.name,
        "status": outcome.status,
        "seconds": round(outcome.seconds, 1),
        "budget": round(outcome.budget, 1),
        "items": outcome.items,
        "left_out": outcome.left_out,
    }


def junit_xml(outcome: Outcome, facts: Facts) -> bytes:
    """The tests that ended, as pytest would write them; those that did not get their turn as skipped."""
    items = outcome.items
    count = {kind: str(sum(item.get("outcome") == kind for item in items)) for kind in ("failed", "skipped")}
    suite = ElementTree.Element(
        "testsuite", name="gpu", tests=str(len(items)), failures=count["failed"], skipped=count["skipped"],
        time=f"{outcome.seconds:.1f}",
    )  # fmt: skip
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in facts.items():
        shown = json.dumps(value) if isinstance(value, dict) else str(value)
        ElementTree.SubElement(properties, "property", name=name, value=shown)
    for item in items:
        file, _, test = item["item"].partition("::")
        case = ElementTree.SubElement(suite, "testcase", classname=file, name=test, time=str(item.get("seconds", 0)))
        if item.get("outcome") in ("failed", "skipped"):
            kind = "failure" if item["outcome"] == "failed" else "skipped"
            ElementTree.SubElement(case, kind, message=printable(item.get("message", "")))
    for node in outcome.left_out:
        file, _, test = node.partition("::")
        case = ElementTree.SubElement(suite, "testcase", classname=file, name=test)
        ElementTree.SubElement(case, "skipped", message="left out: the budget was spent")
    return bytes(ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True))


def printable(text: str) -> str:
    """Without the control characters that XML does not allow."""
    return "".join(c for c in text if c in "\n\t" or c.isprintable())


def log_text(facts: Facts, outcomes: Sequence[Outcome]) -> str:
    parts = [
        f"\n=== {outcome.part.name}: {outcome.status} after {outcome.seconds:.1f} s\n{outcome.output}"
        for outcome in outcomes
    ]
    return "".join([in_one_line(facts) + "\n", *parts])


def draw(folder: Path, facts: Facts, outcomes: Sequence[Outcome]) -> None:
    """Makes curves.png, where there is anything to draw: time by shape in both types, and test accuracy by epoch."""
    measured = Measured.of(item for outcome in outcomes for item in outcome.items)
    curves = {name: item["curve"] for name, item in measured.items.items() if "curve" in item}
    if not measured.rows and not curves:
        return
    import matplotlib.pyplot as plt

    from plot import draw_panel, finish

    figure, axes = plt.subplots(1, 3, figsize=(17, 4.2))
    for axis, dtype in zip(axes, ("float32", "bfloat16"), strict=False):
        draw_panel(axis, measured.rows, dtype)
        if axis.lines:
            axis.legend(fontsize=7)
    for name, accuracies in curves.items():
        epochs = [number for number, accuracy in enumerate(accuracies, start=1) if accuracy is not None]
        axes[2].plot(epochs, [100 * a for a in accuracies if a is not None], label=name)
    axes[2].set(xlabel="epoch", ylabel="test accuracy, %", title="training")
    axes[2].grid(alpha=0.3)
    if curves:
        axes[2].legend(fontsize=7)
    finish(figure, folder / "curves.png", in_one_line(facts))


def summary(facts: Facts, outcomes: Sequence[Outcome], bars: Sequence[dict[str, Any]]) -> str:
    lines = [in_one_line(facts), "", "parts"]
    for outcome in outcomes:
        budget = f"{outcome.seconds:.0f} of {outcome.budget:.0f} s"
        lines.append(f"  {outcome.part.name:<12} {outcome.status:<19} {budget:>13}   {told(outcome)}")
        if outcome.left_out:
            shown = ", ".join(outcome.left_out[:LEFT_OUT_SHOWN])
            more = len(outcome.left_out) - LEFT_OUT_SHOWN
            lines.append(f"  {'':<12} left out: {shown}{f' and {more} more' if more > 0 else ''}")
    lines += ["", "bars"]
    for bar in bars:
        figure = "" if bar["figure"] is None else f"{bar['figure']:.4g} {bar['unit']}".strip() + ", "
        lines.append(f"  {figure}{bar['verdict']}: {bar['what']} {bar['bar']}")
    return "\n".join(lines) + "\n"


def told(outcome: Outcome) -> str:
    """How many of its items went well, and the first that did not; the last line it printed where it failed."""
    bad = [i for i in outcome.items if i.get("outcome") == "failed" or i.get("ok") is False or "error" in i]
    text = f"{len(outcome.items) - len(bad)} good, {len(bad)} bad"
    if bad:
        return f"{text}, first {bad[0]['item']}"
    if outcome.status == "failed":
        return f"{text}; {(outcome.output.strip().splitlines() or ['it printed nothing'])[-1][-200:]}"
    return text
