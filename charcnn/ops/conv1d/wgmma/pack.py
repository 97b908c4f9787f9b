"""How the weights of `WgmmaConv` lie: packed once, as TMA would have laid them in shared memory."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32

from charcnn.aliases import Array, Kernel, Stream
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_dim_x, block_idx_x, extents, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common.cast import unit_of
from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.conv1d.wgmma.config import ROW_BYTES

THREADS = device.block_size(256)


class WgmmaPacked(NamedTuple):
    """Weights as the kernel takes them, on the current GPU."""

    weight: Array
    bias: Array
    """Zeros behind it, to whole n tiles."""
    unit: float
    """What the weights were divided by: a power of two, so that the division rounded nothing."""
    k_blocks: int

    @property
    def nbytes(self) -> int:
        """On the GPU."""
        return int(self.weight.nbytes + self.bias.nbytes)


def packed(
    weight: Array,
    bias: Array,
    of: NumberFormat,
    pack_n: int,
    stream: Stream,
    *,
    columns: int | None = None,
    quarters: int = 4,
    x_unit: float = 1.0,
) -> WgmmaPacked:
    """Lay out a weight (K, C_in, C_out) and a bias (C_out,), float32, both NumPy arrays or both on the GPU.

    Args:
        pack_n: columns that lie together.
        columns: of all tiles, a multiple of that; None: as many as hold C_out.
        quarters: how many 32 bytes of a row of a k block count.
        x_unit: what 1 stands for in x.
    """
    taps, c_in, c_out = weight.shape
    columns = -(-c_out // pack_n) * pack_n if columns is None else columns
    k_blocks = -(-c_in * of.itemsize // (quarters * ROW_BYTES // 4))
    words = of.terms * columns * k_blocks * taps * ROW_BYTES // 4
    call = Call(None, stream, (columns,), weight=weight, bias=bias)
    weight, bias = call.inputs
    laid = call.scratch((words,), np.uint32)
    unit = unit_of(call, weight, of) if of.scaled else 1.0
    pack = make_pack_kernel(of.ptx_type, of.terms == 2, pack_n, quarters)
    blocks = min(-(-words // THREADS), 8 * device.multiprocessors())
    arguments = np.uint64(device.address(laid)), taps, k_blocks, words
    call.launch(pack, blocks, THREADS, weight, np.float32(1 / unit), *arguments)
    call.launch_each(pad_kernel, bias, np.float32(1 / (unit * x_unit)), call.out)
    return WgmmaPacked(laid, call.out, unit, k_blocks)


@jit()
def pad_kernel(bias: Array, factor: Any, to: Array) -> None:
    """The bias times factor, and zeros behind it, where `to` has more columns."""
    i = cuda.grid(1)
    if i < to.size:
        to[i] = bias[i] * factor if i < bias.size else float32(0)


@cache
def make_pack_kernel(ptx_type: str, two_terms: bool, block_n: int, quarters: int = 4) -> Kernel:
    """The kernel (weight, factor, to, taps, k_blocks, size): weight (K, C_in, C_out), to: address of `size` words.

    Args:
        ptx_type: of the numbers, as PTX calls it.
        two_terms: whether each is two fp16.
        block_n: columns of a tile.
        quarters: how many 32 bytes of a row of a k block count.
    """
    pack, pack_terms = ptx.cvt_f16x2("bf16" if ptx_type == "bf16" else "f16"), ptx.pack_floats("halves")
    tf32, eighth = ptx_type == "tf32", ptx_type == "e4m3"
    together = 1 if tf32 else 4 if eighth else 2  # in a word
    terms = 2 if two_terms else 1
    columns, inputs, k_block = block_n, together, quarters * ROW_BYTES // 16 * together

    @cuda.jit(device=True, forceinline=True)
    def value(weight, factor, tap, c_in, channel):
        if channel < extents(weight)[2] and c_in < extents(weight)[1]:
            return weight[tap, c_in, channel] * factor
        return float32(0)

    @jit()
    def kernel(weight, factor, to, taps, k_blocks, size):
        # A thread writes words: neighbouring input channels of one column. What lies there, of (tile, k block, tap,
        # column, 32 words), is the word of a row whose 16-byte pieces are swizzled, as TMA would have laid it. Of two
        # terms, the high one of a k block and tap comes before the low one.
        i, stride = block_idx_x() * block_dim_x() + thread_idx_x(), grid_dim_x() * block_dim_x()
        while i < uint32(size):
            place = i % 32
            column = i // 32 % columns
            step = i // 32 // columns
            low, step = step % terms, step // terms
            tap = step % uint32(taps)
            block = step // uint32(taps) % uint32(k_blocks)
            n_tile = step // uint32(taps) // uint32(k_blocks)
            piece = place // 4 ^ column & 7
            c_in = block * k_block + (piece * 4 + place % 4) * inputs
            channel = column // 32 * 32 + (column & 7) // 2 * 8
            channel = channel + (column // 8 & 3) * 2 + (column & 1)
            channel += n_tile * columns

            a = value(weight, factor, tap, c_in, channel)
            b = value(weight, factor, tap, c_in + 1, channel)
            if tf32:
                word = ptx.cvt_tf32(a)
            elif eighth:
                c = value(weight, factor, tap, c_in + 2, channel)
                d = value(weight, factor, tap, c_in + 3, channel)
                word = ptx.cvt_e4m3x4(a, b, c, d)
            elif two_terms:
                upper, rest = pack_terms(a, b)
                word = rest if low == 1 else upper
            else:
                word = pack(a, b)
            ptx.st_global_b32(to + uint64(i) * uint64(4), word)
            i += stride

    return kernel
