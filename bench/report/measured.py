"""What of the raw results ships with the package: charcnn/catalog/measured.json, for profiles and `charcnn report`."""

from __future__ import annotations

import json
from typing import Any

from charcnn import catalog
from charcnn.catalog.measured import FILE
from charcnn.host import machine
from charcnn.ops.chain import Roofline
from report.limits import ceiling, peak_of
from report.schema import RESULTS, Place, places, read, results

DIGITS = 5
"""Significant ones that are kept of a number."""


def measured() -> str:
    """The file: each host's levels on one GPU and by one rank."""
    found: dict[str, Any] = {}
    for place in places():
        if (place.gpus, place.ranks) == (1, 1):
            found[place.host] = _machine(place)
    return json.dumps({"machines": found}, indent=1) + "\n"


def _machine(place: Place) -> dict[str, Any]:
    own = {level.name: results().levels.get((level.name, place)) for level in catalog.LEVELS}
    (host,) = [raw for file in dict.fromkeys(one.file for one in own.values() if one) if (raw := _host(file))][:1]
    found = {"called": results().hosts[place], "gpus": host["gpus"], "cpu": host["cpu"], "cores": host["cores"]}
    found["levels"] = {
        level.name: {
            "inputs_per_second": _short(one.inputs_per_second),
            "batch": one.batch,
            "precision": level.precision(),
            "stages": {stage: _short(spent) for stage, spent in one.stages.items()},
            "file": one.file.relative_to(RESULTS).as_posix(),
        }
        for level in catalog.LEVELS
        if (one := own[level.name])
    }
    if host["gpus"]:
        raws = [raw for raw in results().layers.values() if machine.name(raw["machine"]) == place.host]
        found["peaks"] = {
            precision: _short(1e12 * peak)
            for precision in catalog.PRECISIONS
            if (peak := next((peak for raw in raws if (peak := peak_of(raw, precision))), None))
        }
        found["units"] = _short(ceiling(place.host, "fp32") or 0.0)
        found["memory"] = Roofline().bytes
        found["layers"] = [_layer(row) for raw in raws for row in raw["layers"] if _multiplies(row)]
    return found


def _host(file: Any) -> dict[str, Any]:
    raw = read(file)
    of: dict[str, Any] = raw.get("machine_info") or raw["machine"]
    return of


def _multiplies(row: dict[str, Any]) -> bool:
    """Layers of levels, but those that add up rows of a table, and what is between layers."""
    return "level" in row and row["tflop_per_second"] > 0 and "Token" not in row["made"]


def _layer(row: dict[str, Any]) -> dict[str, Any]:
    rate = 1e12 * row["tflop_per_second"]
    return {
        **{name: row[name] for name in ("level", "layer", "precision")},
        "flop_per_second": _short(rate),
        "flop_per_byte": _short(rate * row["microseconds"] * 1e-6 / row["bytes"]),
    }


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


SHIPPED = {FILE: measured}
