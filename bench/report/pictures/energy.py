"""The picture of what a multiplication costs, and what a byte does, on one scale."""

from __future__ import annotations

from typing import Any

from charcnn.charts.svg import Axis, Picture
from report.energy import TYPES, less_idle, whole
from report.schema import results

LEFT, RIGHT, TOP, ROW = 130, 40, 52, 26

ENDS = (0.1, 300.0)
"""pJ."""


def what_a_multiplication_costs() -> str:
    """A row a type, with a dot for each share of zeros; then a row a memory, whole and less what is drawn idle."""
    raw = next(filter(whole, results().costs.values()))
    operations, memories = raw["operations"]["rows"], raw["bytes"]["rows"]
    shares = list(dict.fromkeys(row["features"] for row in operations))
    picture = Picture("pJ an operation by type and share of zeros, and pJ a byte by memory, on a log scale", 0)
    picture.height = TOP + ROW * (len(TYPES) + len(memories)) + 52
    picture.legend([(f"c{i}", share) for i, share in enumerate(shares)], LEFT, 16, 104)
    picture.legend([("c6", "a byte"), ("c6 faint", "less idle draw")], LEFT, 36, 104)
    across, y = Axis(*ENDS, LEFT, picture.width - RIGHT), TOP + ROW / 2
    bottom = picture.height - 46
    for value in across.decades():
        x = across(value)
        picture.line(x, TOP, x, bottom)
        picture.text(x, bottom + 18, f"{value:g}", "small", "middle")
    picture.text(across.end, bottom + 38, "pJ an operation, or a byte", anchor="end")
    for ptx_type, called in TYPES.items():
        picture.text(LEFT - 8, y + 4, called, "said", "end")
        costs = [(i, row) for i, share in enumerate(shares) for row in operations if _is(row, ptx_type, share)]
        for i, row in costs:
            picture.dot(across(row["pJ"]), y, f"c{i}", f"{called}, {row['features']}: {row['pJ']:.3f} pJ an operation")
        if costs:
            most = max(row["pJ"] for _, row in costs)
            picture.text(across(most) + 11, y + 4, f"{most:.2f}", "small said")
        y += ROW
    for row in memories:
        of, all_of_it = row["energy"], row["energy"]["joules_per_million"] * 1e6
        bare = less_idle(of["watts"], of["per_second"], raw["bytes"]["idle_watts"])
        picture.text(LEFT - 8, y + 4, row["memory"], "said", "end")
        picture.line(across(bare), y, across(all_of_it), y, "s6 thick")
        picture.dot(across(bare), y, "c6 faint", f"{row['memory']}: {bare:.2f} pJ a byte less idle")
        picture.dot(across(all_of_it), y, "c6", f"{row['memory']}: {all_of_it:.2f} pJ a byte")
        picture.text(across(all_of_it) + 11, y + 4, f"{all_of_it:.3g}", "small said")
        y += ROW
    return str(picture)


def _is(row: dict[str, Any], ptx_type: str, share: str) -> bool:
    return (row["ptx_type"], row["features"]) == (ptx_type, share)
