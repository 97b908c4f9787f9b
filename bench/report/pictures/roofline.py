"""The roofline: what layers reach of the GPU, by how often they use a byte."""

from __future__ import annotations

from typing import Any

from charcnn.ops.chain import Roofline
from report.levels import HOST
from report.limits import flops, peak_of
from report.pictures.svg import Axis, Picture, short
from report.schema import results

SHOWN = {
    ("l12", "fp32"): "c0",
    ("l13", "fp32"): "c6",
    ("l14", "fp16"): "c3",
    ("l15", "fp16"): "c1",
    ("l17", "fp8"): "c2",
}
"""Levels whose prepared layers are shown, in the precision of each, and their colours."""
ROOFS = {"fp32": "s0", "fp16": "s1", "fp8": "s2"}
LEFT, RIGHT, TOP, BOTTOM, HEIGHT = 62, 26, 40, 46, 470
LONGEST = (1.0, 1e4)
"""FLOP a byte at the ends of the axis."""
RATES = (5e10, 3e15)
FEW = 10
"""FLOP a byte, below which a layer is named."""


def roofline() -> str:
    """Prepared layers of levels from l12 on; of l8 to l10 the whole network, with the bytes that were counted."""
    ((_, raw),) = results().layers.items()
    gpu = raw["machine"]["gpus"][0]
    picture = Picture(f"Roofline of one {gpu}: operations a second by operations a byte of DRAM", HEIGHT)
    across = Axis(*LONGEST, LEFT, picture.width - RIGHT)
    up = Axis(*RATES, HEIGHT - BOTTOM, TOP)
    _axes(picture, across, up)
    _roofs(picture, across, up, raw)
    for (level, precision), kind in SHOWN.items():
        for row in raw["layers"]:
            if (row.get("level"), row["precision"]) == (level, precision) and _multiplies(row):
                rate = 1e12 * row["tflop_per_second"]
                use = rate * row["microseconds"] * 1e-6 / row["bytes"]
                told = f"{level}, {row['layer']}, {precision}: {short(rate, 'FLOP/s')} at {use:.0f} FLOP a byte"
                picture.dot(across(use), up(rate), kind, told)
                if use < FEW and level != "l13":  # whose linear layers are l12's
                    picture.text(across(use) + 8, up(rate) + 5, row["layer"], "small")
    for counted in results().dram.values():
        for level, row in counted["dram"].items():
            rate = results().levels[level, HOST].inputs_per_second * flops(level)
            use = flops(level) / (row["read"] + row["written"])
            x, y = across(use), up(rate)
            picture.dot(x, y, "c4", f"{level}: {short(rate, 'FLOP/s')} at {use:.0f} FLOP a byte, as counted")
            picture.text(x + 8, y + 5, level, "small said")
    entries = [(kind, f"{level}, {precision}") for (level, precision), kind in SHOWN.items()]
    picture.legend([*entries, ("c4", "l8–l10, whole")], LEFT, 14, 90)
    return str(picture)


def _multiplies(row: dict[str, Any]) -> bool:
    """Not what adds up rows of a table instead, nor what is between layers."""
    return row["tflop_per_second"] > 0 and "Token" not in row["made"]


def _axes(picture: Picture, across: Axis, up: Axis) -> None:
    for value in across.decades():
        x = across(value)
        picture.line(x, up.begin, x, up.end)
        picture.text(x, up.begin + 18, f"{value:,.0f}", anchor="middle")
    for value in up.decades():
        y = up(value)
        picture.line(across.begin, y, across.end, y)
        picture.text(across.begin - 8, y + 4, short(value), anchor="end")
    picture.text(across.end, up.begin + 38, "FLOP a byte", anchor="end")
    picture.text(4, up.end - 6, "FLOP/s", "small")


def _roofs(picture: Picture, across: Axis, up: Axis, raw: dict[str, Any]) -> None:
    """What DRAM feeds, and what cuBLAS's product of large matrices reaches in each precision."""
    memory = Roofline().bytes
    highest = 0.0
    for precision, kind in ROOFS.items():
        if peak := peak_of(raw, precision):
            rate = 1e12 * peak
            y, ridge = up(rate), across(rate / memory)
            picture.line(ridge, y, across.end, y, f"{kind} dashed")
            picture.text(ridge - 6, y - 4, f"{precision}: {short(rate)}", "small", "end")
            highest = max(highest, rate)
    ends = [(use, memory * use) for use in (across.low, highest / memory)]
    picture.path([(across(use), up(rate)) for use, rate in ends], "s7 thick")
    picture.text(across(2.2) + 8, up(memory * 2.2) + 14, f"DRAM, {short(memory, 'B/s')}", "small")
