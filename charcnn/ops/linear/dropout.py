"""Dropout of features of 16 bits, in place, whose mask follows from a seed, the step, the layer and the place alone.

Source: Srivastava et al. 2014, JMLR 15; the random words are Philox4x32-10's: Salmon et al. 2011,
doi:10.1145/2063384.2063405. So a step that is repeated drops the same values, and the way back needs no mask: what was
dropped is 0, and what is 0 has no gradient.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import cuda, float32, types

from charcnn.aliases import Array, Kernel, Stream
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_dim_x, block_idx_x, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import jit, start
from charcnn.ops.common.columns import placed
from charcnn.ops.common.mma_layout import OCTET

ROUNDS = 10
FIRST, SECOND, WEYL, OTHER_WEYL = map(uint32, (0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85))
"""Philox's multipliers, and what its keys grow by."""

WORD = 0xFFFFFFFF
"""The simulator's integers do not wrap."""

THREADS = device.block_size(256)


@jit(device=True, forceinline=True)
def philox(a, b, c, d, key, other_key):
    """Four random words, of a counter of four and a key of two: all uint32."""
    for _ in range(ROUNDS):
        high, other = ptx.mul_hi_u32(FIRST, a), ptx.mul_hi_u32(SECOND, c)
        a, b, c, d = other ^ b ^ key, SECOND * c & WORD, high ^ d ^ other_key, FIRST * a & WORD
        key, other_key = key + WEYL & WORD, other_key + OTHER_WEYL & WORD
    return a, b, c, d


@cache
def _kernel(ptx_type: str) -> Kernel:
    pack, unpack, half = ptx.cvt_f16x2(ptx_type), ptx.cvt_f32x2(ptx_type), 0xFFFF

    @cuda.jit(device=True, forceinline=True)
    def pair(word, random, threshold, scale):
        """Two values, of which 16 random bits each decide."""
        low, high = unpack(word)
        return pack(
            low * scale if random & half >= threshold else float32(0),
            high * scale if random >> 16 >= threshold else float32(0),
        )

    @jit()
    def kernel(x, steps, octets, seed, layer, threshold, scale):
        i, stride = block_idx_x() * block_dim_x() + thread_idx_x(), grid_dim_x() * block_dim_x()
        zero, narrow = layer ^ layer, cuda.local.array(1, types.uint32)  # of 32 bits
        narrow[0] = steps[0]
        step = narrow[0]
        while i < octets:
            at = x + uint64(i) * uint64(16)
            e, f, g, h = philox(i, step, layer, zero, seed, zero)
            a, b, c, d = ptx.ld_global_v4_b32(at)
            a, b = pair(a, e, threshold, scale), pair(b, f, threshold, scale)
            c, d = pair(c, g, threshold, scale), pair(d, h, threshold, scale)
            ptx.st_global_v4_b32(at, a, b, c, d)
            i += stride

    return kernel


def dropout(
    x: Array, steps: Array, share: float, *, seed: int, layer: int, ptx_type: str = "bf16", stream: Stream = None
) -> None:
    """Make a share of the values 0, and divide the others by what is left.

    Args:
        x: features in 16 bits, on the GPU: a multiple of 8, from a multiple of 16 bytes on; written.
        steps: int64 (1,) there: how many steps were made.
        share: from 0 to less than 1, in steps of 2^-16.
        seed: up to 2^32.
        layer: which of the network's, for masks of its own.
        ptx_type: "bf16" or "f16".
        stream: a CUDA stream.

    Raises:
        ValueError: an array or a number does not fit.
    """
    if not 0 <= share < 1:
        raise ValueError(f"{share=}: need at least 0 and less than 1")
    if x.size % OCTET:
        raise ValueError(f"x has {x.size} values: need a multiple of {OCTET}")
    threshold = min(round(share * 65536), 65535)
    numbers = map(np.uint32, (x.size // OCTET, seed & WORD, layer, threshold))
    blocks = min(-(-x.size // (OCTET * THREADS)), 8 * device.multiprocessors())
    scale = np.float32(65536 / (65536 - threshold))
    address = placed("x", x, x.shape, x.dtype)
    start(_kernel(ptx_type), blocks, THREADS, device.as_stream(stream), address, steps, *numbers, scale)
