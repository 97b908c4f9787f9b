"""The picture of the history for a phone: a row a level, rates on a log scale from left to right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from charcnn.charts.history import (
    DECADES,
    KINDS,
    Legend,
    colour,
    entry,
    first_of_each,
    precision_of,
    runs_of,
    series,
)  # fmt: skip
from charcnn.charts.svg import Axis, Picture, short

WIDTH, LEFT, RIGHT, ROW = 360, 92, 40, 22
"""Rates stand left of the axis; right of it is room for what the last limit is called."""
ENTRY = 18
"""Height of a line of the legend."""


def history_tall(
    title: str,
    levels: Sequence[tuple[str, str]],
    rates: Mapping[str, float],
    *,
    legend: Sequence[Legend],
    peers: Sequence[float | None] = (),
    limits: Sequence[float | None] = (),
) -> str:
    """The SVG, legible 360 pixels wide; arguments as of `history`."""
    top = ENTRY * len(legend) + 34
    bottom = top + ROW * len(levels)
    picture = Picture(title, bottom + 8, WIDTH)
    across = Axis(10.0 ** DECADES[0], 10.0 ** DECADES[1], LEFT, WIDTH - RIGHT)

    def down(place: float) -> float:
        return top + ROW * (place + 0.5)

    points = [
        (across(rates[name]), down(place), precision_of(name))
        for place, (name, device) in enumerate(levels) if device == "cuda" and name in rates
    ]  # fmt: skip
    joined = series(points)
    for number, (kind, said, _) in enumerate(legend):
        entry(picture, 6, 14 + ENTRY * number, kind, said, joined)
    for power, value in enumerate(across.decades()):
        picture.line(across(value), top, across(value), bottom)
        if power % 2 == 0:  # a name is nearly as wide as two of them
            picture.text(across(value), top - 7, short(value), "small", "middle")
    picture.text(LEFT - 14, top - 7, "inputs/s", "small", "end")
    for kind, found in (("limit", limits), ("peer", peers)):
        runs = runs_of(found, down, across)
        for begin, end, x, _ in runs:
            picture.line(x, begin, x, end, KINDS[kind])
        for begin, _, x, rate in first_of_each(runs):
            at, anchor, shade = (x + 5, "start", "c3") if kind == "limit" else (x - 5, "end", "c2")
            picture.text(at, begin + 11, short(rate), f"small {shade}", anchor)
    for precision, of in joined.items():
        picture.path(of, f"s{colour(precision)} thick")
    for x, y, precision in points:
        picture.dot(x, y, f"c{colour(precision)}")
    for place, (name, device) in enumerate(levels):
        y = down(place)
        picture.text(6, y + 4, name, "said")
        if name not in rates:
            picture.text(LEFT, y + 4, "not measured", "small")
            continue
        picture.text(LEFT - 14, y + 4, short(rates[name]), "small said value", "end")
        if device != "cuda":
            picture.dot(across(rates[name]), y, KINDS["cpu"])
    return str(picture)
