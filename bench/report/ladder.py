"""The block of the ladder of wgmma kernels."""

from __future__ import annotations

import re
from pathlib import Path

from charcnn.config import SMALL
from charcnn.ops.conv1d.wgmma.steps.layer import STEPS
from report.markdown import UNMEASURED, link, table
from report.schema import ROOT, ReportError, results

README = ROOT / "charcnn" / "ops" / "conv1d" / "wgmma" / "steps" / "README.md"
L2_BYTES_PER_SECOND = 5.5e12
"""What the second-level cache of an H200 gives at most."""
CUBLAS_FLOP_PER_SECOND = 790e12
"""What cuBLAS reached there in its largest products in half precision: the power limit bounds it."""


def wgmma_steps(document: Path) -> str:
    """The ladder: each step's idea, the rate that it cannot exceed, and what it reached at the largest batch."""
    head, names, columns = ["step", "idea", "FLOP a byte", "conv2: TFLOP/s at most"], dict.fromkeys(STEPS), []
    for file, raw in results().ladder.items():
        largest = max(row["batch"] for row in raw["wgmma_steps"])
        rows = [row for row in raw["wgmma_steps"] if row["batch"] == largest]
        names |= {row["step"]: None for row in rows}
        for layer in dict.fromkeys(row["layer"] for row in rows):
            rates = {row["step"]: row["tflop_per_second"] for row in rows if row["layer"] == layer}
            where = link(document, file, raw["machine"]["gpus"][0])
            head.append(f"{where}, N = {largest:,}: {layer}, TFLOP/s (of cuBLAS)")
            columns.append(
                {name: f"{rate:,.0f} ({100 * rate / rates['cuBLAS']:.0f} %)" for name, rate in rates.items()}
            )
    if not columns:
        head.append("measured")
        columns.append(dict.fromkeys(names, UNMEASURED))
    lines = []
    for name in names:
        cells = _step(document, name) if name in STEPS else [name, "", "", ""]
        lines.append([*cells, *(column.get(name, "–") for column in columns)])
    return table(head, lines, right=2)


def _step(document: Path, name: str) -> list[str]:
    """A step of the ladder: its file, its idea, FLOP that a byte of its copies serves, its ceiling at conv2."""
    module, length, taps = STEPS[name], SMALL.block_lengths[0], SMALL.kernel_sizes[1]
    idea = re.match(r"Step \d: (.*?)\. Since", str(module.__doc__), re.DOTALL)
    if idea is None:
        raise ReportError(f"{name}.py: need a docstring that begins with 'Step 1: its idea. Since ...'")
    flop = module.config(taps, SMALL.channels).flop_per_byte(taps)
    outputs = (length - taps + 1) / length  # an input's other rows are computed for nothing
    most = min(flop * outputs * L2_BYTES_PER_SECOND, CUBLAS_FLOP_PER_SECOND)
    return [link(document, README.with_name(f"{name}.py"), name), idea[1], f"{flop:.0f}", f"{most / 1e12:.0f}"]
