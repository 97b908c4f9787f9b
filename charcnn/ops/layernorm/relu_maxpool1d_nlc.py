"""layernorm_relu_maxpool1d, channels last."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32

from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import (
    block_dim_x,
    block_idx_x,
    extents,
    thread_idx_x,
)
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import shapes
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


def layernorm_relu_maxpool1d_nlc_coalesced(
    x: Any,
    stat: Any,
    gamma: Any,
    beta: Any,
    kernel_size: int,
    *,
    eps: float = 1e-5,
    stride: int | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """`reference.layernorm_relu_maxpool1d_nlc` on a GPU, a block for each pooled position of 8 inputs.

    Args:
        x: float32 (N, L, C), C-contiguous: channels last; gamma and beta (L, C) likewise; all on one side.
        stat: float64 (N, 2): each input's mean and biased variance, as `reference.conv1d_stat_nlc` gives them.
        kernel_size, stride: of the pooling; stride is kernel_size where None.
        eps: added to the variance.
        out: where to write, (N, L_out, C), on the same side; made where None.
        stream: a CUDA stream; the default stream where None.

    Returns:
        float32 (N, L_out, C) where the inputs lie; device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """
    shape = shapes.layernorm_relu_maxpool1d_nlc(x, stat, gamma, beta, kernel_size, eps, stride)
    call = Call(out, stream, shape, x=x, stat=stat, gamma=gamma, beta=beta)
    _launch(call, _make_kernel(kernel_size), call.out, eps, stride or kernel_size)
    return call.result()


def _launch(call, kernel, y, eps, stride):
    n, length, _ = call.out.shape
    channels = call.inputs[0].shape[2]
    blocks = (n + INPUTS - 1) // INPUTS * length
    call.launch(kernel, blocks, min(channels, THREADS), *call.inputs, y, stride, np.float32(eps))
