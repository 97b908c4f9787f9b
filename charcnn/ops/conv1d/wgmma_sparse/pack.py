"""How the weights of the sparse kernel lie: those that are kept, then metadata, of one k block after another."""

from __future__ import annotations

import numpy as np

from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.common.sparse import FOUR, KEPT, compressed, swizzled
from charcnn.ops.conv1d.toom_cook.pack import bits
from charcnn.ops.conv1d.wgmma.config import ROW_BYTES
from charcnn.ops.conv1d.wgmma_sparse.config import CHANNELS, WARPGROUPS


def check(weight: np.ndarray) -> None:
    """Raise ValueError where more than two of four neighbouring input channels count; names the first such place.

    Args:
        weight: float32 (K, C_in, C_out).
    """
    taps, c_in, c_out = weight.shape
    padded = np.zeros((taps, -(-c_in // FOUR) * FOUR, c_out), bool)
    padded[:, :c_in] = weight != 0
    more = padded.reshape(taps, -1, FOUR, c_out).sum(2) > KEPT
    if more.any():
        tap, four, channel = np.argwhere(more)[0].tolist()
        place = f"{tap}, {FOUR * four}:{FOUR * four + FOUR}, {channel}"
        raise ValueError(f"weight[{place}] has more than {KEPT} of {FOUR} numbers that are not 0: need 2:4 sparse ones")


def packed(weight: np.ndarray, of: NumberFormat) -> np.ndarray:
    """Weights as stages take them: uint32 (channel tiles, k blocks, words).

    Kept ones come first, by tap and warpgroup, then metadata. Of 16 channels, the even ones come first, so that a
    thread's two sums of a position are neighbours.

    Args:
        weight: float32 (K, C_in, C_out), 2:4 sparse along C_in; zeros are added to whole k blocks and tiles.
        of: the format of what is kept.

    Raises:
        ValueError: more than two of four count.
    """
    check(weight)
    taps, c_in, c_out = weight.shape
    depth = ROW_BYTES // of.itemsize
    tiles, k_blocks = -(-c_out // CHANNELS), -(-c_in // depth)
    padded = np.zeros((tiles * CHANNELS, k_blocks, taps, depth), of.dtype)
    whole = np.zeros((taps, k_blocks * depth, c_out), np.float32)
    whole[:, :c_in] = weight
    values = whole.reshape(taps, k_blocks, depth, c_out).transpose(3, 1, 0, 2)
    padded[:c_out] = bits(values, of)[0].view(of.dtype)
    rows = padded.reshape(tiles * CHANNELS // 16, 8, 2, -1).transpose(0, 2, 1, 3).reshape(tiles * CHANNELS, -1)
    kept, metadata = compressed(rows)
    shape = tiles, WARPGROUPS, k_blocks, taps
    kept = kept.reshape(*shape, *kept.shape[2:]).transpose(0, 2, 3, 1, 4, 5)
    places = metadata.reshape(*shape, -1).transpose(0, 2, 3, 1, 4)
    return np.concatenate([one.reshape(tiles, k_blocks, -1) for one in (swizzled(kept), places)], 2)
