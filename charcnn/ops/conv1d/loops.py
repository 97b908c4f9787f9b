"""conv1d on one CPU core, in plain loops."""

from __future__ import annotations

from typing import Any

from numba import float32, njit

from charcnn.ops.common import arrays, shapes


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


def conv1d_loops(
    x: Any, weight: Any, bias: Any, *, stride: int = 1, padding: int = 0, dilation: int = 1, out: Any = None
) -> Any:
    """`reference.conv1d` as compiled plain loops on one CPU core.

    Args:
        x: float32 (N, C_in, L), C-contiguous, NumPy; weight (C_out, C_in, K) and bias (C_out,) likewise.
        out: where to write, (N, C_out, L_out); made where None.

    Returns:
        float32 (N, C_out, L_out).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """
    shape = shapes.conv1d(x, weight, bias, stride, padding, dilation)
    out = arrays.host(out, shape, x=x, weight=weight, bias=bias)
    _conv1d_loops_kernel(x, weight, bias, out, stride, padding, dilation)
    return out
