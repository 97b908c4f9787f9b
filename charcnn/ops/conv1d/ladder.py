"""What the ladders of small kernels share: rows of the product, a thread's accumulators, and the layer around a kernel.

A ladder is the way to a tuned kernel in steps, each a kernel in a file of its own: `mma/steps` and `wgmma/steps`. All
compute conv1d + ReLU on channels-last features, fp16 with float32 accumulators.

Rows of the product are the positions of all inputs, N * L of them one after another. Of each input the last K - 1 are
no outputs: their taps reach into the next input. They are computed and not stored, so that a row's taps are the rows
that follow it.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any, ClassVar, Protocol

import numpy as np
from numba import cuda

from charcnn.aliases import Array, Function, Record, Stream
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.launch import Call
from charcnn.ops.common import arrays, shapes

K_BLOCK = 64
"""Input channels of a stage: 128 bytes in fp16, a row of the swizzle."""

ROW_BYTES = 2 * K_BLOCK

POOL = 3
"""Positions of a window."""

NO_ROW = 0xFFFFFFFF


def inline(function: Function) -> Any:
    """A device function that becomes part of its caller."""
    return cuda.jit(device=True, forceinline=True)(function)


def make_output_row() -> Any:
    """output_row(row, rows, length, length_out): which of y's rows a row of the product is, or NO_ROW."""
    no_row = uint32(NO_ROW)

    @inline
    def output_row(row, rows, length, length_out):
        n = row // length
        t = row - n * length
        return n * length_out + t if row < rows and t < length_out else no_row

    return output_row


def make_accumulators(columns: int) -> tuple[Any, Any, Any]:
    """start(acc, bias, column, at), words(acc, i) and store(acc, y, c_out, column, row, rows, length, length_out, at).

    A warp has so many columns of 16 rows, and a thread's acc, from `at` on, are of two rows, 8 apart. By the order of
    columns in which `pack` lays out weights, acc 16 k to 16 k + 15 without every second pair are eight neighbouring
    channels of the first row, from column + 32 k on; the other pairs are those of the second row. So a thread stores
    16 bytes at once.
    """
    runs = columns // 32  # of eight channels, of each row
    no_row = NO_ROW
    pack = ptx.cvt_f16x2("f16", True)  # with ReLU
    output_row = make_output_row()

    @inline
    def start(acc, bias, column, at=0):
        """Sums begin as the bias, float32."""
        source = bias + uint64(column) * uint64(4)
        for k in range(runs):
            for half in range(2):
                i = at + 16 * k + 8 * half
                a, b, c, d = ptx.ld_global_v4_f32(source + uint64(128 * k + 16 * half))
                acc[i], acc[i + 1], acc[i + 4], acc[i + 5] = a, b, c, d
                acc[i + 2], acc[i + 3], acc[i + 6], acc[i + 7] = a, b, c, d

    @inline
    def words(acc, i):
        """ReLU of eight neighbouring channels, rounded to fp16."""
        a, b = pack(acc[i], acc[i + 1]), pack(acc[i + 4], acc[i + 5])
        return a, b, pack(acc[i + 8], acc[i + 9]), pack(acc[i + 12], acc[i + 13])

    @inline
    def store_row(acc, first, y, c_out, column, row):
        if row != no_row:
            to = y + (uint64(row) * uint64(c_out) + uint64(column)) * uint64(2)
            for k in range(runs):
                a, b, c, d = words(acc, 16 * k + first)
                ptx.st_global_v4_b32(to + uint64(64 * k), a, b, c, d)

    @inline
    def store(acc, y, c_out, column, row, rows, length, length_out, at=0):
        """Both rows, where they are outputs."""
        store_row(acc, at, y, c_out, column, output_row(row, rows, length, length_out))
        store_row(acc, at + 2, y, c_out, column, output_row(row + 8, rows, length, length_out))

    return start, words, store


def by_name(modules: Iterable[ModuleType]) -> dict[str, ModuleType]:
    """The modules of a ladder, by the names of their files."""
    return {module.__name__.rpartition(".")[2]: module for module in modules}


class StepTile(Protocol):
    """What the layer asks of a step's tile."""

    @property
    def block_m(self) -> int:
        """Rows of the product that a block stores at a time."""

    @property
    def block_n(self) -> int:
        """Its output channels."""

    @property
    def pool(self) -> int:
        """Rows that become one of y: 1 or `POOL`."""

    @property
    def threads(self) -> int:
        """Of a block."""

    @property
    def smem_bytes(self) -> int:
        """Of a block's shared memory."""

    @property
    def swizzled(self) -> bool:
        """Whether the weights are laid out swizzled."""

    def fits(self, limit: int) -> bool:
        """Whether a GPU can run it whose blocks have at most so many bytes of shared memory."""


