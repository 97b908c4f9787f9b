"""What was measured, as far as it ships: `python bench/report.py` writes measured.json from the raw results."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from charcnn.aliases import Record

FILE = Path(__file__).with_name("measured.json")


@cache
def machines() -> dict[str, Record]:
    """By the names that `host.machine.name` gives: those that levels were measured on, CPUs first.

    Each has `called`, `gpus`, `cpu`, `cores` and `levels`: by name inputs_per_second, batch, precision, and stages in
    milliseconds an input. One with a GPU has `peaks` too: FLOP/s of cuBLAS's product of large matrices by precision;
    `memory`, bytes/s by its data sheet; and `layers`, prepared layers: level, layer, precision, flop_per_second,
    flop_per_byte.
    """
    found: dict[str, Record] = json.loads(FILE.read_text(encoding="utf-8"))["machines"]
    return found


def peak(gpu: str, precision: str) -> float | None:
    """FLOP/s that a GPU of this name reached in a product of large matrices; None where that is not known.

    Args:
        gpu: as the driver calls it.
        precision: as levels call it. One of fp16x3 is three products in fp16.
    """
    for machine in machines().values():
        if gpu in machine["gpus"]:
            peaks: dict[str, float] = machine["peaks"]
            if precision == "fp16x3" and "fp16" in peaks:
                return peaks["fp16"] / 3
            return peaks.get(precision)
    return None
