"""The pointwise functions of epilogues on a GPU, by their names: compiled, or as a kernel's registers allow."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

from numba import cuda, float32

from charcnn.gpu import ptx
from charcnn.gpu.device import SIMULATED
from charcnn.gpu.launch import jit
from charcnn.ops.common.epilogues import EPILOGUES

SCALE, EXPONENT, LOG2_E = 0.3275911 * math.sqrt(0.5), -0.5 / math.log(2), 1 / math.log(2)
"""Constants of the functions below, where the compiler would compute them in float64 each time."""


def _gelu_in_few_registers(value):
    # erfc(z) = (a1 t + ... + a5 t^5) exp(-z^2) for z >= 0 and t = 1 / (1 + p z), off by 1.5e-7 at most: Abramowitz and
    # Stegun, 7.1.26. Below 0, erfc(-z) = 2 - erfc(z). Plain division and exp are calls, or as long as one.
    t = ptx.rcp_approx_f32(float32(1) + abs(value) * float32(SCALE))
    total = t * float32(1.061405429) - float32(1.453152027)
    total = (total * t + float32(1.421413741)) * t - float32(0.284496736)
    total = (total * t + float32(0.254829592)) * t
    half = float32(0.5) * value * total * ptx.ex2_approx_f32(value * value * float32(EXPONENT))
    half = value - half if value > float32(0) else half
    return value if value > float32(6) else half  # of infinity, half is not a number


def _gelu_of_tanh(value):
    # erf(x / sqrt(2)) is tanh(x p(x^2)), p of degree 2, but for 2.5e-5 of GELU; from 6 on both are 1. One instruction
    # gives tanh, off by 2^-11 of it: half a unit in the last place of a half.
    square = min(value * value, float32(36))
    total = square * float32(-3.51523e-4) + float32(0.0370056864)
    half = float32(0.5) * value
    return half + half * ptx.tanh_approx_f32(value * (total * square + float32(0.797507837)))


def _sigmoid_in_few_registers(value):
    small = ptx.ex2_approx_f32(-abs(value) * float32(LOG2_E))
    return (small if value < float32(0) else float32(1)) * ptx.rcp_approx_f32(float32(1) + small)


BESIDE_ACCUMULATORS: dict[str, Callable[[Any], Any]] = {
    **EPILOGUES, "gelu": _gelu_in_few_registers, "sigmoid": _sigmoid_in_few_registers,
}  # fmt: skip
"""EPILOGUES of kernels whose registers hold the accumulators of tensor cores: a function may take few more."""


NARROW = {**BESIDE_ACCUMULATORS, "gelu": _gelu_of_tanh}
"""BESIDE_ACCUMULATORS of results of 16 or 8 bits: off by no more than rounding, and done in fewer instructions."""


@cache
def epilogue(name: str) -> Any:
    """The device function of this name."""
    return jit(device=True)(EPILOGUES[name])


@cache
def inlined(name: str, *, narrow: bool = False) -> Any:
    """The device function of BESIDE_ACCUMULATORS, or of NARROW: a call would have to save what registers hold."""
    return jit(device=True, forceinline=True)((NARROW if narrow else BESIDE_ACCUMULATORS)[name])


UNROLLED = 16
"""Calls of a loop that the compiler writes out."""


@cache
def in_place(name: str, count: int) -> Any:
    """apply(values): `inlined` of this name of each of so many values of a local array.

    In loops that are short enough to be unrolled: else the array would lie in memory.
    """
    function, begin = inlined(name), max(0, count - UNROLLED)
    rest, more = in_place(name, begin) if begin else None, begin > 0

    @cuda.jit(device=True, **({} if SIMULATED else {"forceinline": True}))
    def apply(values):
        if more:
            rest(values)
        for k in range(begin, count):
            values[k] = function(values[k])

    return apply
