"""Pictures of docs/pictures, drawn from raw results and from what the package's own functions say."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from charcnn.charts.svg import narrow
from report.energy import whole
from report.pictures.attention_trace import attention_over_time
from report.pictures.bytes_moved import bytes_of_chains, bytes_of_levels
from report.pictures.energy import what_a_multiplication_costs
from report.pictures.errors import errors
from report.pictures.fused_alexnet import time_of_alexnets_first_two
from report.pictures.ladders import ladder_of_l12, ladder_to_mma, ladder_to_wgmma
from report.pictures.layers import layers
from report.pictures.loss_curves import loss_curves
from report.pictures.memory import memory_of_training
from report.pictures.pipeline import pipeline
from report.pictures.pyramid import pyramid
from report.pictures.roofline import roofline
from report.pictures.rows import overlapping_rows
from report.pictures.scaling import scaling
from report.pictures.shared_memory import shared_memory
from report.pictures.stages import stages
from report.pictures.taps import sliding_taps
from report.pictures.tiles import tiles
from report.pictures.timeline import overlap_of_l7
from report.pictures.work import work_of_alexnet
from report.schema import RESULTS, ROOT, read

DRAWN = (
    stages, layers, roofline, scaling, errors, bytes_of_levels, bytes_of_chains, pyramid, overlapping_rows,
    tiles, sliding_taps, ladder_of_l12, ladder_to_mma, ladder_to_wgmma, pipeline, shared_memory, work_of_alexnet,
    overlap_of_l7, attention_over_time, memory_of_training, loss_curves,
    *([time_of_alexnets_first_two] if any(RESULTS.glob("*-fused-alexnet.json")) else []),
    *([what_a_multiplication_costs] if any(whole(read(file)) for file in RESULTS.glob("*-costs.json")) else []),
)  # fmt: skip


def _tall(draw: Callable[[], str]) -> str:
    """The picture's form for phones."""
    with narrow():
        return draw()


PICTURES: dict[Path, Callable[[], str]] = {
    ROOT / "docs" / "pictures" / f"{draw.__name__.replace('_', '-')}{form}.svg": made
    for draw in DRAWN
    for form, made in (("", draw), ("-tall", partial(_tall, draw)))
}
"""By the file that each fills: a function that gives the SVG."""
