"""What pictures are drawn with: an SVG whose colours are legible on light and dark pages, narrow enough for a phone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from xml.sax.saxutils import escape

WIDTH = 600
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


class Picture:
    """Marks, added one by one; `str` is the file."""

    def __init__(self, title: str, height: float, width: float = WIDTH):
        self.title, self.height, self.width = title, height, width
        self.marks: list[str] = []

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str = "grid") -> None:
        """A straight line."""
        self.marks.append(f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')

    def path(self, points: Iterable[tuple[float, float]], kind: str) -> None:
        """A line through points."""
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.marks.append(f'<polyline class="{kind}" points="{joined}"/>')

    def rect(self, x: float, y: float, width: float, height: float, kind: str, title: str = "") -> None:
        """A box; `title` is shown where the pointer rests on it."""
        inside = f"<title>{escape(title)}</title>" if title else ""
        place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        self.marks.append(f'<rect class="{kind}" {place}>{inside}</rect>')

    def dot(self, x: float, y: float, kind: str, title: str = "", radius: float = 4.5) -> None:
        """A circle; `title` as of a box."""
        inside = f"<title>{escape(title)}</title>" if title else ""
        self.marks.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}">{inside}</circle>')

    def text(
        self, x: float, y: float, text: str, kind: str = "", anchor: str = "start", *, turned: float = 0.0
    ) -> None:
        """A line of text; `anchor` is start, middle or end; `turned` by so many degrees, clockwise."""
        named = f' class="{kind}"' * bool(kind) + f' transform="rotate({turned:g} {x:.1f} {y:.1f})"' * bool(turned)
        self.marks.append(f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>')

    def legend(self, entries: Sequence[tuple[str, str]], x: float, y: float, step: float) -> None:
        """What colours are: (class, label), `step` apart, as many rows as it takes; of a line's class a line."""
        across = max(1, int((self.width - x) // step))
        for i, (kind, label) in enumerate(entries):
            left, top = x + i % across * step, y + i // across * 18
            if "thick" in kind or "dashed" in kind:
                self.line(left - 5, top - 4, left + 12, top - 4, kind)
            else:
                self.rect(left, top - 10, 11, 11, kind)
            self.text(left + 16, top, label, "small")

    def __str__(self) -> str:
        size = f' width="{self.width:g}"' if self.width < WIDTH else ""  # or it would be drawn as wide as the page
        view = f'viewBox="0 0 {self.width:g} {self.height:g}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg"{size} {view} role="img">'
        return "\n".join(
            [head, f"<title>{escape(self.title)}</title>", f"<style>{_style()}</style>", *self.marks, "</svg>", ""]
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
