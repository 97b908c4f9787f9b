"""exp and gelu on the CPU, with no branch and no call: loops over them fill the vector registers."""

from __future__ import annotations

import numpy as np
from numba import float32, njit


@njit(cache=True, nogil=True, fastmath={"contract"})
def exp(value):
    """exp of what is not above 0: 2 to a whole number, by its bits, times a polynomial; 0 below -87."""
    bounded = float32(-87) if value < float32(-87) else value  # this way round NaN stays NaN
    shifted = bounded * float32(1.4426950408889634) + float32(12582912)  # 1.5 * 2**23: its last bits are the number
    whole = shifted - float32(12582912)
    x = (bounded - whole * float32(0.693359375)) + whole * float32(2.1219444e-4)
    p = float32(1 / 5040) * x + float32(1 / 720)
    p = ((p * x + float32(1 / 120)) * x + float32(1 / 24)) * x + float32(1 / 6)
    p = ((p * x + float32(0.5)) * x + float32(1)) * x + float32(1)
    bits = np.int32(np.int32(np.float32(shifted).view(np.int32) << np.int32(23)) + np.int32(0x3F800000))
    return float32(0) if value < float32(-87) else p * bits.view(np.float32)


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def gelu(value):
    """gelu, by erfc(z) = P(t) exp(-z^2) for z >= 0 and t = 1 / (1 + 0.3275911 z), off by 1.1e-7 of it in exact numbers.

    The form is that of Abramowitz and Stegun, 7.1.26; P was fitted to the least relative error, far below 0, too.
    """
    t = float32(1) / (float32(1) + abs(value) * float32(0.3275911 * 0.5**0.5))
    p = float32(-0.1418703943490982) * t + float32(0.49977564811706543)
    p = (p * t - float32(0.4112125635147095)) * t + float32(0.45812302827835083)
    p = (p * t + float32(0.02283901907503605)) * t + float32(0.20668356120586395)
    p = ((p * t + float32(0.1806001514196396)) * t + float32(0.18506167829036713)) * t
    half = float32(0.5) * value * p * exp(float32(-0.5) * value * value)
    half = value - half if value > float32(0) else half
    return value if value > float32(6) else half  # of infinity, half is not a number
