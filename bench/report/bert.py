"""The block on BERT: techniques beside PyTorch, of batches and of one text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from report import energy
from report.markdown import UNMEASURED, sources, table
from report.schema import machine_called, results

OWN = ("cpu_gemm", "mma", "wgmma")

Row = dict[str, Any]


def bert(document: Path, precision: str) -> str:
    """Two tables for each machine, of a precision: of batches texts a second, and of one text microseconds.

    Those of fp16 have a column of ours in FP8, where that was timed, which counts for no ratio.
    """
    parts = []
    for file, raw in results().bert.items():
        shown = (precision, "fp8") if precision == "fp16" else (precision,)
        rows = [_named(row, precision) for row in raw["bert"] if row["precision"] in shown]
        if not rows:
            continue
        batches, alone = ([row for row in rows if (row["case"]["n"] == 1) is one] for one in (False, True))
        host = f"{machine_called(raw['machine'])}, {precision}"
        tables = (
            _table(f"{host}: texts/s", batches, lambda spent, n: 1e6 * n / spent),
            _table(f"{host}: one text, µs", alone, lambda spent, n: spent),
        )
        parts.append("\n".join(filter(None, tables)) + energy.said(rows, "texts") + sources(document, [file]))
    return "\n".join(parts) if parts else UNMEASURED + "\n"


def _named(row: Row, precision: str) -> Row:
    """A row whose name says its precision where that is another one."""
    return row if row["precision"] == precision else row | {"made": f"{row['made']}, {row['precision']}"}


def _table(title: str, rows: Sequence[Row], shown: Callable[[float, int], float]) -> str:
    if not rows:
        return ""
    named = dict.fromkeys(row["made"] for row in rows)
    made, own = ([name for name in named if (name.partition(", fp8")[0] in OWN) is ours] for ours in (False, True))
    found: dict[tuple[str, int], dict[str, Row]] = {}
    for row in rows:
        case = row["case"]
        tokens = f"{case['least']} to {case['tokens']}" if case["least"] else f"{case['tokens']}"
        name = f"{case['variant']}, N = {case['n']}, {tokens} tokens"
        found.setdefault((name, case["n"]), {})[row["made"]] = row
    cells = []
    for (name, n), of in found.items():
        spent = {one: row["microseconds"] for one, row in of.items()}
        each = (
            energy.beside(f"{shown(spent[one], n):,.0f}", of[one]) if one in spent else "–" for one in (*made, *own)
        )
        ours, theirs = (min(spent[one] for one in names if one in spent) for names in (OWN, made))
        cells.append([name, *each, f"{theirs / ours:.2f}"])
    names = [*made, *(f"`{name}`" for name in own), "best ÷ best other"]
    return table([title, *names], cells, right=1)
