"""Numbers of 16 bits: which there are, and the way from float32 and back.

NumPy knows fp16 as float16; bf16, which it does not know, lies in uint16 arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32

from charcnn import device
from charcnn.device import uint32
from charcnn.ops import ptx

THREADS = device.block_size(256)


@dataclass(frozen=True)
class Half:
    """A format of 16 bits."""

    name: str
    kind: str
    """As PTX calls it."""
    dtype: Any
    """Of arrays that hold it."""
    tolerance: float
    """Largest ||out - ref|| / ||ref|| of one operator: rounding to 11 bits, or 8, of what goes in and comes out."""


HALVES = {
    "fp16": Half("fp16", "f16", np.float16, 2e-3),
    "bf16": Half("bf16", "bf16", np.uint16, 1e-2),
}


def half(precision: str) -> Half:
    """The format of this name.

    Raises:
        ValueError: there is none.
    """
    if precision not in HALVES:
        raise ValueError(f"{precision=}: need one of {', '.join(HALVES)}")
    return HALVES[precision]


@cache
def _narrow_kernel(kind):
    pack = ptx.pack_halves(kind)

    @device.jit()
    def kernel(x, y):
        i = cuda.grid(1)  # one thread a value; zeros where x has none
        if i < y.size:
            c = uint32(i % y.shape[2])
            t = uint32(i // y.shape[2] % y.shape[1])
            value = float32(0)
            if t < uint32(x.shape[1]) and c < uint32(x.shape[2]):
                value = x[uint32(i // (y.shape[2] * y.shape[1])), t, c]
            y[uint32(i // (y.shape[2] * y.shape[1])), t, c] = pack(value, float32(0))

    return kernel


@cache
def _widen_kernel(kind):
    unpack = ptx.unpack_halves(kind)

    @device.jit()
    def kernel(x, y):
        i = cuda.grid(1)
        if i < y.size:
            low, _ = unpack(uint32(x[i]))
            y[i] = low

    return kernel


def narrow(call: device.Call, x: Any, length: int, channels: int, to: Half) -> Any:
    """float32 (N, L, C) as 16 bits, with zeros up to (N, length, channels); a new device array."""
    y = call.scratch((x.shape[0], length, channels), to.dtype)
    call.launch(_narrow_kernel(to.kind), -(-y.size // THREADS), THREADS, x, y.view(np.uint16))
    return y


def widen(call: device.Call, x: Any, y: Any, source: Half) -> None:
    """16 bits as float32, into an array of the same shape."""
    words = x.view(np.uint16).reshape((x.size,))
    call.launch(_widen_kernel(source.kind), -(-x.size // THREADS), THREADS, words, y.reshape((y.size,)))


def as_float(x: Any, precision: str, *, out: Any = None, stream: Any = None) -> Any:
    """16 bits on the GPU as float32: an array of the same shape there, not waited for.

    Raises:
        ValueError: an argument's dtype, shape or side does not fit.
    """
    of = half(precision)
    call = device.Call(out, stream, tuple(x.shape), dtypes={"x": of.dtype}, x=x)
    widen(call, call.inputs[0], call.out, of)
    return call.result()
