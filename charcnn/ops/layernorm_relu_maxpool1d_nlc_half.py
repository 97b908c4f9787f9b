"""layernorm_relu_maxpool1d, channels last, on features of 16 bits: normalised and compared in float32."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32, float64

from charcnn import device
from charcnn.device import uint32, uint64
from charcnn.ops import ptx, shapes
from charcnn.ops.convert import WORDS, narrow, widen
from charcnn.ops.formats import FORMATS, HALVES, Format, choose

INPUTS = 16
"""Inputs of a block: gamma and beta are larger than the features of one, and are read once for all."""

THREADS = device.block_size(256)

OCTET = 8
"""Channels of a thread: 16 bytes."""


EIGHTHS = {"fp8": FORMATS["fp8"]}


@cache
def _build(kind, results, kernel_size, width):
    # A thread has `width` channels of one window, 8 or 1, of some inputs; gamma and beta stay in registers.
    inputs, one, octet, words = uint32(INPUTS), uint32(1), uint32(width), (width + 1) // 2
    eighths, from_eighths = results == "e4m3", kind == "e4m3"
    pack = ptx.pack_halves("f16" if eighths else results)
    unpack = ptx.unpack_halves("f16" if from_eighths else kind)
    values = kernel_size * width

    @cuda.jit(device=True, inline="always")
    def octet_of(x, at):
        """Eight features, in four words of halves."""
        if from_eighths:
            low, high = ptx.load_octet(x, at)
            a, b = ptx.unpack_eighths(low)
            c, d = ptx.unpack_eighths(high)
            return a, b, c, d
        return ptx.load8(x, at)

    @device.jit()
    def kernel(x, stat, gamma, beta, y, stride, eps):
        scale = cuda.local.array(values, float32)
        offset = cuda.local.array(values, float32)
        best = cuda.local.array(width, float32)
        channels, length, length_out = uint32(x.shape[2]), uint32(x.shape[1]), uint32(y.shape[1])
        across = uint32(channels // octet)
        i = uint32(cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x)
        if i >= uint32(across * length_out):
            return
        t, channel = uint32(i // across), uint32(i % across * octet)
        position = uint32(t * uint32(stride))
        for p in range(kernel_size):
            for c in range(width):
                scale[p * width + c] = gamma[uint32(position + uint32(p)), uint32(channel + uint32(c))]
                offset[p * width + c] = beta[uint32(position + uint32(p)), uint32(channel + uint32(c))]
        n = uint32(uint32(cuda.blockIdx.y) * inputs)
        end = min(uint32(n + inputs), uint32(x.shape[0]))
        while n < end:
            mean = stat[n, 0]
            high = float32(mean)
            low_part = float32(mean - float64(high))  # what float32 cannot hold of the mean
            rate = float32(1) / math.sqrt(float32(stat[n, 1]) + eps)  # a division an input, not one a value
            at = (uint64(n) * uint64(length) + uint64(position)) * uint64(channels) + uint64(channel)
            for c in range(width):
                best[c] = float32(0)  # ReLU: no maximum is less
            # All of a window are normalised before the maximum is taken: a negative gamma turns the order round.
            for p in range(kernel_size):
                if width == 1:
                    if from_eighths:
                        value = ptx.unpack_eighth(uint32(x.flat[at]))
                    else:
                        value, _ = unpack(uint32(x.flat[at]))
                    value = ((value - high) - low_part) * rate * scale[p] + offset[p]
                    if value > best[0] or value != value:  # NaN wins, and nothing is greater
                        best[0] = value
                else:
                    read = octet_of(x, at)
                    for j in range(words):
                        low, upper = unpack(read[j])
                        low = ((low - high) - low_part) * rate
                        low = low * scale[p * width + 2 * j] + offset[p * width + 2 * j]
                        upper = ((upper - high) - low_part) * rate
                        upper = upper * scale[p * width + 2 * j + 1] + offset[p * width + 2 * j + 1]
                        if low > best[2 * j] or low != low:
                            best[2 * j] = low
                        if upper > best[2 * j + 1] or upper != upper:
                            best[2 * j + 1] = upper
                at += uint64(channels)
            to = (uint64(n) * uint64(length_out) + uint64(t)) * uint64(channels) + uint64(channel)
            if width == 1:
                if eighths:
                    y.flat[to] = ptx.pack_eighths(best[0], float32(0), float32(0), float32(0))
                else:
                    y.flat[to] = pack(best[0], float32(0))
            elif eighths:
                ptx.store_octet(
                    y,
                    to,
                    ptx.pack_eighths(best[0], best[1], best[2], best[3]),
                    ptx.pack_eighths(best[4], best[5], best[6], best[7]),
                )
            else:
                ptx.store8(
                    y,
                    to,
                    pack(best[0], best[1]),
                    pack(best[2], best[3]),
                    pack(best[4], best[5]),
                    pack(best[6], best[7]),
                )
            n = uint32(n + one)

    return kernel


def _launch(
    call: device.Call,
    x: Any,
    normalisation: tuple[Any, Any, Any],
    y: Any,
    eps: float,
    kernel_size: int,
    stride: int | None,
    of: Format,
    results: Format,
) -> None:
    n, length, channels = y.shape
    width = OCTET if channels % OCTET == 0 else 1
    blocks = -(-length * (channels // width) // THREADS), -(-n // INPUTS)
    kernel = _build(of.kind, results.kind, kernel_size, width)
    arguments = (
        x.view(WORDS[of.itemsize]),
        *normalisation,
        y.view(WORDS[results.itemsize]),
        stride or kernel_size,
        np.float32(eps),
    )
    call.launch(kernel, blocks, THREADS, *arguments)


def normalised_maxima(
    x: Any,
    stat: Any,
    gamma: Any,
    beta: Any,
    kernel_size: int,
    *,
    precision: str = "fp16",
    results: str | None = None,
    eps: float = 1e-5,
    stride: int | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """`reference.layernorm_relu_maxpool1d_nlc` from features of 16 bits to such, or from fp8 or to fp8.

    Args:
        x: (N, L, C) in the precision's dtype, on the GPU; stat float64 (N, 2), gamma and beta
            float32 (L, C) likewise.
        kernel_size, stride: of the pooling; stride is kernel_size where None.
        precision: "fp16", "bf16" or "fp8".
        results: of what is given, `precision` or "fp8"; `precision` where None.
        eps: added to the variance.
        out: where to write, (N, L_out, C); made where None.
        stream: a CUDA stream; the default stream where None.

    Returns:
        (N, L_out, C) in the dtype of `results`, on the GPU; not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """
    of = choose(precision, HALVES | EIGHTHS)
    to = choose(results or precision, {precision: of} | EIGHTHS)
    shape = shapes.layernorm_relu_maxpool1d_nlc(x, stat, gamma, beta, kernel_size, eps, stride)
    call = device.Call(out, stream, shape, to.dtype, dtypes={"x": of.dtype}, x=x, stat=stat, gamma=gamma, beta=beta)
    x, *normalisation = call.inputs
    _launch(call, x, tuple(normalisation), call.out, eps, kernel_size, stride, of, to)
    return call.result()


def layernorm_relu_maxpool1d_nlc_fp16(
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
    """`normalised_maxima` from float32 to float32, rounded to fp16 on the way in and out.

    Arguments, result and errors as for `layernorm_relu_maxpool1d_nlc_coalesced`, and DeviceError where the GPU has
    compute capability below 8.0.
    """
    return _once(x, stat, gamma, beta, kernel_size, eps, stride, "fp16", out, stream)


def layernorm_relu_maxpool1d_nlc_bf16(
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
    """As `layernorm_relu_maxpool1d_nlc_fp16`, in arguments, result and errors; rounded to bf16."""
    return _once(x, stat, gamma, beta, kernel_size, eps, stride, "bf16", out, stream)


def _once(x, stat, gamma, beta, kernel_size, eps, stride, precision, out, stream):
    shape = shapes.layernorm_relu_maxpool1d_nlc(x, stat, gamma, beta, kernel_size, eps, stride)
    call = device.Call(out, stream, shape, x=x, stat=stat, gamma=gamma, beta=beta)
    device.require_capability((8, 0), "half precision", "use the technique coalesced")
    x, *normalisation = call.inputs
    of = choose(precision, HALVES)
    y = call.scratch(shape, of.dtype)
    _launch(
        call, narrow(call, x, x.shape[1], x.shape[2], of), tuple(normalisation), y, eps, kernel_size, stride, of, of
    )
    widen(call, y, call.out, of)
    return call.result()
