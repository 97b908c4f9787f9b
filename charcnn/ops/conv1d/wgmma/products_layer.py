"""A product of training with all its arrays: tensor maps encoded once, its depth shared where few blocks would run."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from numba import cuda, float32

from charcnn.aliases import Array, Kernel, Stream
from charcnn.gpu import device, ptx, tensor_map
from charcnn.gpu.device import uint64
from charcnn.gpu.indices import block_dim_x, block_idx_x, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import jit, start
from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.conv1d.wgmma.config import K_BLOCK
from charcnn.ops.conv1d.wgmma.matmul import BOX_COLUMNS, BOX_ROWS
from charcnn.ops.conv1d.wgmma.products import (
    BLOCK_M,
    CLUSTER,
    SHARE_ROWS,
    THREADS,
    After,
    Kind,
    ProductTile,
    make_product_kernel,
)

STEP_US, TILE_US, SECOND_US, BYTES_A_US = 0.69, 3.0, 4.0, 4e6
"""What a step, a tile's beginning and end, a second kernel and a byte of parts take on an H200."""

MOST_PARTS = 64

WIDTH = 8
"""Channels that begin at a multiple of 16 bytes, as tensor maps need it."""


class Partial(NamedTuple):
    """Sums that lie in parts, and where their sum goes; both float32."""

    parts: Array
    """(parts, size)"""
    out: Array
    """(size,)"""


