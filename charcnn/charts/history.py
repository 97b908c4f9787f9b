"""The picture of the history: inputs a second by level, on a log scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 860, 480
LEFT, RIGHT, TOP, BOTTOM = 84, 20, 34, 56
DECADES = (0, 7)
"""Powers of ten at the ends of the axis of inputs a second."""

STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #57606a; }
  .value, .small { font-size: 10.5px; }
  .grid { stroke: #8c959f; stroke-opacity: 0.25; }
  .gpu { fill: #1a7f37; } .cpu { fill: none; stroke: #1a7f37; stroke-width: 2; }
  .path { fill: none; stroke: #1a7f37; stroke-opacity: 0.45; stroke-width: 1.5; }
  .other { fill: #8c959f; fill-opacity: 0.55; }
  .peer { stroke: #bc4c00; stroke-width: 2; } text.peer { fill: #bc4c00; stroke: none; }
  .limit { stroke: #8250df; stroke-width: 2; stroke-dasharray: 6 4; } text.limit { fill: #8250df; stroke: none; }
  @media (prefers-color-scheme: dark) {
    text { fill: #9da7b1; }
    .gpu { fill: #3fb950; } .cpu, .path { stroke: #3fb950; }
    .peer { stroke: #f0883e; } text.peer { fill: #f0883e; }
    .limit { stroke: #bc8cff; } text.limit { fill: #bc8cff; }
  }
"""

Point = tuple[float, float]
Line = tuple[Point, Point]
Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""
Place = tuple[float, float, str]
"""Of a text: x, y, and text-anchor."""
Legend = tuple[str, str, int]
"""A kind of mark, what is said of it, and where it stands."""


def history(
    title: str,
    levels: Sequence[tuple[str, str]],
    rates: Mapping[str, float],
    *,
    legend: Sequence[Legend],
    peers: Sequence[float | None] = (),
    limits: Sequence[float | None] = (),
    others: Mapping[str, float] | None = None,
) -> str:
    """The SVG: levels on a GPU are filled circles, on a CPU empty ones; lines hold where a level's precision does.

    Args:
        title: what it shows, for those who do not see it, too.
        levels: names, in order, and whether they run on the cpu or cuda.
        rates: inputs/s by level, of those that were measured.
        legend: of "gpu", "cpu", "other", "peer" and "limit" those that are there.
        peers, limits: inputs/s of the fastest other library and of the hardware, a level each, or none at all.
        others: inputs/s by level on another machine.
    """
    spacing = (WIDTH - LEFT - RIGHT) / len(levels)

    def across(place: float) -> float:
        return LEFT + spacing * (place + 0.5)

    def up(rate: float) -> float:
        low, high = DECADES
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (math.log10(max(rate, 10.0**low)) - low) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE if others is not None else STYLE.replace(_OTHER, '')}</style>",
    ]
    for power in range(DECADES[0], DECADES[1] + 1):
        y = up(10**power)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10**power:,}</text>')
    parts.append(f'<text x="{LEFT - 58}" y="{TOP - 16}">inputs/s</text>')
    points = [(across(n), up(rates[name]), *level) for n, level in enumerate(levels) if (name := level[0]) in rates]
    on_gpu = [(x, y) for x, y, _, device in points if device == "cuda"]
    peer_lines, limit_lines = _runs(peers, across, up), _runs(limits, across, up)
    level_lines = [((x1, y), (x2, y)) for x1, x2, y, _ in peer_lines + limit_lines]
    names = ((LEFT, HEIGHT - BOTTOM + 6), (WIDTH, HEIGHT - BOTTOM + 6))
    labels = _Labels(
        [*level_lines, names], list(pairwise(on_gpu)), [(x - 4, y - 4, x + 4, y + 4) for x, y, *_ in points]
    )
    parts += _steps("limit", limit_lines) + _steps("peer", peer_lines)
    parts.append(f'<polyline class="path" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in on_gpu)}"/>')
    for place, (name, _) in enumerate(levels):
        x, bottom = across(place), HEIGHT - BOTTOM
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{name}</text>')
        if others and name in others:
            parts.append(f'<circle class="other" cx="{x:.1f}" cy="{up(others[name]):.1f}" r="4.5"/>')
        elif name not in rates:
            turned = f'transform="rotate(-90 {x + 4:.1f} {bottom - 8})"'
            parts.append(f'<text class="small" x="{x + 4:.1f}" y="{bottom - 8}" {turned}>not measured</text>')
    for _, x2, y, rate in peer_lines:
        parts.append(labels.put("peer value", _short(rate), [(x2 + 5, y + 4, "start")]))
    for x, y, name, device in points:
        parts.append(f'<circle class="{"gpu" if device == "cuda" else "cpu"}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>')
        around = [(x - left, y + down, kind) for down in (15, 13) for left, kind in ((0, "middle"), (2, "start"))]
        around += [(x + 4, y - 8, "end"), (x, y - 8, "middle")]
        parts.append(labels.put("value", _short(rates[name]), around, near=y))
    for x1, x2, y, rate in limit_lines:
        middle = (x1 + x2) / 2
        above = [(middle, y - 5, "middle"), (middle + 5, y - 5, "end"), (x1, y - 5, "start"), (x2, y - 5, "end")]
        parts.append(labels.put("limit value", _short(rate), above))
    parts += _legend(legend)
    return "\n".join([*parts, "</svg>", ""])


