"""Blocks on prepared convolutions over images and sequences, beside the libraries'."""

from __future__ import annotations

from pathlib import Path
from statistics import geometric_mean
from typing import Any

from charcnn import catalog
from report.markdown import UNMEASURED, link, sources, table
from report.schema import machine_called, results

PEERS = {"fp16": "fp16", "bf16": "bf16", "tf32": "tf32", "fp16x3": "fp32", "fp32": "fp32"}
"""In which precision cuDNN stands beside."""


def conv2d(document: Path) -> str:
    """Prepared convolutions on a GPU in each precision, and how many times as fast as bare cuDNN they are.

    In fp16 torch.compile and JAX, which add bias and ReLU as ours do, stand beside, too, and cuBLAS.
    """
    parts = []
    for file, raw in results().convolutions["conv2d"].items():
        cases: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for row in raw["convolutions"]:
            cases.setdefault((row["shape"], row["batch"]), []).append(row)
        lines, ratios = [], {name: [] for name in (*PEERS, "torch.compile", "JAX", "cuBLAS")}
        for (shape, batch), rows in cases.items():
            own = {name: _best(rows, name, own=True) for name in (*PEERS, "fp8")}
            cells = [shape, f"{batch}"]
            for name, peer in PEERS.items():
                ratios[name].append(own[name] / _best(rows, peer, "cuDNN bare"))
                cells.append(f"{own[name]:,.0f} ({ratios[name][-1]:.2f} ×)")
            cells.insert(4, f"{own['fp8']:,.0f}")
            for name in ("torch.compile", "JAX", "cuBLAS"):
                rate = _best(rows, "fp16", name)
                ratios[name] += [own["fp16"] / rate] if rate else []
                cells.append(f"{rate:,.0f}" if rate else "–")
            lines.append(cells)
        means = [f"{geometric_mean(ratios[name]):.2f} ×" for name in ratios]
        lines.append(["geometric mean", "", *means[:2], "", *means[2:]])
        head = ["convolution", "N", "fp16", "bf16", "fp8", "tf32", "fp16x3", "fp32"]
        head += [f"{name}, fp16" for name in ("torch.compile", "JAX", "cuBLAS")]
        where = link(document, file, raw["machine"]["gpus"][0])
        parts.append(f"TFLOP/s, {where}.\n\n" + table(head, lines, right=1))
    return "\n".join(parts) or UNMEASURED + "\n"


def _best(rows: list[dict[str, Any]], precision: str, made: str | None = None, *, own: bool = False) -> float:
    """The greatest rate of one of these, or of our layers; 0 where none was measured."""
    rates = [
        row["tflop_per_second"]
        for row in rows
        if row["precision"] == precision and (prepared(row["made"]) if own else row["made"] == made)
    ]
    return float(max(rates, default=0))


def prepared(made: str) -> bool:
    """Whether it is a layer of the catalogue."""
    return catalog.layer_name(made) in {row.name for row in catalog.LAYERS}


def conv2d_cpu(document: Path) -> str:
    """Prepared convolutions on a CPU, and how many times as fast as PyTorch in its better layout they are."""
    parts = []
    for file, raw in results().convolutions["conv2d_cpu"].items():
        by_case: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}
        for row in raw["convolutions"]:
            by_case.setdefault((row["shape"], row["batch"]), {})[row["made"]] = row
        own = [name for name in next(iter(by_case.values())) if not name.startswith("PyTorch")]
        lines, ratios = [], {name: [] for name in own}
        for (shape, batch), made in by_case.items():
            library = min((row for name, row in made.items() if name not in own), key=lambda row: row["microseconds"])
            best = min(own, key=lambda name: made[name]["microseconds"])
            cells = [shape.replace("x", " × ").replace("K ", "K = ").replace("L ", "L = "), str(batch)]
            for name in own:
                ratios[name].append(library["microseconds"] / made[name]["microseconds"])
                said = f"{made[name]['microseconds']:,.0f} µs, {ratios[name][-1]:.2f} ×"
                cells.append(f"**{said}**" if name == best else said)
            lines.append([*cells, f"{library['microseconds']:,.0f} µs ({library['made'].removeprefix('PyTorch ')})"])
        means = [f"{geometric_mean(ratios[name]):.2f} ×" for name in own]
        lines.append(["geometric mean", "", *means, ""])
        head = [
            "convolution",
            "N",
            *(f"`{catalog.layer_name(name)}`" for name in own),
            f"PyTorch {raw['torch'].partition('+')[0]}",
        ]
        parts.append(table(head, lines, right=1) + f"\n{machine_called(raw['machine'])}." + sources(document, [file]))
    return "\n".join(parts) or UNMEASURED + "\n"
