"""layernorm_relu_maxpool1d, channels last."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, float32

from charcnn import device
from charcnn.device import uint32
from charcnn.ops import shapes
from charcnn.ops.stat import normalised


@device.jit()
def _kernel(x, stat, gamma, beta, y, kernel_size, stride, eps):
    i = cuda.grid(1)  # neighbours take neighbouring channels: all arrays are read and written coalesced
    if i < y.size:
        c = uint32(i % y.shape[2])
        t = uint32(i // y.shape[2] % y.shape[1])
        n = uint32(i // (y.shape[2] * y.shape[1]))
        first = uint32(t * uint32(stride))
        # All of the window are normalised before the maximum is taken: where gamma is negative, order turns round.
        best = float32(0)  # ReLU: no maximum is less
        for p in range(first, first + uint32(kernel_size)):
            position = uint32(p)
            scaled = normalised(x[n, position, c], stat[n, 0], stat[n, 1], eps) * gamma[position, c]
            value = scaled + beta[position, c]
            if value > best or value != value:  # NaN wins, and nothing is greater
                best = value
        y[n, t, c] = best


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
    """`reference.layernorm_relu_maxpool1d_nlc` on a GPU, one thread a pooled output.

    Args:
        x: float32 (N, L, C), C-contiguous: channels last; gamma and beta (L, C) likewise; all on one side.
        stat: float64 (N, 2): each input's mean and biased variance, as `conv1d_stat_nlc_double_buffered` gives them.
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
    call = device.Call(out, stream, shape, x=x, stat=stat, gamma=gamma, beta=beta)
    call.launch_each(_kernel, *call.inputs, call.out, kernel_size, stride or kernel_size, np.float32(eps))
    return call.result()
