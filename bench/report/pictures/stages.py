"""The picture of where each level's time goes."""

from __future__ import annotations

from charcnn import catalog
from charcnn.charts import stages as drawing
from report.levels import HOST
from report.schema import results


def stages() -> str:
    """Of all levels that were measured."""
    found = [(level.name, results().levels.get((level.name, HOST))) for level in catalog.LEVELS]
    rows = [(name, result.stages, result.inputs_per_second) for name, result in found if result]
    return drawing.stages("Where the time goes, level by level, on one NVIDIA H200 and its host's CPU", rows)
