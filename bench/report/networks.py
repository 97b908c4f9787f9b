"""Blocks on networks of images: what they are, how they are run, and how fast that is beside other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from charcnn import catalog
from charcnn.networks.architecture import Architecture
from report.markdown import UNMEASURED, link, number, sources, table
from report.schema import ROOT, machine_called, results


def networks(document: Path) -> str:
    """A row a variant: what it reads and gives, its work and parameters."""
    rows = []
    for row in catalog.NETWORKS:
        page = link(document, ROOT / "charcnn" / "networks" / f"{row.name}.py", row.name)
        for variant in row.module.VARIANTS[:-1]:
            network = Architecture(row.name, variant, row.module.layers(variant))
            shape = " × ".join(map(str, network.image))
            cells = [page, f"`{variant}`", row.module.TITLE, f"{shape} → {network.classes:,}"]
            rows.append([*cells, f"{network.parameters:,}", f"{network.flops:,}"])
    return table(["network", "variant", "what", "bytes → values", "parameters", "FLOP an input"], rows, right=4)


def network_techniques(document: Path) -> str:
    """A row a technique."""
    rows = [
        [f"`--as {row.name}`", "CPU" if row.device == "cpu" else "GPU", row.summary, ", ".join(row.precisions)]
        for row in catalog.NETWORK_TECHNIQUES
    ]
    return table(["option", "on", "how", "precisions"], rows, right=4)


def networks_beside(document: Path) -> str:
    """Each network and batch: the fastest technique, and the fastest other library, in inputs/s."""
    parts = []
    for file, raw in results().networks.items():
        rows, cases = [], dict.fromkeys((row["network"], row["batch"]) for row in raw["networks"])
        for name, batch in cases:
            of = [row for row in raw["networks"] if (row["network"], row["batch"]) == (name, batch)]
            own = _fastest([row for row in of if row["level"]])
            loops = next((row for row in of if row["name"].startswith("loops")), None)
            others = {
                library: _fastest([row for row in of if not row["level"] and row["title"].startswith(library)])
                for library in ("PyTorch eager", "torch.compile", "ONNX Runtime", "OpenVINO")
            }
            best = max((row["inputs_per_second"] for row in others.values() if row), default=None)
            rate = own["inputs_per_second"] if own else 0
            cells = [f"{name}, N = {batch}", number(loops["inputs_per_second"]) if loops else "–"]
            cells.append(f"{number(rate)} (`{own['name'].partition('-')[0]}`)" if own else "–")
            cells += [number(row["inputs_per_second"]) if row else "–" for row in others.values()]
            rows.append([*cells, f"{rate / best:.2f} ×" if best else "–"])
        head = ["network", "loops", "fastest here", "PyTorch", "torch.compile", "ONNX Runtime", "OpenVINO"]
        made = table([*head, "of the best other"], rows, right=1)
        parts.append(f"Inputs/s in float32, {machine_called(raw['machine'])}.\n\n{made}" + sources(document, [file]))
    return "\n".join(parts) or UNMEASURED + "\n"


def _fastest(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    within = [row for row in rows if row["within_tolerance"] and row["precision"] == "float32"]
    return max(within, key=lambda row: float(row["inputs_per_second"]), default=None)
