"""The block on AlexNet's first two layers as one kernel: times, and what each way computes and moves."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from report import energy
from report.markdown import UNMEASURED, link, sources, table
from report.schema import ROOT, machine_called, results

METHODS = ("whole", "tiles", "rolling")
SEPARATE = "layer by layer"
PEERS = ("torch-float32", "torch-tf32", "torch-fp16")
PICTURE = ROOT / "docs" / "pictures" / "time-of-alexnets-first-two.svg"

Row = dict[str, Any]


def fused_alexnet(document: Path) -> str:
    """Times of the first two layers and of the network by each way, then counts of the ways, for each machine."""
    parts = []
    for file, raw in results().fused_alexnet.items():
        rows = raw["ways"]
        parts.append(
            f"{machine_called(raw['machine'])}, microseconds a call, from bytes on the GPU. The first two layers:\n\n"
            f"{_times(rows, 'front')}\nThe whole network with them:\n\n{_times(rows, 'network')}"
            f"{energy.said(rows, 'images')}\n"
            f"What the ways compute and move:\n\n{_counts(rows, raw['counted'])}{sources(document, [file])}"
        )
    if not parts:
        return UNMEASURED + "\n"
    shown = "Dots: microseconds an image by FLOP a byte of DRAM, for each way and batch"
    tall = os.path.relpath(PICTURE.with_stem(f"{PICTURE.stem}-tall"), document.parent)
    source = f'<picture><source media="(max-width: 600px)" srcset="{tall}">'
    return "\n".join([f"{source}!{link(document, PICTURE, shown)}</picture>\n", *parts])


def cells_of(rows: Iterable[Row], part: str) -> dict[tuple[str, str, int], dict[str, Row]]:
    """Rows of a part by way, for each variant, precision and batch."""
    found: dict[tuple[str, str, int], dict[str, Row]] = {}
    for row in rows:
        if row["part"] == part:
            found.setdefault((row["variant"], row["precision"], row["batch"]), {})[row["way"]] = row
    return found


def _times(rows: Iterable[Row], part: str) -> str:
    cells = []
    for (variant, precision, batch), of in cells_of(rows, part).items():
        fused = [of[way]["microseconds"] for way in METHODS if way in of]
        best = f"{of[SEPARATE]['microseconds'] / min(fused):.2f} ×" if fused and SEPARATE in of else "–"
        ours = [_time(of.get(way)) for way in (*METHODS, SEPARATE)]
        cells.append(
            [f"{variant}, {precision}, N = {batch:,}", *ours, best, *(_peer(of, how) for how in ("", " compiled"))]
        )
    head = ["", *METHODS, SEPARATE, "one kernel is", "PyTorch eager", "torch.compile"]
    return table(head, cells, right=1)


def _time(row: Row | None) -> str:
    return energy.beside(f"{row['microseconds']:,.1f}", row) if row else "–"


def _peer(of: dict[str, Row], how: str) -> str:
    """PyTorch's; in float32 with TF32 behind it."""
    found = [of[name + how] for name in PEERS if name + how in of]
    return ", ".join(f"{_time(row)}{' (TF32)' if 'tf32' in row['way'] else ''}" for row in found) or "–"


def _counts(rows: Iterable[Row], counted: Iterable[Row]) -> str:
    by_count = {(row["variant"], row["precision"], row["way"]): row for row in counted}
    last: dict[tuple[str, str, str], Row] = {}
    for row in rows:
        if row["part"] == "front" and row["way"] in (*METHODS, SEPARATE):
            key = row["variant"], row["precision"], row["way"]
            last[key] = max(row, last.get(key, row), key=lambda one: one["batch"])
    cells = []
    for key, row in last.items():
        seen = by_count.get(key)
        cells.append([
            ", ".join(key),
            f"{row['computed']:.2f} ×" if "computed" in row else "1.00 ×",
            f"{row['shared_bytes']:,}" if "shared_bytes" in row else "–",
            f"{row['dram_bytes']:,}",
            f"{seen['read'] + seen['written']:,.0f} (N = {seen['batch']})" if seen else "–",
            f"{use(row):,.0f}",
        ])  # fmt: skip
    head = ["", "multiplications", "shared memory a block", "bytes an image by the plan", "counted", "FLOP a byte"]
    return table(head, cells, right=1)


def use(row: Row) -> float:
    """FLOP for each byte of DRAM, parameters read once a call."""
    return float(row["flops"] / (row["dram_bytes"] + row["parameter_bytes"] / row["batch"]))
