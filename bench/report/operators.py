"""Blocks on operators: what each technique reached, at layers' shapes, and the planned chain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from charcnn import catalog
from charcnn.config import SMALL
from charcnn.gpu import device
from charcnn.ops.chain import Conv1d, Plan, Relu, Stat
from charcnn.ops.chain import plan as plan_chain
from report.markdown import UNMEASURED, number, sources, table
from report.schema import Place, ReportError, results


def operators(document: Path) -> str:
    """What each technique reached at layers' shapes: on the CPU as measured with no GPU, in CUDA with one."""
    measured = results().operators
    hosts = sorted({host for *_, host in measured}, key=lambda host: (not host.startswith("cpu-"), host))
    rows = []
    for operator in catalog.OPERATORS:
        variants = [variant for variant in catalog.VARIANTS if variant.operator == operator.name]
        layers = list(dict.fromkeys(layer for name, layer, *_ in measured if name == operator.name)) or [""]
        for layer in layers:
            found = {
                (variant.label, host): row
                for variant in variants
                for host in hosts
                if host.startswith("cpu-") == (variant.device == "cpu")
                and (row := measured.get((operator.name, layer, variant.label, host)))
            }
            unit = "GFLOP/s" if any("gflop_per_second" in row for row in found.values()) else "GB/s"
            rows.append([f"`{operator.name}`" if layer == layers[0] else "", layer, unit if found else ""])
            rows[-1] += [_techniques(variants, host, found) for host in hosts]
    files = sorted(results().operator_files)
    return table(["operator", "layer", "unit", *map(_spoken, hosts)], rows, 99) + sources(document, files)


def _spoken(host: str) -> str:
    """How people call a host with one GPU or none."""
    return next((said for place, said in results().hosts.items() if place == Place(host, 1, 1)), host)


def _techniques(variants: Sequence[catalog.Variant], host: str, found: Mapping[tuple[str, str], dict[str, Any]]) -> str:
    """What each technique reached on a host, in the order of the story, the fastest in bold."""
    rates = {technique: _rate(row) for (technique, where), row in found.items() if where == host}
    best, cells = max(rates.values(), default=0.0), []
    for variant in variants:
        if variant.label in rates:
            said = f"{variant.label} {number(rates[variant.label])}"
            cells.append(f"**{said}**" if rates[variant.label] == best and len(rates) > 1 else said)
        elif host.startswith("cpu-") == (variant.device == "cpu"):
            cells.append(f"{variant.label} –")
    return ", ".join(cells)


def _rate(row: dict[str, Any]) -> float:
    rate: float = row.get("gflop_per_second", row.get("gb_per_second"))
    return rate


def _rated(row: dict[str, Any]) -> str:
    return f"{number(_rate(row))} {'GFLOP/s' if 'gflop_per_second' in row else 'GB/s'}"


def steps(document: Path, operator: str, layer: str, *techniques: str) -> str:
    """An operator's techniques at one layer, all or those named: what each takes and reaches."""
    having = [variant.label for variant in catalog.VARIANTS if variant.operator == operator]
    if wrong := [name for name in techniques if name not in having]:
        raise ReportError(f"{document.name}: {operator} has no {', '.join(wrong)}")
    hosts = sorted({host for name, at, _, host in results().operators if (name, at) == (operator, layer)})
    rows, before = [], dict.fromkeys(hosts, 0.0)
    for technique in techniques or having:
        cells = [technique]
        for host in hosts:
            row = results().operators.get((operator, layer, technique, host))
            cells += [f"{1e6 / row['inputs_per_second']:.2f} µs", _rated(row)] if row else [UNMEASURED, "–"]
            now = float(row["inputs_per_second"]) if row else 0.0
            cells.append(f"{now / before[host]:.2f}" if now and before[host] else "")
            before[host] = now
        rows.append(cells if hosts else [technique, UNMEASURED])
    heads = [head for host in hosts for head in (f"{_spoken(host)}: time an input", "rate", "× before")] or ["measured"]
    return table([f"{operator}, {layer}", *heads], rows, right=1)


def chain(document: Path, method: str) -> str:
    """What the planner says of blocks 3 to 6, before anything is compiled."""
    return f"```\n{_planned(method).describe()}\n```\n"


def trade(document: Path) -> str:
    """Blocks 3 to 6 fused whole and in pairs: what each recomputes, moves, and takes."""
    head = ["method", "launches", "recomputed", "feature maps in DRAM an input", "time an input", "TFLOP/s"]
    rows = []
    for method in ("whole", "pairs"):
        plan = _planned(method)
        planned = [
            method,
            str(plan.launches),
            f"{plan.recomputed / plan.positions:.2%}",
            f"{plan.dram_bytes / 1e3:,.0f} kB",
        ]
        measured = [row for (name, _, technique, _), row in results().operators.items()
                    if (name, technique) == (catalog.CHAIN, method)]  # fmt: skip
        for row in measured:
            cells = [f"{1e6 / row['inputs_per_second']:.2f} µs", f"{row['gflop_per_second'] / 1e3:.1f}"]
            rows.append([*planned, *cells])
        if not measured:
            rows.append([*planned, UNMEASURED, "–"])
    return table(head, rows, right=1)


def _planned(method: str) -> Plan:
    layers = [layer for size in SMALL.kernel_sizes[2:] for layer in (Conv1d(SMALL.channels, size), Relu())]
    return plan_chain(
        [*layers[:-1], Stat()],
        in_channels=SMALL.channels,
        length=SMALL.block_lengths[1],
        method=method,
        shared_limit=device.SHARED_LIMIT,
    )
