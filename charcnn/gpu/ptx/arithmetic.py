"""Arithmetic that Numba has no name for: pairs of 16-bit numbers in a word, NaN-keeping maxima, bytes of words."""

from __future__ import annotations

from functools import cache

import numpy as np

from charcnn.aliases import Intrinsic
from charcnn.gpu.device import AMPERE
from charcnn.gpu.ptx.intrinsics import ALWAYS, instruction
from charcnn.gpu.ptx.simulated import bits, bytes_of, float_of, greater_halves, maximum, on_pairs


@instruction("mov.b32 $0, $1;", "r", "f", pure=True, simulated=bits)
def bitcast_b32(value):
    """The bits, uint32, of a float32.

    PTX: mov.b32; section "mov". Any compute capability.
    """


@instruction("mov.b32 $0, $1;", "f", "r", pure=True, simulated=float_of)
def bitcast_f32(word):
    """The float32 that has these 32 bits.

    PTX: mov.b32; section "mov". Any compute capability.
    """


@instruction("mul.rn.f32 $0, $1, $2;", "f", "ff", pure=True, simulated=lambda a, b: np.float32(a) * np.float32(b))
def mul_rn_f32(a, b):
    """a * b, rounded by itself: no sum behind it takes it as it was before.

    PTX: mul.rn.f32; section "mul". Any compute capability.
    """


@instruction("prmt.b32 $0, $1, $2, $3;", "r", "rrr", pure=True, simulated=bytes_of)
def prmt(a, b, selectors):
    """A word of four bytes out of a (bytes 0 to 3) and b (4 to 7), each given by four bits of `selectors`.

    PTX: prmt.b32; section "prmt". Since compute capability 2.0.
    """


@instruction("mul.hi.u32 $0, $1, $2;", "r", "rr", pure=True, simulated=lambda a, b: int(a) * int(b) >> 32)
def mul_hi_u32(a, b):
    """The upper 32 bits of a product of two uint32.

    PTX: mul.hi.u32; section "Integer Arithmetic Instructions: mul". Any compute capability.
    """


@instruction(
    "max.NaN.f32 $0, $1, $2;",
    "f",
    "ff",
    before={
        AMPERE: "{.reg .pred p;\n.reg .f32 m, n;\nmax.f32 m, $1, $2;\nadd.rn.f32 n, $1, $2;\n"
        "setp.nan.f32 p, $1, $2;\nselp.f32 $0, n, m, p;}"
    },
    pure=True,
    simulated=maximum,
)
def max_nan_f32(a, b):
    """The greater of two float32; NaN where either is NaN.

    PTX: max.NaN.f32; section "Floating Point Instructions: max". Since compute capability 8.0; before, max.f32, which
    takes a number rather than NaN, and where setp.nan.f32 finds one, their sum.
    """


@instruction("rcp.approx.ftz.f32 $0, $1;", "f", "f", pure=True, simulated=lambda a: np.float32(1) / np.float32(a))
def rcp_approx_f32(a):
    """1 / a, off by one unit of the last place at most; subnormal numbers count as zero.

    PTX: rcp.approx.ftz.f32; section "Floating Point Instructions: rcp". Since compute capability 2.0.
    """


@instruction("ex2.approx.ftz.f32 $0, $1;", "f", "f", pure=True, simulated=lambda a: np.float32(2.0 ** float(a)))
def ex2_approx_f32(a):
    """2 to the power of a, off by 2^-22 of it at most; subnormal numbers count as zero.

    PTX: ex2.approx.ftz.f32; section "Floating Point Instructions: ex2". Since compute capability 2.0.
    """


@instruction("tanh.approx.f32 $0, $1;", "f", "f", pure=True, simulated=lambda a: np.tanh(np.float32(a)))
def tanh_approx_f32(a):
    """The hyperbolic tangent of a, off by 2^-11 of it at most.

    PTX: tanh.approx.f32; section "Floating Point Instructions: tanh". Since compute capability 7.5.
    """


@instruction("sqrt.approx.ftz.f32 $0, $1;", "f", "f", pure=True, simulated=lambda a: np.sqrt(np.float32(a)))
def sqrt_approx_f32(a):
    """The square root of a, off by 2^-23 of it at most; subnormal numbers count as zero.

    PTX: sqrt.approx.ftz.f32; section "Floating Point Instructions: sqrt". Since compute capability 2.0.
    """


@instruction(
    "rsqrt.approx.ftz.f32 $0, $1;", "f", "f", pure=True, simulated=lambda a: np.float32(1) / np.sqrt(np.float32(a))
)
def rsqrt_approx_f32(a):
    """1 over the square root of a, off by 2^-22.9 of it at most; subnormal numbers count as zero.

    PTX: rsqrt.approx.ftz.f32; section "Floating Point Instructions: rsqrt". Since compute capability 2.0.
    """


_SELECTED = (
    "{.reg .pred p, q, u, v;\n.reg .b16 a, b, c, d;\nmov.b32 {a, b}, $1;\nmov.b32 {c, d}, $2;\n"
    "setp.gtu.f16x2 p|q, $1, $2;\nsetp.nan.f16x2 u|v, $2, $2;\nselp.b16 a, a, c, p;\nselp.b16 b, b, d, q;\n"
    "selp.b16 a, c, a, u;\nselp.b16 b, d, b, v;\nmov.b32 $0, {a, b};}"
)
"""The first of two f16 where it is greater or NaN, the second where that is NaN."""


@cache
def max_nan_f16x2(ptx_type: str) -> Intrinsic:
    """peak(a, b): the greater of each of two f16 or, by `ptx_type`, bf16; NaN where either is NaN.

    PTX: max.NaN.{ptx_type}x2; section "Half Precision Floating Point Instructions: max". Since compute capability 8.0;
    before, of f16, two setp.f16x2 and selp.b16, which take either of two zeros.
    """
    text = f"max.NaN.{ptx_type}x2 $0, $1, $2;"
    before = {AMPERE: _SELECTED} if ptx_type == "f16" else ALWAYS

    @instruction(text, "r", "rr", before=before, pure=True, simulated=on_pairs(np.maximum, ptx_type))
    def peak(a, b):
        """See `max_nan_f16x2`."""

    return peak


@instruction("set.gt.u32.f16x2 $0, $1, $2;", "r", "rr", pure=True, simulated=greater_halves)
def set_gt_u32_f16x2(a, b):
    """A mask of each of two f16: 0xFFFF where a > b, 0 where it is not or either is NaN.

    PTX: set.gt.u32.f16x2; section "Half Precision Comparison Instructions: set". Since compute capability 5.3.
    """


@instruction("add.rn.f16x2 $0, $1, $2;", "r", "rr", pure=True, simulated=on_pairs(np.add))
def add_f16x2(a, b):
    """a + b of each of two f16.

    PTX: add.rn.f16x2; section "Half Precision Floating Point Instructions: add". Since compute capability 5.3.
    """


@instruction("mul.rn.f16x2 $0, $1, $2;", "r", "rr", pure=True, simulated=on_pairs(np.multiply))
def mul_f16x2(a, b):
    """a * b of each of two f16.

    PTX: mul.rn.f16x2; section "Half Precision Floating Point Instructions: mul". Since compute capability 5.3.
    """


@instruction("fma.rn.f16x2 $0, $1, $2, $3;", "r", "rrr", pure=True, simulated=on_pairs(lambda a, b, c: a * b + c))
def fma_f16x2(a, b, c):
    """a * b + c of each of two f16, rounded once.

    PTX: fma.rn.f16x2; section "Half Precision Floating Point Instructions: fma". Since compute capability 5.3.
    """
