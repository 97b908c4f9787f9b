"""Blocks of docs/offload.md on parts of networks: what ranks send by the plan, and how long it took."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from charcnn.catalog import NETWORKS
from charcnn.networks import parts
from charcnn.networks.architecture import Architecture
from charcnn.offload import partition
from report.markdown import UNMEASURED, number, sources, table
from report.schema import machine_called, offloads


def parted(document: Path) -> str:
    """What two ranks compute and send, by the plans."""
    rows = []
    for row in NETWORKS:
        page = row.module
        network = Architecture(row.name, page.VARIANTS[0], page.layers(page.VARIANTS[0]))
        plan = [part for part in partition.tensor(network.nodes, 2) if part.kind]
        first, second = partition.stages(network.nodes, 2)
        largest = max(parts.flops(network, "pipeline", 2)) / network.flops
        said = [f"{part.kind} before {part.layers[0].node.layer.label}" for part in plan if part.layers]
        said += [f"{part.kind} for the root" for part in plan if not part.layers]
        cells = [f"{4 * sum(part.values for part in plan):,}", ", ".join(said), second[0].layer.label]
        sent = f"{4 * math.prod(first[-1].out_shape):,}"
        rows.append([f"{row.name} {network.variant}", f"{network.length:,}", *cells, f"{largest:.0%}", sent])
    head = ["network", "bytes of an input", "tensor: bytes sent", "messages", "pipeline: cut before"]
    return table([*head, "larger stage", "bytes sent"], rows, 5)


def parallel(document: Path) -> str:
    """Two ranks by each way beside one process: a table for each machine and list of batches."""
    tables: dict[tuple[str, tuple[int, ...]], list[list[str]]] = {}
    files: dict[tuple[str, tuple[int, ...]], list[Path]] = {}
    for file, raw in offloads():
        if raw["schema"] != "parallel":
            continue
        by: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
        for row in raw["rows"]:
            by.setdefault((row["link"], row["way"]), {})[row["batch"]] = row
        sizes = tuple(sorted({row["batch"] for row in raw["rows"]} - {1}))
        gpus, called = raw["machine"]["gpus"], machine_called(raw["machine"])
        key = f"{len(gpus)} × {called}" if gpus else called, sizes
        files.setdefault(key, []).append(file)
        for (link, way), batches in by.items():
            rates = [number(batches[size]["inputs_per_second"]) if size in batches else "–" for size in sizes]
            last = batches[max(batches)]
            idle = f"{last['idle']:.0%}" if "idle" in last else "–"
            of = f" in {raw['precision']}" if "precision" in raw else ""
            where = f"{raw['network']} {last['variant']['variant']} as {raw['technique']}{of}, {link}"
            alone = f"{1e3 / batches[1]['inputs_per_second']:.3g}"
            tables.setdefault(key, []).append([where, way, alone, *rates, idle])
    shown = []
    for key, rows in tables.items():
        called, sizes = key
        rates = [f"batch {size:,}" for size in sizes]
        rates[:1] = [f"inputs/s, {first}" for first in rates[:1]]
        head = ["network, link", "2 ranks by", "ms of an input alone", *rates, "idle"]
        shown.append(f"{called}:\n\n" + table(head, rows, 2) + sources(document, files[key]))
    return "\n".join(shown) or UNMEASURED + "\n"
