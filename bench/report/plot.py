"""The plot of README.md: inputs a second by level, with the fastest other library and the hardware's limit."""

from __future__ import annotations

from charcnn import catalog
from charcnn.charts.history import history
from report.levels import HOST
from report.limits import beside_peers, limit
from report.schema import ROOT, results

PLOT = ROOT / "docs" / "levels" / "levels.svg"

LEGEND = (
    ("gpu", "on one NVIDIA H200", 84),
    ("cpu", "on its host's CPU", 240),
    ("peer", "best other library as accurate", 378),
    ("limit", "limit of the level's arithmetic", 596),
)


def drawn() -> str:
    """The SVG."""
    measured = {level.name: results().levels.get((level.name, HOST)) for level in catalog.LEVELS}
    return history(
        "Inputs a second by level, on one NVIDIA H200 and on its host's CPU, on a log scale",
        [(level.name, level.device) for level in catalog.LEVELS],
        {name: found.inputs_per_second for name, found in measured.items() if found},
        legend=LEGEND,
        peers=[_peer(level) for level in catalog.LEVELS],
        limits=[limit(level, HOST) for level in catalog.LEVELS],
    )


def _peer(level: catalog.Level) -> float | None:
    """The fastest other library on the GPU."""
    beside = beside_peers(level) if level.device == "cuda" else None
    return beside[1].inputs_per_second if beside else None
