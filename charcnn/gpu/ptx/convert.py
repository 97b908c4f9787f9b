"""Conversions between float32 and what tensor cores take: f16, bf16, tf32, e4m3, fp16x3. PTX ISA: "cvt".

A word is a uint32 of two numbers of 16 bits, or four of 8; the first one lies in its lowest bits.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from charcnn.aliases import Intrinsic
from charcnn.gpu.device import AMPERE
from charcnn.gpu.ptx.intrinsics import ALWAYS, instruction
from charcnn.gpu.ptx.simulated import e4m3x4_of, float_of_e4m3, floats_of, tf32_of, word_of, words_by_form

_RECTIFY = "setp.lt.f32 p, f, 0f00000000;\nselp.f32 f, 0f00000000, f, p;\n"


@cache
def cvt_f16x2(ptx_type: str, rectified: bool = False) -> Intrinsic:
    """pack(low, high): two float32 as two of `ptx_type`, f16 or bf16, in one word, rounded to nearest.

    Where `rectified`, ReLU of them: a negative one is 0, and NaN stays NaN.

    PTX: cvt.rn{.relu}.{ptx_type}x2.f32 word, high, low; section "cvt". Since compute capability 8.0; before, of f16,
    setp.lt.f32 and selp.f32 where `rectified`, and two cvt.rn.f16.f32.
    """

    def simulated(low: Any, high: Any) -> Any:
        return word_of(ptx_type, *(np.maximum(value, np.float32(0)) if rectified else value for value in (low, high)))

    text = f"cvt.rn{'.relu' * rectified}.{ptx_type}x2.f32 $0, $2, $1;"
    one_by_one = "".join(
        f"mov.b32 f, {value};\n{_RECTIFY * rectified}cvt.rn.f16.f32 {half}, f;\n"
        for half, value in (("x", "$1"), ("y", "$2"))
    )
    older = f"{{.reg .pred p;\n.reg .f32 f;\n.reg .b16 x, y;\n{one_by_one}mov.b32 $0, {{x, y}};}}"
    before = {AMPERE: older} if ptx_type == "f16" else ALWAYS

    @instruction(text, "r", "ff", before=before, pure=True, simulated=simulated)
    def pack(low, high):
        """See `cvt_f16x2`."""

    return pack


@cache
def cvt_f32x2(ptx_type: str) -> Intrinsic:
    """unpack(word): (low, high), two float32 from a word of two f16 or, by `ptx_type`, bf16.

    PTX: cvt.f32.f16, or for bf16 a shift of bits; section "cvt". Since compute capability 5.3.
    """
    text = {
        "f16": "{.reg .f16 x, y;\nmov.b32 {x, y}, $2;\ncvt.f32.f16 $0, x;\ncvt.f32.f16 $1, y;}",
        "bf16": "{.reg .b32 x;\nshl.b32 x, $2, 16;\nmov.b32 $0, x;\nand.b32 x, $2, 0xffff0000;\nmov.b32 $1, x;}",
    }[ptx_type]

    @instruction(text, "ff", "r", pure=True, simulated=lambda word: tuple(floats_of(ptx_type, word)))
    def unpack(word):
        """See `cvt_f32x2`."""

    return unpack


@instruction(
    "{.reg .b16 x, y;\n.reg .f32 a, b;\nmov.b32 {x, y}, $1;\ncvt.f32.f16 a, x;\ncvt.f32.f16 b, y;\n"
    "cvt.rn.bf16x2.f32 $0, b, a;}",
    "r",
    "r",
    pure=True,
    simulated=lambda word: word_of("bf16", *floats_of("f16", word)),
)
def cvt_bf16x2_f16x2(word):
    """Two f16 as two bf16, rounded to nearest.

    PTX: cvt.f32.f16 of each and cvt.rn.bf16x2.f32; section "cvt". Since compute capability 8.0.
    """


@instruction("cvt.rna.tf32.f32 $0, $1;", "r", "f", pure=True, simulated=tf32_of)
def cvt_tf32(value):
    """The bits of a float32 rounded to TF32, to nearest, ties away from zero.

    PTX: cvt.rna.tf32.f32; section "cvt". Since compute capability 8.0.
    """


def _four_e4m3(kinds: str, first: str, second: str) -> str:
    """Two cvt to e4m3x2, of these operands, and the word of both."""
    cvt = f"cvt.rn.satfinite{kinds}"
    return f"{{.reg .b16 x, y;\n{cvt} x, {first};\n{cvt} y, {second};\nmov.b32 $0, {{x, y}};}}"


@instruction(_four_e4m3(".e4m3x2.f32", "$2, $1", "$4, $3"), "r", "ffff", pure=True, simulated=e4m3x4_of)
def cvt_e4m3x4(a, b, c, d):
    """Four float32 as four e4m3 in one word, rounded to nearest, those beyond E4M3_MAX to that.

    PTX: cvt.rn.satfinite.e4m3x2.f32, two of them; section "cvt". Since compute capability 8.9.
    """


@instruction(
    _four_e4m3(".relu.e4m3x2.f32", "$2, $1", "$4, $3"),
    "r",
    "ffff",
    pure=True,
    simulated=lambda *values: e4m3x4_of(*np.maximum(values, 0)),
)
def cvt_relu_e4m3x4(a, b, c, d):
    """`cvt_e4m3x4` of ReLU of them.

    PTX: cvt.rn.satfinite.relu.e4m3x2.f32, two of them; section "cvt". Since compute capability 8.9.
    """


@instruction(
    _four_e4m3(".e4m3x2.f16x2", "$1", "$2"),
    "r",
    "rr",
    pure=True,
    simulated=lambda a, b: e4m3x4_of(*floats_of("f16", a), *floats_of("f16", b)),
)
def cvt_e4m3x4_f16x2(a, b):
    """Two words of two f16 as four e4m3 in one word, rounded to nearest, those beyond E4M3_MAX to that.

    PTX: cvt.rn.satfinite.e4m3x2.f16x2, two of them; section "cvt". Since compute capability 8.9.
    """


@instruction(
    "{.reg .b16 x, y;\n.reg .b32 h;\n.reg .f16 u, v;\nmov.b32 {x, y}, $1;\n"
    "cvt.rn.f16x2.e4m3x2 h, x;\nmov.b32 {u, v}, h;\ncvt.f32.f16 $0, u;}",
    "f",
    "r",
    pure=True,
    simulated=float_of_e4m3,
)
def cvt_f32_e4m3(word):
    """The float32 of a word's lowest e4m3.

    PTX: cvt.rn.f16x2.e4m3x2 and cvt.f32.f16; section "cvt". Since compute capability 8.9.
    """


@instruction(
    "{.reg .b16 x, y;\nmov.b32 {x, y}, $2;\ncvt.rn.f16x2.e4m3x2 $0, x;\ncvt.rn.f16x2.e4m3x2 $1, y;}",
    "rr",
    "r",
    pure=True,
    simulated=lambda word: tuple(
        word_of("f16", *(float_of_e4m3(int(word) >> shift) for shift in pair)) for pair in ((0, 8), (16, 24))
    ),
)
def cvt_f16x2_e4m3x4(word):
    """Four e4m3 of a word as two words of two f16, which hold them exactly.

    PTX: cvt.rn.f16x2.e4m3x2, two of them; section "cvt". Since compute capability 8.9.
    """


@cache
def pack_floats(form: str) -> Intrinsic:
    """pack(low, high): two float32 as two words, by their form.

    float: their bits. tf32: those of the floats rounded to TF32's 11 bits, to nearest, away from zero between two.
    split: (h, l), each of two f16, so that a float is h + l / LOW_SCALE, to 22 bits or more; h is finite, and what is
    not, or beyond 65,504, makes l infinite or NaN. halves: likewise, but a float is h + l, and l is infinite from
    65,536 on.

    h is finite as l * l is left out of products: an infinite l meets only the other number's h. An infinite h would
    meet both halves, and make NaN of infinity where they differ in sign or one is 0.

    PTX: mov.b32; cvt.rna.tf32.f32; split: cvt.rn.f16x2.f32, min.f16x2 and max.f16x2, and a cvt.rn.f16x2.f32 of what is
    left; halves: cvt.rn.satfinite.f16x2.f32, the same of what is left, and two mul.rn.f16x2, by LOW_SCALE and back:
    nothing that is left of a number in range overflows there. Sections "cvt", "min", "max" and "mul". Since compute
    capability 8.0.
    """
    rest = (  # of the floats, beside h
        "mov.b32 {x, y}, h;\ncvt.f32.f16 a, x;\ncvt.f32.f16 b, y;\nsub.rn.f32 a, $2, a;\nsub.rn.f32 b, $3, b;\n"
    )
    text = {
        "float": "mov.b32 $0, $2;\nmov.b32 $1, $3;",
        "tf32": "cvt.rna.tf32.f32 $0, $2;\ncvt.rna.tf32.f32 $1, $3;",
        "split": (
            "{.reg .b32 h, m;\n.reg .b16 x, y;\n.reg .f32 a, b;\ncvt.rn.f16x2.f32 h, $3, $2;\n"
            f"mov.b32 m, 0x7bff7bff;\nmin.f16x2 h, h, m;\nmov.b32 m, 0xfbfffbff;\nmax.f16x2 h, h, m;\n{rest}"
            "mul.rn.f32 a, a, 0f45000000;\nmul.rn.f32 b, b, 0f45000000;\ncvt.rn.f16x2.f32 $1, b, a;\nmov.b32 $0, h;}"
        ),
        "halves": (
            "{.reg .b32 h, l, m;\n.reg .b16 x, y;\n.reg .f32 a, b;\ncvt.rn.satfinite.f16x2.f32 h, $3, $2;\n"
            f"{rest}cvt.rn.f16x2.f32 l, b, a;\nmov.b32 m, 0x68006800;\nmul.rn.f16x2 l, l, m;\n"
            "mov.b32 m, 0x10001000;\nmul.rn.f16x2 $1, l, m;\nmov.b32 $0, h;}"
        ),
    }[form]

    @instruction(text, "rr", "ff", pure=True, simulated=lambda low, high: words_by_form(form, low, high))
    def pack(low, high):
        """See `pack_floats`."""

    return pack
