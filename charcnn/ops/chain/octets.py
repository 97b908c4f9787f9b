"""Maps of a chain in a block's shared memory by octets: eight channels of a pixel side by side, 16 bytes of 16 bits."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32, types

from charcnn.gpu import ptx
from charcnn.gpu.device import uint32
from charcnn.gpu.launch import jit
from charcnn.layers import LocalResponseNorm
from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.local_response_norm_nhwc import inverse_power

OCTET, PIXEL = 8, 16
"""Channels of an octet, and its bytes."""

REACH = 2 * OCTET + 1
"""Channels of a normalisation at most: of a value's own octet and the two beside it."""


def rounded(values: np.ndarray, to: NumberFormat) -> np.ndarray:
    """float32, C-contiguous, rounded to the 16 bits of fp16 or bf16: uint16 of the same shape."""
    if to.ptx_type == "f16":
        return values.astype(np.float16).view(np.uint16)
    bits = values.view(np.uint32).astype(np.uint64)
    nearest = np.where(np.isnan(values), bits, bits + 0x7FFF + (bits >> 16 & 1))  # ties to even
    return (nearest >> 16).astype(np.uint16)


@cache
def make_octet_norm(ptx_type: str, norm: LocalResponseNorm, octets: int, plane: int) -> Any:
    """normalise(at): local response normalisation of a pixel's channels where they lie, the first octet at `at`.

    A thread goes through them with the three octets that the sums reach in registers: what it overwrites, it has read.
    """
    power, below = inverse_power(norm.beta, norm.k), norm.size // 2
    share, beta, k = float32(norm.alpha / norm.size), float32(norm.beta), float32(norm.k)
    unpack, pack = ptx.cvt_f32x2(ptx_type), ptx.cvt_f16x2(ptx_type)
    begin, size, count, further = OCTET - below, norm.size, octets, plane
    held, twice, octet = 3 * OCTET, 2 * OCTET, OCTET

    @jit(device=True, forceinline=True)
    def normalise(at):
        near, squares = cuda.local.array(held, float32), cuda.local.array(held, float32)
        words, done = cuda.local.array(4, types.uint32), uint32(0)
        for j in range(twice):
            near[j], squares[j] = float32(0), float32(0)
        words[0], words[1], words[2], words[3] = ptx.ld_shared_v4_b32(at)
        for j in range(4):
            near[octet + 2 * j], near[octet + 2 * j + 1] = unpack(words[j])
        for j in range(octet, twice):
            squares[j] = near[j] * near[j]
        while done < count:
            done += 1
            for j in range(4):
                words[j] = uint32(0)
            if done < count:
                words[0], words[1], words[2], words[3] = ptx.ld_shared_v4_b32(at + further)
            for j in range(4):
                near[twice + 2 * j], near[twice + 2 * j + 1] = unpack(words[j])
            for j in range(twice, held):
                squares[j] = near[j] * near[j]
            for j in range(octet):
                total = float32(0)
                for s in range(size):
                    total += squares[begin + j + s]
                near[j] = near[octet + j] * power(k + share * total, beta)
            for j in range(4):
                words[j] = pack(near[2 * j], near[2 * j + 1])
            ptx.st_shared_v4_b32(at, words[0], words[1], words[2], words[3])
            at += further
            for j in range(octet):  # what lay behind is here now; of the values before only squares count
                near[octet + j] = near[twice + j]
            for j in range(twice):
                squares[j] = squares[octet + j]

    return normalise
