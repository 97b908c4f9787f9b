"""The blocks of docs/backends.md: kernels by numba-cuda-mlir beside numba-cuda's, compiled without a GPU, and run."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from report.markdown import link, table
from report.schema import RESULTS, read

FILE = RESULTS / "designs" / "backends.json"
KNOWN = RESULTS.parent.parent / "tests" / "machine_code.json"
"""What numba-cuda's kernels cost: registers and bytes of machine code, for sm_90a. None of them spills."""


def _rows(capability: str) -> list[tuple[str, dict[str, Any]]]:
    found = read(FILE)["capabilities"][capability]
    return [(f"{variant}, `{name}`", row) for variant, own in found.items() for name, row in own.items()]


def _pairs() -> list[tuple[str, dict[str, Any], int, int]]:
    """Of functions for sm_90a that compile: the name, the costs, and numba-cuda's registers and bytes."""
    known = json.loads(KNOWN.read_text(encoding="utf-8"))
    mlir = read(FILE)["capabilities"]["sm_90a"]
    return [
        (f"{variant}, `{name}`", row, *known[variant][name][:2])
        for variant, own in mlir.items()
        for name, row in own.items()
        if row["compiled"] == row["kernels"] and name in known.get(variant, {})
    ]


def backends(document: Path) -> str:
    """How many kernels compile, by compute capability, and why others do not."""
    rows, reasons = [], Counter[str]()
    for capability in read(FILE)["capabilities"]:
        found = [row for _, row in _rows(capability)]
        kernels, compiled = (sum(row[name] for row in found) for name in ("kernels", "compiled"))
        spilling = sum(row.get("spilled", 0) > 0 for row in found)
        rows.append([capability, str(len(found)), str(kernels), str(compiled), str(spilling)])
        reasons.update(row["failed"] for row in found if "failed" in row)
    said = table(["GPU", "functions tried", "kernels of these", "compile", "functions that spill"], rows, right=1)
    if reasons:
        said += f"\n{reasons.total()} functions have kernels that do not compile:\n\n"
        said += "".join(f"- {count} × `{reason}`\n" for reason, count in reasons.most_common())
    return f"{said}\n{link(document, FILE, 'Raw result')}, with registers, spills and bytes of every function tried.\n"


def backends_beside(document: Path) -> str:
    """Registers and machine code of both, in sum, and of the kernels that are worse."""
    pairs = _pairs()
    fewer, more = (sum(test(row["registers"], was) for _, row, was, _ in pairs) for test in (int.__lt__, int.__gt__))
    code = median(row["code"] / was for _, row, _, was in pairs)
    worse = [one for one in pairs if one[1]["spilled"] or one[1]["registers"] > max(1.25 * one[2], one[2] + 8)]
    worse.sort(key=lambda one: (-one[1]["spilled"], one[2] - one[1]["registers"]))
    head = ["kernel", "registers, numba-cuda", "mlir", "bytes spilled, mlir", "local", "machine code"]
    rows = [
        [name, str(was), str(row["registers"]), str(row["spilled"]), str(row["local"]), f"{row['code'] / size:.2f} ×"]
        for name, row, was, size in worse
    ]
    return (
        f"Of {len(pairs)} functions {fewer} take fewer registers than with numba-cuda, "
        f"{len(pairs) - fewer - more} as many, and {more} more. The median kernel has {code:.2f} × the machine code. "
        "These spill, or take more than 8 registers and a quarter more:\n\n" + table(head, rows, right=1)
    )
