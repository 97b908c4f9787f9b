"""conv2d_backward: gradients by features, weights and bias, as conv1d_backward's along two axes, in groups."""

from __future__ import annotations

import numpy as np
from numba import cuda, float32, njit

from charcnn.aliases import Array
from charcnn.gpu.launch import jit
from charcnn.layers.windows import Padding, Pair
from charcnn.ops.common import shapes2d
from charcnn.ops.common.calls import ResultsCall
from charcnn.ops.conv1d.backward import channel_sums, seen_loops, seen_naive


@njit(cache=True, nogil=True)
def _features_loops_kernel(dy, weight, dx, stride, padding, dilation, groups):
    total, group = np.empty(dx.shape[2:]), dy.shape[1] // groups
    for n in range(dx.shape[0]):
        for channel in range(dx.shape[1]):
            total[:] = 0
            first, c_in = channel // weight.shape[1] * group, channel % weight.shape[1]
            for c_out in range(first, first + group):
                for i in range(weight.shape[2]):
                    top, bottom = seen_loops(i, dx.shape[2], dy.shape[2], stride[0], padding[0], dilation[0])
                    for j in range(weight.shape[3]):
                        left, right = seen_loops(j, dx.shape[3], dy.shape[3], stride[1], padding[2], dilation[1])
                        tap, start = weight[c_out, c_in, i, j], j * dilation[1] - padding[2]
                        for p in range(top, bottom):
                            row = p * stride[0] + i * dilation[0] - padding[0]
                            for q in range(left, right):
                                total[row, start + q * stride[1]] += tap * dy[n, c_out, p, q]
            dx[n, channel] = total


@njit(cache=True, nogil=True, fastmath={"reassoc"})  # in any order, the same each time: a vector of sums
def _weights_loops_kernel(dy, x, dweight, dbias, stride, padding, dilation, groups):
    group = dy.shape[1] // groups
    for c_out in range(dweight.shape[0]):
        total = 0.0
        for n in range(dy.shape[0]):
            for p in range(dy.shape[2]):
                for q in range(dy.shape[3]):
                    total += dy[n, c_out, p, q]
        dbias[c_out] = total
        for c_in in range(dweight.shape[1]):
            channel = c_out // group * dweight.shape[1] + c_in
            for i in range(dweight.shape[2]):
                top, bottom = seen_loops(i, x.shape[2], dy.shape[2], stride[0], padding[0], dilation[0])
                for j in range(dweight.shape[3]):
                    left, right = seen_loops(j, x.shape[3], dy.shape[3], stride[1], padding[2], dilation[1])
                    start, total = j * dilation[1] - padding[2], 0.0
                    for n in range(dy.shape[0]):
                        for p in range(top, bottom):
                            row = p * stride[0] + i * dilation[0] - padding[0]
                            for q in range(left, right):
                                total += dy[n, c_out, p, q] * x[n, channel, row, start + q * stride[1]]
                    dweight[c_out, c_in, i, j] = total


@jit()
def _features_naive_kernel(dy, weight, dx, stride, padding, dilation, groups):
    at = cuda.grid(1)  # one thread a value; neighbours take neighbouring columns
    if at < dx.size:
        column, rest = at % dx.shape[3], at // dx.shape[3]
        row, image = rest % dx.shape[2], rest // dx.shape[2]
        channel, n = image % dx.shape[1], image // dx.shape[1]
        group = dy.shape[1] // groups
        first, c_in = channel // weight.shape[1] * group, channel % weight.shape[1]
        total = float32(0)
        for c_out in range(first, first + group):
            taps = float32(0)  # summed apart, as in the forward kernel
            for i in range(weight.shape[2]):
                above = row + padding[0] - i * dilation[0]
                p = above // stride[0]
                if above >= 0 and p * stride[0] == above and p < dy.shape[2]:
                    for j in range(weight.shape[3]):
                        before = column + padding[2] - j * dilation[1]
                        q = before // stride[1]
                        if before >= 0 and q * stride[1] == before and q < dy.shape[3]:
                            taps += dy[n, c_out, p, q] * weight[c_out, c_in, i, j]
            total += taps
        dx[n, channel, row, column] = total


@jit()
def _weights_naive_kernel(dy, x, dweight, stride, padding, dilation, groups):
    at = cuda.grid(1)
    if at < dweight.size:
        j, rest = at % dweight.shape[3], at // dweight.shape[3]
        i, row = rest % dweight.shape[2], rest // dweight.shape[2]
        c_in, c_out = row % dweight.shape[1], row // dweight.shape[1]
        channel = c_out // (dy.shape[1] // groups) * dweight.shape[1] + c_in
        top, bottom = seen_naive(i, x.shape[2], dy.shape[2], stride[0], padding[0], dilation[0])
        left, right = seen_naive(j, x.shape[3], dy.shape[3], stride[1], padding[2], dilation[1])
        total, start = float32(0), j * dilation[1] - padding[2]
        for n in range(dy.shape[0]):
            image = float32(0)
            for p in range(top, bottom):
                part, line = float32(0), p * stride[0] + i * dilation[0] - padding[0]  # of a row apart
                for q in range(left, right):
                    part += dy[n, c_out, p, q] * x[n, channel, line, start + q * stride[1]]
                image += part
            total += image
        dweight[c_out, c_in, i, j] = total


def launch_loops(
    out: tuple[np.ndarray, ...], dy: np.ndarray, x: np.ndarray, weight: np.ndarray, stride: Pair, padding: Padding,
    dilation: Pair, groups: int,
) -> None:  # fmt: skip
    """Sums are in float64."""
    (dx, dweight, dbias), window = out, shapes2d.conv2d_window(x, weight, stride, padding, dilation)
    moves = window.stride, window.padding, window.dilation, groups
    _features_loops_kernel(dy, weight, dx, *moves)
    _weights_loops_kernel(dy, x, dweight, dbias, *moves)


def launch_naive(
    call: ResultsCall, dy: Array, x: Array, weight: Array, stride: Pair, padding: Padding, dilation: Pair, groups: int
) -> None:
    """A thread a value of the features' and of the weights' gradient, a block a bias."""
    (dx, dweight, dbias), window = call.outs, shapes2d.conv2d_window(x, weight, stride, padding, dilation)
    moves = window.stride, window.padding, window.dilation, groups
    call.launch_over(dx, _features_naive_kernel, dy, weight, dx, *moves)
    call.launch_over(dweight, _weights_naive_kernel, dy, x, dweight, *moves)
    n, channels, height, width = map(int, tuple(dy.shape))
    channel_sums(call, dy.reshape(n, channels, height * width), dbias)
