"""Blocks on operators: what each technique reached, at layers' shapes, and the planned chain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from charcnn import catalog
from charcnn.config import SMALL
from charcnn.gpu import device
from charcnn.layers import LocalResponseNorm
from charcnn.networks import alexnet
from charcnn.ops.chain import Conv1d, Plan, Plan2d, Relu, Stat
from charcnn.ops.chain import plan as plan_chain
from charcnn.ops.chain import pyramid as pyramid_of
from report.limits import peak_of
from report.markdown import UNMEASURED, link, number, sources, table
from report.schema import Place, ReportError, results

PREPARED = ("winograd", "winograd_cpu", "warp_gather", "mma", "wgmma", "small_batch")
"""Techniques whose weights are laid out first: called once, that is most of what they do."""

CALLED = {
    "Launched": "operator",
    "Float32TokenConvNormReluPool": "GatherTokenConvNormReluPool",
    "Float32ConvNormReluPool": "CoalescedConvNormReluPool",
}
"""What tables call a layer that a raw result has by another name, such as the one that it had then."""

ALEXNET = [layer for layer in alexnet.layers("2012")[1:9] if not isinstance(layer, LocalResponseNorm)]
IMAGE = (3, 227, 227)
"""AlexNet's first two layers, without their normalisation, and what they read."""

PYRAMID_TILES = (1, 2, 4, 7, 13)
"""Of its last map, a side."""


def shown(variant: catalog.Variant) -> bool:
    """Whether a call alone says how fast it is."""
    return variant.technique not in PREPARED and variant.precision is None


def operators(document: Path) -> str:
    """What each technique reached at layers' shapes: on the CPU as measured with no GPU, in CUDA with one.

    Those that lay out weights or cast features in each call are left to `layers`. Operators that no run timed are
    counted.
    """
    measured = results().operators
    hosts = sorted({host for *_, host in measured}, key=lambda host: (not host.startswith("cpu-"), host))
    rows, untimed = [], 0
    for operator in catalog.OPERATORS:
        variants = [row for row in catalog.VARIANTS if row.operator == operator.name and shown(row)]
        if not variants:  # which leave it to `layers`
            continue
        layers = list(dict.fromkeys(layer for name, layer, *_ in measured if name == operator.name))
        began = len(rows)
        for layer in layers:
            found = {
                (variant.label, host): row
                for variant in variants
                for host in hosts
                if host.startswith("cpu-") == (variant.device == "cpu")
                and (row := measured.get((operator.name, layer, variant.label, host)))
            }
            if not found:
                continue
            unit = "GFLOP/s" if any("gflop_per_second" in row for row in found.values()) else "GB/s"
            rows.append([f"`{operator.name}`" if len(rows) == began else "", layer, unit])
            rows[-1] += [_techniques(variants, host, found) for host in hosts]
        untimed += len(rows) == began
    files = sorted(results().operator_files)
    told = f"\nNot yet measured so: {untimed} other operators.\n" if untimed else ""
    return table(["operator", "layer", "unit", *map(_spoken, hosts)], rows, 99) + told + sources(document, files)


