"""A linear layer on all CPU cores, by the micro-kernel."""

from __future__ import annotations

import numpy as np

from charcnn.ops.common.cpu_gemm import Packed
from charcnn.ops.common.cpu_tile import Tile, tile_of_columns

BATCH = 32
"""Rows for which the tile is chosen: batches are powers of two as a rule, and tiles of 6 rows compute some too many."""


class CpuLinear:
    """A linear layer on all CPU cores, its weights packed once for the micro-kernel.

    Args:
        weight: float32 (C_out, C_in), any strides; bias (C_out,).
        tile: the micro-kernel's, from `cpu_tile.choose_tile`; `tile_of_columns` where None.
    """

    def __init__(self, weight: np.ndarray, bias: np.ndarray, tile: Tile | None = None) -> None:
        self._packed = Packed(weight[:, None, None], bias, tile or tile_of_columns(len(bias), BATCH))

    def __call__(self, x: np.ndarray, out: np.ndarray, *, relu: bool = False) -> np.ndarray:
        """x float32 (N, C_in), C-contiguous -> out (N, C_out)."""
        self._packed.multiply(x[None, None], out[None, None], relu=relu)
        return out
