"""LayerNorm, leaky ReLU and maxpool1d of three positions, channels last, in 16 bits: forward.

An input is normalised over all its positions and channels. What the gradient needs is kept: which position won, and the
normalised value there, but not the other two of each window. `training_backward` goes back.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numba import cuda, float32, types

from charcnn.aliases import Array, Kernel, Stream
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint64
from charcnn.gpu.indices import block_idx_x, thread_idx_x
from charcnn.gpu.launch import jit, start
from charcnn.ops.common import columns
from charcnn.ops.common.columns import lanes_of, placed, placed_factors
from charcnn.ops.common.mma_layout import OCTET
from charcnn.ops.common.moments import block_sum
from charcnn.ops.maxpool1d_training import BELOW, WINDOW, check_length, check_rows, slope_of

STATIC = 4096
"""Bytes of shared memory that are left for sums, beside an input's values."""


@cuda.jit(device=True, forceinline=True)
def load_eight(array, at, values, to):
    """Eight float32 from the address of a device array and an index."""
    values[to], values[to + 1], values[to + 2], values[to + 3] = ptx.ld_global_v4_f32(array + at * uint64(4))
    values[to + 4], values[to + 5], values[to + 6], values[to + 7] = ptx.ld_global_v4_f32(
        array + (at + uint64(4)) * uint64(4)
    )


