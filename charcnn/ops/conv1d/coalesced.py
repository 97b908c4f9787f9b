"""conv1d_nlc, one thread an output: what channels-last features and packed weights give by themselves."""

from __future__ import annotations

from typing import Any

from numba import cuda, float32

from charcnn.gpu.device import uint32
from charcnn.gpu.indices import (
    extents,
)
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import shapes


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


def conv1d_nlc_coalesced(x: Any, weight: Any, bias: Any, *, out: Any = None, stream: Any = None) -> Any:
    """`reference.conv1d_nlc` on a GPU, one thread an output, neighbours on neighbouring output channels.

    Args:
        x: float32 (N, L, C_in), C-contiguous: channels last. weight: (K, C_in, C_out), as `arrays.pack` gives it, and
            bias (C_out,), likewise. All NumPy arrays, or all device arrays (Numba's, or any with
            __cuda_array_interface__).
        out: where to write, (N, L - K + 1, C_out), on the same side; made where None.
        stream: a CUDA stream (Numba, CuPy, PyTorch, or an address); the default stream where None.

    Returns:
        float32 (N, L - K + 1, C_out) where the inputs lie; device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """
    call = Call(out, stream, shapes.conv1d_nlc(x, weight, bias), x=x, weight=weight, bias=bias)
    call.launch_each(_kernel, *call.inputs, call.out)
    return call.result()
