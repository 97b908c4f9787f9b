"""Blocks on what was checked: sanitizer, rounding, labels by precision, bytes that crossed DRAM; and on what runs."""

from __future__ import annotations

import os
from pathlib import Path

from charcnn import catalog
from charcnn.model.rounding import ROUNDINGS
from report.cards import taken_of, ways_of
from report.markdown import UNMEASURED, sources, table
from report.schema import ReportError, machine_called, results

MEANS = {
    "fp32": "32 bits",
    "tf32": "11 of float32's 24 bits, its range",
    "fp16x3": "each float32 as two fp16, three products of theirs: float32's accuracy",
    "fp16": "16 bits, of which 11 are digits",
    "bf16": "16 bits: float32's range, 8 digits",
    "fp8": "8 bits, e4m3: 4 digits; scaled by texts",
    "int8": "whole numbers of 8 bits; scaled by texts",
}
"""What products are taken of."""


def precisions(document: Path) -> str:
    """Which levels compute in what, and how close their logits must come."""
    head, rows = ["precision", "multiplied are", "levels", "its own of", "error allowed, in sigmas of rounding"], []
    for name, rounding in ROUNDINGS.items():
        having = [row for row in catalog.LEVELS if name in row.precisions]
        if having:
            own = [row for row in having if row.precision() == name]
            cells = catalog.level_ranges(having), catalog.level_ranges(own) if own else "–"
            rows.append([f"`{name}`", MEANS[name], *cells, f"{rounding.bound:g}"])
    return table(head, rows, right=4)


GPUS = {
    (7, 5): "T4, RTX 20", (8, 0): "A100", (8, 6): "RTX 30, A10", (8, 9): "RTX 40, L4", (9, 0): "H100, H200",
    (10, 0): "B200", (12, 0): "RTX 50",
}  # fmt: skip
"""Cards by compute capability."""


def gpus(document: Path) -> str:
    """Which levels run on which GPU, and what is taken there where nobody asks."""
    head, rows = ["compute capability", "such as", "levels on the GPU", "in FP8", "taken by itself"], []
    for capability, cards in GPUS.items():
        ways = ways_of(capability)
        having = [row for row in catalog.LEVELS if row.name in {name for name, _ in ways}]
        eighths = [catalog.level(name) for name, precision in ways if precision == "fp8"]
        cells = (
            catalog.level_ranges(having),
            catalog.level_ranges(eighths) if eighths else "–",
            ", ".join(taken_of(ways)),
        )
        rows.append([".".join(map(str, capability)), cards, *cells])
    return table(head, rows, right=5)


def sanitizer(document: Path) -> str:
    """What compute-sanitizer said of the CUDA variants."""
    if not results().sanitized:
        return UNMEASURED + "\n"
    head, rows = ["GPU", "tool", "variants", "tests", "result"], []
    for raw in results().sanitized.values():
        for tool, said in raw["tools"].items():
            rows.append(
                [raw["machine"]["gpus"][0], tool, str(len(raw["variants"])), str(said["tests"]), said["summary"]]
            )
    return table(head, rows, right=2)


def validation(document: Path) -> str:
    """How far from the reference, in sigmas, right results are at most, and mistakes at least."""
    if not results().validated:
        return UNMEASURED + "\n"
    kinds = ("zeroed", "swapped", "constant", "FP8 for it", "tap shifted", "bias dropped")
    rows = []
    for raw in results().validated.values():
        for name in ROUNDINGS:
            if not (own := [row for row in raw["validation"] if row["precision"] == name]):
                continue
            if any(not row["within"] for row in own):
                raise ReportError(f"validation: a right result of {name} is not within its bound")
            wrong = [
                [row["mutants"][kind]["least_of_samples"] for row in own if kind in row["mutants"]] for kind in kinds
            ]
            cells = [f"{min(least):,.3g}" if least else "–" for least in wrong]
            inputs, largest = sum(row["inputs"] for row in own), max(row["largest"] for row in own)
            rows.append([f"`{name}`", f"{inputs:,}", f"{largest:.2f}", f"**{ROUNDINGS[name].bound:g}**", *cells])
    head = ["precision", "inputs", "right, at most", "allowed", *(f"{kind}, at least" for kind in kinds)]
    return table(head, rows, right=1) + sources(document, results().validated)


def agreement(document: Path) -> str:
    """What each precision does to a trained network's labels."""
    if not results().agreed:
        return UNMEASURED + "\n"
    rows = []
    for file, raw in results().agreed.items():
        link = os.path.relpath(file, document.parent)
        where = machine_called(raw["machine"])
        for row in raw["precisions"]:
            rows.append([f"`{row['precision']}`", f"{row['level']}, [{where}]({link})", f"{row['rows']:,}"])
            rows[-1] += [f"{row['agreement']:.2%}", f"{row['accuracy']:.2%}", f"{row['error']:.1e}"]
    return table(["precision", "computed by", "rows", "labels as fp32's", "right", "error of logits"], rows, right=2)


def dram(document: Path) -> str:
    """Bytes an input that crossed DRAM, counted and predicted."""
    if not results().dram:
        return UNMEASURED + "\n"
    head, rows = ["GPU", "level", "kernels a batch", "read", "written", "read + written", "predicted"], []
    for raw in results().dram.values():
        for level, found in raw["dram"].items():
            total = found["read"] + found["written"]
            kilobytes = [
                f"{value / 1e3:,.0f} kB" for value in (found["read"], found["written"], total, found["predicted"])
            ]
            batches = -(-raw["inputs"] // raw["batch"])
            rows.append([raw["machine"]["gpus"][0], level, str(found["kernels"] // batches), *kilobytes])
    return table(head, rows, right=2)