@cache
def _norm_pool_kernel(threads: int, ptx_type: str) -> Kernel:
    # A block has an input, all of its values in shared memory; each thread's sums are of the octets that it copied.
    window, octet, not_above, held, eights = WINDOW, OCTET, BELOW, WINDOW * 4, WINDOW * OCTET
    unpack, pack, alignment = ptx.cvt_f32x2(ptx_type), ptx.cvt_f16x2(ptx_type), ptx.ALIGNMENT

    @jit(launch_bounds=threads)
    def kernel(
        y, gamma, beta, factors, pooled, place, normalised, moments, length, rows, pooled_rows, channels, size, eps,
    ):  # fmt: skip
        smem, tree = cuda.shared.array(0, types.uint32, alignment=alignment), cuda.shared.array(threads, float32)
        read = cuda.local.array(held, types.uint32)
        scale, offset = cuda.local.array(eights, float32), cuda.local.array(eights, float32)
        best, normal = cuda.local.array(octet, float32), cuda.local.array(octet, float32)
        places = cuda.local.array(2, types.uint32)
        base, thread, n = ptx.cvta_to_shared(smem), thread_idx_x(), block_idx_x()
        octets, total = length * channels // octet, float32(0)
        begin = y + uint64(n) * uint64(rows) * uint64(channels) * uint64(2)
        for i in range(thread, octets, threads):
            a, b, c, d = ptx.ld_nc_no_allocate(begin + uint64(i) * uint64(16), 1)
            ptx.st_shared_v4_b32(base + i * 16, a, b, c, d)
            (e, f), (g, h) = unpack(a), unpack(b)
            total += (e + f) + (g + h)
            (e, f), (g, h) = unpack(c), unpack(d)
            total += (e + f) + (g + h)
        mean = block_sum(total, tree) / size
        total = float32(0)
        for i in range(thread, octets, threads):
            read[0], read[1], read[2], read[3] = ptx.ld_shared_v4_b32(base + i * 16)
            for w in range(4):
                low, high = unpack(read[w])
                low -= mean
                high -= mean
                total += low * low + high * high
        rate = float32(1) / math.sqrt(block_sum(total, tree) / size + eps)
        if thread == 0:
            ptx.st_global_v2_f32(moments + uint64(n) * uint64(8), mean, rate)
        across, slope = channels // octet, slope_of(factors)
        windows = length // window
        for i in range(thread, windows * across, threads):
            j, channel = i // across, i % across * octet
            for q in range(window):
                at, to = (j * window + q) * across + i % across, 4 * q
                read[to], read[to + 1], read[to + 2], read[to + 3] = ptx.ld_shared_v4_b32(base + at * 16)
                load_eight(gamma, uint64(at) * uint64(octet), scale, q * octet)
                load_eight(beta, uint64(at) * uint64(octet), offset, q * octet)
            places[0] = 0
            places[1] = 0
            for w in range(4):
                for q in range(window):
                    pair = unpack(read[4 * q + w])
                    for h in range(2):
                        c = 2 * w + h
                        x = ((pair[1] if h else pair[0]) - mean) * rate
                        value = x * scale[q * octet + c] + offset[q * octet + c]
                        if q == 0 or value > best[c]:
                            best[c] = value
                            normal[c] = x
                            shift = 16 * (w % 2) + 8 * h
                            places[w // 2] = (places[w // 2] & (0xFFFFFFFF ^ (0xFF << shift))) | (q << shift)
                for h in range(2):
                    c = 2 * w + h
                    if best[c] <= float32(0):  # of NaN false, so that it stays
                        best[c] = best[c] * slope + float32(0)  # so that there is no -0
                        places[w // 2] |= not_above << (16 * (w % 2) + 8 * h)
            at = (uint64(n) * uint64(windows) + uint64(j)) * uint64(channels) + uint64(channel)
            ptx.st_global_v2_b32(place + at, places[0], places[1])
            ptx.st_global_v4_b32(
                normalised + at * uint64(2), pack(normal[0], normal[1]), pack(normal[2], normal[3]),
                pack(normal[4], normal[5]), pack(normal[6], normal[7]),
            )  # fmt: skip
            at = (uint64(n) * uint64(pooled_rows) + uint64(j)) * uint64(channels) + uint64(channel)
            ptx.st_global_v4_b32(
                pooled + at * uint64(2), pack(best[0], best[1]), pack(best[2], best[3]), pack(best[4], best[5]),
                pack(best[6], best[7]),
            )  # fmt: skip

    return kernel


def norm_pool_forward(
    y: Array, gamma: Array, beta: Array, factors: Array, pooled: Array, place: Array, normalised: Array,
    moments: Array, eps: float, stream: Stream = None, ptx_type: str = "bf16",
) -> None:  # fmt: skip
    """maxpool1d of three positions of leaky ReLU of layernorm(y).

    Args:
        y: 16 bits as uint16, (N, S, C), C a multiple of 8; rows from L on are not read.
        gamma, beta: float32 (L, C).
        factors: float32 (2,) that each launch reads: 1, and the slope below 0, which is 0 of ReLU.
        pooled: likewise, (N, Q, C), Q >= P = L // 3, written where valid.
        place: uint8 (N, P, C), written: which position of the window has the maximum after gamma and beta, of equals
            the first, 0 to 2, and `maxpool1d_training.BELOW` where that is not above 0.
        normalised: as y, (N, P, C), written: that position's value before gamma and beta.
        moments: float32 (N, 2), written: mean, and 1 / sqrt(variance + eps).
        eps: added to the variance.
        stream: a CUDA stream.
        ptx_type: of the numbers, bf16 or f16.

    Raises:
        ValueError: an array's dtype, shape or layout does not fit, or shared memory does not hold an input's values.
    """
    (n, rows, channels), length = y.shape, int(gamma.shape[0])
    lanes_of(channels)
    windows, held = check_length(length, rows), length * channels * 2
    check_rows("pooled", pooled, windows)
    if held > (limit := device.shared_limit() - STATIC):
        raise ValueError(f"y has {length=} positions of C={channels}: need at most {limit // 2:,} values")
    addresses = (
        placed("y", y, y.shape),
        placed("gamma", gamma, (length, channels), np.float32),
        placed("beta", beta, (length, channels), np.float32),
        placed_factors(factors),
        placed("pooled", pooled, (n, pooled.shape[1], channels)),
        placed("place", place, (n, windows, channels), np.uint8),
        placed("normalised", normalised, (n, windows, channels)),
        placed("moments", moments, (n, 2), np.float32),
    )
    threads = columns.THREADS
    numbers = (
        *map(np.uint32, (length, rows, pooled.shape[1], channels)),
        *map(np.float32, (length * channels, eps)),
    )
    start(_norm_pool_kernel(threads, ptx_type), n, threads, device.as_stream(stream), *addresses, *numbers, shared=held)
