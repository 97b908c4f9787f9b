"""layernorm_relu_maxpool1d: the strong fusion that ends blocks 1 and 6, from given statistics.

On the CPU, over channels-last features, it takes the statistics itself: `charcnn.ops.layernorm.norm_relu_pool`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, float32

from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import shapes
from charcnn.ops.common.moments import normalised


@jit()
def _kernel(x, stat, gamma, beta, y, kernel_size, stride, eps):
    i = cuda.grid(1)
    if i < y.size:
        t = i % y.shape[2]
        c = i // y.shape[2] % y.shape[1]
        n = i // (y.shape[2] * y.shape[1])
        # All of the window are normalised before the maximum is taken: where gamma is negative, order turns round.
        best = float32(0)  # ReLU: no maximum is less
        for position in range(t * stride, t * stride + kernel_size):
            value = normalised(x[n, c, position], stat[n, 0], stat[n, 1], eps) * gamma[c, position] + beta[c, position]
            if value > best or value != value:  # NaN wins, and nothing is greater
                best = value
        y[n, c, t] = best


def layernorm_relu_maxpool1d_naive(
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
    """`reference.layernorm_relu_maxpool1d` on a GPU, one thread a pooled output: x is read once, a third is written.

    Args:
        x: float32 (N, C, L), C-contiguous; gamma and beta (C, L) likewise; all on one side.
        stat: float64 (N, 2): each input's mean and biased variance, as `reference.conv1d_stat` gives them.
        kernel_size, stride: of the pooling; stride is kernel_size where None.
        eps: added to the variance.
        out: where to write, (N, C, L_out), on the same side; made where None.
        stream: a CUDA stream; the default stream where None.

    Returns:
        float32 (N, C, L_out) where the inputs lie; device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """
    shape = shapes.layernorm_relu_maxpool1d(x, stat, gamma, beta, kernel_size, eps, stride)
    call = Call(out, stream, shape, x=x, stat=stat, gamma=gamma, beta=beta)
    call.launch_each(_kernel, *call.inputs, call.out, kernel_size, stride or kernel_size, np.float32(eps))
    return call.result()
