"""LayerNorm, ReLU and max-pooling for a few inputs, from moments of parts of the convolution's result.

A block of the convolution leaves mean and squared deviations of its part, and every warp here merges all parts of its
input, by the formula of Chan, Golub and LeVeque, in the same order: a kernel that did so first would take longer.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32, types

from charcnn.aliases import Array, Stream
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_idx_x, block_idx_y, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import shapes
from charcnn.ops.common.cast import narrow
from charcnn.ops.common.fragments import OCTET, store_octet
from charcnn.ops.common.moments import PART_VALUES
from charcnn.ops.common.precision import FP32, HALF_PRECISIONS, NumberFormat, choose
from charcnn.ops.conv1d.small_batch import PART_BYTES

NORM_THREADS = 64


def between(of: NumberFormat, wide: bool = False) -> NumberFormat:
    """What a convolution stores for `normalised`: of 32 bits a value, and `wide`, float32, of 8 bits fp16."""
    return FP32 if wide or of.size == 4 else HALF_PRECISIONS["fp16"] if of.itemsize == 1 else of


AT_ONCE = 4
"""Parts of rows that a lane has asked for before it needs the first."""


@cuda.jit(device=True, inline="always")
def _own_parts(partial_moments, n, count, part, row):
    """Of parts as `SmallBatchConv` leaves them: near the mean, in two; a lane's sums of differences
    from it, and of squares.
    """  # fmt: skip
    first = partial_moments + uint64(uint32(n * count)) * uint64(PART_BYTES)
    shift, _, _, _ = ptx.ld_cg_v4_f32(first)
    total, squares = float32(0), float32(0)
    at = uint32(thread_idx_x() & uint32(31))
    while at < count:
        mean, square, held, _ = ptx.ld_cg_v4_f32(first + uint64(at) * uint64(PART_BYTES))
        apart = mean - shift
        total += held * apart
        squares += square + held * apart * apart
        at = uint32(at + uint32(32))
    return shift, float32(0), total, squares


@cuda.jit(device=True, inline="always")
def _parts_of_rows(partial_moments, n, count, part, row):
    """Moments of parts of `part` values of rows of `row`, as `common.moments` has them."""
    row_parts = uint32(uint32(uint32(row + part) - uint32(1)) // part)
    shift, rest = partial_moments[n, 0, 0], partial_moments[n, 0, 1]
    total, squares = float32(0), float32(0)
    at = uint32(thread_idx_x() & uint32(31))
    while at < count:
        for _ in range(AT_ONCE):
            near = min(at, uint32(count - uint32(1)))  # read in any case: a branch would have the next loads wait
            held = float32(min(part, uint32(row - uint32(uint32(near % row_parts) * part))))
            apart = (partial_moments[n, near, 0] - shift) + (partial_moments[n, near, 1] - rest)
            more = partial_moments[n, near, 2] + held * apart * apart
            if at < count:
                total += held * apart
                squares += more
            at = uint32(at + uint32(32))
    return shift, rest, total, squares


@cache
def _norm_kernel(of, floats, rows, pool, of_rows):
    # `rows`: of two terms, all low ones of an input lie behind its high ones, as a linear layer takes them.
    split, store = of.terms == 2, store_octet(of)
    unpack, affine = ptx.cvt_f32x2("bf16" if of.ptx_type == "bf16" else "f16"), ptx.cvt_f32x2("f16")
    vectors = 2 if floats else 1  # of 16 bytes, for an octet
    words, octet, vector = 4 * vectors * pool, OCTET, uint64(16)
    positions, bytes_in, y_bytes = pool, uint64(4 if floats else 2), uint64(of.itemsize)
    sums = _parts_of_rows if of_rows else _own_parts

    @jit(launch_bounds=(NORM_THREADS, 1))
    def kernel(x, partial_moments, gamma, beta, y, channels, length, length_out, count, part, row, values, eps):
        scale = cuda.local.array(words, types.uint32)
        offset = cuda.local.array(words, types.uint32)
        read = cuda.local.array(words, types.uint32)
        best = cuda.local.array(OCTET, float32)
        n, across = block_idx_y(), channels // octet
        i = block_idx_x() * uint32(NORM_THREADS) + thread_idx_x()
        t = i // across
        inside = uint32(t < length_out)
        channel, position = (i - t * across) * octet, t * positions
        at = (uint64(position) * uint64(channels) + uint64(channel)) * bytes_in
        step = uint64(channels) * bytes_in
        for p in range(pool):
            for h in range(vectors):
                j = 4 * (vectors * p + h)
                here = at + uint64(p) * step + uint64(h) * vector
                scale[j], scale[j + 1], scale[j + 2], scale[j + 3] = ptx.ld_nc_no_allocate(gamma + here, inside)
                offset[j], offset[j + 1], offset[j + 2], offset[j + 3] = ptx.ld_nc_no_allocate(beta + here, inside)
        ptx.griddepcontrol_launch()
        ptx.griddepcontrol_wait()
        at = x + uint64(n) * uint64(length) * step + at
        for p in range(pool):
            for h in range(vectors):
                j = 4 * (vectors * p + h)
                here = at + uint64(p) * step + uint64(h) * vector
                read[j], read[j + 1], read[j + 2], read[j + 3] = ptx.ld_cg(here, inside)
        mean, rest, total, squares = sums(partial_moments, n, count, part, row)
        total, squares = ptx.warp_sum(total), ptx.warp_sum(squares)
        apart = total / values
        if of_rows:
            rest += apart
        else:
            mean += apart
        # A variance of NaN stays: the compiler's own maximum would drop it, and infinities become zeros.
        rate = float32(1) / math.sqrt(ptx.max_nan_f32(squares / values - apart * apart, float32(0)) + eps)
        for c in range(OCTET):
            best[c] = float32(0)  # ReLU: no maximum is less
        for p in range(pool):
            for j in range(4):
                if floats:
                    i = 8 * p + 2 * j
                    low, high = ptx.bitcast_f32(read[i]), ptx.bitcast_f32(read[i + 1])
                    low_scale, high_scale = ptx.bitcast_f32(scale[i]), ptx.bitcast_f32(scale[i + 1])
                    low_offset, high_offset = ptx.bitcast_f32(offset[i]), ptx.bitcast_f32(offset[i + 1])
                else:
                    low, high = unpack(read[4 * p + j])
                    low_scale, high_scale = affine(scale[4 * p + j])
                    low_offset, high_offset = affine(offset[4 * p + j])
                low, high = low - mean, high - mean
                if of_rows:
                    low, high = low - rest, high - rest
                low = low * rate * low_scale + low_offset
                high = high * rate * high_scale + high_offset
                best[2 * j] = ptx.max_nan_f32(best[2 * j], low)
                best[2 * j + 1] = ptx.max_nan_f32(best[2 * j + 1], high)
        if inside:
            place, low_place = uint64(n * length_out + t), uint64(channels)
            if split and rows:
                place, low_place = place + uint64(n * length_out), uint64(length_out) * uint64(channels)
            elif split:
                place += place
            to = y + (place * uint64(channels) + uint64(channel)) * y_bytes
            store(to, low_place * y_bytes, best)

    return kernel


def affine(gamma: Array, beta: Array, *, wide: bool = False) -> tuple[Any, ...]:
    """gamma and beta, float32 (L, C), NumPy arrays, as `TokenConvWeights.affine` holds them; C a multiple of 8."""
    call = Call(None, None, (0,), gamma=gamma, beta=beta)
    if wide:
        return tuple(call.inputs)
    return tuple(
        narrow(call, array.reshape((1, *array.shape)), array.shape[0], array.shape[1], HALF_PRECISIONS["fp16"]).view(
            np.uint16
        )
        for array in call.inputs
    )


def normalised(
    x: Array,
    partial_moments: Array,
    gamma: Array,
    beta: Array,
    pool_size: int,
    *,
    precision: str = "fp16",
    rows: bool = False,
    wide: bool = False,
    part: int | None = None,
    eps: float = 1e-5,
    out: Array = None,
    stream: Stream = None,
) -> Array:
    """layernorm_relu_maxpool1d_nlc to features in a precision, with partial moments.

    Args:
        x: (N, L, C) in what lies `between` for the precision, on the GPU, C a multiple of 8.
        partial_moments: float32 (N, P, 4), of P parts an input, as `SmallBatchConv.with_partial_moments` leaves
            them; with `part` (N, P, 3) of `WgmmaConv`.
        gamma, beta: as `TokenConvWeights.affine` holds them: (1, L, C), fp16 in uint16 arrays; of 32 bits a value
            float32 (L, C).
        pool_size: positions that a maximum is taken of.
        rows: whether all of an input is one row, (N, 1, ...), for a linear layer: of two terms, all high ones first.
        wide: whether x, gamma and beta are float32, though the precision has fewer bits.
        part: values of a part of a row, `WgmmaConv.part`.
        precision, eps, out, stream: as of `normalised_maxima`.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
    """
    of, given = choose(precision), between(choose(precision), wide)
    n, length, channels = shapes.ranked("x", x, "N, L, C")
    if channels % OCTET or pool_size > length:
        raise ValueError(f"x has shape {tuple(x.shape)}: need C a multiple of {OCTET}, and {pool_size} positions")
    for name, array in (("gamma", gamma), ("beta", beta)):
        shapes.expect(name, array, (length, channels) if given is FP32 else (1, length, channels))
    pooled, held = length // pool_size, np.float32 if given is FP32 else np.uint16
    shape = (n, 1, of.terms * pooled * channels) if rows else (n, pooled, of.terms * channels)
    call = Call(
        out, stream, shape, of.dtype, dtypes={"x": given.dtype, "gamma": held, "beta": held},
        x=x, partial_moments=partial_moments, gamma=gamma, beta=beta,
    )  # fmt: skip
    arguments = [np.uint64(device.address(a)) for a in (*call.inputs, call.out)]
    if part is not None:
        shapes.expect("partial_moments", partial_moments, (n, length * -(-channels // part), PART_VALUES))
        arguments[1] = call.inputs[1]
    numbers = map(np.uint32, (channels, length, pooled, partial_moments.shape[1], part or 1, channels))
    grid = -(-pooled * (channels // OCTET) // NORM_THREADS), n
    call.launch(
        _norm_kernel(of, given is FP32, rows, pool_size, part is not None), grid, NORM_THREADS, *arguments, *numbers,
        np.float32(length * channels), np.float32(eps), early=True,
    )  # fmt: skip
    return call.result()
