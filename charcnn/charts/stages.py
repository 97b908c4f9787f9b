"""The picture of where each level's time goes: a bar a level, a colour a block of the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from charcnn.charts.svg import Picture

LEFT, RIGHT, TOP, ROW = 40, 88, 52, 22
BLOCKS = (
    "conv_block_1", "conv_block_2", "conv_block_3", "conv_block_4", "conv_block_5", "conv_block_6", "fc_blocks",
)  # fmt: skip
JOINED = {"conv_block_3 to 6": "s2", "network": "s7"}
"""Stages of several blocks, which no colour stands for."""


Row = tuple[str, Mapping[str, float], float]
"""A level, its stages in milliseconds an input, and its inputs/s."""


def stages(title: str, rows: Sequence[Row]) -> str:
    """Shares of a level's stages in their sum, and the time an input."""
    picture = Picture(title, TOP + ROW * len(rows))
    width = picture.width - LEFT - RIGHT
    colours = [(f"c{i}", block) for i, block in enumerate(BLOCKS)]
    if any("conv_block_3 to 6" in spans for _, spans, _ in rows):
        colours.append((JOINED["conv_block_3 to 6"], "blocks 3 to 6, fused"))
    picture.legend(colours, LEFT, 14, 108)
    picture.text(picture.width - 4, 32, "an input", "small", "end")
    for number, (level, spans, rate) in enumerate(rows):
        y, x, whole = TOP + ROW * number, float(LEFT), sum(spans.values())
        picture.text(LEFT - 8, y + 13, level, "said", "end")
        for stage, spent in spans.items():
            part = width * spent / whole
            title = f"{level}, {stage}: {_time(spent / 1e3)} an input"
            kind = f"c{BLOCKS.index(stage)}" if stage in BLOCKS else JOINED[stage]
            picture.rect(x, y, part, ROW - 5, kind, title)
            if stage not in BLOCKS and part > 90:
                picture.text(x + part / 2, y + 13, "one graph" if stage == "network" else stage, "small", "middle")
            x += part
        picture.text(picture.width - 4, y + 13, _time(1 / rate), "said", "end")
    return str(picture)


def _time(seconds: float) -> str:
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
