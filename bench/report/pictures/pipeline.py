"""The picture of the wgmma kernel over time, from a trace of its waits."""

from __future__ import annotations

import json

from charcnn.charts.svg import WIDTH, Axis, Picture
from report.schema import RESULTS

TRACE = RESULTS / "nvidia-h200-wgmma-trace.json"
LEFT, RIGHT, TOP, ROW, HIGH = 108, 12, 48, 34, 22
TILES = 1.25
"""Tiles that are shown."""

KINDS = {
    "b_full": ("c0", "for weights"), "a_full": ("c3", "for features"), "b_empty": ("c2", "for room for weights"),
    "a_empty": ("c5", "for room for features"), "pool_read": ("c4", "for the pooling"),
}  # fmt: skip


def pipeline() -> str:
    """One block in the middle of its work: what each part waits for, and in between multiplies, asks or stores."""
    raw = json.loads(TRACE.read_text(encoding="utf-8"))
    steps = 4 * 7  # k blocks and taps of conv2
    lead = [row["begin"] for row in raw["events"] if (row["part"], row["waits_for"]) == ("warpgroup 0", "b_full")]
    begin = lead[steps // 2]
    end = begin + TILES * (lead[steps // 2 + steps] - begin)
    parts = sorted({row["part"] for row in raw["events"]})
    picture = Picture("The wgmma kernel over time: one block, one tile and what is left of the one before", 0)
    picture.height = TOP + ROW * len(parts) + 34
    waits = [(colour, f"waits {what}") for colour, what in KINDS.values()]
    picture.legend([("c1 faint", "at work"), *waits], 4, 16, 198)
    place = Axis(begin, end, LEFT, picture.width - RIGHT, log=False)
    for number, part in enumerate(parts):
        y = TOP + ROW * number
        picture.text(LEFT - 8, y + 15, part, "said", "end")
        picture.rect(LEFT, y, picture.width - LEFT - RIGHT, HIGH, "c1 faint")
        for row in raw["events"]:
            if row["part"] == part and row["end"] > begin and row["begin"] < end:
                x, till = place(max(row["begin"], begin)), place(min(row["end"], end))
                told = f"{part} waits {row['end'] - row['begin']} cycles {KINDS[row['waits_for']][1]}"
                picture.rect(x, y, max(till - x, 0.5), HIGH, KINDS[row["waits_for"]][0], told)
    y = TOP + ROW * len(parts) + 12
    tick = 10_000 if picture.width == WIDTH else 20_000
    for cycles in range(0, int(end - begin), tick):
        x = place(begin + cycles)
        picture.line(x, TOP - 4, x, y - 10)
        picture.text(x, y + 4, f"{cycles:,}", "small", "middle")
    picture.text(picture.width - RIGHT, y + 18, "cycles of a multiprocessor", "small", "end")
    return str(picture)
