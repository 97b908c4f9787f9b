"""conv1d_backward: gradients by features, weights and bias, in plain loops and with one thread a value.

Each value is one sum in a fixed order, so that the same arguments give the same bits.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import cuda, float32, njit

from charcnn.aliases import Array, Kernel
from charcnn.gpu import device
from charcnn.gpu.launch import jit
from charcnn.ops.common.calls import ResultsCall
from charcnn.ops.common.moments import block_sum

PART = 64
"""Terms summed apart on a GPU: the rounding error grows with terms / PART + PART, not with terms."""

THREADS = device.block_size(256)
"""Of a block that sums a channel."""


def _seen(k, length, windows, stride, padding, dilation):
    """The first window whose tap k lies in the input, and the one behind the last."""
    behind = padding - k * dilation
    first = max(0, -(-behind // stride))
    return first, max(first, min(windows, (length - 1 + behind) // stride + 1))


seen_loops, seen_naive = njit(_seen), jit(device=True)(_seen)
"""For the CPU and for a GPU; along either axis of an image, too."""


@njit(cache=True, nogil=True)
def _features_loops_kernel(dy, weight, dx, stride, padding, dilation):
    length = dx.shape[2]
    total = np.empty(length)
    for n in range(dx.shape[0]):
        for c_in in range(dx.shape[1]):
            total[:] = 0
            for c_out in range(dy.shape[1]):
                for k in range(weight.shape[2]):
                    first, last = seen_loops(k, length, dy.shape[2], stride, padding, dilation)
                    tap, start = weight[c_out, c_in, k], k * dilation - padding
                    for t in range(first, last):
                        total[start + t * stride] += tap * dy[n, c_out, t]
            for position in range(length):
                dx[n, c_in, position] = total[position]


@njit(cache=True, nogil=True, fastmath={"reassoc"})  # in any order, the same each time: a vector of sums
def _weights_loops_kernel(dy, x, dweight, dbias, stride, padding, dilation):
    for c_out in range(dweight.shape[0]):
        total = 0.0
        for n in range(dy.shape[0]):
            for t in range(dy.shape[2]):
                total += dy[n, c_out, t]
        dbias[c_out] = total
        for c_in in range(dweight.shape[1]):
            for k in range(dweight.shape[2]):
                first, last = seen_loops(k, x.shape[2], dy.shape[2], stride, padding, dilation)
                start, total = k * dilation - padding, 0.0
                for n in range(dy.shape[0]):
                    for t in range(first, last):
                        total += dy[n, c_out, t] * x[n, c_in, start + t * stride]
                dweight[c_out, c_in, k] = total


@cache
def _features_naive_kernel(masked: bool) -> Kernel:
    @jit()
    def kernel(dy, x, weight, dx, stride, padding, dilation):
        i = cuda.grid(1)  # one thread a value; neighbours take neighbouring positions
        if i < dx.size:
            position, row = i % dx.shape[2], i // dx.shape[2]
            c_in, n = row % dx.shape[1], row // dx.shape[1]
            total = float32(0)
            for c_out in range(dy.shape[1]):
                taps = float32(0)  # summed apart, as in the forward kernel
                for k in range(weight.shape[2]):
                    behind = position + padding - k * dilation
                    t = behind // stride
                    if behind >= 0 and t * stride == behind and t < dy.shape[2]:
                        taps += dy[n, c_out, t] * weight[c_out, c_in, k]
                total += taps
            if masked and x[n, c_in, position] <= float32(0):  # what ReLU gave
                total = float32(0)
            dx[n, c_in, position] = total

    return kernel


@jit()
def _weights_naive_kernel(dy, x, dweight, stride, padding, dilation):
    i = cuda.grid(1)
    if i < dweight.size:
        k, row = i % dweight.shape[2], i // dweight.shape[2]
        c_in, c_out = row % dweight.shape[1], row // dweight.shape[1]
        first, last = seen_naive(k, x.shape[2], dy.shape[2], stride, padding, dilation)
        total, start = float32(0), k * dilation - padding
        for n in range(dy.shape[0]):
            for begin in range(first, last, PART):
                part = float32(0)
                for t in range(begin, min(begin + PART, last)):
                    part += dy[n, c_out, t] * x[n, c_in, start + t * stride]
                total += part
        dweight[c_out, c_in, k] = total


@jit()
def _channel_sums_kernel(dy, sums):
    partial = cuda.shared.array(THREADS, float32)
    channel, length = cuda.blockIdx.x, dy.shape[2]
    total = float32(0)
    for i in range(cuda.threadIdx.x, dy.shape[0] * length, cuda.blockDim.x):
        total += dy[i // length, channel, i % length]
    total = block_sum(total, partial)
    if cuda.threadIdx.x == 0:
        sums[channel] = total


def launch_loops(
    out: tuple[np.ndarray, ...], dy: np.ndarray, x: np.ndarray, weight: np.ndarray, stride: int, padding: int,
    dilation: int,
) -> None:  # fmt: skip
    """Sums are in float64."""
    dx, dweight, dbias = out
    _features_loops_kernel(dy, weight, dx, stride, padding, dilation)
    _weights_loops_kernel(dy, x, dweight, dbias, stride, padding, dilation)


def launch_naive(
    call: ResultsCall, dy: Array, x: Array, weight: Array, stride: int, padding: int, dilation: int, *, epilogue: str
) -> None:  # fmt: skip
    """A thread a value of the features' and of the weights' gradient, a block a bias."""
    gradients(call, call.outs, dy, x, weight, stride, padding, dilation, masked=epilogue == "relu")


def gradients(
    call: ResultsCall, outs: tuple[Array, ...], dy: Array, x: Array, weight: Array, stride: int = 1, padding: int = 0,
    dilation: int = 1, *, masked: bool,
) -> None:  # fmt: skip
    """Start the kernels that write dx, dweight and dbias, three axes each but the last.

    `masked` says that ReLU gave x, and dx is the gradient of what it read.
    """
    dx, dweight, dbias = outs
    call.launch_over(dx, _features_naive_kernel(masked), dy, x, weight, dx, stride, padding, dilation)
    call.launch_over(dweight, _weights_naive_kernel, dy, x, dweight, stride, padding, dilation)
    channel_sums(call, dy, dbias)


def channel_sums(call: ResultsCall, dy: Array, sums: Array) -> None:
    """Start the kernel that adds up each channel of dy (N, C, L): a bias's gradient."""
    call.launch(_channel_sums_kernel, sums.size, THREADS, dy, sums)
