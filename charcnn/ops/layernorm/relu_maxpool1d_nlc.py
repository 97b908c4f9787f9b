"""layernorm_relu_maxpool1d, channels last."""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import cuda, float32

from charcnn.aliases import Array
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_dim_x, block_idx_x, extents, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common.moments import normalised

INPUTS = 8
"""Inputs of a block: gamma and beta are as large as one of them, and are read once for all."""

THREADS = 256


@cache
def _make_kernel(kernel_size):
    inputs = INPUTS

    @jit()
    def kernel(x, stat, gamma, beta, y, stride, eps):
        # A block for each pooled position of some inputs; neighbouring threads take neighbouring channels, so that all
        # arrays are read and written coalesced. The window's gamma and beta stay in registers.
        scale = cuda.local.array(kernel_size, float32)
        offset = cuda.local.array(kernel_size, float32)
        channels, length, length_out = extents(x)[2], extents(x)[1], extents(y)[1]
        t = block_idx_x() % length_out
        first = block_idx_x() // length_out * inputs
        position = t * uint32(stride)
        for channel in range(thread_idx_x(), channels, block_dim_x()):
            c = channel
            for p in range(kernel_size):
                scale[p] = gamma[position + p, c]
                offset[p] = beta[position + p, c]
            n, end = first, min(first + inputs, extents(x)[0])
            while n < end:
                mean, variance = stat[n, 0], stat[n, 1]
                start = (uint64(n) * uint64(length) + uint64(position)) * uint64(channels) + uint64(c)
                # All of a window are normalised before the maximum is taken: a negative gamma turns the order round.
                best = float32(0)  # ReLU: no maximum is less
                for p in range(kernel_size):
                    feature = x.flat[start + uint64(p) * uint64(channels)]
                    value = normalised(feature, mean, variance, eps) * scale[p] + offset[p]
                    if value > best or value != value:  # NaN wins, and nothing is greater
                        best = value
                at = (uint64(n) * uint64(length_out) + uint64(t)) * uint64(channels) + uint64(c)
                y.flat[at] = best
                n += 1

    return kernel


def launch(
    call: Call, x: Array, stat: Array, gamma: Array, beta: Array, kernel_size: int, eps: float, stride: int | None
) -> None:
    """A block for each pooled position of 8 inputs."""
    n, length, channels = call.out.shape
    blocks, steps = (n + INPUTS - 1) // INPUTS * length, (stride or kernel_size, np.float32(eps))
    threads = min(channels, THREADS)
    call.launch(_make_kernel(kernel_size), blocks, threads, x, stat, gamma, beta, call.out, *steps)