class StepConv1d:
    """conv1d_relu_nlc in fp16 with float32 sums by a step of a ladder; by `pooled`, conv1d_relu_maxpool1d_nlc.

    Args:
        step: a key of `steps`.
        weight: float32 (K, C_in, C_out), as `arrays.pack` gives it, NumPy, C-contiguous: C_in in whole 64s, C_out in
            whole `block_n`.
        bias: float32 (C_out,), NumPy.

    Raises:
        ValueError: there is no such step; an argument's shape, dtype or layout does not fit; shared memory does not
            hold what so many taps read.
        DeviceError: no usable GPU, or none with the tensor cores of the technique.
    """

    steps: ClassVar[dict[str, ModuleType]]
    """The ladder, by name. Each has `config(taps, block_n)` and `make_kernel(tile)`."""
    block_n: ClassVar[int]
    """Output channels of a block."""

    def __init__(self, step: str, weight: np.ndarray, bias: np.ndarray) -> None:
        self._require()
        if step not in self.steps:
            raise ValueError(f"{step=}: need one of {', '.join(self.steps)}")
        self.kernel_size, c_in, self.c_out = shapes.ranked("weight", weight, "K, C_in, C_out")
        shapes.conv1d_nlc(np.empty((0, max(1, self.kernel_size), c_in)), weight, bias)  # checks what can be of both
        for name, array in (("weight", weight), ("bias", bias)):
            if not isinstance(array, np.ndarray):
                raise ValueError(f"{name} is a {type(array).__name__}: need a NumPy array")
            arrays.check(name, array)
        if c_in % K_BLOCK or self.c_out % self.block_n:
            raise ValueError(f"weight has {c_in=}, c_out={self.c_out}: need multiples of {K_BLOCK} and {self.block_n}")
        self.tile: Any = self.steps[step].config(self.kernel_size, self.block_n)
        if not self.tile.fits(device.shared_limit()):
            raise ValueError(f"weight has {self.kernel_size} taps: shared memory cannot hold what so many read")
        self._kernel = self.steps[step].make_kernel(self.tile)
        self._weight = device.to_device(pack(weight, self.tile.block_n, swizzled=self.tile.swizzled))
        self._bias = device.to_device(bias)
        self._k_blocks = c_in // K_BLOCK

    def __call__(self, x: Array, *, out: Array = None, stream: Stream = None) -> Array:
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
                raise ValueError(f"{name} begins {beyond} bytes past a multiple of 16: need one, for 16-byte copies")
        source = self._source(x, rows, channels)
        addresses = (np.uint64(device.address(array)) for array in (source, self._weight, self._bias, y))
        sizes = map(np.uint32, (self.kernel_size, self._k_blocks, self.c_out, rows, length, length_out))
        blocks, options = self._grid(rows)
        options |= {"shared": self.tile.smem_bytes}
        call.launch(self._kernel, blocks, self.tile.threads, *addresses, *sizes, **options)
        return call.result()

    def _require(self) -> None:
        """Raise DeviceError where this GPU has not these tensor cores."""
        raise NotImplementedError

    def _source(self, x: Array, rows: int, channels: int) -> Array:
        """By whose address the kernel finds x."""
        return x

    def _grid(self, rows: int) -> tuple[int, Record]:
        """Blocks for so many rows, and more options of the launch."""
        return -(-rows // self.tile.block_m) * (self.c_out // self.tile.block_n), {}


def pack(weight: np.ndarray, block_n: int, *, swizzled: bool = True) -> np.ndarray:
    """Weights as shared memory holds them: float16 (n_tiles, k_blocks, K, block_n, 64).

    Columns are so ordered that a thread's sums of four neighbouring 8-column pieces are of eight neighbouring channels:
    of 32 columns, column 8 j + 2 q + e is channel 8 q + 2 j + e.

    Args:
        weight: float32 (K, C_in, C_out).
        block_n: a multiple of 32 that divides C_out.
        swizzled: whether the 16-byte piece p of column r lies at piece p ^ (r % 8).
    """
    taps, c_in, c_out = weight.shape
    blocks = weight.astype(np.float16).reshape(taps, c_in // K_BLOCK, K_BLOCK, c_out // 32, 4, 4, 2)  # ... q, j, e
    columns = blocks.transpose(1, 0, 3, 5, 4, 6, 2)  # k_block, tap, run, j, q, e, channel
    tiles = columns.reshape(c_in // K_BLOCK, taps, c_out // block_n, block_n, 8, K_BLOCK // 8).transpose(
        2, 0, 1, 3, 4, 5
    )
    rows = np.arange(block_n)[:, None] if swizzled else 0
    pieces = np.arange(8) ^ rows % 8  # where a row's 16-byte pieces come from
    return np.take_along_axis(tiles, np.broadcast_to(pieces, (1, 1, 1, block_n, 8))[..., None], axis=-2).reshape(-1)
