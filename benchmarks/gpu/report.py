"""The folder of results: at most six files, each with the card, the driver, the clocks and the versions in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpu.bars import Measured, verdicts
from gpu.device import Facts, in_one_line
from gpu.records import Outcome, failed
from tables import csv_text

FILES = ("results.json", "bench.csv", "bench.png", "curves.png", "log.txt", "summary.txt")
SKIPPED_SHOWN = 6


def write(folder: Path, facts: Facts, outcomes: Sequence[Outcome]) -> None:
    """Write what there is to write, over what an earlier call wrote."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
    head, measured = in_one_line(facts), Measured.of(outcomes)
    bars = verdicts(measured)
    results = {"facts": facts, "parts": [{**asdict(o), "output": ""} for o in outcomes], "bars": bars}
    (folder / "results.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    if measured.rows:
        (folder / "bench.csv").write_text(csv_text(measured.rows.values(), [head]))
    logs = (f"\n=== {o.part.name}: {o.status} after {o.seconds:.1f} s\n{o.output}" for o in outcomes)
    (folder / "log.txt").write_text("".join([f"{head}\n", *logs]))
    (folder / "summary.txt").write_text(summary(head, outcomes, bars))


def draw(folder: Path, facts: Facts, outcomes: Sequence[Outcome]) -> None:
    """Draw time by shape as bench.png, and test accuracy by epoch as curves.png, if they were measured."""
    from jocor_fast.report.curves import draw_comparison
    from plot import draw_figures

    measured = Measured.of(outcomes)
    draw_figures(list(measured.rows.values()), folder / "bench.png", in_one_line(facts))
    if curves := {name: [item["curve"]] for name, item in measured.items.items() if "curve" in item}:
        draw_comparison({facts["card"]: curves}, folder / "curves.png", facts["jocor_fast"])


def summary(head: str, outcomes: Sequence[Outcome], bars: Sequence[Mapping[str, Any]]) -> str:
    lines = [head, "", "parts"]
    for outcome in outcomes:
        budget = f"{outcome.seconds:.0f} of {outcome.budget:.0f} s"
        lines.append(f"  {outcome.part.name:<12} {outcome.status:<19} {budget:>13}   {result(outcome)}")
        if outcome.skipped:
            more = len(outcome.skipped) - SKIPPED_SHOWN
            shown = ", ".join(outcome.skipped[:SKIPPED_SHOWN])
            lines.append(f"  {'':<12} skipped: {shown}{f' and {more} more' if more > 0 else ''}")
    lines += ["", "bars"]
    for bar in bars:
        figure = "" if bar["figure"] is None else f"{bar['figure']:.4g} {bar['unit']}".strip() + ", "
        lines.append(f"  {figure}{bar['verdict']}: {bar['what']} {bar['bar']}")
    return "\n".join(lines) + "\n"


def result(outcome: Outcome) -> str:
    """Return how many items passed and the first that failed; without one, the last line that a failed part printed."""
    bad = [item["item"] for item in outcome.items if failed(item)]
    text = f"{len(outcome.items) - len(bad)} good, {len(bad)} bad"
    if bad:
        return f"{text}, first {bad[0]}"
    printed = outcome.output.strip().splitlines() or ["it printed nothing"]
    return f"{text}; {printed[-1][-200:]}" if outcome.status == "failed" else text
