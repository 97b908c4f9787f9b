"""Features from float32 to the formats of tensor cores, and back."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numba import cuda, float32

from charcnn.aliases import Array, Stream
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32
from charcnn.gpu.indices import extents
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common.precision import LARGEST_E4M3, NumberFormat, choose

THREADS = device.block_size(256)

WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32}
"""A number's bits, by its size in bytes."""

LARGEST = {"f16": 8192.0, "e4m3": LARGEST_E4M3}
"""What the greatest finite weight becomes, or half that, where weights are scaled: f16 keeps room for sums, and one
that is 2^-38 of the greatest is 0."""


@cache
def _narrow_kernel(ptx_type, terms):
    pack, pack_parts = ptx.cvt_f16x2("bf16" if ptx_type == "bf16" else "f16"), ptx.pack_floats("halves")
    eighth, tf32, split = ptx_type == "e4m3", ptx_type == "tf32", terms == 2

    @jit()
    def kernel(x, y, channels, factor):
        i = cuda.grid(1)  # one thread a value; zeros where x has none
        if i < y.shape[0] * y.shape[1] * channels:
            c = uint32(i % channels)
            t = uint32(i // channels % y.shape[1])
            n = uint32(i // (channels * y.shape[1]))
            value = float32(0)
            if t < extents(x)[1] and c < extents(x)[2]:
                value = x[n, t, c] * factor
            if tf32:
                y[n, t, c] = ptx.cvt_tf32(value)
            elif eighth:
                y[n, t, c] = ptx.cvt_e4m3x4(value, float32(0), float32(0), float32(0))
            elif split:
                y[n, t, c], y[n, t, uint32(channels + c)] = pack_parts(value, float32(0))
            else:
                y[n, t, c] = pack(value, float32(0))

    return kernel


@cache
def _widen_kernel(ptx_type, terms):
    pair = "bf16" if ptx_type == "bf16" else "f16"
    unpack = ptx.cvt_f32x2(pair)
    eighth, split = ptx_type == "e4m3", terms == 2

    @jit()
    def kernel(x, y, channels, factor):
        i = cuda.grid(1)
        if i < y.size:
            if eighth:
                y[i] = ptx.cvt_f32_e4m3(uint32(x[i])) * factor
            elif split:
                at = i + i // channels * channels
                high, _ = unpack(uint32(x[at]))
                low, _ = unpack(uint32(x[at + channels]))
                y[i] = high + low
            else:
                value, _ = unpack(uint32(x[i]))
                y[i] = value

    return kernel


@cache
def _cut_kernel(ptx_type):
    whole = ptx_type == "f32"
    unpack = ptx.cvt_f32x2("f16" if whole else ptx_type)

    @jit()
    def kernel(x, y):
        i = cuda.grid(1)
        if i < y.size:
            c, t = i % y.shape[2], i // y.shape[2]
            n, t = t // y.shape[1], t % y.shape[1]
            y[n, t, c] = ptx.bitcast_f32(x[n, t, c]) if whole else unpack(x[n, t, c])[0]

    return kernel


@jit()
def _peak_kernel(x, peak):
    i = cuda.grid(1)
    best, stride = float32(0), cuda.gridsize(1)
    while i < x.size:
        value = abs(x[i])
        if value < float32(math.inf):  # NaN is not, either
            best = max(best, value)
        i += stride
    cuda.atomic.max(peak, uint32(0), best)


def largest(call: Call, x: Array) -> float:
    """The greatest absolute value of a device array that is finite, or 0; waits for the GPU."""
    call.once()
    peak = device.to_device(np.zeros(1, np.float32), call.stream)
    call.launch(_peak_kernel, min(1024, -(-x.size // THREADS)), THREADS, x.reshape((x.size,)), peak)
    return float(device.to_host(peak, call.stream)[0])


def x_unit_of(call: Call, x: Array, of: NumberFormat) -> float:
    """What to divide features on the GPU by, so that their greatest becomes the greatest of e4m3; else 1.

    It waits for the GPU.
    """
    return largest(call, x) / LARGEST_E4M3 or 1.0 if of.ptx_type == "e4m3" else 1.0


def unit_of(call: Call, weight: Array, of: NumberFormat) -> float:
    """What to divide a weight on the GPU by where weights are scaled: a power of two, which rounds nothing.

    It waits for the GPU.
    """
    unit = largest(call, weight) / LARGEST[of.ptx_type]
    return 2.0 ** math.ceil(math.log2(unit)) if 0 < unit < math.inf else 1.0


def narrow(call: Call, x: Array, length: int, channels: int, to: NumberFormat, factor: float = 1.0) -> Array:
    """float32 (N, L, C), times a factor, in a format, with zeros up to (N, length, channels); a new device array.

    With two terms it is (N, length, 2 * channels). What is not finite stays so, but in e4m3 only NaN does.
    """
    y = call.scratch((x.shape[0], length, to.terms * channels), to.dtype)
    narrow_to(call, x, y, to, factor)
    return y


def narrow_to(call: Call, x: Array, y: Array, to: NumberFormat, factor: float = 1.0) -> None:
    """`narrow` into a device array of the format."""
    values, channels = y.size // to.terms, y.shape[2] // to.terms
    bits = y.view(WORDS[to.itemsize])
    kernel = _narrow_kernel(to.ptx_type, to.terms)
    call.launch(kernel, -(-values // THREADS), THREADS, x, bits, channels, np.float32(factor))


def widen(call: Call, x: Array, y: Array, source: NumberFormat, factor: float = 1.0) -> None:
    """Cast to float32, times a factor, into an array of the same shape, or with two terms, of half as many channels."""
    *_, channels = y.shape
    bits = x.view(WORDS[source.itemsize]).reshape((x.size,))
    if source.ptx_type == "tf32":
        raise ValueError("tf32 is float32 already")
    kernel = _widen_kernel(source.ptx_type, source.terms)
    call.launch(kernel, -(-y.size // THREADS), THREADS, bits, y.reshape((y.size,)), channels, np.float32(factor))


def cut(call: Call, x: Array, y: Array, source: NumberFormat) -> None:
    """What float32 y (N, L, C) has room for of x, float32 or numbers of 16 bits: at most as large along each axis."""
    call.launch(_cut_kernel(source.ptx_type), -(-y.size // THREADS), THREADS, x.view(WORDS[source.itemsize]), y)


def as_float(x: Array, precision: str) -> Array:
    """Features in a format, on the GPU, as float32 there: an array of the same values, not waited for.

    Raises:
        ValueError: an argument's dtype, shape or side does not fit.
    """
    of = choose(precision)
    *others, channels = x.shape
    call = Call(None, None, (*others, channels // of.terms), dtypes={"x": of.dtype}, x=x)
    widen(call, call.inputs[0], call.out, of)
    return call.result()


def as_format(x: Array, precision: str, *, out: Array = None, stream: Stream = None) -> Array:
    """float32 features (N, L, C), on the GPU, in a format, there; with two terms (N, L, 2 C). Not waited for.

    What is beyond a format's range becomes infinite, or in e4m3, which has no infinity, its greatest value.

    Raises:
        ValueError: an argument's dtype, shape or side does not fit.
    """
    to = choose(precision)
    n, length, channels = x.shape
    call = Call(out, stream, (n, length, to.terms * channels), to.dtype, x=x)
    narrow_to(call, call.inputs[0], call.out, to, 1.0)
    return call.result()
