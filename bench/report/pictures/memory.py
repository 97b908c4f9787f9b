"""The picture of what a rank's memory holds in training, by kind and stage."""

from __future__ import annotations

from charcnn.charts.svg import Axis, Picture
from charcnn.runtime.sharding import BYTES, counted
from report.claims import STAGES

PRECISION, RANKS = "fp16", (2, 64)

LEFT, RIGHT, TOP, HEAD, ROW = 130, 62, 30, 26, 28


def memory_of_training() -> str:
    """Bytes a weight of ZeRO's stages, features left out."""
    kinds, names = tuple(BYTES[PRECISION]), [name.partition(": ") for name in STAGES]
    title = f"Bytes a weight that a rank holds in mixed precision, by stage, of {RANKS[0]} and of {RANKS[1]} ranks"
    picture = Picture(title, TOP + len(RANKS) * (HEAD + ROW * len(names)))
    picture.legend([(f"c{i}", kind) for i, kind in enumerate(kinds)], LEFT, 14, 100)
    across, y, many = Axis(0, sum(BYTES[PRECISION].values()), LEFT, picture.width - RIGHT, log=False), float(TOP), 10**9
    for ranks in RANKS:
        picture.text(4, y + 14, f"{ranks} ranks", "said")
        y += HEAD
        for (levels, _, way), stage in zip(names, STAGES.values(), strict=True):
            label = f"{levels.rpartition(' ')[2] if stage < 3 else 't7'} {way if stage else 'data parallel'}"
            picture.text(LEFT - 8, y + 14, label, "small said", "end")
            x = across.begin
            for i, (kind, size) in enumerate(counted(many, ranks, stage, PRECISION).items()):
                width = across(size / many) - across.begin
                picture.rect(x, y, width, ROW - 8, f"c{i}", f"{label}, {ranks} ranks: {kind} {size / many:.3g} bytes")
                x += width
            picture.text(x + 6, y + 14, f"{sum(counted(many, ranks, stage, PRECISION).values()) / many:.2f}", "small")
            y += ROW
    return str(picture)
