"""The plot of README.md: inputs a second by level, with the fastest other library and the hardware's limit."""

from __future__ import annotations

from charcnn import catalog
from charcnn.charts.history import history
from charcnn.charts.history_tall import history_tall
from report.levels import HOST
from report.limits import beside_peers, limit
from report.schema import ROOT, results

PLOT = ROOT / "docs" / "levels" / "levels.svg"
TALL = PLOT.with_name("levels-tall.svg")
"""Its form for phones."""

LEGEND = (
    ("gpu", "on one NVIDIA H200", 0),
    ("cpu", "on its host's CPU", 0),
    ("peer", "best other library as accurate", 0),
    ("limit", "limit of the level's arithmetic", 0),
)
TITLE = "Inputs a second by level, on one NVIDIA H200 and on its host's CPU, on a log scale"


def drawn() -> str:
    """A column a level, the SVG that a wide page shows."""
    return history(TITLE, *_levels(), legend=LEGEND, **_beside())


def drawn_tall() -> str:
    """A row a level, the SVG that a phone shows."""
    return history_tall(TITLE, *_levels(), legend=LEGEND, **_beside())


def _levels() -> tuple[list[tuple[str, str]], dict[str, float]]:
    measured = {level.name: results().levels.get((level.name, HOST)) for level in catalog.LEVELS}
    rates = {name: found.inputs_per_second for name, found in measured.items() if found}
    return [(level.name, level.device) for level in catalog.LEVELS], rates


def _beside() -> dict[str, list[float | None]]:
    return {
        "peers": [_peer(level) for level in catalog.LEVELS],
        "limits": [limit(level, HOST) for level in catalog.LEVELS],
    }


def _peer(level: catalog.Level) -> float | None:
    """The fastest other library on the GPU."""
    beside = beside_peers(level) if level.device == "cuda" else None
    return beside[1].inputs_per_second if beside else None
