"""conv1d_nlc, one thread an output: what channels-last features and packed weights give by themselves."""

from __future__ import annotations

from numba import cuda, float32

from charcnn.aliases import Array
from charcnn.gpu.device import uint32
from charcnn.gpu.indices import extents
from charcnn.gpu.launch import Call, jit


@jit()
def _kernel(x, weight, bias, y):
    # Neighbouring threads take neighbouring output channels: what they read of the weights, and write, lies side by
    # side, and all of a warp read the same feature.
    i = cuda.grid(1)
    if i < y.size:
        c_out = uint32(i % y.shape[2])
        t = uint32(i // y.shape[2] % y.shape[1])
        n = uint32(i // (y.shape[2] * y.shape[1]))
        channels, taps = extents(weight)[1], extents(weight)[0]
        total = bias[c_out]
        for k in range(0, taps):
            part = float32(0)  # a tap's terms are summed apart: the rounding error grows with C_in + K, not C_in * K
            for c_in in range(0, channels):
                part += x[n, t + k, c_in] * weight[k, c_in, c_out]
            total += part
        y[n, t, c_out] = total


def launch(call: Call, x: Array, weight: Array, bias: Array) -> None:
    """Neighbouring threads read neighbouring weights, and share a feature."""
    call.launch_each(_kernel, x, weight, bias, call.out)
