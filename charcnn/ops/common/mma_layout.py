"""Features as `MmaConv` takes them, and the way there from float32.

They lie as `precision` has them, but for fp16x3: a value is high + low / 2048 (`ptx.pack_floats`), which keeps digits
below what a half holds, and in the place of each eight channels come first their high halves, then their low ones: 16
bytes each, as much as one copy takes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32

from charcnn.aliases import Array
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32
from charcnn.gpu.indices import extents
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common.cast import narrow
from charcnn.ops.common.precision import TENSOR_PRECISIONS, NumberFormat

THREADS = device.block_size(256)

OCTET = 8
"""Channels that are stored together; all arrays have a multiple of it."""

WIDE = {name: form for name, form in TENSOR_PRECISIONS.items() if form.size == 4}
"""Those of 32 bits a value."""


def words_of(to: NumberFormat) -> Any:
    """`ptx.pack_floats` for one of WIDE."""
    return ptx.pack_floats("split" if to.terms == 2 else "tf32")


@cache
def _encode_kernel(of):
    size, octet = of.size, uint32(OCTET)
    pairs, split = OCTET // 2, of.terms == 2
    words, pack = words_of(of), None if size == 4 else ptx.cvt_f16x2(of.ptx_type)

    @jit()
    def kernel(x, y):
        i = cuda.grid(1)  # one thread an octet of y, whose rows are of words; zeros where x has none
        across = y.shape[2] * 4 // (OCTET * size)
        if i < y.shape[0] * y.shape[1] * across:
            c = uint32(i % across * octet)
            t = uint32(i // across % y.shape[1])
            n = uint32(i // (across * y.shape[1]))
            at = i * (OCTET * size // 4)
            for p in range(pairs):
                a, b = float32(0), float32(0)
                if t < extents(x)[1]:
                    if c + 2 * p < extents(x)[2]:
                        a = x[n, t, c + 2 * p]
                    if c + 2 * p + 1 < extents(x)[2]:
                        b = x[n, t, c + 2 * p + 1]
                if size == 2:
                    y.flat[at + p] = pack(a, b)
                else:
                    first, second = words(a, b)
                    y.flat[at + (p if split else 2 * p)] = first
                    y.flat[at + (p + pairs if split else 2 * p + 1)] = second

    return kernel


def together(of: NumberFormat) -> int:
    """Channels that features have a multiple of: octets, and whole copies of 16 bytes."""
    return max(OCTET, 16 // of.size)


def encode(call: Call, x: Array, length: int, channels: int, to: NumberFormat, unit: float = 1.0) -> Array:
    """float32 (N, L, C) in this format, with zeros up to (N, length, channels); a new device array.

    With two terms it is (N, length, 2 * channels). In e4m3 it is in multiples of `unit`.
    """
    if to.ptx_type == "e4m3":
        return narrow(call, x, length, channels, to, 1 / unit)
    y = call.scratch((x.shape[0], length, to.terms * channels), to.dtype)
    kernel = _encode_kernel(to)
    call.launch(kernel, -(-y.size // (to.terms * OCTET * THREADS)), THREADS, x, y.view(np.uint32))
    return y