def layers(document: Path) -> str:
    """Each prepared layer of the network in each precision: TFLOP/s, and its share of cuBLAS's peak of that run."""
    parts = []
    for file, raw in results().layers.items():
        lines = []
        for precision in dict.fromkeys(row["precision"] for row in raw["layers"]):
            rows = [row for row in raw["layers"] if row["precision"] == precision]
            peak = peak_of(raw, "fp16" if precision == "fp16x3" else precision)
            names = [row["layer"] for row in rows if "level" in row and row["layer"] != "between"]
            for name in sorted(dict.fromkeys(names), key=names.index):
                own = [row for row in rows if row["layer"] == name and "level" in row]
                others = {row["made"]: row for row in rows if row["layer"] == name and "torch" in row}
                best = min(own, key=lambda row: row["microseconds"])
                cells = [precision if name == names[0] else "", name]
                cells.append(", ".join(_prepared(row, peak, row is best and len(own) > 1) for row in own))
                for library in ("cuDNN", "cuBLAS"):
                    row = others.get(library)
                    cells.append(f"{row['tflop_per_second']:,.0f}" if row else "")
                beside = others.get("cuDNN") or others.get("cuBLAS")
                ratio = best["tflop_per_second"] / beside["tflop_per_second"] if beside else None
                lines.append([*cells, f"{ratio:.2f}" if ratio and name != "conv1" else ""])
        gpu = link(document, file, raw["machine"]["gpus"][0])
        batch = next(row["batch"] for row in raw["layers"] if "level" in row)
        head = ["precision", "layer", f"{gpu}, N = {batch:,}: TFLOP/s (of the peak)", "cuDNN", "cuBLAS", "× library"]
        peaks = {row["precision"]: row["tflop_per_second"] for row in raw["layers"] if row["layer"] == "peak"}
        said = ", ".join(f"{name} {rate:,.0f}" for name, rate in peaks.items())
        parts.append(table(head, lines, right=3) + f"\nThe peak, TFLOP/s: {said}.\n")
    return "\n".join(parts) or UNMEASURED + "\n"


def _prepared(row: dict[str, Any], peak: float | None, best: bool) -> str:
    """A layer's name and rate; its time, where it adds up rows of a table, or has few outputs."""
    made = CALLED.get(row["made"], catalog.layer_name(row["made"]))
    if made == "operator" or "ConvNorm" in made:  # of this name every level has its own
        made = f"{row['level']}'s {made}"
    share = row["tflop_per_second"] * row["products"] / peak if peak else None
    if "Token" in made or share is None or share < 0.05:
        said = f"{made} {row['microseconds']:,.0f} µs"
    else:
        said = f"{made} {row['tflop_per_second']:,.0f} ({100 * share:.0f} %)"
    return f"**{said}**" if best else said


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
    return f"```\n{blocks_3_to_6(method).describe()}\n```\n"


def image_chain(document: Path, method: str, precision: str) -> str:
    """What the planner says of AlexNet's first two layers."""
    return f"```\n{alexnet_chain(method, precision).describe()}\n```\n"


def alexnet_chain(method: str, precision: str) -> Plan2d:
    """The plan of AlexNet's first two layers, fused so."""
    return plan_chain(ALEXNET, in_shape=IMAGE, method=method, precision=precision, shared_limit=device.SHARED_LIMIT)


def pyramid(document: Path) -> str:
    """A chain by tile of its last map: what a block makes, and all multiply."""
    head = ["tile of pool2", "blocks an image", "image > conv1 > pool1 > conv2", "pool1 of a tile in fp16"]
    head += ["multiplications, all blocks alike", "as computed"]
    rows = []
    for row in pyramid_of(ALEXNET, IMAGE, PYRAMID_TILES):
        extents = " > ".join(f"{rows}×{columns}" for rows, columns in row.pyramid[:-1])
        kilobytes = f"{2 * row.held / 1e3:,.0f} KB"
        whole = " (whole)" * (row.tile == row.shapes[-1][1:])
        cells = [f"{row.tile[0]}×{row.tile[1]}{whole}", f"{row.grid[0] * row.grid[1]}", extents, kilobytes]
        rows.append([*cells, f"{row.alike:.2f} ×", f"{row.clipped:.2f} ×"])
    return table(head, rows, right=3)


def trade(document: Path) -> str:
    """Blocks 3 to 6 fused whole and in pairs: what each recomputes, moves, and takes."""
    head = ["method", "launches", "recomputed", "feature maps in DRAM an input", "time an input", "TFLOP/s"]
    rows = []
    for method in ("whole", "pairs"):
        plan = blocks_3_to_6(method)
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


def blocks_3_to_6(method: str) -> Plan:
    """The plan of this network's, fused so."""
    layers = [layer for size in SMALL.kernel_sizes[2:] for layer in (Conv1d(SMALL.channels, size), Relu())]
    return plan_chain(
        [*layers[:-1], Stat()],
        in_channels=SMALL.channels,
        length=SMALL.block_lengths[1],
        method=method,
        shared_limit=device.SHARED_LIMIT,
    )
