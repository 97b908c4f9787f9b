"""2:4 sparsity: of each four neighbouring numbers in depth two are 0, and tensor cores multiply by the other two."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

ROWS, FOUR, KEPT = 64, 4, 2

SPARSE = f"{KEPT}:{FOUR}"
"""What it is called."""


_ZEROS = (np.arange(1 << FOUR)[:, None] >> np.arange(FOUR) & 1).astype(bool)
"""By a number of four bits, which of four are 0."""


class SparseTiles(NamedTuple):
    """A matrix as `ptx.wgmma_sparse` takes it, a tile of 64 rows and 128 bytes of depth after another."""

    kept: np.ndarray
    """(row tiles, depth tiles, 64, 64 bytes of numbers), of the matrix's dtype, rows not swizzled."""
    metadata: np.ndarray
    """uint32 (row tiles, depth tiles, 128 threads, words)."""


def largest(values: np.ndarray) -> np.ndarray:
    """Which two of each four have the largest magnitude, bool (..., K); of equal ones the first.

    Args:
        values: (..., K) numbers, in groups of four along the last axis.

    Raises:
        ValueError: K is not a multiple of 4.
    """
    fours = _fours(np.abs(values))
    found = np.zeros(fours.shape, bool)
    np.put_along_axis(found, np.argsort(-fours, -1, kind="stable")[..., :KEPT], True, -1)
    return found.reshape(values.shape)


def pruned(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """The numbers with all but the `largest` two of each four 0.

    Args:
        values: in groups of four along an axis.
        axis: that one.

    Raises:
        ValueError: it is not a multiple of 4 long.
    """
    kept = np.moveaxis(largest(np.moveaxis(values, axis, -1)), -1, axis)
    return np.where(kept, values, values.dtype.type(0))


def compressed(values: np.ndarray) -> SparseTiles:
    """Only the numbers that may differ from 0, and where each belongs.

    Args:
        values: (M, K), float16, bf16 as uint16 or e4m3 as uint8; M whole tiles of 64 rows, K of 128 bytes.

    Raises:
        ValueError: the dtype or a size does not fit, or three of four numbers differ from 0; names what.
    """
    if values.dtype not in (np.float16, np.uint16, np.uint8):
        raise ValueError(f"values have dtype {values.dtype}: need float16, uint16 or uint8")
    depth = 128 // values.itemsize
    if values.ndim != 2 or values.shape[0] % ROWS or values.shape[1] % depth:
        raise ValueError(f"values have shape {values.shape}: need (M, K), multiples of {ROWS} and {depth}")
    fours = _fours(values)
    zero = fours.view(f"u{values.itemsize}") << 1 == 0  # of either sign
    which = zero @ (1 << np.arange(FOUR, dtype=np.uint8))
    more = _ZEROS.sum(1)[which] < FOUR - KEPT
    if more.any():
        row, four = np.argwhere(more)[0].tolist()
        raise ValueError(f"values[{row}, {FOUR * four}:{FOUR * four + FOUR}]: need two zeros of each four")
    places = np.sort(np.argsort(_ZEROS, 1, kind="stable")[:, :KEPT], 1)[which]
    tiles = values.shape[0] // ROWS, ROWS, values.shape[1] // depth, depth // KEPT
    kept = np.take_along_axis(fours, places, 2).reshape(tiles).transpose(0, 2, 1, 3)
    nibbles = (places[..., 0] | places[..., 1] << 2).astype(np.uint32)
    words, warps = 3 - values.itemsize, (tiles[0], 4, 2, 8, tiles[2])  # of rows: tile, warp, second half, group
    if values.itemsize == 1:  # (product, half of its depth, four): lanes are (half of its depth, second half of rows)
        nibbles = nibbles.reshape(*warps, 2, 2, 8).transpose(0, 4, 1, 3, 6, 2, 5, 7)
    else:  # (lane, four), and a word has both halves of the rows
        nibbles = nibbles.reshape(*warps, 4, 4).transpose(0, 4, 1, 3, 5, 2, 6)
    nibbles = nibbles.reshape(tiles[0], tiles[2], 128, words, 8)
    shifts = np.arange(0, 32, 4, dtype=np.uint32)
    return SparseTiles(np.ascontiguousarray(kept), np.bitwise_or.reduce(nibbles << shifts, 4))


def swizzled(tiles: np.ndarray) -> np.ndarray:
    """Tiles as shared memory holds them, where 16-byte pieces of 8 rows are swapped: uint32, flat.

    Args:
        tiles: (..., rows, numbers), rows of 64 or 128 bytes.
    """
    rows, pieces = tiles.shape[-2], tiles.shape[-1] * tiles.itemsize // 16
    found = np.ascontiguousarray(tiles).view(np.uint8).reshape(-1, rows, pieces, 16)
    order = np.arange(pieces) ^ (np.arange(rows) * pieces // 8 % pieces)[:, None]
    return np.take_along_axis(found, order[None, :, :, None], 2).view(np.uint32).ravel()


def _fours(values: np.ndarray) -> np.ndarray:
    if values.shape[-1] % FOUR:
        raise ValueError(f"values have {values.shape[-1]} numbers in depth: need a multiple of {FOUR}")
    return values.reshape(*values.shape[:-1], -1, FOUR)
