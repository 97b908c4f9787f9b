"""conv1d on a GPU, one thread an output, and the weak fusions of that kernel: what follows it, in its epilogue."""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import cuda, float32

from charcnn.aliases import Array
from charcnn.gpu.device import int32, uint32
from charcnn.gpu.indices import extents
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import moments
from charcnn.ops.common.calls import StatCall


@cache
def _output_naive(kernel_size):
    # The kernel size is a constant of the compiled kernel, so that the loop over taps unrolls. Indices are 32 bits
    # wide, and unsigned where they index: Numba makes a signed one wrap round as Python's do, which doubles the
    # instructions.
    @jit(device=True)
    def output(features, weights, bias, first, step, length, inside):
        total = bias
        c_in, channels = uint32(0), extents(features)[0]
        while c_in < channels:
            row, row_weights = features[c_in], weights[c_in]
            taps = float32(0)  # summed apart: the rounding error grows with C_in + K, not C_in * K
            for k in range(kernel_size):
                position = first + int32(k) * step
                if inside or (int32(0) <= position and position < length):
                    taps += row[uint32(position)] * row_weights[k]
            total += taps
            c_in += uint32(1)
        return total

    return output


@cache
def _conv1d_naive_kernel(kernel_size, relu):
    output = _output_naive(kernel_size)

    @jit()
    def kernel(x, weight, bias, y, stride, padding, dilation):
        i = cuda.grid(1)  # one thread an output; neighbours take neighbouring positions, so x is read coalesced
        if i < y.size:
            t = i % y.shape[2]
            c_out = i // y.shape[2] % y.shape[1]
            n = i // (y.shape[2] * y.shape[1])
            first, step, length = int32(t * stride - padding), int32(dilation), int32(x.shape[2])
            # Most windows lie wholly inside the input, and then no tap needs to ask: a loop for each case.
            if int32(0) <= first and first + int32(kernel_size - 1) * step < length:
                total = output(x[n], weight[c_out], bias[c_out], first, step, length, True)
            else:
                total = output(x[n], weight[c_out], bias[c_out], first, step, length, False)
            if relu and total < float32(0):
                total = float32(0)
            y[n, c_out, t] = total

    return kernel


@cache
def _conv1d_relu_maxpool1d_kernel(kernel_size, stride, padding, dilation, pool_size, pool_stride):
    # All constants of the compiled kernel, so that the positions under one pooled output stay in registers: of
    # K + pool - 1 values read, each serves up to `pool` sums, and only the maximum is written.
    step = pool_stride * stride
    window = (pool_size - 1) * stride + (kernel_size - 1) * dilation + 1

    @jit()
    def kernel(x, weight, bias, y):
        i = cuda.grid(1)
        if i < y.size:
            t = i % y.shape[2]
            c_out = i // y.shape[2] % y.shape[1]
            n = i // (y.shape[2] * y.shape[1])
            features, weights = x[n], weight[c_out]
            first, length = int32(t * step - padding), int32(x.shape[2])
            values = cuda.local.array(window, float32)
            totals = cuda.local.array(pool_size, float32)
            taps = cuda.local.array(pool_size, float32)
            for p in range(pool_size):
                totals[p] = bias[c_out]
            c_in, channels = uint32(0), extents(x)[1]
            while c_in < channels:
                row, row_weights = features[c_in], weights[c_in]
                for j in range(window):
                    position = first + int32(j)
                    values[j] = float32(0)
                    if int32(0) <= position and position < length:
                        values[j] = row[uint32(position)]
                for p in range(pool_size):
                    taps[p] = float32(0)
                for k in range(kernel_size):
                    value = row_weights[k]
                    for p in range(pool_size):
                        taps[p] += values[p * stride + k * dilation] * value
                for p in range(pool_size):
                    totals[p] += taps[p]
                c_in += uint32(1)
            best = float32(0)  # ReLU: no maximum is less
            for p in range(pool_size):
                if totals[p] > best or totals[p] != totals[p]:  # NaN wins, and nothing is greater
                    best = totals[p]
            y[n, c_out, t] = best

    return kernel


@cache
def _conv1d_stat_naive_kernel(kernel_size):
    output, PART = _output_naive(kernel_size), moments.PART

    @jit()
    def kernel(x, weight, bias, y, partial_moments, stride, padding, dilation):
        # One block takes PART outputs of one input, so that it can sum them up before they leave the chip.
        smem, shift = cuda.shared.array(PART, float32), cuda.shared.array(1, float32)
        n = cuda.blockIdx.x // partial_moments.shape[1]
        part = cuda.blockIdx.x % partial_moments.shape[1]
        i = part * PART + cuda.threadIdx.x
        total = float32(0)
        if i < y.shape[1] * y.shape[2]:
            t = i % y.shape[2]
            c_out = i // y.shape[2]
            first, step, length = int32(t * stride - padding), int32(dilation), int32(x.shape[2])
            if int32(0) <= first and first + int32(kernel_size - 1) * step < length:
                total = output(x[n], weight[c_out], bias[c_out], first, step, length, True)
            else:
                total = output(x[n], weight[c_out], bias[c_out], first, step, length, False)
            y[n, c_out, t] = total
        moments.write_part(total, n, part, y.shape[1] * y.shape[2], partial_moments, smem, shift)

    return kernel


def launch(
    call: Call, x: Array, weight: Array, bias: Array, stride: int, padding: int, dilation: int, *, epilogue: str
) -> None:
    """ReLU is in the same kernel: one write of y less, and one read."""
    kernel = _conv1d_naive_kernel(int(weight.shape[2]), epilogue == "relu")
    call.launch_each(kernel, x, weight, bias, call.out, stride, padding, dilation)


def launch_stat(call: StatCall, x: Array, weight: Array, bias: Array, stride: int, padding: int, dilation: int) -> None:
    """One block takes the moments of a part of an input as it writes it, and a second kernel joins the parts."""
    n, c_out, length = call.out.shape
    size = c_out * length
    partial_moments = call.scratch((n, moments.part_count(size), moments.PART_VALUES), np.float32)
    kernel, blocks = _conv1d_stat_naive_kernel(int(weight.shape[2])), n * partial_moments.shape[1]
    arguments = x, weight, bias, call.out, partial_moments, stride, padding, dilation
    call.launch(kernel, blocks, moments.PART, *arguments)
    moments.launch_merge(call, partial_moments, size, call.moments)


def launch_pooled(
    call: Call, x: Array, weight: Array, bias: Array, pool_size: int, stride: int, padding: int, dilation: int,
    pool_stride: int | None,
) -> None:  # fmt: skip
    """A thread computes the convolution of its whole window, and only the maximum is written."""
    constants = int(weight.shape[2]), stride, padding, dilation, pool_size, pool_stride or pool_size
    call.launch_each(_conv1d_relu_maxpool1d_kernel(*constants), x, weight, bias, call.out)
