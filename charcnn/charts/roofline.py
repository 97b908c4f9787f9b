"""The roofline: what kernels or layers reach of a machine, by how often they use a byte."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from charcnn.charts.svg import Axis, Picture, short

LEFT, RIGHT, TOP, BOTTOM, HEIGHT = 62, 26, 40, 46, 470
ROOFS = {"fp32": "s0", "fp16": "s1", "fp8": "s2"}
"""Colours of what bounds products in a precision; s1 of others."""
LONGEST = (1.0, 1e4)
"""FLOP a byte at the ends of the axis."""
RATES = (5e10, 3e15)
"""FLOP a second at the ends of the other."""


class Point(NamedTuple):
    """A mark."""

    use: float
    """FLOP a byte."""
    rate: float
    """FLOP a second."""
    kind: str
    """Its colour: c0 and so on."""
    title: str
    """Shown where the pointer rests on it."""
    label: str = ""
    """Beside it."""
    bright: bool = False
    """Whether the label is bright."""


def roofline(
    title: str,
    points: Sequence[Point],
    roofs: Mapping[str, float],
    memory: float,
    legend: Sequence[tuple[str, str]],
    *,
    uses: tuple[float, float] = LONGEST,
    rates: tuple[float, float] = RATES,
    called: str = "DRAM",
) -> str:
    """The SVG.

    Args:
        title: what it shows.
        points: marks, in the order in which they are drawn.
        roofs: FLOP/s that bound products, by precision.
        memory: bytes/s that bound everything.
        legend: colours, and what they are.
        uses, rates: FLOP a byte and FLOP/s at the ends of the axes.
        called: what the memory is called.
    """
    picture = Picture(title, HEIGHT)
    across = Axis(*uses, LEFT, picture.width - RIGHT)
    up = Axis(*rates, HEIGHT - BOTTOM, TOP)
    _axes(picture, across, up)
    _roofs(picture, across, up, roofs, memory, called)
    for one in points:
        x, y = across(one.use), up(one.rate)
        picture.dot(x, y, one.kind, one.title)
        if one.label:
            picture.text(x + 8, y + 5, one.label, "small said" if one.bright else "small")
    picture.legend(legend, LEFT, 14, 90)
    return str(picture)


def _axes(picture: Picture, across: Axis, up: Axis) -> None:
    for value in across.decades():
        x = across(value)
        picture.line(x, up.begin, x, up.end)
        picture.text(x, up.begin + 18, f"{value:,.0f}" if value >= 1 else f"{value:g}", anchor="middle")
    for value in up.decades():
        y = up(value)
        picture.line(across.begin, y, across.end, y)
        picture.text(across.begin - 8, y + 4, short(value), anchor="end")
    picture.text(across.end, up.begin + 38, "FLOP a byte", anchor="end")
    picture.text(4, up.end - 6, "FLOP/s", "small")


def _roofs(picture: Picture, across: Axis, up: Axis, roofs: Mapping[str, float], memory: float, called: str) -> None:
    """What memory feeds, and what bounds products in each precision."""
    for precision, rate in roofs.items():
        y, ridge = up(rate), across(rate / memory)
        picture.line(ridge, y, across.end, y, f"{ROOFS.get(precision, 's1')} dashed")
        picture.text(ridge - 6, y - 4, f"{precision}: {short(rate)}", "small", "end")
    low = max(across.low, up.low / memory)
    ends = [(use, memory * use) for use in (low, max(roofs.values()) / memory)]
    picture.path([(across(use), up(rate)) for use, rate in ends], "s7 thick")
    picture.text(across(2.2 * low) + 8, up(memory * 2.2 * low) + 14, f"{called}, {short(memory, 'B/s')}", "small")
