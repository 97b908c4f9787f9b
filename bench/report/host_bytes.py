"""The block on networks whose inputs lie on the host, from bench/host_bytes.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from report.markdown import UNMEASURED, number, percent, sources, table
from report.schema import machine_called, results

WAYS = {
    "before": "staged whole, two streams (the way before)",
    "staged": "staged in pieces, three streams",
    "pinned": "straight from the caller's pinned pages",
}


SMALL = 1 << 27
"""Bytes up to which arrays fit into caches, and say little about memory and bus."""


def host_bytes(document: Path) -> str:
    """Each network and way: inputs/s from the host, and the shares of what the bus and the GPU allow."""
    parts = []
    for file, raw in results().host_bytes.items():
        rows = [row for one in raw["networks"] for row in _of_network(one, raw)]
        head = ["network", "inputs", "inputs/s", "GB/s", "of what bus and GPU allow"]
        memory, pins = raw["host_memory"], raw["registering"]
        most = max(memory, key=lambda threads: float(memory[threads]))
        said = (
            f"{machine_called(raw['machine'])}: the bus takes {raw['bus']['up']:.1f} GB/s of pinned memory; one thread "
            f"copies {memory['1']:.1f} GB/s on the host, {most} threads {memory[most]:.1f}; to pin pages takes "
            f"{1e9 * pins['seconds'] / pins['bytes']:.2f} s a GB."
        )
        said = f"{said}\n\n" if pins["bytes"] > SMALL else ""
        parts.append(f"{said}{table(head, rows, right=2)}{sources(document, [file])}")
    return "\n".join(parts) or UNMEASURED + "\n"


def _of_network(one: dict[str, Any], raw: dict[str, Any]) -> list[list[str]]:
    rates, name = one["inputs_per_second"], f"{one['network']}, {one['inputs']:,} in batches of {one['batch']:,}"
    allowed = min(1e9 * raw["bus"]["up"] / one["input_bytes"], rates["on the GPU"])
    from_host = [(WAYS[way], rates[way]) for way in WAYS if way in rates]
    from_host += [
        (
            f"the command, {command['inputs']:,} inputs from {command['source']}, {', '.join(command['copied'])}",
            command["inputs_per_second"],
        )
        for command in raw["commands"]
        if command["network"] == one["network"].partition("-")[0]
    ]
    rows = [[name, "on the GPU", number(rates["on the GPU"]), "–", "–"]]
    for how, rate in from_host:
        rows.append([name, how, number(rate), f"{rate * one['input_bytes'] / 1e9:.1f}", percent(rate / allowed)])
    return rows
