"""The blocks of the ladders of small kernels."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charcnn.config import SMALL
from charcnn.ops.conv1d.ladder import StepConv1d
from charcnn.ops.conv1d.mma.steps.layer import MmaStepConv1d
from charcnn.ops.conv1d.wgmma.steps.layer import WgmmaStepConv1d
from report.markdown import UNMEASURED, link, table
from report.schema import ROOT, ReportError, results

CUBLAS_FLOP_PER_SECOND = 790e12
"""What cuBLAS reached on an H200 in its largest products in half precision: the power limit bounds it."""


@dataclass(frozen=True)
class Ladder:
    """A technique's steps, and what bounds them."""

    technique: str
    layer: type[StepConv1d]
    counted: str
    """The head of the column of FLOP for each byte that this place moves."""
    flop_per_byte: Callable[[Any, int], float]
    """Of a tile and taps."""
    bytes_per_second: float
    """What the place gives on an H200 at most."""

    @property
    def folder(self) -> Path:
        """Where the steps and their README are."""
        return ROOT / "charcnn" / "ops" / "conv1d" / self.technique / "steps"


MMA = Ladder(
    "mma", MmaStepConv1d, "FLOP a byte of shared memory", lambda tile, taps: tile.flop_per_byte(), 132 * 128 * 1.98e9
)
"""132 multiprocessors, whose shared memory moves 128 bytes a cycle, at the highest clock."""

WGMMA = Ladder("wgmma", WgmmaStepConv1d, "FLOP a byte", lambda tile, taps: tile.flop_per_byte(taps), 5.5e12)
"""What the second-level cache gives."""

READMES = sorted((ROOT / "charcnn" / "ops").rglob("README.md"))


def mma_steps(document: Path) -> str:
    """The ladder to `mma`: each step's idea, the rate that it cannot exceed, and what it reached."""
    return _steps(document, MMA)


def wgmma_steps(document: Path) -> str:
    """The ladder to `wgmma`, likewise."""
    return _steps(document, WGMMA)


def _steps(document: Path, ladder: Ladder) -> str:
    """At the largest batch that was measured."""
    head, columns = ["step", "idea", ladder.counted, "conv2: TFLOP/s at most"], []
    key = f"{ladder.technique}_steps"
    names = dict.fromkeys(ladder.layer.steps)
    for file, raw in results().ladders[key].items():
        largest = max(row["batch"] for row in raw[key])
        rows = [row for row in raw[key] if row["batch"] == largest]
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
        cells = _step(document, ladder, name) if name in ladder.layer.steps else [name, "", "", ""]
        lines.append([*cells, *(column.get(name, "–") for column in columns)])
    return table(head, lines, right=2)


def _step(document: Path, ladder: Ladder, name: str) -> list[str]:
    """A step of the ladder: its file, its idea, FLOP that a byte serves, its ceiling at conv2."""
    module, length, taps = ladder.layer.steps[name], SMALL.block_lengths[0], SMALL.kernel_sizes[1]
    flop = ladder.flop_per_byte(module.config(taps, ladder.layer.block_n), taps)
    outputs = (length - taps + 1) / length  # an input's other rows are computed for nothing
    most = min(flop * outputs * ladder.bytes_per_second, CUBLAS_FLOP_PER_SECOND)
    return [
        link(document, ladder.folder / f"{name}.py", name),
        idea_of(ladder, name),
        f"{flop:.0f}",
        f"{most / 1e12:.0f}",
    ]


def idea_of(ladder: Ladder, name: str) -> str:
    """A step's idea, in its own words."""
    idea = re.match(r"Step \d: (.*?)\. Since", str(ladder.layer.steps[name].__doc__), re.DOTALL)
    if idea is None:
        raise ReportError(f"{name}.py: need a docstring that begins with 'Step 1: its idea. Since ...'")
    return idea[1]


def rates(ladder: Ladder) -> tuple[Path, int, dict[str, dict[str, float]]]:
    """The ladder's raw result, its largest batch, and of that TFLOP/s by step and layer, what is not pooled.

    Raises:
        ReportError: it was not measured once.
    """
    key = f"{ladder.technique}_steps"
    if len(results().ladders[key]) != 1:
        raise ReportError(f"{key}: {len(results().ladders[key])} results: need one")
    ((file, raw),) = results().ladders[key].items()
    largest, found = max(row["batch"] for row in raw[key]), {}
    for row in raw[key]:
        if row["batch"] == largest and row["operator"] == "conv1d_relu":
            found.setdefault(row["step"], {})[row["layer"]] = row["tflop_per_second"]
    return file, largest, found
