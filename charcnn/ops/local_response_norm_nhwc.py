"""local_response_norm, channels last: neighbouring channels are neighbours in memory.

A thread takes a vector of a pixel's channels, and those of the vectors beside it that its sums reach: they come from
the first cache, as neighbouring threads have them for their own.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32

from charcnn.aliases import Array, Stream
from charcnn.gpu import device, ptx
from charcnn.gpu.device import int32, uint32, uint64
from charcnn.gpu.indices import block_dim_x, block_idx_x, extents, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import shapes2d
from charcnn.ops.common.features import STORED, FeatureLayout, channels_of, narrowed, places, reader, widened, writer
from charcnn.ops.common.precision import choose

THREADS = device.block_size(256)

LEAST = 2.0**-100
"""Of k, so that 1 / sqrt(k) may be taken of it by an instruction that counts subnormal numbers as zero."""


@cuda.jit(device=True, inline="always")
def _three_quarters(value, beta):
    """value ** -0.75; of infinity 0."""
    root = ptx.rsqrt_approx_f32(value)
    return root * ptx.sqrt_approx_f32(root)


@cuda.jit(device=True, inline="always")
def _any_power(value, beta):
    return value**-beta


def inverse_power(beta: float, k: float) -> Any:
    """The device function power(value, beta): value ** -beta, of a value of at least k."""
    return _three_quarters if beta == 0.75 and k >= LEAST else _any_power


@cache
def _make_kernel(layout, size, power):
    place, load, store, registers = places(layout), reader(layout), writer(layout), layout.width
    below, vector = size // 2, int32(layout.width)
    first, last = -(-below // registers), -(-((size - 1) // 2) // registers)  # vectors below, and above
    reach, count, terms = (first + 1 + last) * registers, first + 1 + last, layout.form.terms
    begin = first * registers - below  # the first square that the first channel's sum has
    own = first * registers

    @jit()
    def kernel(x, y, share, beta, k):
        values = cuda.local.array(registers, float32)
        near = cuda.local.array(reach, float32)
        channels = extents(x)[3] // terms
        vectors = channels // uint32(registers)
        i = block_idx_x() * block_dim_x() + thread_idx_x()
        pixel, c = i // vectors, int32(i % vectors * uint32(registers))
        if pixel < uint32(x.shape[0] * x.shape[1] * x.shape[2]):
            for v in range(count):
                other = int32(c + int32(v - first) * vector)
                for j in range(registers):
                    values[j] = float32(0)  # beyond the last channel, and before the first
                if int32(0) <= other and other < int32(channels):
                    at, low = place(uint64(pixel), uint32(other), channels)
                    load(x, at, low, values)
                for j in range(registers):
                    near[v * registers + j] = values[j]
            for j in range(registers):
                total = float32(0)
                for s in range(size):
                    total += near[begin + j + s] * near[begin + j + s]
                values[j] = near[own + j] * power(k + share * total, beta)
            at, low = place(uint64(pixel), uint32(c), channels)
            store(y, at, low, values)

    return kernel


def _start(call, x, y, size, alpha, beta, k, precision, octets, vectors):
    channels = channels_of("x", x, precision, octets)
    layout = (
        FeatureLayout.of(precision, channels, x, y, octets=octets)
        if vectors
        else FeatureLayout(STORED[precision], False, 1)
    )
    work = y.size // (layout.form.terms * layout.width)
    if work >= 1 << 31:
        raise ValueError(f"x has shape {tuple(x.shape)}: that many values need a smaller batch")
    kernel = _make_kernel(layout, size, inverse_power(beta, k))
    numbers = map(np.float32, (alpha / size, beta, k))
    call.launch(kernel, -(-work // THREADS), THREADS, layout.seen(x), layout.seen(y), *numbers)


def normalised_features(
    x: Array,
    size: int,
    *,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 1.0,
    precision: str = "fp16",
    octets: bool = False,
    out: Array = None,
    stream: Stream = None,
) -> Array:
    """local_response_norm_nhwc of features in a precision, on the GPU, to such.

    Args:
        x: (N, H, W, terms * C) in the precision's dtype, on the GPU.
        size, alpha, beta, k: as of `reference.local_response_norm`.
        precision: one of `features.STORED`.
        octets: with two terms, whether they lie as `mma_layout` has them.
        out: where to write, of x's shape, not x itself; made where None.
        stream: a CUDA stream; the default stream where None.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """
    form, shape = choose(precision, STORED), shapes2d.local_response_norm_nhwc(x, size, alpha, beta, k)
    call = Call(out, stream, shape, form.dtype, {"x": form.dtype}, x=x)
    device.require_capability((8, 0), "vectorized", "use coalesced")
    _start(call, call.inputs[0], call.out, size, alpha, beta, k, precision, octets, True)
    return call.result()


def launch_coalesced(call: Call, x: Array, size: int, alpha: float, beta: float, k: float) -> None:
    """The power of 0.75 is two instructions. AlexNet's alpha of 1e-4 is 5e-4 here, with size 5, beta 0.75 and k 2."""
    _start(call, x, call.out, size, alpha, beta, k, "fp32", False, False)


def launch_vectorized(call: Call, x: Array, size: int, alpha: float, beta: float, k: float, *, precision: str) -> None:
    """Features are cast to the precision, the result is cast back; `VectorizedLocalResponseNorm` leaves both out."""
    features = narrowed(call, x, precision)
    widened(call, precision, lambda y: _start(call, features, y, size, alpha, beta, k, precision, False, True))
