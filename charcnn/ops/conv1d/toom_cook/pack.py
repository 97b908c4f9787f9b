"""How the weights of the Toom-Cook kernel lie: in the order of its steps, as TMA would have laid them."""

from __future__ import annotations

import numpy as np

from charcnn.ops.conv1d.toom_cook.config import TileConfig
from charcnn.ops.conv1d.toom_cook.transforms import INFINITY, POINTS, transformed_weights
from charcnn.ops.conv1d.wgmma.config import K_BLOCK


def channels(block_n: int) -> np.ndarray:
    """Which channel of a tile a column is.

    A thread has two neighbouring columns of every eight, e of its quad's place q. So that it stores as much at once as
    there is, column 8 j + 2 q + e of a run of 32 is channel 8 q + 2 j + e; then of a run of 16, 4 q + 2 j + e; the last
    8 are as they are.
    """
    columns = np.arange(block_n)
    j, q, e = columns // 8, columns % 8 // 2, columns % 2
    found = columns.copy()
    for first, run in ((0, 32), (block_n // 32 * 32, 16)):
        last = first + (block_n - first) // run * run
        inside = slice(first, last)
        begin = (columns[inside] - first) // run * run + first
        found[inside] = begin + run // 4 * q[inside] + 2 * ((8 * j[inside] - begin) // 8) + e[inside]
    return found


def packed_weights(weight: np.ndarray, config: TileConfig) -> np.ndarray:
    """Weight float32 (7, C_in, C_out) as float16, one step after another: (n_tiles, steps, block_n, 64) in one row.

    Steps are of (plane, k block, group); of the plane INFINITY only the second group is there. The 16-byte piece p of
    column r lies at piece p ^ (r % 8).
    """
    _, c_in, c_out = weight.shape
    n_tiles, block_n, k_blocks = config.n_tiles(c_out), config.block_n, c_in // K_BLOCK
    padded = np.zeros((POINTS, 2, c_in, n_tiles * block_n), np.float16)
    padded[..., :c_out] = transformed_weights(weight)
    tiles = padded.reshape(POINTS, 2, k_blocks, K_BLOCK, n_tiles, block_n)[..., channels(block_n)]
    tiles = tiles.transpose(4, 0, 2, 1, 5, 3).reshape(n_tiles, POINTS, k_blocks, 2, block_n, 8, K_BLOCK // 8)
    pieces = (np.arange(8) ^ np.arange(block_n)[:, None] % 8)[..., None]
    tiles = np.take_along_axis(tiles, np.broadcast_to(pieces, (1, 1, 1, 1, block_n, 8, 1)), axis=-2)
    kept = [tiles[:, p, :, 1:] if p == INFINITY else tiles[:, p] for p in range(POINTS)]
    return np.concatenate([one.reshape(n_tiles, -1) for one in kept], axis=1).reshape(-1)


def packed_bias(bias: np.ndarray, config: TileConfig) -> np.ndarray:
    """Bias float32 (C_out,) as (n_tiles, 4, 4 quads): what the threads of a quad's place take, in their own order."""
    n_tiles, block_n = config.n_tiles(len(bias)), config.block_n
    padded = np.zeros(n_tiles * block_n, np.float32)
    padded[: len(bias)] = bias
    own = padded.reshape(n_tiles, block_n)[:, channels(block_n)].reshape(n_tiles, block_n // 8, 4, 2)
    found = np.zeros((n_tiles, 4, 4 * config.bias_quads), np.float32)
    found[..., : block_n // 4] = own.transpose(0, 2, 1, 3).reshape(n_tiles, 4, -1)
    return found.reshape(-1)
