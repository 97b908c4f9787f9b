"""A convolution by one of the steps: weights laid out once, and applied to features."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from charcnn.gpu import device, tensor_map
from charcnn.gpu.launch import Call
from charcnn.ops.common import arrays, shapes
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
from charcnn.ops.conv1d.wgmma.steps.common import BLOCK_N, K_BLOCK

STEPS: dict[str, ModuleType] = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        one_warpgroup,
        tma,
        two_warpgroups,
        ring,
        warp_specialised,
        shared_taps,
        persistent,
        clustered,
        pooled,
    )
}
"""The ladder, by name. Each has `config(taps, block_n)` and `make_kernel(tile)`."""


class StepConv1d:
    """conv1d_relu_nlc in fp16 with float32 sums by one of STEPS; by `pooled`, conv1d_relu_maxpool1d_nlc.

    Args:
        step: a key of STEPS.
        weight: float32 (K, C_in, C_out), as `arrays.pack` gives it, NumPy, C-contiguous: C_in in whole 64s, C_out in
            whole 256s.
        bias: float32 (C_out,), NumPy.

    Raises:
        ValueError: there is no such step; an argument's shape, dtype or layout does not fit; shared memory does not
            hold what so many taps read.
        DeviceError: no usable GPU, or none with these tensor cores (compute capability 9.0).
    """

    def __init__(self, step: str, weight: np.ndarray, bias: np.ndarray) -> None:
        device.require_hopper("wgmma")
        if step not in STEPS:
            raise ValueError(f"{step=}: need one of {', '.join(STEPS)}")
        self.kernel_size, c_in, self.c_out = shapes.ranked("weight", weight, "K, C_in, C_out")
        shapes.conv1d_nlc(np.empty((0, max(1, self.kernel_size), c_in)), weight, bias)  # checks what can be of both
        for name, array in (("weight", weight), ("bias", bias)):
            if not isinstance(array, np.ndarray):
                raise ValueError(f"{name} is a {type(array).__name__}: need a NumPy array")
            arrays.check(name, array)
        if c_in % K_BLOCK or self.c_out % BLOCK_N:
            raise ValueError(f"weight has {c_in=}, c_out={self.c_out}: need multiples of {K_BLOCK} and {BLOCK_N}")
        self.tile = STEPS[step].config(self.kernel_size, BLOCK_N)
        if self.tile.smem_bytes > device.shared_limit() or self.tile.a_rows > tensor_map.LARGEST_BOX:
            raise ValueError(f"weight has {self.kernel_size} taps: shared memory does not hold what so many read")
        self._kernel = STEPS[step].make_kernel(self.tile)
        self._weight = device.to_device(pack(weight, BLOCK_N))
        self._bias = device.to_device(bias)
        self._k_blocks = c_in // K_BLOCK
        self._maps: dict[tuple[int, tuple[int, ...]], Any] = {}

    def __call__(self, x: Any, *, out: Any = None, stream: Any = None) -> Any:
        """y float16 (N, L - K + 1, C_out); by `pooled`, (N, (L - K + 1) // 3, C_out).

        Args:
            x: float16 (N, L, C_in) on the GPU, C-contiguous; by `pooled`, L is a multiple of 3.
            out: where to write, on the GPU; made where None.
            stream: a CUDA stream; the default stream where None.

        Raises:
            ValueError: an argument's shape, dtype, layout or side does not fit.
        """
        n, length, channels = shapes.ranked("x", x, "N, L, C_in")
        if not device.on_device(x):
            raise ValueError(f"x is a {type(x).__name__}: need an array on the GPU")
        if channels != self._k_blocks * K_BLOCK:
            raise ValueError(f"x has shape {tuple(x.shape)}: need C_in={self._k_blocks * K_BLOCK}, as weight has")
        if length - self.kernel_size + 1 < self.tile.pool or length % self.tile.pool:
            least, multiple = self.kernel_size + self.tile.pool - 1, self.tile.pool
            raise ValueError(f"x has {length} positions: need at least {least}, a multiple of {multiple}")
        if (rows := n * length) >= 1 << 31:
            raise ValueError(f"x has shape {tuple(x.shape)}: need fewer than {1 << 31} positions in all")
        length_out = (length - self.kernel_size + 1) // self.tile.pool
        shape = n, length_out, self.c_out
        call = Call(out, stream, shape, np.float16, dtypes={"x": np.float16}, x=x)
        (x,), y = call.inputs, call.out
        if n == 0:
            return call.result()
        for name, array in (("x", x), ("out", y)):
            if beyond := device.address(array) % 16:
                raise ValueError(f"{name} begins {beyond} bytes behind a multiple of 16: need one, for 16-byte copies")
        source = self._map(x, rows, channels) if self.tile.tma else x
        addresses = (np.uint64(device.address(array)) for array in (source, self._weight, self._bias, y))
        sizes = map(np.uint32, (self.kernel_size, self._k_blocks, self.c_out, rows, length, length_out))
        cluster = self.tile.cluster_m
        blocks = -(-rows // (self.tile.block_m * cluster)) * (self.c_out // self.tile.block_n)  # or clusters
        if self.tile.persistent:
            blocks = min(blocks, device.multiprocessors() // cluster)
        options = {"shared": self.tile.smem_bytes, "cluster": cluster}
        call.launch(self._kernel, blocks, self.tile.threads, *addresses, *sizes, **options)
        return call.result()

    def _map(self, x: Any, rows: int, channels: int) -> Any:
        """The tensor map of x as rows of the product, kept."""
        key = device.address(x), tuple(x.shape)
        if key not in self._maps:
            box = K_BLOCK, self.tile.a_rows
            self._maps[key] = tensor_map.encode(x, (channels, rows), (2 * channels,), box)
        return self._maps[key]


def pack(weight: np.ndarray, block_n: int) -> np.ndarray:
    """Weights as shared memory holds them: float16 (n_tiles, k_blocks, K, block_n, 64), swizzled.

    Columns are so ordered that a thread's sums of four neighbouring 8-column pieces are of eight neighbouring channels:
    of 32 columns, column 8 j + 2 q + e is channel 8 q + 2 j + e.

    Args:
        weight: float32 (K, C_in, C_out).
        block_n: a multiple of 32 that divides C_out.
    """
    taps, c_in, c_out = weight.shape
    blocks = weight.astype(np.float16).reshape(taps, c_in // K_BLOCK, K_BLOCK, c_out // 32, 4, 4, 2)  # ... q, j, e
    columns = blocks.transpose(1, 0, 3, 5, 4, 6, 2)  # k_block, tap, run, j, q, e, channel
    tiles = columns.reshape(c_in // K_BLOCK, taps, c_out // block_n, block_n, 8, K_BLOCK // 8).transpose(
        2, 0, 1, 3, 4, 5
    )
    swizzled = np.arange(8) ^ np.arange(block_n)[:, None] % 8  # where a row's 16-byte pieces come from
    return np.take_along_axis(tiles, swizzled[None, None, None, :, :, None], axis=-2).reshape(-1)
