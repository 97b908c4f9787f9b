"""The picture of attention by wgmma over time, from a trace of its waits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from charcnn.charts.svg import WIDTH, Axis, Picture
from report.schema import RESULTS

TRACE = RESULTS / "nvidia-h100-80gb-hbm3-attention-trace.json"
LEFT, RIGHT, TOP, ROW, HIGH = 108, 12, 66, 44, 14
TILES = 3.3
"""Tiles of keys that are shown."""

KINDS = {
    "scores": ("c0", "q kᵀ under way"), "values": ("c1 faint", "weights × v under way, or done"),
    "powers": ("c2", "powers of 2"), "turn": ("c7", "waits for its turn"),
    "k": ("c3", "keys have come"), "v": ("c4", "values have come"),
}  # fmt: skip


def spans(rows: list[dict[str, Any]]) -> Iterator[tuple[str, int, int]]:
    """What a warpgroup does between its waits: (kind, begin, end), of all tiles of a task but the first."""
    turn = scores = 0
    for row in rows:
        if row["waits_for"] == "turn":
            yield "turn", row["begin"], row["end"]
            turn = row["end"]
        elif row["waits_for"] == "scores":
            scores = row["end"]
            yield "scores", turn, scores
        elif row["waits_for"] == "v_full" and scores > turn:
            yield "powers", scores, row["begin"]
        elif row["waits_for"] == "values" and scores > turn:
            yield "values", scores, row["end"]
            turn = row["end"]


def attention_over_time() -> str:
    """One block in the middle of a task: products and powers of each warpgroup, and when copies land."""
    raw = json.loads(TRACE.read_text(encoding="utf-8"))
    of = {part: [row for row in raw["events"] if row["part"] == part] for part in {r["part"] for r in raw["events"]}}
    turns = [row["begin"] for row in of["warpgroup 0"] if row["waits_for"] == "turn"]
    tasks = [row["begin"] for row in of["warpgroup 0"] if row["waits_for"] == "q_full"]
    begin, tile, *_ = (turn for turn in turns if turn > tasks[0])
    end = begin + TILES * (tile - begin)
    parts = sorted(part for part in of if part.startswith("warpgroup"))
    picture = Picture("Attention by wgmma over time: one block, three tiles of keys", 0)
    picture.height = TOP + ROW * len(parts) + 60
    picture.legend([*KINDS.values()], 4, 16, 198)
    place = Axis(begin, end, LEFT, picture.width - RIGHT, log=False)

    def box(kind: str, since: int, till: int, y: float, high: float, told: str) -> None:
        if till > begin and since < end:
            x = place(max(since, begin))
            picture.rect(x, y, max(place(min(till, end)) - x, 1.5), high, KINDS[kind][0], told)

    for number, part in enumerate(parts):
        y = TOP + ROW * number
        picture.text(LEFT - 8, y + 18, part, "said", "end")
        for kind, since, till in spans(of[part]):
            box(kind, since, till, y + HIGH * (kind in ("powers", "turn")), HIGH, f"{till - since} cycles")
    y = TOP + ROW * len(parts)
    picture.text(LEFT - 8, y + 12, "copies", "said", "end")
    for row in of["copies"]:
        box(row["waits_for"][0], row["end"], row["end"], y, HIGH, f"stage {row['stage']}")
    y += HIGH + 14
    tick = 2_000 if picture.width == WIDTH else 4_000
    for cycles in range(0, int(end - begin), tick):
        x = place(begin + cycles)
        picture.line(x, TOP - 4, x, y - 10)
        picture.text(x, y + 4, f"{cycles:,}", "small", "middle")
    picture.text(picture.width - RIGHT, y + 20, "cycles of a multiprocessor", "small", "end")
    return str(picture)
