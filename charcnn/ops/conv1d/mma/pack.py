"""How the weights of `mma` lie: packed once, as its kernel copies them to shared memory."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32

from charcnn.aliases import Array, Stream
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_dim_x, block_idx_x, extents, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common.mma_layout import words_of
from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.conv1d.mma.config import ROW_BYTES
from charcnn.ops.conv1d.wgmma import pack as wgmma_pack

THREADS = device.block_size(256)

SCALE_THREADS = device.block_size(1024)

WORDS = ROW_BYTES // 4


class MmaPacked(NamedTuple):
    """Weights as the kernel takes them, on the current GPU."""

    weight: Array
    bias: Array
    """Scaled as the weights are; zeros behind it, to whole n tiles."""
    factor: Any
    """What undoes the scaling, an array of one."""
    k_blocks: int

    @property
    def nbytes(self) -> int:
        """On the GPU."""
        return int(self.weight.nbytes + self.bias.nbytes)


def packed(
    weight: Array, bias: Array, of: NumberFormat, pack_n: int, columns: int, stream: Stream, quarters: int = 4,
    x_unit: float = 1.0,
) -> MmaPacked:  # fmt: skip
    """Lay out a weight (K, C_in, C_out) and a bias (C_out,), float32, both NumPy arrays or both on the GPU.

    Args:
        pack_n: columns that lie together.
        columns: of all tiles, a multiple of that.
        quarters: how many 32 bytes of a row of a k block count.
        x_unit: of e4m3, what 1 stands for in x.
    """
    if of.ptx_type == "e4m3":  # they lie, and are scaled, as those of wgmma
        found = wgmma_pack.packed(
            weight, bias, of, pack_n, stream, columns=columns, quarters=quarters, x_unit=x_unit
        )  # fmt: skip
        undone = device.to_device(np.array([found.unit * x_unit], np.float32), device.as_stream(stream))
        return MmaPacked(found.weight, found.bias, undone, found.k_blocks)
    taps, c_in, _ = weight.shape
    k_blocks = -(-c_in * of.size // (quarters * ROW_BYTES // 4))
    words = columns * k_blocks * taps * WORDS
    call = Call(None, stream, (columns,), weight=weight, bias=bias)
    weight, bias = call.inputs
    factor, laid = call.scratch((1,), np.float32), call.scratch((words,), np.uint32)
    call.launch(_scale_kernel(of.terms == 2), 1, SCALE_THREADS, weight, bias, factor, call.out)
    arguments = np.uint64(device.address(laid)), taps, k_blocks, words
    blocks = min(-(-words // THREADS), 8 * device.multiprocessors())
    call.launch(_pack_kernel(of, pack_n, quarters), blocks, THREADS, weight, factor, *arguments)
    return MmaPacked(laid, call.out, factor, k_blocks)


@cache
def _scale_kernel(two_terms):
    threads = uint32(SCALE_THREADS)
    least, most_exponent = uint32(127 - 100), 2 * 127 + 13  # of weights all less than 2^-100, none

    @jit(launch_bounds=SCALE_THREADS)
    def kernel(weight, bias, factor, to):
        # One block: the power of two that brings the greatest weight to 2^13 or more, and below 2^14; and the bias.
        most = cuda.shared.array(SCALE_THREADS, float32)
        thread = thread_idx_x()
        greatest, scale = float32(0), float32(1)
        if two_terms:
            for i in range(thread, weight.size, threads):
                greatest = max(greatest, abs(weight.flat[i]))
        most[thread] = greatest
        cuda.syncthreads()
        half = threads // 2
        while half > 0:
            if thread < half:
                most[thread] = max(most[thread], most[thread + half])
            cuda.syncthreads()
            half = half // 2
        exponent = uint32(ptx.bitcast_b32(most[0]) >> uint32(23))  # with a bias of 127
        if least < exponent < uint32(255):
            scale = ptx.bitcast_f32(most_exponent - exponent << 23)
        if thread == 0:
            factor[0] = float32(1) / scale
        for c in range(thread, to.size, threads):
            to[c] = bias[c] * scale if c < bias.size else float32(0)

    return kernel


@cache
def _pack_kernel(of, pack_n, quarters):
    pack = None if of.size == 4 else ptx.cvt_f16x2(of.ptx_type)
    words, two_terms = words_of(of), of.terms == 2
    columns, k_block_size, row_words = pack_n, quarters * ROW_BYTES // 4 // of.size, WORDS
    tiny = 0x10001000  # 1 / LOW_SCALE, twice
    pair_size = 2 if of.size == 2 or two_terms else 1

    @jit()
    def kernel(weight, factor, to, taps, k_blocks, size):
        # A thread writes words, each two halves of neighbouring input channels or a number, of (n tile, k block, tap,
        # column, 32 words): of a row whose 16-byte pieces are swizzled as the kernel reads them. Of 32 columns, those
        # that a thread of the kernel holds the sums of, two of each eight, are neighbouring channels.
        i, stride = block_idx_x() * block_dim_x() + thread_idx_x(), grid_dim_x() * block_dim_x()
        while i < uint32(size):
            place = i % row_words
            column = i // row_words % columns
            step = i // row_words // columns
            tap = step % uint32(taps)
            k_block = step // uint32(taps) % uint32(k_blocks)
            n_tile = step // uint32(taps) // uint32(k_blocks)
            piece = place // 4 ^ column & 7
            inner = place & 3
            if pair_size == 1:
                c_in = piece * 4 + inner
            elif two_terms:
                c_in = piece // 2 * 8 + inner * 2
            else:
                c_in = piece * 8 + inner * 2
            c_in = k_block * k_block_size + c_in
            channel = column // 32 * 32 + (column & 7) // 2 * 8
            channel = channel + (column // 8 & 3) * 2 + (column & 1)
            channel += n_tile * columns
            low, high = float32(0), float32(0)
            if channel < extents(weight)[2]:
                if c_in < extents(weight)[1]:
                    low = weight[tap, c_in, channel]
                if pair_size == 2 and c_in + 1 < extents(weight)[1]:
                    high = weight[tap, c_in + 1, channel]
            if two_terms:
                scale = float32(1) / factor[0]
                upper, rest = words(low * scale, high * scale)
                word = ptx.mul_f16x2(rest, tiny) if piece & 1 == 1 else upper
            elif pair_size == 2:
                word = pack(low, high)
            else:
                word, _ = words(low, low)
            ptx.st_global_b32(to + uint64(i) * uint64(4), word)
            i += stride

    return kernel
