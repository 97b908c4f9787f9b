"""The roofline: what layers reach of the GPU, by how often they use a byte."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from charcnn.charts import roofline as drawing
from charcnn.charts.roofline import Point
from charcnn.charts.svg import short
from charcnn.host import machine
from charcnn.ops.chain import Roofline
from report.levels import HOST
from report.limits import ceiling, flops
from report.schema import results

SHOWN = {
    ("l12", "fp32"): "c0",
    ("l13", "fp32"): "c6",
    ("l14", "fp16"): "c3",
    ("l15", "fp16"): "c1",
    ("l16", "fp16"): "c5",
    ("l17", "fp8"): "c2",
    ("l19", "fp16"): "c4",
}
"""Levels whose prepared layers are shown, in the precision of each, and their colours."""
FEW = 10
"""FLOP a byte, below which a layer is named."""


def roofline() -> str:
    """Prepared layers of levels from l12 on; of l8 to l10 the whole network, with the bytes that were counted.

    A level shows the layers that it has itself: l16 its last one, l19 its second; the others are those of l15.
    """
    ((_, raw),) = results().layers.items()
    gpu = raw["machine"]["gpus"][0]
    peaks = {precision: ceiling(machine.name(raw["machine"]), precision) for precision in drawing.ROOFS}
    entries = [(kind, f"{level}, {precision}") for (level, precision), kind in SHOWN.items()]
    return drawing.roofline(
        f"Roofline of one {gpu}: operations a second by operations a byte of DRAM",
        [*_layers(raw), *_networks()],
        {precision: peak for precision, peak in peaks.items() if peak},
        Roofline().bytes,
        [*entries, ("c7", "l8–l10, whole")],
    )


def _layers(raw: dict[str, Any]) -> Iterator[Point]:
    for (level, precision), kind in SHOWN.items():
        for row in raw["layers"]:
            if (row.get("level"), row["precision"]) == (level, precision) and _multiplies(row):
                rate = 1e12 * row["tflop_per_second"]
                use = rate * row["microseconds"] * 1e-6 / row["bytes"]
                told = f"{level}, {row['layer']}, {precision}: {short(rate, 'FLOP/s')} at {use:.0f} FLOP a byte"
                label = row["layer"] if use < FEW and level != "l13" else ""  # whose linear layers are l12's
                yield Point(use, rate, kind, told, "l19, conv2" if level == "l19" else label)


def _networks() -> Iterator[Point]:
    for counted in results().dram.values():
        for level, row in counted["dram"].items():
            rate = results().levels[level, HOST].inputs_per_second * flops(level)
            use = flops(level) / (row["read"] + row["written"])
            told = f"{level}: {short(rate, 'FLOP/s')} at {use:.0f} FLOP a byte, as counted"
            yield Point(use, rate, "c7", told, level, bright=True)


def _multiplies(row: dict[str, Any]) -> bool:
    """Not what adds up rows of a table instead, nor what is between layers."""
    return row["tflop_per_second"] > 0 and "Token" not in row["made"]
