"""conv2d on one CPU core, in plain loops."""

from __future__ import annotations

import numpy as np
from numba import float32, njit

from charcnn.layers.windows import Padding, Pair
from charcnn.ops.common import shapes2d


@njit(cache=True, nogil=True)
def _conv2d_loops_kernel(x, weight, bias, y, stride, padding, dilation, groups):
    group = y.shape[1] // groups
    for n in range(y.shape[0]):
        for c_out in range(y.shape[1]):
            first = c_out // group * weight.shape[1]
            for p in range(y.shape[2]):
                for q in range(y.shape[3]):
                    total = bias[c_out]
                    for c_in in range(weight.shape[1]):
                        taps = float32(0)  # summed apart: the rounding error grows with C_in + KH * KW
                        for i in range(weight.shape[2]):
                            row = p * stride[0] + i * dilation[0] - padding[0]
                            if 0 <= row < x.shape[2]:
                                for j in range(weight.shape[3]):
                                    column = q * stride[1] + j * dilation[1] - padding[2]
                                    if 0 <= column < x.shape[3]:
                                        taps += x[n, first + c_in, row, column] * weight[c_out, c_in, i, j]
                        total += taps
                    y[n, c_out, p, q] = total


def launch(
    out: np.ndarray, x: np.ndarray, weight: np.ndarray, bias: np.ndarray, stride: Pair, padding: Padding,
    dilation: Pair, groups: int,
) -> None:  # fmt: skip
    """Output after output."""
    window = shapes2d.conv2d_window(x, weight, stride, padding, dilation)
    _conv2d_loops_kernel(x, weight, bias, out, window.stride, window.padding, window.dilation, groups)
