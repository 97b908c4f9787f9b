"""What pictures are drawn with: an SVG whose colours are legible on light and dark pages, narrow enough for a phone."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from xml.sax.saxutils import escape

WIDTH, NARROW = 600, 360
"""Of a picture, and of its form for phones."""
LETTERS, LINE = {True: 5.7, False: 7.0}, 16
"""Width of a letter, of small texts and others, about; and height of a line of text."""
COLOURS = (
    ("#0969da", "#58a6ff"), ("#1a7f37", "#3fb950"), ("#bc4c00", "#f0883e"), ("#8250df", "#bc8cff"),
    ("#bf3989", "#f778ba"), ("#9a6700", "#d29922"), ("#1b7c83", "#39c5cf"), ("#6e7781", "#8b949e"),
)  # fmt: skip
"""On light and on dark pages; in a picture they are c0, c1 and so on."""
MUTED, BRIGHT = ("#57606a", "#9da7b1"), ("#24292f", "#e6edf3")
"""Of text: an axis's, and what is said beside a mark."""
FAINT = (0.22, 0.4)
"""Opacity of a faint colour: on dark pages as much of it is hardly seen."""
INSIDE = ("#ffffff", "#0d1117")
"""Of text on a colour."""


def _style() -> str:
    def rules_of(shade: int) -> str:
        rules = [
            f"text {{ fill: {MUTED[shade]}; }} .said {{ fill: {BRIGHT[shade]}; }} .on {{ fill: {INSIDE[shade]}; }}"
        ]
        rules += [
            f".c{i} {{ fill: {pair[shade]}; }} .s{i} {{ fill: none; stroke: {pair[shade]}; }}"
            for i, pair in enumerate(COLOURS)
        ]
        rules.append(f".faint {{ fill-opacity: {FAINT[shade]}; }}")
        return "\n  ".join(rules)

    return (
        "\n  text { font: 13px system-ui, sans-serif; } .small { font-size: 11px; }\n"
        "  .grid { stroke: #8c959f; stroke-opacity: 0.3; } .thick { stroke-width: 2; }\n"
        "  .dashed { stroke-dasharray: 6 4; stroke-width: 2; }\n"
        f"  {rules_of(0)}\n  @media (prefers-color-scheme: dark) {{\n  {rules_of(1)}\n  }}\n"
    )


_width = WIDTH


@contextmanager
def narrow() -> Iterator[None]:
    """A block whose pictures are drawn for phones: legends and long texts take more lines, what is below moves down."""
    global _width
    _width = NARROW
    try:
        yield
    finally:
        _width = WIDTH


class Picture:
    """Marks, added one by one; `str` is the file."""

    def __init__(self, title: str, height: float, width: float | None = None):
        self.title, self.height, self.width = title, height, width or _width
        self._marks: list[tuple[float, str]] = []
        """Each with the height where it begins."""
        self._inserted: list[tuple[float, float]] = []
        """Below which height, how much space."""
        self._row: float | None = None
        """Where marks of a row of the legend count as begun."""

    def insert(self, y: float, space: float) -> None:
        """Move down what begins below y."""
        self._inserted.append((y, space))

    def _add(self, y: float, mark: str) -> None:
        self._marks.append((y if self._row is None else self._row, mark))

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str = "grid") -> None:
        """A straight line."""
        self._add(min(y1, y2), f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')

    def path(self, points: Iterable[tuple[float, float]], kind: str) -> None:
        """A line through points."""
        places = list(points)
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        self._add(min((y for _, y in places), default=0), f'<polyline class="{kind}" points="{joined}"/>')

    def rect(self, x: float, y: float, width: float, height: float, kind: str, title: str = "") -> None:
        """A box; `title` is shown where the pointer rests on it."""
        inside = f"<title>{escape(title)}</title>" if title else ""
        place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        self._add(y, f'<rect class="{kind}" {place}>{inside}</rect>')

    def dot(self, x: float, y: float, kind: str, title: str = "", radius: float = 4.5) -> None:
        """A circle; `title` as of a box."""
        inside = f"<title>{escape(title)}</title>" if title else ""
        self._add(y, f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}">{inside}</circle>')

    def text(
        self, x: float, y: float, text: str, kind: str = "", anchor: str = "start", *, turned: float = 0.0
    ) -> None:
        """A text, of more lines than one in a narrow picture; `anchor` is start, middle or end; `turned` clockwise."""
        named = f' class="{kind}"' * bool(kind) + f' transform="rotate({turned:g} {x:.1f} {y:.1f})"' * bool(turned)
        letter, lines = LETTERS["small" in kind], [text]
        if self.width < WIDTH and anchor == "start" and x + letter * len(text) > self.width and " " in text:
            lines = textwrap.wrap(text, max(12, int((self.width - x) / letter)))
        for i, line in enumerate(lines):
            below = y + 1e-3 * i  # each moves down by the height of those before
            if i:
                self.insert(below - 5e-4, LINE)
            self._add(below, f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(line)}</text>')

    def legend(self, entries: Sequence[tuple[str, str]], x: float, y: float, step: float) -> None:
        """What colours are: (class, label), `step` apart, as many rows as it takes; of a line's class a line."""
        across, usual = (max(1, int((width - x) // step)) for width in (self.width, max(self.width, WIDTH)))
        last = (len(entries) - 1) // usual
        for i, (kind, label) in enumerate(entries):
            left, row = x + i % across * step, i // across
            top = y + min(row, last) * 18
            self._row = top + 1e-3 * max(0, row - last)
            if row > last and i % across == 0:
                self.insert(self._row - 5e-4, 18)
            if "thick" in kind or "dashed" in kind:
                self.line(left - 5, top - 4, left + 12, top - 4, kind)
            else:
                self.rect(left, top - 10, 11, 11, kind)
            self.text(left + 16, top, label, "small")
        self._row = None

    def _moved(self, y: float) -> float:
        """How far down what begins there is moved."""
        return math.fsum(space for above, space in self._inserted if y > above)

    def __str__(self) -> str:
        size = f' width="{self.width:g}"' if self.width < WIDTH else ""  # or it would be drawn as wide as the page
        height = self.height + self._moved(math.inf)
        view = f'viewBox="0 0 {self.width:g} {height:g}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg"{size} {view} role="img">'
        marks: list[str] = []
        for down, same in groupby(self._marks, lambda mark: self._moved(mark[0])):
            inside = [mark for _, mark in same]
            marks += [f'<g transform="translate(0 {down:g})">', *inside, "</g>"] if down else inside
        return "\n".join(
            [head, f"<title>{escape(self.title)}</title>", f"<style>{_style()}</style>", *marks, "</svg>", ""]
        )


class Axis:
    """Values to places: on a log scale, or with `log=False` from the first value on in proportion."""

    def __init__(self, low: float, high: float, begin: float, end: float, *, log: bool = True):
        self.low, self.high, self.begin, self.end, self.log = low, high, begin, end, log

    def __call__(self, value: float) -> float:
        """Where a value lies."""
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.begin + (self.end - self.begin) * share

    def decades(self) -> list[float]:
        """The powers of ten on it."""
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        return [10.0**power for power in range(first, last + 1)]


def short(value: float, unit: str = "") -> str:
    """A number in three digits, with k, M or G: 2.32, 608, 35.8 k, 1.18 M."""
    for factor, name in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= factor:
            share = value / factor
            return f"{share:,.0f}{name}{unit}" if share >= 1000 else f"{share:.3g}{name}{unit}"
    return f"{value:.3g}" + (f" {unit}" if unit else "")
