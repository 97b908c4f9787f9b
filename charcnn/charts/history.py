"""The picture of the history: inputs a second by level, on a log scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from charcnn import catalog
from charcnn.charts.svg import Picture, short

WIDTH, HEIGHT = 800, 500
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 34, 74
DECADES = (0, 7)
"""Powers of ten at the ends of the axis of inputs a second."""

KINDS = {"gpu": "c1", "cpu": "s1 thick", "other": "c7 faint", "peer": "s2 thick", "limit": "s3 dashed"}
"""Classes of marks."""
PRECISIONS = {"fp32": "1", "fp16": "0", "fp8": "4"}
"""Colours of levels on a GPU, by what they compute in: of dots c1, of lines s1."""
OTHER_PRECISION = "6"

Point = tuple[float, float]
Line = tuple[Point, Point]
Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""
Place = tuple[float, float, str]
"""Of a text: x, y, and text-anchor."""
Legend = tuple[str, str, int]
"""A kind of mark, what is said of it, and where it stands at least."""
Run = tuple[float, float, float, float]
"""Levels in a row with the same rate: where it begins and ends, how high it lies, and the rate."""
Marked = tuple[float, float, str]
"""A level on a GPU: where it lies, and its precision."""


def history(
    title: str,
    levels: Sequence[tuple[str, str]],
    rates: Mapping[str, float],
    *,
    legend: Sequence[Legend],
    peers: Sequence[float | None] = (),
    limits: Sequence[float | None] = (),
    others: Mapping[str, float] | None = None,
    precisions: Mapping[str, str] | None = None,
) -> str:
    """The SVG: levels on a GPU are filled circles, on a CPU empty ones. A line joins levels of one precision.

    Args:
        title: what it shows, for those who do not see it, too.
        levels: names, in order, and whether they run on the cpu or cuda.
        rates: inputs/s by level, of those that were measured.
        legend: of "gpu", "cpu", "other", "peer" and "limit" those that are there.
        peers, limits: inputs/s of the fastest other library and of the hardware, a level each, or none at all.
        others: inputs/s by level on another machine.
        precisions: what levels computed in; where one is missing, what the catalogue says.
    """
    spacing = (WIDTH - LEFT - RIGHT) / len(levels)

    def across(place: float) -> float:
        return LEFT + spacing * (place + 0.5)

    def up(rate: float) -> float:
        low, high = DECADES
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (math.log10(max(rate, 10.0**low)) - low) / (high - low)

    picture = Picture(title, HEIGHT, WIDTH)
    for power in range(DECADES[0], DECADES[1] + 1):
        y = up(10**power)
        picture.line(LEFT, y, WIDTH - RIGHT, y)
        picture.text(LEFT - 8, y + 4, short(10**power), anchor="end")
    picture.text(4, TOP - 16, "inputs/s")
    points = [(across(n), up(rates[name]), *level) for n, level in enumerate(levels) if (name := level[0]) in rates]
    on_gpu = [(x, y, precision_of(name, precisions)) for x, y, name, device in points if device == "cuda"]
    joined = series(on_gpu)
    peer_lines, limit_lines = runs_of(peers, across, up), runs_of(limits, across, up)
    level_lines = [((x1, y), (x2, y)) for x1, x2, y, _ in peer_lines + limit_lines]
    names = ((LEFT, HEIGHT - BOTTOM + 6), (WIDTH, HEIGHT - BOTTOM + 6))
    path = [line for of in joined.values() for line in pairwise(of)]
    dots = [(x - 4, y - 4, x + 4, y + 4) for x, y, *_ in points]
    labels = _Labels(picture, [*level_lines, names], path, dots)
    for kind, runs in (("limit", limit_lines), ("peer", peer_lines)):
        for x1, x2, y, _ in runs:
            picture.line(x1, y, x2, y, KINDS[kind])
    for precision, of in joined.items():
        picture.path(of, f"s{colour(precision)}")
    for place, (name, _) in enumerate(levels):
        x, bottom = across(place), HEIGHT - BOTTOM
        picture.text(x, bottom + 18, name, anchor="middle")
        if others and name in others:
            picture.dot(x, up(others[name]), KINDS["other"])
        elif name not in rates:
            picture.text(x + 4, bottom - 8, "not measured", "small", turned=-90)
    for x1, _, y, rate in first_of_each(peer_lines):
        labels.put(short(rate), "small c2", [(x1, y + 14, "start"), (x1, y - 5, "start")])
    for x, y, name, device in points:
        kind = f"c{colour(precision_of(name, precisions))}" if device == "cuda" else KINDS["cpu"]
        picture.dot(x, y, kind, f"{name}: {short(rates[name])} inputs/s")
        sides = ((0, "middle"), (2, "start"), (-3, "start"))
        around = [(x - left, y + down, anchor) for down in (15, 13) for left, anchor in sides]
        around += [(x + 4, y - 8, "end"), (x, y - 8, "middle"), (x - 7, y + 4, "end"), (x + 7, y + 4, "start")]
        labels.put(short(rates[name]), "small value", around, near=y)
    for x1, x2, y, rate in first_of_each(limit_lines):
        middle = (x1 + x2) / 2
        above = [(middle, y - 5, "middle"), (middle + 5, y - 5, "end"), (x1, y - 5, "start"), (x2, y - 5, "end")]
        labels.put(short(rate), "small c3", above)
    x, y = 12.0, HEIGHT - 28
    for kind, said, least in legend:  # below the axis
        wide = legend_width(kind, said, joined)
        x = max(x, float(least)) if y < HEIGHT - 10 else x
        if x + wide > WIDTH and x > 12:
            x, y = 12.0, y + 18
        entry(picture, x, y, kind, said, joined)
        x += wide + 22
    return str(picture)


def precision_of(level: str, given: Mapping[str, str] | None = None) -> str:
    """What a level computed in."""
    return given[level] if given and level in given else catalog.level(level).precision()


def colour(precision: str) -> str:
    """The number of its class."""
    return PRECISIONS.get(precision, OTHER_PRECISION)


def series(marks: Sequence[Marked]) -> dict[str, list[Point]]:
    """By precision, in the order of levels: what a line joins."""
    found: dict[str, list[Point]] = {}
    for x, y, precision in marks:
        found.setdefault(precision, []).append((x, y))
    return found


def first_of_each(lines: Sequence[Run]) -> list[Run]:
    """Lines at heights that none before them has: a height is labelled once."""
    rates = [line[-1] for line in lines]
    return [line for place, line in enumerate(lines) if line[-1] not in rates[:place]]


LETTER = 5.7
"""Width of a small letter, about."""


def entry(picture: Picture, x: float, y: float, kind: str, said: str, joined: Mapping[str, object]) -> None:
    """A line of the legend: a mark and what is said of it; of a GPU with several precisions a mark each."""
    if kind in ("peer", "limit"):
        picture.line(x, y - 4, x + 22, y - 4, KINDS[kind])
        picture.text(x + 28, y, said, "small")
        return
    if kind != "gpu" or not joined:
        picture.dot(x + 6, y - 4, KINDS[kind])
        picture.text(x + 17, y, said, "small")
        return
    for precision in joined:
        picture.dot(x + 6, y - 4, f"c{colour(precision)}")
        picture.text(x + 17, y, precision, "small")
        x += 24 + LETTER * len(precision)
    picture.text(x, y, said, "small")


def legend_width(kind: str, said: str, joined: Mapping[str, object]) -> float:
    """How wide an entry is."""
    marks = 28.0 if kind in ("peer", "limit") else 17.0
    if kind == "gpu" and joined:
        marks = sum(24 + LETTER * len(precision) for precision in joined)
    return marks + LETTER * len(said)


def runs_of(rates: Sequence[float | None], across: Callable[[float], float], up: Callable[[float], float]) -> list[Run]:
    """Levels in a row with one rate: where they begin and end, `across` of the levels and `up` of the rate."""
    found, begin = [], 0
    for place in range(1, len(rates) + 1):
        if place < len(rates) and rates[place] == rates[begin]:
            continue
        if (rate := rates[begin]) is not None:
            found.append((across(begin - 0.42), across(place - 1 + 0.42), up(rate), rate))
        begin = place
    return found


class _Labels:
    """Texts that stand at the first of their places where no line runs through them, nor another text stands."""

    def __init__(self, picture: Picture, lines: list[Line], path: list[Line], taken: list[Box]):
        self.picture, self.lines, self.path, self.taken = picture, lines, path, taken

    def put(self, text: str, kind: str, places: Sequence[Place], near: float | None = None) -> None:
        """Draw the text; where all places are taken, at that where it is over the fewest things.

        Nor is a line between it and the height `near` of what it is said of: it would seem to be below, or above.
        """
        boxes = [_box(text, *place) for place in places]
        over = [self._over(box, near) for box in boxes]
        best = over.index(min(over))
        self.taken.append(boxes[best])
        x, y, anchor = places[best]
        self.picture.text(x, y, text, kind, anchor)

    def _over(self, box: Box, near: float | None) -> int:
        left, top, right, bottom = box
        texts = sum(left < r and x < right and top < b and y < bottom for x, y, r, b in self.taken)
        heights = [top, bottom] if near is None else [top, bottom, near + 1 if top > near else near - 1]
        reach = (left, min(heights), right, max(heights))
        return texts + sum(_crosses(line, box) for line in self.path) + sum(_crosses(x, reach) for x in self.lines)


def _box(text: str, x: float, y: float, anchor: str) -> Box:
    """Of a small text: a letter is 6.2 wide at most, and 8 high; two texts stand a little apart."""
    width = 6.2 * len(text)
    left = x - width * {"start": 0, "middle": 0.5, "end": 1}[anchor]
    return left, y - 8, left + width + 3, y + 2


def _crosses(line: Line, box: Box) -> bool:
    """Whether a line runs through a box: what of it lies between the left and right is not all above, or below."""
    ((x1, y1), (x2, y2)), (left, top, right, bottom) = sorted(line), box
    begin, end = max(x1, left), min(x2, right)
    if begin >= end:
        return False
    ends = [y1 + (y2 - y1) * (x - x1) / (x2 - x1) for x in (begin, end)]
    return max(ends) > top and min(ends) < bottom
