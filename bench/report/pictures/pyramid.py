"""The picture of a fusion's pyramid: what a tile of the last map needs of each map below."""

from __future__ import annotations

from charcnn.charts.svg import Picture
from charcnn.ops.chain import pyramid as pyramid_of
from report.operators import ALEXNET, IMAGE, PYRAMID_TILES

LEFT, TOP, GAP = 12, 46, 14


def pyramid() -> str:
    """AlexNet's first two layers: each map a square, in it the parts that tiles of the last one need."""
    rows = pyramid_of(ALEXNET, IMAGE, PYRAMID_TILES)
    shapes, names = rows[0].shapes, ("image", "conv1", "pool1", "conv2", "pool2")
    picture = Picture("What tiles of AlexNet's pool2 need of the maps below, all in proportion to each map", 0)
    side = (picture.width - 2 * LEFT + GAP) / len(names) - GAP
    picture.height = TOP + side + 62
    for number, (name, shape) in enumerate(zip(names, shapes, strict=True)):
        x = LEFT + number * (side + GAP)
        picture.text(x + side / 2, TOP - 24, name, "said", "middle")
        picture.text(x + side / 2, TOP - 8, f"{shape[0]}×{shape[1]}×{shape[2]}", "small", "middle")
        for i, row in reversed(list(enumerate(rows))):
            high, wide = (side * extent / size for extent, size in zip(row.pyramid[number], shape[1:], strict=True))
            needed, tile = (" × ".join(map(str, sides)) for sides in (row.pyramid[number], row.tile))
            told = f"{name}: {needed} for a tile of {tile}"
            picture.rect(x + (side - wide) / 2, TOP + (side - high) / 2, wide, high, f"c{_colour(i)}", told)
    entries = [(f"c{_colour(i)}", f"{row.tile[0]}×{row.tile[1]}: {row.clipped:.2f} ×") for i, row in enumerate(rows)]
    picture.legend(entries, LEFT, TOP + side + 28, 116)
    said = "tile of pool2: multiplications as computed, relative to those without fusion"
    picture.text(LEFT, TOP + side + 52, said, "small")
    return str(picture)


def _colour(number: int) -> int:
    return (2, 5, 1, 6, 0)[number]
