"""layernorm_relu_maxpool1d, channels last, from and to what tensor cores take: normalised and compared in float32.

From features of 16 or 8 bits to such, and from float32 to formats of 32 bits a value.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32, float64, types

from charcnn.aliases import Array, Stream
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_idx_x, block_idx_y, extents, grid_dim_y, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import shapes
from charcnn.ops.common.cast import WORDS, narrow, widen
from charcnn.ops.common.mma_layout import OCTET, WIDE, words_of
from charcnn.ops.common.precision import FP32, HALF_PRECISIONS, TENSOR_PRECISIONS, NumberFormat, choose

INPUTS = 128
"""Most inputs of a block: gamma and beta are larger than the features of one, and are read once for all."""

THREADS = device.block_size(64)
"""Few, as windows seldom fill the last block."""

FP8 = {"fp8": TENSOR_PRECISIONS["fp8"]}

FP16 = {"fp16": HALF_PRECISIONS["fp16"]}

FLOATS = {FP32.name: FP32}


def _ahead(kernel_size: int, words: int) -> int:
    """Inputs whose features a thread has registers for: it asks for them so long before it needs them."""
    return 2 if kernel_size <= 3 and words <= 4 else 1


def _resident(kernel_size: int) -> int:
    """Blocks that a multiprocessor has registers for."""
    return 8 if kernel_size <= 3 else 4


@cache
def _make_kernel(ptx_type, results, octets, kernel_size, width, early):
    # A thread has `width` channels of one window, 8 or 1, of some inputs; gamma and beta stay in registers. Once a
    # position's features are used, those of a later input are asked for: some are on their way at any time.
    # Results of 32 bits a value are written as 16 bytes twice: four channels and four more; high terms and low ones,
    # these behind all high ones of the input, or in octets behind those of the same eight channels (`mma_layout`).
    four, octet = uint32(ptx.VECTOR), width
    threads, alignment = THREADS, ptx.ALIGNMENT
    eighths, from_eighths, from_floats = results.ptx_type == "e4m3", ptx_type == "e4m3", ptx_type == "f32"
    rounded, wide = results.ptx_type == "tf32", results.size == 4
    pack = ptx.cvt_f16x2(results.ptx_type if results.ptx_type == "bf16" else "f16")
    pack_wide = words_of(results) if rounded or octets else ptx.pack_floats("halves")
    unpack = ptx.cvt_f32x2(ptx_type if ptx_type == "bf16" else "f16")
    words = 1 if width == 1 else {"e4m3": 2, "f32": 8}.get(ptx_type, 4)  # of a position
    pairs, word = (width + 1) // 2, float32 if from_floats else types.uint32
    ahead, values, moments_size = _ahead(kernel_size, words), kernel_size * width, INPUTS * ptx.VECTOR
    held = ahead * kernel_size * words
    doubled = rounded or octets  # places of 16 bits between a value and the next
    half, in_octet, octet_values = uint32(0xFFFF), uint64(OCTET - 1), OCTET

    @cuda.jit(device=True, inline="always")
    def load_floats(array, at, values, to):
        """A position's gamma or beta, or features."""
        if width == 1:
            values[to] = array.flat[at]
        else:
            values[to], values[to + 1], values[to + 2], values[to + 3] = ptx.ld_global_v4_f32(array, at)
            values[to + 4], values[to + 5], values[to + 6], values[to + 7] = ptx.ld_global_v4_f32(
                array, at + uint64(four)
            )

    @cuda.jit(device=True, inline="always")
    def load(x, at, read, to):
        """A position's features, in words as they lie in memory."""
        if width == 1:
            read[to] = x.flat[at] if from_floats else uint32(x.flat[at])
        elif from_floats:
            load_floats(x, at, read, to)
        elif from_eighths:
            read[to], read[to + 1] = ptx.ld_global_v2_b32(x, at)
        else:
            read[to], read[to + 1], read[to + 2], read[to + 3] = ptx.ld_global_v4_b32(x, at)

    @cuda.jit(device=True, inline="always")
    def pair(read, to, j):
        """Two of a position's features."""
        if from_floats:
            return read[to + 2 * j], read[to + (2 * j + 1 if width > 1 else 0)]
        if not from_eighths:
            return unpack(read[to + j])
        low, high = ptx.cvt_f16x2_e4m3x4(read[to + j // 2])
        return unpack(high if j % 2 else low)

    @cuda.jit(device=True, inline="always")
    def write_wide(y, to, low_offset, best):
        """Results of 32 bits a value."""
        if width == 1:
            first, second = pack_wide(best[0], float32(0))
            if rounded:
                y.flat[to], y.flat[to + uint64(uint32(1))] = first & half, uint32(first >> uint32(16))
            else:
                y.flat[to], y.flat[to + low_offset] = first & half, second & half
            return
        a, b = pack_wide(best[0], best[1])
        c, d = pack_wide(best[2], best[3])
        e, f = pack_wide(best[4], best[5])
        g, h = pack_wide(best[6], best[7])
        if rounded:
            ptx.st_global_v4_b32(y, to, a, b, c, d)
            ptx.st_global_v4_b32(y, to + low_offset, e, f, g, h)
        else:
            ptx.st_global_v4_b32(y, to, a, c, e, g)
            ptx.st_global_v4_b32(y, to + low_offset, b, d, f, h)

    @jit(launch_bounds=(THREADS, _resident(kernel_size)))
    def kernel(x, stat, gamma, beta, y, stride, eps):
        moments = cuda.shared.array(moments_size, float32, alignment)  # an input's mean, in two, and 1 / deviation
        scale = cuda.local.array(values, float32)
        offset = cuda.local.array(values, float32)
        read = cuda.local.array(held, word)
        best = cuda.local.array(width, float32)
        if early:
            ptx.griddepcontrol_launch()
            ptx.griddepcontrol_wait()
        channels, length, length_out = extents(x)[2], extents(x)[1], extents(y)[1]
        across, thread = channels // octet, thread_idx_x()
        # Inputs apart from each other, the last first: what was written last may still be in the L2 cache.
        input_stride, last = grid_dim_y(), extents(x)[0] - 1 - block_idx_y()
        count = last // input_stride + 1
        i = block_idx_x() * threads + thread
        t, channel, row = i // across, i % across * octet, uint64(channels)
        at, to = uint64(t * uint32(stride)) * row + uint64(channel), uint64(t) * row + uint64(channel)
        step, step_out, second = uint64(length) * row, uint64(length_out) * uint64(y.shape[2]), uint64(octet_values)
        if wide and not doubled:
            second = uint64(length_out) * row
        if doubled:
            to = uint64(uint32(2)) * to - (to & in_octet if octets else uint64(uint32(0)))
        if t < length_out:
            for p in range(kernel_size):
                load_floats(gamma, at + uint64(p) * row, scale, p * width)
                load_floats(beta, at + uint64(p) * row, offset, p * width)
            at, to = at + uint64(last) * step, to + uint64(last) * step_out
            step, step_out = uint64(input_stride) * step, uint64(input_stride) * step_out
            for s in range(ahead):
                if s < count:
                    for p in range(kernel_size):
                        load(x, at + uint64(p) * row, read, (s * kernel_size + p) * words)
                at -= step
        k = thread
        while k < count:  # a division an input, not one a thread
            n, place = last - k * input_stride, k * four
            mean = stat[n, 0]
            high = float32(mean)
            moments[place] = high
            moments[place + 1] = float32(mean - float64(high))  # what float32 cannot hold of the mean
            moments[place + 2] = float32(1) / math.sqrt(float32(stat[n, 1]) + eps)
            k += threads
        cuda.syncthreads()
        if t >= length_out:
            return
        k = uint32(0)
        while k < count:
            for s in range(ahead):
                if k < count:
                    high, low_part, rate, _ = ptx.ld_shared_v4_f32(moments, k * four, 0)
                    more = k + uint32(ahead) < count
                    for c in range(width):
                        best[c] = float32(0)  # ReLU: no maximum is less
                    # All of a window are normalised, then compared: a negative gamma turns the order round.
                    for p in range(kernel_size):
                        place = (s * kernel_size + p) * words
                        for j in range(pairs):
                            c, v = 2 * j, p * width + 2 * j
                            low, upper = pair(read, place, j)
                            low = ((low - high) - low_part) * rate
                            best[c] = ptx.max_nan_f32(best[c], low * scale[v] + offset[v])
                            if width > 1:
                                upper = ((upper - high) - low_part) * rate
                                best[c + 1] = ptx.max_nan_f32(best[c + 1], upper * scale[v + 1] + offset[v + 1])
                        if more:
                            load(x, at + uint64(p) * row, read, place)
                    if wide:
                        write_wide(y, to, second, best)
                    elif width == 1:
                        if eighths:
                            y.flat[to] = ptx.cvt_e4m3x4(best[0], float32(0), float32(0), float32(0))
                        else:
                            y.flat[to] = pack(best[0], float32(0))
                    elif eighths:
                        ptx.st_global_v2_b32(
                            y,
                            to,
                            ptx.cvt_e4m3x4(best[0], best[1], best[2], best[3]),
                            ptx.cvt_e4m3x4(best[4], best[5], best[6], best[7]),
                        )
                    else:
                        ptx.st_global_v4_b32(
                            y,
                            to,
                            pack(best[0], best[1]),
                            pack(best[2], best[3]),
                            pack(best[4], best[5]),
                            pack(best[6], best[7]),
                        )
                    at, to = at - step, to - step_out
                    k += 1

    return kernel


def _launch(
    call: Call,
    x: Array,
    normalisation: tuple[Any, Any, Any],
    y: Array,
    eps: float,
    kernel_size: int,
    stride: int | None,
    of: NumberFormat,
    results: NumberFormat,
    octets: bool = False,
) -> None:
    n, length = y.shape[0], (x.shape[1] - kernel_size) // (stride or kernel_size) + 1
    channels = x.shape[2]
    _, gamma, beta = normalisation
    aligned = all(device.address(array) % 16 == 0 for array in (x, gamma, beta, y))
    width = OCTET if channels % OCTET == 0 and aligned else 1
    blocks = -(-length * (channels // width) // THREADS)
    # Groups of inputs: as many as the GPU has room for, or a multiple, so that all blocks end at about the same time.
    room = max(1, _resident(kernel_size) * device.multiprocessors() // max(1, blocks))
    input_stride = min(n, -(-n // (room * INPUTS)) * room)
    early = device.begins_early()
    kernel = _make_kernel(of.ptx_type, results, octets, kernel_size, width, early)
    words = WORDS[min(2, results.itemsize)]
    arguments = (
        x if of is FP32 else x.view(WORDS[of.itemsize]),
        *normalisation,
        y.view(words).reshape((n, length, channels * results.size // np.dtype(words).itemsize)),
        stride or kernel_size,
        np.float32(eps),
    )
    call.launch(kernel, (blocks, input_stride), THREADS, *arguments, early=early)


def normalised_maxima(
    x: Array,
    stat: Array,
    gamma: Array,
    beta: Array,
    kernel_size: int,
    *,
    precision: str = "fp16",
    results: str | None = None,
    eps: float = 1e-5,
    stride: int | None = None,
    out: Array = None,
    stream: Stream = None,
) -> Array:
    """`reference.layernorm_relu_maxpool1d_nlc` from features of 16 bits to such, from or to fp8, or from float32.

    Args:
        x: (N, L, C) in the precision's dtype, on the GPU; stat float64 (N, 2), gamma and beta
            float32 (L, C) likewise.
        kernel_size, stride: of the pooling; stride is kernel_size where None.
        precision: "fp16", "bf16", "fp8" or "float32".
        results: of what is given, `precision` or "fp8"; `precision` where None. From float32, "fp16", "tf32", "fp16x3".
        eps: added to the variance.
        out: where to write; made where None.
        stream: a CUDA stream; the default stream where None.

    Returns:
        (N, L_out, C) in the dtype of `results`, on the GPU; not waited for. From float32, what a linear layer takes:
        (N, 1, L_out C), in fp16x3 (N, 1, 2 L_out C).

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU.
    """
    of = choose(precision, HALF_PRECISIONS | FP8 | FLOATS)
    to = choose(results or precision, WIDE | FP16 if of is FP32 else {precision: of} | FP8)
    shape = shapes.layernorm_relu_maxpool1d_nlc(x, stat, gamma, beta, kernel_size, eps, stride)
    if of is FP32:
        n, length, channels = shape
        shape = n, 1, to.terms * length * channels
    call = Call(out, stream, shape, to.dtype, dtypes={"x": of.dtype}, x=x, stat=stat, gamma=gamma, beta=beta)
    x, *normalisation = call.inputs
    _launch(call, x, tuple(normalisation), call.out, eps, kernel_size, stride, of, to)
    return call.result()


def encoded_maxima(
    x: Array,
    stat: Array,
    gamma: Array,
    beta: Array,
    kernel_size: int,
    *,
    precision: str,
    eps: float = 1e-5,
    stride: int | None = None,
    out: Array = None,
    stream: Stream = None,
) -> Array:
    """`reference.layernorm_relu_maxpool1d_nlc` to features of 32 bits a value, in the layout of `mma_layout`.

    Args:
        x: float32 (N, L, C), C a multiple of 8; gamma and beta (L, C).
        stat: float64 (N, 2), each input's mean and biased variance.
        kernel_size, stride: of the pooling; stride is kernel_size where None.
        precision: of the result, "tf32" or "fp16x3".
        eps: added to the variance.
        out: where to write; made where None.
        stream: a CUDA stream; the default stream where None.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit, or precision is neither.
    """
    of = choose(precision, WIDE)
    shape = shapes.layernorm_relu_maxpool1d_nlc(x, stat, gamma, beta, kernel_size, eps, stride)
    if shape[2] % OCTET:
        raise ValueError(f"x has shape {tuple(x.shape)}: need a multiple of {OCTET} channels")
    n, length, channels = shape
    call = Call(
        out, stream, (n, length, of.terms * channels), of.dtype, x=x, stat=stat, gamma=gamma, beta=beta
    )  # fmt: skip
    x, *normalisation = call.inputs
    octets = of.terms == 2
    _launch(call, x, tuple(normalisation), call.out, eps, kernel_size, stride, FP32, of, octets)
    return call.result()


def launch(
    call: Call, x: Array, stat: Array, gamma: Array, beta: Array, kernel_size: int, eps: float, stride: int | None, *,
    precision: str,
) -> None:  # fmt: skip
    """`normalised_maxima` from float32 to float32, rounded to the precision on the way in and out."""
    device.require_capability((8, 0), "vectorized", "use coalesced")
    of, how = choose(precision, HALF_PRECISIONS), (eps, kernel_size, stride)
    y, features = call.scratch(call.out.shape, of.dtype), narrow(call, x, x.shape[1], x.shape[2], of)
    _launch(call, features, (stat, gamma, beta), y, *how, of, of)
    widen(call, y, call.out, of)
