"""The block of docs/train.md on few rows: a network that begins with n-grams beside a linear model, set by set."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, median
from typing import Any

from text_sets import SETS

from report.markdown import table
from report.schema import RESULTS, ReportError, machine_called

FILE = RESULTS / "designs" / "cpu-2-cores-few-rows.json"


def few_rows(document: Path) -> str:
    """Accuracy by set and number of rows, charcnn's, that of before where it was measured, and the linear model's; and
    designs that were tried."""
    raw = json.loads(FILE.read_text(encoding="utf-8"))
    runs, before = _by_case(raw["runs"]), _by_case(raw.get("before", []))
    if unknown := {run["set"] for run in raw["runs"]} - SETS.keys():
        raise ReportError(f"{FILE.name}: unknown sets {', '.join(sorted(unknown))}")
    asked = sorted({key[1:] for key in runs | before}, key=lambda key: (key[1], key[0]))
    head = ["set", *(f"{count:,} rows{', 9 : 1' * rare}" for count, rare in asked)]
    rows = []
    for name, (_, _, called) in SETS.items():
        cells = [_cell(runs.get((name, *key), []), before.get((name, *key), [])) for key in asked]
        if any(cells):
            rows.append([called, *cells])
    drawings = [len(found) for found in runs.values()]
    width = max(map(_half_width, runs.values()))
    seconds = [run["cpu_seconds"] for run in raw["runs"]]
    tested = [run["tested"] for run in raw["runs"]]
    behind, where = min((_mean(found, "charcnn") - _mean(found, "linear"), key) for key, found in runs.items())
    furthest = f"{SETS[where[0]][2]}, {where[1]:,} rows{', 9 : 1' * where[2]}"
    times = f"{min(seconds):.0f} to {max(seconds):.0f} CPU seconds, the median {median(seconds):.0f}"
    return (
        table(head, rows, right=1)
        + "\nIn each cell: charcnn / as it began before / linear model, in per cent right; – is not measured again. "
        f"With 9 : 1 it is the mean of both recalls. Each figure is the mean of {_range(drawings, 'drawing')}, each "
        f"tested on {_range(tested, 'other row')}. The 95 % interval of charcnn's is at most ± {width:.1f} points. "
        f"It is furthest behind, by {-behind:.1f} points, in {furthest}. "
        f"{machine_called(raw['machine'])}: a training took {times}. "
        f"[Raw result]({os.path.relpath(FILE, document.parent)}).\n\n"
        + table(["design", "predicted", "measured, in points", "so"], raw.get("designs", []), right=4)
    )


def cases() -> Iterator[tuple[str, str, float, float]]:
    """The machine, each set and number of rows there, and charcnn's and the linear model's per cent right."""
    raw = json.loads(FILE.read_text(encoding="utf-8"))
    for (name, count, rare), runs in _by_case(raw["runs"]).items():
        what = f"{SETS[name][2]}, {count:,} rows{', 9 : 1' * rare}"
        yield machine_called(raw["machine"]), what, _mean(runs, "charcnn"), _mean(runs, "linear")


def _half_width(runs: list[dict[str, Any]]) -> float:
    """Of the 95 % interval of charcnn's mean, from how many rows it was tested on."""
    right, tested = _mean(runs, "charcnn") / 100, sum(run["tested"] for run in runs)
    return 196 * (right * (1 - right) / tested) ** 0.5


def _range(numbers: list[int], what: str) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low} {what}{'s' * (low > 1)}" if low == high else f"{low} to {high} {what}s"


def _by_case(runs: list[dict[str, Any]]) -> dict[tuple[str, int, bool], list[dict[str, Any]]]:
    found = defaultdict(list)
    for run in runs:
        found[run["set"], run["asked"], run["rare"]].append(run)
    return dict(found)


def _cell(own: list[dict[str, Any]], before: list[dict[str, Any]]) -> str:
    if not own and not before:
        return ""
    paired = not own or {run["seed"] for run in own} == {run["seed"] for run in before}
    parts = [(own, "charcnn"), (before if paired else [], "charcnn"), (own or before, "linear")]
    return " / ".join(f"{_mean(runs, which):.1f}" if runs else "–" for runs, which in parts)


def _mean(runs: list[dict[str, Any]], which: str) -> float:
    return 100 * fmean(run[which]["balanced_accuracy" if run["rare"] else "accuracy"] for run in runs)
