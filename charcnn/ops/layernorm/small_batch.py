"""Block 1's convolution of token ids for a few inputs, and LayerNorm, ReLU and pooling from partial moments.

Here LayerNorm's statistics are those of the values themselves: a block of the convolution leaves mean and squared
deviations of its part, and every warp of the next kernel merges all parts of its input, by the formula of Chan, Golub
and LeVeque, in the same order. Tables of the weights' products (`SharedPairTables`) would take a kernel of its own,
and few threads of it would have work.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32, types

from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import shapes
from charcnn.ops.common.cast import narrow
from charcnn.ops.common.precision import HALF_PRECISIONS, choose
from charcnn.ops.conv1d.small_batch import PART_BYTES
from charcnn.ops.token_conv1d.weights import TokenConvWeights

OCTET = 8
"""Channels of a lane: 16 bytes."""

POSITIONS = 8
"""Of a block of the convolution, a warp each."""

NORM_THREADS = 64


@cache
def _first_kernel(ptx_type, taps):
    pack = ptx.cvt_f16x2(ptx_type)
    unpack = ptx.cvt_f32x2("f16")
    one, five, lanes, zero = uint32(1), uint32(5), uint32(31), uint32(0)
    octet, warps, at_once = uint32(OCTET), uint32(POSITIONS), uint32(32 * OCTET)
    warp_count = POSITIONS

    @jit(launch_bounds=(32 * POSITIONS, 1))
    def kernel(ids, table, bias, y, partial_moments, length, positions, depth, channels, row_bytes):
        means = cuda.shared.array(POSITIONS, float32)
        squares = cuda.shared.array(POSITIONS, float32)
        sums = cuda.local.array(OCTET, float32)
        at = cuda.local.array(taps, types.uint64)
        thread = uint32(cuda.threadIdx.x)
        warp, lane = uint32(thread >> five), uint32(thread & lanes)
        n, tile = uint32(cuda.blockIdx.y), uint32(cuda.blockIdx.x)
        position = uint32(uint32(tile * warps) + warp)
        inside = position < positions
        ptx.griddepcontrol_launch()
        for k in range(taps):
            a = depth
            if inside:
                a = min(uint32(ids[n, uint32(position + uint32(k))]), depth)
            row = uint32(uint32(uint32(k) * uint32(depth + one)) + a)
            at[k] = table + uint64(row) * uint64(row_bytes)
        ptx.griddepcontrol_wait()  # what this kernel writes, the one before may read
        mean, square, held = float32(0), float32(0), float32(0)
        channel = uint32(lane * octet)
        while inside and uint32(channel - uint32(lane * octet)) < channels:
            wanted = uint32(channel < channels)
            for c in range(OCTET):
                sums[c] = float32(0)
                if uint32(channel + uint32(c)) < channels:
                    sums[c] = bias[uint32(channel + uint32(c))]
            for k in range(taps):
                words = ptx.ld_nc_no_allocate(at[k] + uint64(channel) * uint64(2), wanted)
                for j in range(4):
                    low, high = unpack(words[j])
                    sums[2 * j] += low
                    sums[2 * j + 1] += high
            if wanted:
                to = y + (
                    uint64(uint32(uint32(n * positions) + position)) * uint64(channels) + uint64(channel)
                ) * uint64(2)
                ptx.st_global_v4_b32(
                    to, pack(sums[0], sums[1]), pack(sums[2], sums[3]), pack(sums[4], sums[5]), pack(sums[6], sums[7])
                )
            # This run of channels, merged with those before it.
            more = float32(min(at_once, uint32(channels - uint32(channel - uint32(lane * octet)))))
            total = float32(0)
            for c in range(OCTET):
                total += sums[c] if wanted else float32(0)
            here = ptx.warp_sum(total) / more
            total = float32(0)
            for c in range(OCTET):
                deviation = sums[c] - here if wanted else float32(0)
                total += deviation * deviation
            total = ptx.warp_sum(total)
            apart = here - mean
            square += total + apart * apart * (held * more / (held + more))
            mean += apart * (more / (held + more))
            held += more
            channel = uint32(channel + at_once)
        if lane == zero:
            means[warp], squares[warp] = mean, square
        cuda.syncthreads()
        if thread == zero:
            rows = min(warps, uint32(positions - uint32(tile * warps)))
            total = float32(0)
            for w in range(warp_count):
                total += means[w] if uint32(w) < rows else float32(0)
            mean = total / float32(rows)
            total = float32(0)
            for w in range(warp_count):
                if uint32(w) < rows:
                    apart = means[w] - mean
                    total += squares[w] + held * apart * apart
            place = uint64(uint32(uint32(n * uint32(cuda.gridDim.x)) + tile))
            ptx.st_global_v4_f32(
                partial_moments + place * uint64(PART_BYTES), mean, total, held * float32(rows), float32(0)
            )

    return kernel


@cache
def _norm_kernel(ptx_type, pool):
    unpack, pack, affine = ptx.cvt_f32x2(ptx_type), ptx.cvt_f16x2(ptx_type), ptx.cvt_f32x2("f16")
    words, octet, lanes = 4 * pool, uint32(OCTET), uint32(31)
    positions, warp = uint32(pool), uint32(32)

    @jit(launch_bounds=(NORM_THREADS, 1))
    def kernel(x, partial_moments, gamma, beta, y, channels, length, length_out, count, values, eps):
        scale = cuda.local.array(words, types.uint32)
        offset = cuda.local.array(words, types.uint32)
        read = cuda.local.array(words, types.uint32)
        best = cuda.local.array(OCTET, float32)
        n, across = uint32(cuda.blockIdx.y), uint32(channels // octet)
        i = uint32(uint32(cuda.blockIdx.x) * uint32(NORM_THREADS) + uint32(cuda.threadIdx.x))
        t = uint32(i // across)
        inside = uint32(t < length_out)
        channel, position = uint32(uint32(i - uint32(t * across)) * octet), uint32(t * positions)
        at = (uint64(position) * uint64(channels) + uint64(channel)) * uint64(2)
        step = uint64(channels) * uint64(2)
        for p in range(pool):
            j = 4 * p
            scale[j], scale[j + 1], scale[j + 2], scale[j + 3] = ptx.ld_nc_no_allocate(
                gamma + at + uint64(p) * step, inside
            )
            offset[j], offset[j + 1], offset[j + 2], offset[j + 3] = ptx.ld_nc_no_allocate(
                beta + at + uint64(p) * step, inside
            )
        ptx.griddepcontrol_launch()
        ptx.griddepcontrol_wait()
        at = x + uint64(n) * uint64(length) * step + at
        for p in range(pool):
            j = 4 * p
            read[j], read[j + 1], read[j + 2], read[j + 3] = ptx.ld_cg(at + uint64(p) * step, inside)
        first = partial_moments + uint64(uint32(n * count)) * uint64(PART_BYTES)
        shift, _, _, _ = ptx.ld_cg_v4_f32(first)  # near the mean: differences from it lose nothing
        total, squares = float32(0), float32(0)
        part = uint32(uint32(cuda.threadIdx.x) & lanes)
        while part < count:
            mean, square, held, _ = ptx.ld_cg_v4_f32(first + uint64(part) * uint64(PART_BYTES))
            apart = mean - shift
            total += held * apart
            squares += square + held * apart * apart
            part = uint32(part + warp)
        total, squares = ptx.warp_sum(total), ptx.warp_sum(squares)
        apart = total / values
        mean = shift + apart
        rate = float32(1) / math.sqrt(max(squares / values - apart * apart, float32(0)) + eps)
        for c in range(OCTET):
            best[c] = float32(0)  # ReLU: no maximum is less
        for p in range(pool):
            for j in range(4):
                low, high = unpack(read[4 * p + j])
                low_scale, high_scale = affine(scale[4 * p + j])
                low_offset, high_offset = affine(offset[4 * p + j])
                low = (low - mean) * rate * low_scale + low_offset
                high = (high - mean) * rate * high_scale + high_offset
                best[2 * j] = ptx.max_nan_f32(best[2 * j], low)
                best[2 * j + 1] = ptx.max_nan_f32(best[2 * j + 1], high)
        if inside:
            to = y + (uint64(uint32(uint32(n * length_out) + t)) * uint64(channels) + uint64(channel)) * uint64(2)
            ptx.st_global_v4_b32(
                to, pack(best[0], best[1]), pack(best[2], best[3]), pack(best[4], best[5]), pack(best[6], best[7])
            )

    return kernel


def affine(gamma: Any, beta: Any) -> tuple[Any, ...]:
    """gamma and beta, float32 (L, C), NumPy arrays, as `TokenConvWeights.affine` holds them; C a multiple of 8."""
    call = Call(None, None, (0,), gamma=gamma, beta=beta)
    return tuple(
        narrow(call, array.reshape((1, *array.shape)), array.shape[0], array.shape[1], HALF_PRECISIONS["fp16"]).view(
            np.uint16
        )
        for array in call.inputs
    )


def first_moments_shape(n: int, length: int) -> shapes.Shape:
    """Of `first`'s statistics, for so many output positions."""
    return n, -(-length // POSITIONS), PART_BYTES // 4


def first(ids: Any, weights: TokenConvWeights, partial_moments: Any, *, out: Any, stream: Any = None) -> Any:
    """The convolution of token ids with the table of weights, and each input's partial moments, for `normalised`.

    Args:
        ids: uint8 (N, L) on the GPU; an id >= depth is blank.
        weights: their table, in fp16, and bias; C_out a multiple of 8.
        partial_moments: float32 of `first_moments_shape(N, L - K + 1)`.
        out: where to write, (N, L - K + 1, C_out) in the precision of `weights`.
        stream: a CUDA stream; the default stream where None.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
    """
    n, length = shapes.ranked("ids", ids, "N, L")
    taps, depth, channels = weights.shape
    if channels % OCTET:
        raise ValueError(f"weights has C_out={channels}: need a multiple of {OCTET}")
    kept = length - taps + 1
    shapes.expect("partial_moments", partial_moments, first_moments_shape(n, kept))
    call = Call(out, stream, (n, kept, channels), weights.precision.dtype, ids=ids, partial_moments=partial_moments)
    table, y, where = (np.uint64(device.address(a)) for a in (weights.table, call.out, call.inputs[1]))
    numbers = map(np.uint32, (length, kept, depth, channels, 2 * channels))
    kernel = _first_kernel(weights.precision.ptx_type, taps)
    grid = -(-kept // POSITIONS), n
    call.launch(kernel, grid, 32 * POSITIONS, call.inputs[0], table, weights.bias, y, where, *numbers)
    return call.result()


def normalised(
    x: Any,
    partial_moments: Any,
    gamma: Any,
    beta: Any,
    pool_size: int,
    *,
    precision: str = "fp16",
    eps: float = 1e-5,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """layernorm_relu_maxpool1d_nlc from features of 16 bits to such, with partial moments.

    Args:
        x: (N, L, C) in the precision's dtype, on the GPU, C a multiple of 8.
        partial_moments: float32 (N, P, 4), of P parts an input, as `first` or
            `SmallBatchWeights.conv1d_partial_moments` leave them.
        gamma, beta: (1, L, C), fp16 in uint16 arrays, as `TokenConvWeights.affine` holds them.
        pool_size: positions that a maximum is taken of.
        precision, eps, out, stream: as of `normalised_maxima`.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
    """
    of = choose(precision, HALF_PRECISIONS)
    n, length, channels = shapes.ranked("x", x, "N, L, C")
    if channels % OCTET or pool_size > length:
        raise ValueError(f"x has shape {tuple(x.shape)}: need C a multiple of {OCTET}, and {pool_size} positions")
    for name, array in (("gamma", gamma), ("beta", beta)):
        shapes.expect(name, array, (1, length, channels))
    shape = n, length // pool_size, channels
    call = Call(
        out, stream, shape, of.dtype, dtypes={"x": of.dtype, "gamma": np.uint16, "beta": np.uint16},
        x=x, partial_moments=partial_moments, gamma=gamma, beta=beta,
    )  # fmt: skip
    addresses = (np.uint64(device.address(a)) for a in (*call.inputs, call.out))
    numbers = map(np.uint32, (channels, length, shape[1], partial_moments.shape[1]))
    grid = -(-shape[1] * (channels // OCTET) // NORM_THREADS), n
    call.launch(
        _norm_kernel(of.ptx_type, pool_size), grid, NORM_THREADS, *addresses, *numbers,
        np.float32(length * channels), np.float32(eps), early=True,
    )  # fmt: skip
    return call.result()
