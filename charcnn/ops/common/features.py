"""Channels-last features in kernels: some neighbouring channels of a pixel, as float32 from their format and back.

A thread takes 16 bytes of numbers at once, or where channels or addresses do not allow that, one channel. With two
terms (fp16x3) a value lies in two places: high terms of a pixel's channels come first, then low ones, as `precision`
has them, or in octets the low terms of eight channels behind their high ones, as `mma_layout` has them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from numba import cuda, float32

from charcnn.aliases import Array
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.launch import Call
from charcnn.ops.common.cast import WORDS, narrow, widen
from charcnn.ops.common.mma_layout import OCTET
from charcnn.ops.common.precision import FP32, TENSOR_PRECISIONS, NumberFormat, choose

STORED = {"fp32": FP32, **{name: form for name, form in TENSOR_PRECISIONS.items() if form.ptx_type != "e4m3"}}
"""What features may be stored in, by the name that a precision has."""

ROUNDED = {name: form for name, form in STORED.items() if form.ptx_type != "tf32"}
"""Those of operators on float32 arrays: tf32 is float32 in memory."""

VECTOR_BYTES = 16


class FeatureLayout(NamedTuple):
    """How features lie, and what a thread takes of them: constants of a kernel."""

    form: NumberFormat
    octets: bool
    """Whether two terms lie in octets."""
    width: int
    """Channels of a thread: those of 16 bytes, or 1."""

    @classmethod
    def of(cls, precision: str, channels: int, *arrays: Any, octets: bool = False) -> FeatureLayout:
        """Of device arrays of so many channels in this precision, one of STORED.

        Raises:
            ValueError: the precision is none of them; arrays in octets begin at no multiple of 16 bytes.
        """
        form = choose(precision, STORED)
        octets, width = octets and form.terms == 2, VECTOR_BYTES // form.itemsize
        aligned = all(device.address(array) % VECTOR_BYTES == 0 for array in arrays)
        if octets and not aligned:
            raise ValueError("features in octets begin between multiples of 16 bytes: need arrays that begin at one")
        return cls(form, octets, width if aligned and channels % width == 0 else 1)

    def seen(self, array: Array) -> Array:
        """A device array as kernels take it: float32, or the bits of 16-bit numbers."""
        return array if self.form.itemsize == 4 else array.view(WORDS[self.form.itemsize])


def channels_of(name: str, array: Array, precision: str, octets: bool = False) -> int:
    """How many channels an array (..., terms * C) in this precision has.

    Raises:
        ValueError: the precision is none of STORED, or its terms do not fit in the last axis.
    """
    terms, numbers = choose(precision, STORED).terms, int(tuple(array.shape)[-1])
    together = OCTET * terms if octets and terms == 2 else terms
    if numbers % together:
        raise ValueError(f"{name} has shape {tuple(array.shape)}: need a multiple of {together} in its last axis")
    return numbers // terms


@cache
def places(layout: FeatureLayout) -> Any:
    """place(pixel, c, channels): where channel c of a pixel lies, and how far behind that its low term."""
    octets, terms, step = layout.octets, uint32(layout.form.terms), uint32(2 if layout.octets else 1)

    @cuda.jit(device=True, inline="always")
    def place(pixel, c, channels):
        at = pixel * uint64(uint32(terms * channels)) + uint64(uint32(step * c))
        return at, uint64(OCTET) if octets else uint64(channels)

    return place


@cache
def reader(layout: FeatureLayout) -> Any:
    """load(x, at, low, values): `width` channels of a pixel as float32, from where `places` says."""
    form, vector = layout.form, layout.width > 1
    floats, split = form.itemsize == 4, form.terms == 2
    unpack = None if floats else ptx.cvt_f32x2(form.ptx_type)
    scale = float32(1 / ptx.LOW_SCALE if layout.octets else 1)

    @cuda.jit(device=True, inline="always")
    def unpacked(x, at, values):
        """Eight of 16 bits."""
        a, b, c, d = ptx.ld_global_v4_b32(x, at)
        values[0], values[1] = unpack(a)
        values[2], values[3] = unpack(b)
        values[4], values[5] = unpack(c)
        values[6], values[7] = unpack(d)

    @cuda.jit(device=True, inline="always")
    def load(x, at, low, values):
        if floats:
            if vector:
                values[0], values[1], values[2], values[3] = ptx.ld_global_v4_f32(x, at)
            else:
                values[0] = x.flat[at]
        elif vector:
            unpacked(x, at, values)
            if split:
                lows = cuda.local.array(8, float32)
                unpacked(x, at + low, lows)
                for j in range(8):
                    values[j] += lows[j] * scale
        else:
            values[0], _ = unpack(uint32(x.flat[at]))
            if split:
                rest, _ = unpack(uint32(x.flat[at + low]))
                values[0] += rest

    return load


@cache
def writer(layout: FeatureLayout) -> Any:
    """store(y, at, low, values): the way back, each value rounded to the format."""
    form, width, half = layout.form, layout.width, uint32(0xFFFF)
    vector, floats = width > 1, form.itemsize == 4
    rounded, split = form.ptx_type == "tf32", form.terms == 2
    pack = None if floats or split else ptx.cvt_f16x2(form.ptx_type)
    parts = ptx.pack_floats("split" if layout.octets else "halves")

    @cuda.jit(device=True, inline="always")
    def store(y, at, low, values):
        if rounded:
            for j in range(width):
                values[j] = ptx.bitcast_f32(ptx.cvt_tf32(values[j]))
        if floats:
            if vector:
                ptx.st_global_v4_f32(y, at, values[0], values[1], values[2], values[3])
            else:
                y.flat[at] = values[0]
        elif split and vector:
            a, e = parts(values[0], values[1])
            b, f = parts(values[2], values[3])
            c, g = parts(values[4], values[5])
            d, h = parts(values[6], values[7])
            ptx.st_global_v4_b32(y, at, a, b, c, d)
            ptx.st_global_v4_b32(y, at + low, e, f, g, h)
        elif split:
            a, e = parts(values[0], float32(0))
            y.flat[at], y.flat[at + low] = a & half, e & half
        elif vector:
            a, b = pack(values[0], values[1]), pack(values[2], values[3])
            c, d = pack(values[4], values[5]), pack(values[6], values[7])
            ptx.st_global_v4_b32(y, at, a, b, c, d)
        else:
            y.flat[at] = pack(values[0], float32(0))

    return store


def narrowed(call: Call, x: Array, precision: str) -> Array:
    """x float32 (N, H, W, C) as features in a precision, one of ROUNDED; itself in fp32."""
    form, (n, height, width, channels) = choose(precision, ROUNDED), x.shape
    if form is FP32:
        return x
    made = narrow(call, x.reshape((n * height, width, channels)), width, channels, form)
    return made.reshape((n, height, width, form.terms * channels))


def widened(call: Call, precision: str, start: Callable[[Any], None]) -> None:
    """Write the call's float32 result by start(y), which writes features in a precision, one of ROUNDED.

    Raises:
        DeviceError: a GPU of compute capability below 8.0.
    """
    form, (*others, channels) = choose(precision, ROUNDED), call.out.shape
    device.require_capability((8, 0), "vectorized", "use coalesced")
    if form is FP32:
        start(call.out)
    else:
        y = call.scratch((*others, form.terms * channels), form.dtype)
        start(y)
        widen(call, y, call.out, form)