class Product:
    """One product of a training step, on the current GPU: arrays stay where they are, and each start computes anew.

    Args:
        kind: `products.FORWARD`, `BY_FEATURES` or `BY_WEIGHTS`.
        a: features, or their gradients by features: (rows, channels), in the format's dtype.
        b: weights (taps * inputs, outputs), by weights gradients (rows, outputs); likewise.
        out: results (rows, channels), likewise; by weights float32 (taps, inputs, outputs).
        of: fp16 or bf16.
        taps: rows of a window.
        bias: float32 (outputs,), forward.
        rectified: whether ReLU is taken, forward.
        mask: as `out`; by features, results stay where it is above 0.

    Raises:
        ValueError: channels are no multiple of 8.
        DeviceError: the GPU has no such tensor cores.
    """

    def __init__(
        self, kind: Kind, a: Array, b: Array, out: Array, of: NumberFormat, *, taps: int = 1, bias: Array = None,
        rectified: bool = False, mask: Array = None,
    ) -> None:  # fmt: skip
        device.require_hopper("wgmma")
        for name, array in (("a", a), ("b", b), ("out", out)):
            if tuple(array.shape)[-1] % WIDTH:
                raise ValueError(f"{name} has {tuple(array.shape)[-1]} channels: need a multiple of {WIDTH}")
        m, n = tuple(out.shape)[-2:]
        depth = a.shape[0] if kind.by_tap else a.shape[1]
        k_blocks = -(-depth // K_BLOCK)
        steps, outer = (k_blocks, taps) if kind.by_tap else (taps * k_blocks, 1)
        after = After(bias is not None, rectified, mask is not None, kind.by_tap)
        tile = ProductTile.of(n, after)
        m_tiles, n_tiles = -(-m // (CLUSTER * BLOCK_M)), -(-n // tile.block_n)
        clusters = max(1, device.multiprocessors() // CLUSTER)
        tiles = m_tiles * n_tiles * outer
        steps_of_part = _depth(tiles, steps, clusters, 4 * outer * m * n, kind.by_tap)
        parts = -(-steps // steps_of_part)
        self.partial: Partial | None = None
        """Sums of parts that somebody is to add up, by weights."""
        self._finish: tuple[Kernel, int, tuple[object, ...]] | None = None
        sums = out
        if parts > 1:
            sums = device.empty((parts, outer * m * n), np.float32)
            if kind.by_tap:
                self.partial = Partial(sums, out.reshape(out.size))
            else:
                arguments = [np.uint64(device.address(x)) for x in (sums, out if bias is None else bias, out if mask is None else mask, out)]
                numbers = np.uint32(parts), np.uint32(n), np.uint32(m * n)
                blocks = min(-(-m * n // (2 * 256)), 8 * device.multiprocessors())
                self._finish = make_finish_kernel(after, of.ptx_type), blocks, (*arguments, *numbers)
                after = After(partial=True)
                tile = ProductTile.of(n, after)
        turned_a, turned_b = kind.transposed
        self._maps = [
            _map(a, (BOX_COLUMNS, K_BLOCK if turned_a else BLOCK_M)),
            _map(b, (BOX_COLUMNS, SHARE_ROWS if turned_b else tile.block_n // CLUSTER)),
        ]
        results = (BOX_COLUMNS, BOX_ROWS)
        self._maps += [self._maps[0] if after.partial else _map(out, results)]
        self._maps += [_map(mask, results) if after.masked else self._maps[2]]
        self._held = a, b, out, bias, mask, sums
        last = sums if after.partial else out if bias is None else bias
        tap_rows = b.shape[0] // taps
        numbers = parts * tiles, m_tiles, n_tiles, taps, k_blocks, steps, steps_of_part, m, n, tap_rows
        addresses = (np.uint64(device.address(array)) for array in (*self._maps, last))
        self._arguments = (*addresses, *map(np.uint32, numbers))
        self._kernel, self._blocks = make_product_kernel(kind, tile, after, of.ptx_type), min(parts * tiles, clusters)
        self._shared, self.kind_name = tile.smem_bytes, kind.name
        self.nbytes = sums.nbytes if parts > 1 else 0
        """Of memory that it has of its own."""

    def start(self, stream: Stream) -> None:
        """Compute; nothing is waited for."""
        start(
            self._kernel, self._blocks, THREADS, stream, *self._arguments, shared=self._shared, cluster=CLUSTER
        )  # fmt: skip
        if self._finish is not None:
            kernel, blocks, arguments = self._finish
            start(kernel, blocks, 256, stream, *arguments)


def _map(array: Array, box: tuple[int, int]) -> Array:
    rows, columns = array.shape
    return tensor_map.encode(array, (columns, rows), (2 * columns,), box)


def _depth(tiles: int, steps: int, clusters: int, nbytes: int, by_tap: bool) -> int:
    """Steps that are added up at a time, so that all are soon done: more parts fill more blocks, and are added up."""

    def took(parts: int) -> float:
        rounds = -(-tiles * parts // clusters)
        more = parts * 2 * nbytes / BYTES_A_US + (0 if by_tap else SECOND_US) if parts > 1 else 0
        return rounds * (-(-steps // parts) * STEP_US + TILE_US) + more

    return -(-steps // min(range(1, min(MOST_PARTS, steps) + 1), key=took))


@cache
def make_finish_kernel(after: After, ptx_type: str) -> Kernel:
    """The kernel (sums, bias, mask, out, parts, columns, size): adds up parts, two values a thread.

    Its arguments: addresses, of float32 (parts, size), of a bias, of the mask and of results in 16 bits; then numbers.
    """
    pack, unpack = ptx.cvt_f16x2(ptx_type, after.rectified), ptx.cvt_f32x2(ptx_type)
    biased, masked = after.biased, after.masked

    @cuda.jit(device=True, forceinline=True)
    def pair(address):
        low, high = ptx.ld_global_v2_b32(address)
        return ptx.bitcast_f32(low), ptx.bitcast_f32(high)

    @jit()
    def kernel(sums, bias, mask, out, parts, columns, size):
        i, stride = 2 * (block_idx_x() * block_dim_x() + thread_idx_x()), 2 * grid_dim_x() * block_dim_x()
        while i < size:
            low, high = float32(0), float32(0)
            at = sums + uint64(i) * uint64(4)
            for _ in range(parts):
                one, other = pair(at)
                low, high = low + one, high + other
                at += uint64(size) * uint64(4)
            if biased:
                one, other = pair(bias + uint64(i % columns) * uint64(4))
                low, high = low + one, high + other
            if masked:
                one, other = unpack(ptx.ld_global_b32(mask + uint64(i) * uint64(2)))
                low = low if one > float32(0) else float32(0)
                high = high if other > float32(0) else float32(0)
            ptx.st_global_b32(out + uint64(i) * uint64(2), pack(low, high))
            i += stride

    return kernel
