"""The picture of what lies where in a block's shared memory, while fused convolutions run."""

from __future__ import annotations

from charcnn.charts.svg import LETTERS, Axis, Picture
from charcnn.gpu import device
from charcnn.ops.chain import Step2d
from report.operators import alexnet_chain, blocks_3_to_6

LEFT, RIGHT, TOP, ROW = 12, 12, 40, 74
MAPS = ("image", "conv1", "pool1", "conv2", "pool2")
Piece = tuple[str, str, float, float]
"""Its colour, what it is, and the bytes from which to which it lies."""


def shared_memory() -> str:
    """AlexNet's first two layers in their two walks, and blocks 3 to 6: pieces of the bytes that a block may have."""
    (images,), (texts,) = alexnet_chain("whole", "fp16").steps, blocks_3_to_6("whole").steps
    walks = [("conv1 and pool1, as the block walks down the image", 0), ("then conv2 and pool2", 1)]
    rows = [(f"AlexNet, fp16: {said}", _pieces(images, walk)) for said, walk in walks]
    staged, size = 4 * texts.offsets[0], 4 * texts.map_sizes[0]
    channels, length = texts.channels[0], texts.length
    held: list[Piece] = [("c7", "weights", 0, staged)]
    held.append(("c0", f"the map: {channels} × {length}, then each that follows", staged, staged + size))
    rows.append(("blocks 3 to 6, fp32: each map takes the place of the one before", held))
    limit = device.SHARED_LIMIT
    picture = Picture("Shared memory of a block, while fused convolutions run", TOP + ROW * len(rows) - 18)
    across = Axis(0, limit, LEFT, picture.width - RIGHT, log=False)
    for number, (said, pieces) in enumerate(rows):
        y = TOP + ROW * number
        picture.text(LEFT, y - 8, said, "said")
        picture.rect(LEFT, y, across.end - LEFT, 24, "s7")
        for kind, what, begin, end in pieces:
            picture.rect(across(begin), y, across(end) - across(begin), 24, kind, f"{what}: {end - begin:,.0f} bytes")
        x, below = float(LEFT), y + 32
        for kind, what, begin, end in pieces:
            told = f"{what}, {(end - begin) / 1e3:.0f} kB"
            wide = 34 + LETTERS[True] * len(told)
            if x + wide > picture.width + 20:
                x, below = float(LEFT), below + 16
                picture.insert(y + 60, 16)
            picture.rect(x, below, 9, 9, kind)
            picture.text(x + 13, below + 9, told, "small")
            x += wide
    picture.text(across.end, 12, f"whole: {limit / 1e3:.0f} kB", "small", "end")
    return str(picture)


def _pieces(step: Step2d, walk: int) -> list[Piece]:
    """What a walk of a step has: weights, and maps that it makes or reads."""
    tiling, size = step.tiling, step.itemsize
    pieces: list[Piece] = [("c7", "weights", 0, 4 * step.weight_offsets[-1])]
    maps = zip(tiling.shapes, tiling.rings, tiling.pitches, step.offsets[:-1], strict=False)
    for i, (shape, rows, pitch, begin) in enumerate(maps):
        made = next(number for number, end in enumerate(tiling.ends) if i <= end)
        read = next(number for number, end in enumerate(tiling.ends) if i < end)
        if made <= walk <= read:
            what = f"{MAPS[i]}: {'all ' * (rows == shape[1])}{rows} rows"
            pieces.append((f"c{i}", what, size * begin, size * (begin + shape[0] * rows * pitch)))
    return sorted(pieces, key=lambda piece: piece[2])
