"""AlexNet's first two layers: time by FLOP a byte, for every way and batch."""

from __future__ import annotations

from charcnn.charts.svg import Axis, Picture
from report.fused import METHODS, SEPARATE, use
from report.schema import results

LEFT, RIGHT, TOP, BOTTOM, HEIGHT = 62, 26, 62, 46, 460
KINDS = {way: f"c{i}" for i, way in enumerate((*METHODS, SEPARATE))}


def time_of_alexnets_first_two() -> str:
    """Of the first result: fp16 as dots that are filled, float32 as rings; a line joins a way's batches."""
    raw = next(iter(results().fused_alexnet.values()))
    rows = [row for row in raw["ways"] if row["part"] == "front" and row["way"] in KINDS]
    spent = [row["microseconds"] / row["batch"] for row in rows]
    uses = [use(row) for row in rows]
    picture = Picture(
        f"AlexNet's first two layers on one {raw['machine']['gpus'][0]}: time by operations a byte of DRAM", HEIGHT
    )
    across = Axis(min(uses) / 1.3, max(uses) * 1.3, LEFT, picture.width - RIGHT)
    up = Axis(min(spent) / 1.5, max(spent) * 1.5, HEIGHT - BOTTOM, TOP)
    for value in across.decades():
        picture.line(across(value), up.begin, across(value), up.end)
        picture.text(across(value), up.begin + 18, f"{value:g}", anchor="middle")
    for value in up.decades():
        picture.line(across.begin, up(value), across.end, up(value))
        picture.text(across.begin - 8, up(value) + 4, f"{value:g}", anchor="end")
    picture.text(picture.width - RIGHT, HEIGHT - 8, "FLOP a byte of DRAM, by the plan", "small", "end")
    picture.text(
        LEFT, TOP - 10, "µs an image; lines join batches of a way, the larger dot is the larger batch", "small"
    )
    for variant in dict.fromkeys(row["variant"] for row in rows):
        for precision in dict.fromkeys(row["precision"] for row in rows):
            for way, kind in KINDS.items():
                of = [
                    row for row in rows if (row["variant"], row["precision"], row["way"]) == (variant, precision, way)
                ]
                places = [(across(use(row)), up(row["microseconds"] / row["batch"])) for row in of]
                picture.path(places, f"s{kind[1:]}")
                for i, (row, (x, y)) in enumerate(zip(of, places, strict=True)):
                    told = f"{variant}, {precision}, {way}, N = {row['batch']:,}: "
                    told += f"{row['microseconds'] / row['batch']:,.2f} µs an image at {use(row):,.0f} FLOP a byte"
                    picture.dot(x, y, kind, told, 3 + i)
                if of:
                    x, y = places[-1]
                    if way == SEPARATE:
                        picture.text(x + 9, y + 4, f"{variant}, {precision}", "small said")
    picture.legend([(kind, way) for way, kind in KINDS.items()], LEFT, 14, 120)
    return str(picture)
