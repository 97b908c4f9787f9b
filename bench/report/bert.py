"""The block on BERT: techniques beside PyTorch, by batch."""

from __future__ import annotations

from pathlib import Path

from report.markdown import UNMEASURED, sources, table
from report.schema import machine_called, results

OWN = ("mma", "wgmma")


def bert(document: Path, precision: str) -> str:
    """A table for each machine, of a precision: texts a second, of one text microseconds, and the best of each side."""
    parts = []
    for file, raw in results().bert.items():
        rows = [row for row in raw["bert"] if row["precision"] == precision]
        made = dict.fromkeys(row["made"] for row in rows if row["made"] not in OWN)
        found: dict[str, dict[str, float]] = {}
        alone = set()
        for row in rows:
            case = row["case"]
            tokens = f"{case['least']} to {case['tokens']}" if case["least"] else f"{case['tokens']}"
            name = f"{case['variant']}, N = {case['n']}, {tokens} tokens"
            found.setdefault(name, {})[row["made"]] = row["microseconds"] / case["n"]
            if case["n"] == 1:
                alone.add(name)
        cells = []
        for name, spent in found.items():
            unit = (lambda one: one) if name in alone else (lambda one: 1e6 / one)
            each = (f"{unit(spent[one]):,.0f}" if one in spent else "–" for one in (*made, *OWN))
            ours, theirs = (min(spent[one] for one in names if one in spent) for names in (OWN, made))
            cells.append([f"{name}{', µs' * (name in alone)}", *each, f"{theirs / ours:.2f}"])
        names = [*made, *(f"`{name}`" for name in OWN), "best ÷ best other"]
        head = [f"{machine_called(raw['machine'])}, {precision}: texts/s", *names]
        parts.append(table(head, cells, right=1) + sources(document, [file]))
    return "\n".join(parts) if parts else UNMEASURED + "\n"