_OTHER = "  .other { fill: #8c959f; fill-opacity: 0.55; }\n"


Run = tuple[float, float, float, float]
"""Levels in a row with the same rate: where it begins and ends, how high it lies, and the rate."""


def _runs(rates: Sequence[float | None], across: Callable[[float], float], up: Callable[[float], float]) -> list[Run]:
    found, begin = [], 0
    for place in range(1, len(rates) + 1):
        if place < len(rates) and rates[place] == rates[begin]:
            continue
        if (rate := rates[begin]) is not None:
            found.append((across(begin - 0.42), across(place - 1 + 0.42), up(rate), rate))
        begin = place
    return found


def _steps(kind: str, runs: Iterable[Run]) -> list[str]:
    """Horizontal lines."""
    return [f'<line class="{kind}" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>' for x1, x2, y, _ in runs]


class _Labels:
    """Texts that stand at the first of their places where no line runs through them, nor another text stands."""

    def __init__(self, lines: list[Line], path: list[Line], taken: list[Box]):
        self.lines, self.path, self.taken = lines, path, taken

    def put(self, kind: str, text: str, places: Sequence[Place], near: float | None = None) -> str:
        """The text; where all places are taken, at that where it is over the fewest things.

        Nor is a line between it and the height `near` of what it is said of: it would seem to be below, or above.
        """
        boxes = [_box(text, *place) for place in places]
        over = [self._over(box, near) for box in boxes]
        best = over.index(min(over))
        self.taken.append(boxes[best])
        x, y, anchor = places[best]
        return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'

    def _over(self, box: Box, near: float | None) -> int:
        left, top, right, bottom = box
        texts = sum(left < r and x < right and top < b and y < bottom for x, y, r, b in self.taken)
        heights = [top, bottom] if near is None else [top, bottom, near + 1 if top > near else near - 1]
        reach = (left, min(heights), right, max(heights))
        return texts + sum(_crosses(line, box) for line in self.path) + sum(_crosses(x, reach) for x in self.lines)


def _box(text: str, x: float, y: float, anchor: str) -> Box:
    """Of a text of class value: a letter is 5.9 wide at most, and 8 high."""
    width = 5.9 * len(text)
    left = x - width * {"start": 0, "middle": 0.5, "end": 1}[anchor]
    return left, y - 8, left + width, y + 2


def _crosses(line: Line, box: Box) -> bool:
    """Whether a line runs through a box: what of it lies between the left and right is not all above, or below."""
    ((x1, y1), (x2, y2)), (left, top, right, bottom) = sorted(line), box
    begin, end = max(x1, left), min(x2, right)
    if begin >= end:
        return False
    ends = [y1 + (y2 - y1) * (x - x1) / (x2 - x1) for x in (begin, end)]
    return max(ends) > top and min(ends) < bottom


def _legend(entries: Sequence[Legend]) -> list[str]:
    """What the marks are, below the axis."""
    y, parts = HEIGHT - 10, []
    for kind, label, x in entries:
        if kind in ("gpu", "cpu", "other"):
            parts.append(f'<circle class="{kind}" cx="{x + 6}" cy="{y - 4}" r="4.5"/>')
        else:
            parts.append(f'<line class="{kind}" x1="{x - 8}" x2="{x + 14}" y1="{y - 4}" y2="{y - 4}"/>')
        parts.append(f'<text x="{x + 19}" y="{y}">{escape(label)}</text>')
    return parts


def _short(rate: float) -> str:
    """A rate in a few characters: 2.3, 608, 35.8 k, 1.18 M."""
    for unit, name in ((1e6, " M"), (1e3, " k")):
        if rate >= unit:
            return f"{rate / unit:.3g}{name}"
    return f"{rate:.3g}" if rate < 1000 else f"{rate:.0f}"
