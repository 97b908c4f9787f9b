"""The picture of the history: inputs a second by level, on a log scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 860, 420
LEFT, RIGHT, TOP, BOTTOM = 84, 20, 34, 56
DECADES = (0, 7)
"""Powers of ten at the ends of the axis of inputs a second."""

STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #57606a; }
  .value { font-size: 10.5px; }
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
    parts += _steps("limit", limits, across, up)
    parts += _steps("peer", peers, across, up)
    points: list[tuple[float, float, str, float, int]] = []
    for place, (name, device) in enumerate(levels):
        at = f'x="{across(place):.1f}" y="{HEIGHT - BOTTOM + 18}"'
        parts.append(f'<text {at} text-anchor="middle">{name}</text>')
        if others and name in others:
            parts.append(f'<circle class="other" cx="{across(place):.1f}" cy="{up(others[name]):.1f}" r="4.5"/>')
        if (found := rates.get(name)) is not None:
            y, peer = up(found), peers[place] if peers else None
            below = 34 if peer and abs(up(peer) - y - 14) < 8 else 18  # not on the line
            if y + below > HEIGHT - BOTTOM + 6:  # nor on the levels' names
                below = -9
            points.append((across(place), y, device, found, below))
    on_gpu = " ".join(f"{x:.1f},{y:.1f}" for x, y, device, *_ in points if device == "cuda")
    parts.append(f'<polyline class="path" points="{on_gpu}"/>')
    for x, y, device, rate, below in points:
        parts.append(f'<circle class="{"gpu" if device == "cuda" else "cpu"}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>')
        parts.append(f'<text class="value" x="{x:.1f}" y="{y + below:.1f}" text-anchor="middle">{_short(rate)}</text>')
    parts += _legend(legend)
    return "\n".join([*parts, "</svg>", ""])


_OTHER = "  .other { fill: #8c959f; fill-opacity: 0.55; }\n"


def _steps(
    kind: str, rates: Sequence[float | None], across: Callable[[float], float], up: Callable[[float], float]
) -> list[str]:
    """Horizontal lines, one for each run of levels with the same rate: a limit's rate above it, a peer's behind it."""
    parts, begin = [], 0
    for place in range(1, len(rates) + 1):
        if place < len(rates) and rates[place] == rates[begin]:
            continue
        if (rate := rates[begin]) is not None:
            x1, x2, y = across(begin - 0.42), across(place - 1 + 0.42), up(rate)
            parts.append(f'<line class="{kind}" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
            said = f'x="{(x1 + x2) / 2:.1f}" y="{y - 7:.1f}" text-anchor="middle"'
            if kind == "peer":
                said = f'x="{x2 + 5:.1f}" y="{y + 4:.1f}"'
            parts.append(f'<text class="{kind} value" {said}>{_short(rate)}</text>')
        begin = place
    return parts


def _legend(entries: Sequence[Legend]) -> list[str]:
    """What the marks are, below the axis."""
    y, parts = HEIGHT - 10, []
    for kind, said, x in entries:
        if kind in ("gpu", "cpu", "other"):
            parts.append(f'<circle class="{kind}" cx="{x + 6}" cy="{y - 4}" r="4.5"/>')
        else:
            parts.append(f'<line class="{kind}" x1="{x - 8}" x2="{x + 14}" y1="{y - 4}" y2="{y - 4}"/>')
        parts.append(f'<text x="{x + 19}" y="{y}">{escape(said)}</text>')
    return parts


def _short(rate: float) -> str:
    """A rate in a few characters: 2.3, 608, 35.8 k, 1.18 M."""
    for unit, name in ((1e6, " M"), (1e3, " k")):
        if rate >= unit:
            return f"{rate / unit:.3g}{name}"
    return f"{rate:.3g}" if rate < 1000 else f"{rate:.0f}"
