"""Blocks on networks of images: what they are, how they are run, and how fast that is beside other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from charcnn import catalog
from charcnn.networks.architecture import Architecture
from report import energy
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
        [
            f"`--as {row.name}`", "CPU" if row.device == "cpu" else "GPU", row.summary,
            ", ".join(dict(row.networks)) or "all", ", ".join(row.precisions),
        ]
        for row in catalog.NETWORK_TECHNIQUES
    ]  # fmt: skip
    return table(["option", "on", "how", "networks", "precisions"], rows, right=5)


LIBRARIES = ("PyTorch eager", "torch.compile", "JAX", "ONNX Runtime", "OpenVINO")


def networks_beside(document: Path) -> str:
    """Each network and batch: the fastest technique, and the fastest of each other library, in inputs/s."""
    parts = []
    for file, raw in results().networks.items():
        rows, cases = [], dict.fromkeys((row["network"], row["batch"]) for row in raw["networks"])
        libraries = [name for name in LIBRARIES if any(row["title"].startswith(name) for row in raw["networks"])]
        for name, batch in cases:
            of = [row for row in raw["networks"] if (row["network"], row["batch"]) == (name, batch)]
            own = _fastest([row for row in of if row["level"]])
            others = [
                _fastest([row for row in of if not row["level"] and row["title"].startswith(library)])
                for library in libraries
            ]
            best = max((row["inputs_per_second"] for row in others if row), default=None)
            rate = own["inputs_per_second"] if own else 0
            rows.append([f"{name}, N = {batch:,}", _cell(own), *map(_cell, others)])
            rows[-1].append(f"{rate / best:.2f} ×" if best else "–")
        made = table(["network", "fastest here", *libraries, "of the best other"], rows, right=1)
        made += energy.said(raw["networks"], "inputs")
        where = "bytes and results on the GPU, " if raw["machine"]["gpus"] else ""
        said = f"Inputs/s, {where}{machine_called(raw['machine'])}{_note(raw)}.\n\n{made}"
        parts.append(said + sources(document, [file]))
    return "\n".join(parts) or UNMEASURED + "\n"


def _note(raw: dict[str, Any]) -> str:
    return f" ({raw['note']})" if "note" in raw else ""


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    drawn = f", {energy.joules(row)} J" if "energy" in row else ""
    return f"{number(row['inputs_per_second'])} (`{row['name']}`{drawn})"


def fused_layers(document: Path) -> str:
    """fused4's convolutions in so many kernels: images/s of the fastest way of each, by batch and precision."""
    parts = []
    for file, raw in results().fused_layers.items():
        for batch in dict.fromkeys(row["batch"] for row in raw["ways"]):
            best: dict[str, dict[str, dict[str, Any]]] = {}
            for row in raw["ways"]:
                kernels, _, way = row["way"].partition(" ")
                if row["batch"] == batch and not row["way"].startswith("layer"):
                    method, _, precision = way.rpartition(" ")
                    held = best.setdefault(kernels, {}).get(precision)
                    if held is None or row["microseconds"] < held["microseconds"]:
                        best[kernels][precision] = {**row, "method": method}
            precisions = list(dict.fromkeys(name for of in best.values() for name in of))
            cells = [
                [kernels, *(f"{of[name]['microseconds']:.1f} µs ({of[name]['method']})" for name in precisions)]
                for kernels, of in best.items()
            ]
            head = ["convolutions a kernel", *(f"{name} maps, fastest way" for name in precisions)]
            made = table(head, cells, right=1)
            parts.append(f"{machine_called(raw['machine'])}, N = {batch:,}{_note(raw)}:\n\n{made}")
        parts[-1] += sources(document, [file])
    return "\n".join(parts) or UNMEASURED + "\n"


def half_chain(document: Path) -> str:
    """Blocks 3 to 6 in half precision: one kernel beside a kernel each, by batch and precision."""
    parts = []
    for file, raw in results().half_chain.items():
        shown = list(dict.fromkeys((row["precision"], row["batch"]) for row in raw["ways"]))
        cells = [
            [way, *(
                f"{row['microseconds']:,.1f} µs, {row['tflop_per_second']:,.0f} TFLOP/s"
                for at in shown for row in raw["ways"] if row["way"] == way and (row["precision"], row["batch"]) == at
            )]
            for way in dict.fromkeys(row["way"] for row in raw["ways"])
        ]  # fmt: skip
        head = ["way", *(f"{precision}, N = {batch:,}" for precision, batch in shown)]
        parts.append(f"{machine_called(raw['machine'])}:\n\n{table(head, cells, right=1)}{sources(document, [file])}")
    return "\n".join(parts) or UNMEASURED + "\n"


def _fastest(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    within = [row for row in rows if row["within_tolerance"]]
    return max(within, key=lambda row: float(row["inputs_per_second"]), default=None)
