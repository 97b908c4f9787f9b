"""How the weights of the Toom-Cook kernel lie: in the order of its steps, as TMA would have laid them."""

from __future__ import annotations

import numpy as np

from charcnn.ops.common.cast import LARGEST
from charcnn.ops.common.precision import LARGEST_E4M3, NumberFormat
from charcnn.ops.conv1d.toom_cook.config import ToomCookTile
from charcnn.ops.conv1d.toom_cook.transforms import INFINITY, POINTS
from charcnn.ops.conv1d.wgmma.config import ROW_BYTES


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


def unit(weights: np.ndarray, of: NumberFormat) -> float:
    """What transformed weights are divided by: a power of two, so that the division rounds nothing; 1 if not scaled."""
    largest = float(np.abs(weights, where=np.isfinite(weights), out=np.zeros_like(weights)).max(initial=0.0))
    if not of.scaled or not largest:
        return 1.0
    return float(2.0 ** np.ceil(np.log2(largest / LARGEST[of.ptx_type])))


def bits(values: np.ndarray, of: NumberFormat) -> list[np.ndarray]:
    """float64 values in a format: the terms' bits, high ones first, as unsigned integers of its size."""
    if of.ptx_type == "tf32":
        words = values.astype(np.float32).view(np.uint32)
        return [words + np.uint32(0x1000) & np.uint32(0xFFFFE000)]  # to nearest, away from zero between two
    if of.ptx_type == "e4m3":
        size = np.minimum(np.abs(values), LARGEST_E4M3)
        exponent = np.maximum(np.floor(np.log2(size, where=size > 0, out=np.full_like(size, -6.0))), -6.0)
        steps = np.round(size / 2.0 ** (exponent - 3))  # NumPy rounds to even
        return [((np.signbit(values) << 7) + (exponent + 6) * 8 + steps).astype(np.uint8)]
    if of.ptx_type == "bf16":
        words = values.astype(np.float32).view(np.uint32)
        return [((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype(np.uint16)]
    high = values.astype(np.float16)
    terms = [high, (values - high).astype(np.float16)][: of.terms]
    return [term.view(np.uint16) for term in terms]


def packed_weights(weights: np.ndarray, of: NumberFormat, config: ToomCookTile) -> np.ndarray:
    """Weights as `transformed_weights` has them, a step after another: bits of (n_tiles, steps, columns, 128 bytes).

    Steps are of (plane, k block, group, term); of the plane INFINITY only the second group is there. The 16-byte piece
    p of column r lies at piece p ^ (r % 8).
    """
    c_in, c_out = weights.shape[2:]
    depth, n_tiles, block_n = ROW_BYTES // of.itemsize, config.n_tiles(c_out), config.block_n
    k_blocks = c_in // depth
    padded = np.zeros((POINTS, 2, c_in, n_tiles * block_n))
    padded[..., :c_out] = weights
    tiles = padded.reshape(POINTS, 2, k_blocks, depth, n_tiles, block_n)[..., channels(block_n)]
    tiles = np.stack(bits(tiles.transpose(4, 0, 2, 1, 5, 3), of), 4)  # tile, plane, k block, group, term, column, depth
    tiles = tiles.reshape(n_tiles, POINTS, k_blocks, 2, of.terms, block_n, 8, depth // 8)
    pieces = (np.arange(8) ^ np.arange(block_n)[:, None] % 8)[..., None]
    tiles = np.take_along_axis(tiles, pieces.reshape(1, 1, 1, 1, 1, block_n, 8, 1), axis=-2)
    kept = [tiles[:, p, :, 1:] if p == INFINITY else tiles[:, p] for p in range(POINTS)]
    return np.concatenate([one.reshape(n_tiles, -1) for one in kept], axis=1).reshape(-1)


def packed_bias(bias: np.ndarray, config: ToomCookTile) -> np.ndarray:
    """Bias float32 (C_out,) as (n_tiles, 4, 4 quads): what the threads of a quad's place take, in their own order."""
    n_tiles, block_n = config.n_tiles(len(bias)), config.block_n
    padded = np.zeros(n_tiles * block_n, np.float32)
    padded[: len(bias)] = bias
    own = padded.reshape(n_tiles, block_n)[:, channels(block_n)].reshape(n_tiles, block_n // 8, 4, 2)
    found = np.zeros((n_tiles, 4, 4 * config.bias_quads), np.float32)
    found[..., : block_n // 4] = own.transpose(0, 2, 1, 3).reshape(n_tiles, 4, -1)
    return found.reshape(-1)
