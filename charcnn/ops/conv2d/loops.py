"""conv2d on one CPU core, in plain loops."""

from __future__ import annotations

from typing import Any

from numba import float32, njit

from charcnn.layers.windows import Padding, Pair
from charcnn.ops.common import arrays, shapes2d


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


def conv2d_loops(
    x: Any,
    weight: Any,
    bias: Any,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    out: Any = None,
) -> Any:
    """`reference.conv2d` as compiled plain loops on one CPU core.

    Args:
        x: float32 (N, C_in, H, W), C-contiguous, NumPy; weight (C_out, C_in / groups, KH, KW) and bias (C_out,)
            likewise.
        stride, dilation: an int, or (vertical, horizontal).
        padding: zeros: an int, (vertical, horizontal), (top, bottom, left, right), "valid", or "same" as TensorFlow's.
        groups: output channels of group g see the input channels of group g alone.
        out: where to write, (N, C_out, H_out, W_out); made where None.

    Returns:
        float32 (N, C_out, H_out, W_out).

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit.
    """
    shape = shapes2d.conv2d(x, weight, bias, stride, padding, dilation, groups)
    out = arrays.host(out, shape, x=x, weight=weight, bias=bias)
    window = shapes2d.conv2d_window(x, weight, stride, padding, dilation)
    _conv2d_loops_kernel(x, weight, bias, out, window.stride, window.padding, window.dilation, groups)
    return out
