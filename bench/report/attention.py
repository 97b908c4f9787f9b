"""The block on attention: every technique beside PyTorch's backends, by shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from report import energy
from report.markdown import UNMEASURED, sources, table
from report.schema import machine_called, results

OTHERS = ("FlashAttention-2", "cuDNN", "memory-efficient")
OWN = ("naive", "row_blocks", "flash", "mma", "wgmma")


def attention(document: Path, precision: str) -> str:
    """A table for each machine, of a precision and float32's techniques: TFLOP/s, and the best beside the best peer."""
    parts = []
    for file, raw in results().attention.items():
        found: dict[str, dict[str, Any]] = {}
        for row in raw["attention"]:
            if row["precision"] in (precision, "float32"):
                n, heads, positions, depth = row["shape"].values()
                rates = found.setdefault(f"S = {positions:,}, N = {n}, {heads} × {depth}", {})
                rates[row["made"]] = row
        cells = []
        for shape, of in found.items():
            rates = {name: row["tflop_per_second"] for name, row in of.items()}
            ours, theirs = (max(rates.get(name, 0) for name in names) for names in (OWN, OTHERS))
            each = (
                energy.beside(f"{rates[name]:,.{1 if rates[name] < 10 else 0}f}", of[name]) if name in rates else "–"
                for name in OTHERS + OWN
            )
            cells.append([shape, *each, f"{ours / theirs:.2f}" if theirs else "–"])
        names = [*OTHERS, *(f"`{name}`" for name in OWN), "best ÷ best other"]
        head = [f"{machine_called(raw['machine'])}, {precision}: TFLOP/s", *names]
        shown = [row for of in found.values() for row in of.values()]
        made = table(head, cells, right=1) + energy.said(shown, "inputs")
        parts.append(made + f"\nOurs {raw['ours']}. " + sources(document, [file]).lstrip())
    return "\n".join(parts) if parts else UNMEASURED + "\n"
