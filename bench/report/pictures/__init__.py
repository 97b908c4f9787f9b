"""Pictures of docs/pictures, drawn from raw results and from what the package's own functions say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from report.pictures.roofline import roofline
from report.pictures.scaling import scaling
from report.pictures.stages import stages
from report.schema import ROOT

PICTURES: dict[Path, Callable[[], str]] = {
    ROOT / "docs" / "pictures" / f"{draw.__name__.replace('_', '-')}.svg": draw for draw in (stages, roofline, scaling)
}
"""By the file that each fills: a function that gives the SVG."""
