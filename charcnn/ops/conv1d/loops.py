"""conv1d on one CPU core, in plain loops."""

from __future__ import annotations

import numpy as np
from numba import float32, njit


@njit(cache=True, nogil=True)
def _conv1d_loops_kernel(x, weight, bias, y, stride, padding, dilation):
    for n in range(y.shape[0]):
        for c_out in range(y.shape[1]):
            for t in range(y.shape[2]):
                total = bias[c_out]
                for c_in in range(x.shape[1]):
                    taps = float32(0)  # summed apart: the rounding error grows with C_in + K, not C_in * K
                    for k in range(weight.shape[2]):
                        position = t * stride + k * dilation - padding
                        if 0 <= position < x.shape[2]:
                            taps += x[n, c_in, position] * weight[c_out, c_in, k]
                    total += taps
                y[n, c_out, t] = total


def launch(
    out: np.ndarray, x: np.ndarray, weight: np.ndarray, bias: np.ndarray, stride: int, padding: int, dilation: int
) -> None:
    """Output after output."""
    _conv1d_loops_kernel(x, weight, bias, out, stride, padding, dilation)
