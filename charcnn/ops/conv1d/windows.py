"""What prepared convolutions share whose windows move over images, or by strides over sequences."""

from __future__ import annotations

COLUMNS = 32
"""Output channels that an epilogue stores at a time: a tile has a multiple."""


def columns(c_out: int, groups: int, most: int) -> int:
    """Output channels of the largest tile, of at most so many: all of one group.

    Raises:
        ValueError: a group has no multiple of COLUMNS.
    """
    width = c_out // groups
    tiles = max(1, -(-width // most))
    if groups > 1:
        if width % COLUMNS:
            raise ValueError(
                f"weight has {width} output channels a group: need a multiple of {COLUMNS} for tensor cores; "
                "the naive kernel takes any"
            )
        while width % (tiles * COLUMNS):
            tiles += 1
    return max(1, -(-width // (tiles * COLUMNS))) * COLUMNS


def quarters(size: int) -> int:
    """How many 32 bytes of k blocks of 128 so many bytes of channels fill: in as few blocks as hold them, alike."""
    used = -(-size // 32)
    return -(-used // -(-used // 4))
