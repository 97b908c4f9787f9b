"""What stands in for arithmetic in the simulator: numbers of 32, 16 and 8 bits, in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from charcnn.aliases import Function

E4M3_MAX = 448.0
"""The greatest number of e4m3, which has no infinity."""

LOW_SCALE = 2.0**11
"""What the low half of a split number is multiplied by, so that it is no smaller a number than the high one."""


def bits(value: Any) -> int:
    """Of a float."""
    return int(np.float32(value).view(np.uint32))


def float_of(word: Any) -> Any:
    """The float that has these bits."""
    return np.array([int(word)], np.uint32).view(np.float32)[0]


def tf32_of(value: Any) -> int:
    """The bits of a float rounded to TF32."""
    whole = bits(value)
    return whole & 0xFFFFE000 if np.isnan(np.float32(value)) else min(whole + 0x1000, 0xFFFFFFFF) & 0xFFFFE000


def maximum(a: Any, b: Any) -> Any:
    """The greater of two floats; NaN where either is, and of zeros the positive one."""
    a, b = np.float32(a), np.float32(b)
    return np.maximum(a, b) if a != b else b if np.signbit(a) else a


def floats_of(ptx_type: str, word: Any) -> Any:
    """Two float32 from a word of two f16 or bf16."""
    words = np.array([int(word)], np.uint32)
    if ptx_type == "f16":
        return words.view(np.float16).astype(np.float32)
    return np.array([words[0] << 16, words[0] & 0xFFFF0000], np.uint32).view(np.float32)


def word_of(ptx_type: str, low: Any, high: Any) -> int:
    """A word of two f16 or bf16, rounded to nearest, from two float32."""
    values = np.array([low, high], np.float32)
    with np.errstate(over="ignore"):
        if ptx_type == "f16":
            return int(values.astype(np.float16).view(np.uint32)[0])
    wide: np.ndarray = values.view(np.uint32).astype(np.uint64)
    wide = (wide + 0x7FFF + (wide >> 16 & 1)) >> 16
    wide[np.isnan(values)] = 0x7FFF
    return int(wide[0] | wide[1] << 16)


def on_pairs(operation: Function, ptx_type: str = "f16") -> Callable[..., int]:
    """An instruction on words of two f16 or bf16: computed wider, then rounded."""

    def body(*words: Any) -> int:
        with np.errstate(all="ignore"):
            return word_of(ptx_type, *operation(*(floats_of(ptx_type, word).astype(np.float64) for word in words)))

    return body


def greater_halves(a: int, b: int) -> int:
    """`ptx.set_gt_u32_f16x2`."""
    return int((floats_of("f16", a) > floats_of("f16", b)) @ np.array([0xFFFF, 0xFFFF0000], np.int64))


def e4m3_of(value: Any) -> int:
    """A float as e4m3's 8 bits, to nearest even, no more than E4M3_MAX of either sign."""
    value = float(value)
    if math.isnan(value):
        return 0x7F
    sign, size = (0x80 if math.copysign(1, value) < 0 else 0), min(abs(value), E4M3_MAX)
    exponent = max(math.frexp(size)[1] - 1, -6)
    return sign | ((exponent + 6) * 8 + round(math.ldexp(size, 3 - exponent)) if size else 0)


def e4m3x4_of(*values: Any) -> int:
    """Four floats as a word of four e4m3."""
    return sum(e4m3_of(value) << 8 * i for i, value in enumerate(values))


def float_of_e4m3(word: Any) -> Any:
    """The float32 of a word's lowest e4m3."""
    held = int(word) & 0xFF
    exponent, steps, sign = held >> 3 & 15, held & 7, -1.0 if held & 0x80 else 1.0
    if held & 0x7F == 0x7F:
        return np.float32(np.nan)
    return np.float32(sign * (steps + (8 if exponent else 0)) * 2.0 ** (max(exponent, 1) - 10))


E4M3 = np.array([float_of_e4m3(bits) for bits in range(256)], np.float64)
"""The numbers that 8 bits are."""


def words_by_form(form: str, low: Any, high: Any) -> tuple[int, int]:
    """`ptx.pack_floats`."""
    values = np.array([low, high], np.float32)
    with np.errstate(all="ignore"):
        if form == "split":
            most = np.float32(65504)
            upper = np.fmax(np.fmin(values.astype(np.float16).astype(np.float32), most), -most)
            return word_of("f16", *upper), word_of("f16", *((values - upper) * np.float32(LOW_SCALE)))
        if form == "halves":
            upper = values.astype(np.float16).clip(-65504, 65504)
            lower = (values - upper.astype(np.float32)).astype(np.float16) * np.float16(LOW_SCALE)
            return word_of("f16", *upper), word_of("f16", *(lower / np.float16(LOW_SCALE)))
    if form == "tf32":
        return tf32_of(low), tf32_of(high)
    return bits(low), bits(high)


def bytes_of(a: Any, b: Any, selectors: Any) -> int:
    """`ptx.prmt`."""
    held = int(a) | int(b) << 32
    return sum((held >> 8 * (int(selectors) >> 4 * i & 7) & 0xFF) << 8 * i for i in range(4))
