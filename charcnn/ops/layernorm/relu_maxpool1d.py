"""layernorm_relu_maxpool1d: the strong fusion that ends blocks 1 and 6, from given statistics.

On the CPU, over channels-last features, it takes the statistics itself: `charcnn.ops.layernorm.norm_relu_pool`.
"""

from __future__ import annotations

import numpy as np
from numba import cuda, float32

from charcnn.aliases import Array
from charcnn.gpu.launch import Call, jit
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


def launch(
    call: Call, x: Array, stat: Array, gamma: Array, beta: Array, kernel_size: int, eps: float, stride: int | None
) -> None:
    """Features are read once, and a stride-th is written."""
    arguments = x, stat, gamma, beta, call.out, kernel_size, stride or kernel_size, np.float32(eps)
    call.launch_each(_kernel, *arguments)
