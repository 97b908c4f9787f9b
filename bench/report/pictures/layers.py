"""The picture of where each level's time goes on the GPU, layer by layer."""

from __future__ import annotations

from charcnn import catalog
from charcnn.charts import stages as drawing
from charcnn.host import machine
from report.levels import HOST
from report.schema import results

BLOCKS = {f"conv{i}": f"conv_block_{i}" for i in range(1, 7)} | dict.fromkeys(("fc1", "fc2", "fc3"), "fc_blocks")
"""Of layers: the block whose colour they have."""


def layers() -> str:
    """Of the levels that list layers, in the precision that each takes by itself; a layer's time is its own, alone."""
    (raw,) = [raw for raw in results().layers.values() if machine.name(raw["machine"]) == HOST.host]
    rows, before = [], dict[tuple[str, str], float]()
    for level in catalog.LEVELS:
        own = [row for row in raw["layers"] if row.get("level") == level.name and row["layer"] in BLOCKS]
        before |= {(row["layer"], row["precision"]): row["microseconds"] for row in own}
        if not own:
            continue
        (batch,) = {row["batch"] for row in own}
        spans = dict.fromkeys(BLOCKS.values(), 0.0)
        for layer, block in BLOCKS.items():  # what a level has not itself is that of the last one before it
            spans[block] += before[layer, level.precision()] / 1e3 / batch
        rows.append((level.name, spans, 1e3 / sum(spans.values())))
    return drawing.stages("Where the GPU's time goes, layer by layer, on one NVIDIA H200", rows)
