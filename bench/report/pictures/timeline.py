"""The picture of what overlaps in l7: a piece of its trace, on one of four ranks."""

from __future__ import annotations

import gzip
import json
from typing import Any

from charcnn.charts.svg import Axis, Picture
from report.schema import RESULTS

TRACE = RESULTS / "nvidia-h200-l7-4-ranks-trace.json.gz"
RANK, SHOWN = 1, 24_000
"""Whose rows, and how many microseconds from the trace's middle on."""
KINDS = {
    "kernel": ("c1", "kernel"), "copy": ("c0", "copy"), "stage": ("c2", "host works"),
    "wait": ("c7", "host waits"), "network": ("c3", "messages"),
}  # fmt: skip
LEFT, RIGHT, TOP, ROW = 118, 12, 34, 24


def overlap_of_l7() -> str:
    """Rows of streams, of host threads and of messages, on one axis of time."""
    with gzip.open(TRACE, "rt", encoding="utf-8") as file:
        events: list[dict[str, Any]] = json.load(file)
    own = [event for event in events if event["pid"] == RANK]
    names = {event["tid"]: event["args"]["name"] for event in own if event["name"] == "thread_name"}
    begin = max(event["ts"] + event.get("dur", 0) for event in events) / 2
    spans = [
        event
        for event in own
        if event.get("cat") in KINDS and event["ts"] < begin + SHOWN and event["ts"] + event["dur"] > begin
    ]
    rows = list(dict.fromkeys(_row(names[tid]) for tid in sorted(names)))
    rows.sort(key=lambda row: row == "messages")
    bottom = TOP + ROW * len(rows)
    title = f"A piece of l7's trace, rank {RANK} of 4: streams, host threads and messages overlap"
    picture = Picture(title, bottom + 26)
    picture.legend(list(KINDS.values()), LEFT, 14, 96)
    across = Axis(0, SHOWN, LEFT, picture.width - RIGHT, log=False)
    for tick in range(0, SHOWN + 1, 4000):
        picture.line(across(tick), TOP - 4, across(tick), bottom)
        picture.text(across(tick), bottom + 16, f"{tick // 1000}", "small", "middle")
    picture.text(LEFT - 8, bottom + 16, "ms", "small", "end")
    for number, row in enumerate(rows):
        picture.text(LEFT - 8, TOP + ROW * number + 14, row, "small said", "end")
    for event in sorted(spans, key=lambda event: list(KINDS).index(event["cat"])):  # a wait lies on its stage
        x = across(max(0, event["ts"] - begin))
        width = across(min(SHOWN, event["ts"] + event["dur"] - begin)) - x
        y = TOP + ROW * rows.index(_row(names[event["tid"]]))
        said = f"{event['name']}, {event['dur'] / 1e3:.2f} ms"
        picture.rect(x, y, max(width, 0.4), ROW - 6, KINDS[event["cat"]][0], said)
    return str(picture)


def _row(thread: str) -> str:
    """Where a thread of the trace is drawn: those of messages share a row."""
    if thread.startswith("slot"):
        return "messages"
    return thread.replace("worker_", "host thread ")
