"""The plot of README.md: inputs a second by level, with the fastest other library and the hardware's limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from xml.sax.saxutils import escape

from charcnn import catalog
from report.levels import HOST
from report.limits import beside_peers, limit
from report.schema import ROOT, results

PLOT = ROOT / "docs" / "levels" / "levels.svg"
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
  .peer { stroke: #bc4c00; stroke-width: 2; } text.peer { fill: #bc4c00; stroke: none; }
  .limit { stroke: #8250df; stroke-width: 2; stroke-dasharray: 6 4; } text.limit { fill: #8250df; stroke: none; }
  @media (prefers-color-scheme: dark) {
    text { fill: #9da7b1; }
    .gpu { fill: #3fb950; } .cpu, .path { stroke: #3fb950; }
    .peer { stroke: #f0883e; } text.peer { fill: #f0883e; }
    .limit { stroke: #bc8cff; } text.limit { fill: #bc8cff; }
  }
"""


def drawn() -> str:
    """The SVG: levels on a GPU are filled circles, on a CPU empty ones; lines hold where a level's precision does."""
    names = [level.name for level in catalog.LEVELS]
    spacing = (WIDTH - LEFT - RIGHT) / len(names)

    def across(place: float) -> float:
        return LEFT + spacing * (place + 0.5)

    def up(rate: float) -> float:
        low, high = DECADES
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (math.log10(rate) - low) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        "<title>Inputs a second by level, on one NVIDIA H200 and on its host's CPU, on a log scale</title>",
        f"<style>{STYLE}</style>",
    ]
    for power in range(DECADES[0], DECADES[1] + 1):
        y = up(10**power)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10**power:,}</text>')
    parts.append(f'<text x="{LEFT - 58}" y="{TOP - 16}">inputs/s</text>')
    parts += _steps("limit", [limit(level, HOST) for level in catalog.LEVELS], across, up)
    parts += _steps("peer", [_peer(level) for level in catalog.LEVELS], across, up)
    points: list[tuple[float, float, str, float, int]] = []
    for place, level in enumerate(catalog.LEVELS):
        at = f'x="{across(place):.1f}" y="{HEIGHT - BOTTOM + 18}"'
        parts.append(f'<text {at} text-anchor="middle">{level.name}</text>')
        if found := results().levels.get((level.name, HOST)):
            y, peer = up(found.inputs_per_second), _peer(level)
            below = 34 if peer and abs(up(peer) - y - 14) < 8 else 18  # not on the line
            points.append((across(place), y, level.device, found.inputs_per_second, below))
    on_gpu = " ".join(f"{x:.1f},{y:.1f}" for x, y, device, *_ in points if device == "cuda")
    parts.append(f'<polyline class="path" points="{on_gpu}"/>')
    for x, y, device, rate, below in points:
        parts.append(f'<circle class="{"gpu" if device == "cuda" else "cpu"}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>')
        parts.append(f'<text class="value" x="{x:.1f}" y="{y + below:.1f}" text-anchor="middle">{_short(rate)}</text>')
    parts += _legend()
    return "\n".join([*parts, "</svg>", ""])


def _peer(level: catalog.Level) -> float | None:
    """The fastest other library on the GPU."""
    beside = beside_peers(level) if level.device == "cuda" else None
    return beside[1].inputs_per_second if beside else None


def _steps(
    kind: str, rates: list[float | None], across: Callable[[float], float], up: Callable[[float], float]
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


def _legend() -> list[str]:
    """What the marks are, below the axis."""
    y, parts = HEIGHT - 10, []
    entries = (
        ("gpu", "on one NVIDIA H200", 84),
        ("cpu", "on its host's CPU", 240),
        ("peer", "best other library as accurate", 378),
        ("limit", "limit of the level's arithmetic", 596),
    )
    for kind, said, x in entries:
        if kind in ("gpu", "cpu"):
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
