"""A convolution by one of the steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from charcnn.aliases import Array, Record
from charcnn.gpu import device, tensor_map
from charcnn.ops.conv1d.ladder import K_BLOCK, StepConv1d, by_name
from charcnn.ops.conv1d.wgmma.steps import (
    clustered,
    one_warpgroup,
    persistent,
    pooled,
    ring,
    shared_taps,
    tma,
    two_warpgroups,
    warp_specialised,
)
from charcnn.ops.conv1d.wgmma.steps.common import BLOCK_N


class WgmmaStepConv1d(StepConv1d):
    """A step to `wgmma`: conv1d_relu_nlc in fp16 with float32 sums; by `pooled`, conv1d_relu_maxpool1d_nlc.

    Args:
        step: a key of `steps`.
        weight: float32 (K, C_in, C_out), as `arrays.pack` gives it, NumPy, C-contiguous: C_in in whole 64s, C_out in
            whole `block_n`.
        bias: float32 (C_out,), NumPy.

    Raises:
        ValueError: there is no such step; an argument's shape, dtype or layout does not fit; shared memory does not
            hold what so many taps read.
        DeviceError: no usable GPU, or none of Hopper's (compute capability 9.0).
    """

    steps = by_name(
        (one_warpgroup, tma, two_warpgroups, ring, warp_specialised, shared_taps, persistent, clustered, pooled)
    )
    block_n = BLOCK_N

    def __init__(self, step: str, weight: np.ndarray, bias: np.ndarray) -> None:
        super().__init__(step, weight, bias)
        self._maps: dict[tuple[int, tuple[int, ...]], Any] = {}

    def _require(self) -> None:
        device.require_hopper("wgmma")

    def _source(self, x: Array, rows: int, channels: int) -> Array:
        """The tensor map of x as rows of the product, kept; x itself where threads copy it."""
        if not self.tile.tma:
            return x
        key = device.address(x), tuple(x.shape)
        if key not in self._maps:
            box = K_BLOCK, self.tile.a_rows
            self._maps[key] = tensor_map.encode(x, (channels, rows), (2 * channels,), box)
        return self._maps[key]

    def _grid(self, rows: int) -> tuple[int, Record]:
        """Blocks, or clusters, for so many rows; persistent ones are no more than run at once."""
        cluster = self.tile.cluster_m
        blocks = -(-rows // (self.tile.block_m * cluster)) * (self.c_out // self.tile.block_n)
        if self.tile.persistent:
            blocks = min(blocks, device.multiprocessors() // cluster)
        return blocks, {"cluster": cluster}
