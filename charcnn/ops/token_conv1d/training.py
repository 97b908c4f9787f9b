"""Block 1 of a network that trains: its features, and what the gradient needs of them.

A gather as `warp_gather`'s, in fp16 from a table in shared memory. Beside the maxima it stores which of a window has
it, and what that was before gamma and beta: backward then takes neither the convolution's results nor its inputs' sums.
Ids are first made words of four characters, one a position: a window's are three aligned loads, and the gradient
reads the same words.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numba import cuda, float32, types

from charcnn.aliases import Array, DType, Kernel, Stream
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_dim_x, block_idx_x, block_idx_y, extents, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import shapes
from charcnn.ops.maxpool1d_training import BELOW
from charcnn.ops.token_conv1d.training_tables import OCTET, TrainingTables
from charcnn.ops.token_conv1d.warp_gather.config import ALIGNED, RUN, THREADS, WARP, WORDS
from charcnn.ops.token_conv1d.warp_gather.launch import run_length

POOL = 3
"""Positions of a window."""

SMALL_THREADS = device.block_size(256)
"""Of a block of the kernels beside the gather."""

MOST_LANES = 16
"""That have a window's channels: 128 of them, whose table of 71 characters takes half of the shared memory."""


@jit()
def _quads_kernel(ids, quads, depth):
    own = cuda.local.array(WORDS, types.uint32)
    i = block_idx_x() * block_dim_x() + thread_idx_x()
    length = extents(ids)[1]
    n, t = i // length, i % length
    if n < extents(ids)[0]:
        for p in range(WORDS):
            own[p] = depth  # behind the end, and for ids that are no character
            if t + p < length:
                own[p] = min(ids[n, t + p], depth)
        quads[n, t] = own[0] | own[1] << 8 | own[2] << 16 | own[3] << 24


@jit()
def _rates_kernel(stat, moments, eps):
    n = block_idx_x() * block_dim_x() + thread_idx_x()
    if n < extents(stat)[0]:
        moments[n, 0] = stat[n, 0]
        moments[n, 1] = 1 / math.sqrt(stat[n, 1] + eps)


@cache
def _gather_kernel(kernel_size: int, alphabet: int, lane_count: int, layernorm: bool, ptx_type: str) -> Kernel:
    # A lane has eight channels of a window, and with it gamma and beta for `per` inputs; lanes of a warp have
    # `lane_count` vectors of channels, of some windows. After the table is there no warp waits for another.
    span, affine = POOL + kernel_size - 1, POOL * WORDS
    word_count, row = -(-span // WORDS), 16 * lane_count
    end_mask = (1 << 8 * (span % WORDS)) - 1 if span % WORDS else 0xFFFFFFFF
    taps, rows, lanes, pool = map(uint32, (kernel_size, alphabet + 1, lane_count, POOL))
    none, full, step = map(uint32, (0, 16, THREADS))
    windows, last_window, warps, warp_size = map(
        uint32, (WARP // lane_count, WARP // lane_count - 1, THREADS // WARP, WARP)
    )
    row_bytes = row
    slab_bytes, blanks, octet = (alphabet + 1) * row, alphabet * 0x01010101, OCTET
    first, second, below, every = 0x00010001, 0x00020002, BELOW * 0x00010001, 0xFFFFFFFF
    of_byte, evens = 0x4440, 0x6420
    add, multiply, multiply_add, greater = ptx.add_f16x2, ptx.mul_f16x2, ptx.fma_f16x2, ptx.set_gt_u32_f16x2
    pack, peak = ptx.cvt_f16x2("f16"), ptx.max_nan_f16x2("f16")
    rounded = ptx.cvt_bf16x2_f16x2 if ptx_type == "bf16" else uint32
    copy, drain = ptx.cp_async(WORDS), ptx.cp_async_wait_group(0)

    @cuda.jit(device=True, forceinline=True)
    def load_affine(array, at, words, j):
        a, b, c, d = ptx.ld_global_v4_f32(array, at)
        e, f, g, h = ptx.ld_global_v4_f32(array, at + 4)
        words[j], words[j + 1], words[j + 2], words[j + 3] = pack(a, b), pack(c, d), pack(e, f), pack(g, h)

    @jit(launch_bounds=(THREADS, 1))
    def kernel(quads, table, bias, moments, gamma, beta, factors, y, place, normalised, per):
        kept = cuda.shared.array(0, types.uint32, ALIGNED)  # (K, depth + 1, channels)
        gammas = cuda.local.array(affine, types.uint32)
        betas = cuda.local.array(affine, types.uint32)
        offsets = cuda.local.array(octet, float32)
        own = cuda.local.array(word_count, types.uint32)
        rows_at = cuda.local.array(span, types.uint32)
        start = cuda.local.array(WORDS, types.uint32)
        acc = cuda.local.array(affine, types.uint32)
        best = cuda.local.array(WORDS, types.uint32)
        chosen = cuda.local.array(WORDS, types.uint32)
        places = cuda.local.array(WORDS, types.uint32)
        thread = thread_idx_x()
        lane, local = thread % warp_size % lanes, thread % warp_size // lanes
        inputs, channels, pooled, reach = extents(quads)[0], extents(bias)[0], extents(place)[1], extents(y)[1]
        channel, slope = (block_idx_y() * lanes + lane) * octet, pack(factors[1], factors[1])
        origin = ptx.cvta_to_shared(kept) + lane * 16

        i = thread
        while i < taps * rows * lanes:
            c = (block_idx_y() * lanes + i % lanes) * octet
            inside = c < channels
            at = uint64((i // lanes * channels + c) // 2)
            copy(kept, i * 4, none, table, at if inside else uint64(0), full if inside else none)
            i += step
        ptx.cp_async_commit_group()
        for c in range(octet):
            offsets[c] = bias[channel + c] if channel < channels else float32(0)
        for c in range(WORDS):
            start[c] = pack(offsets[2 * c], offsets[2 * c + 1])
        drain()
        cuda.syncthreads()

        # Runs of `per` inputs at some windows. Those of a block's warps lie far apart: all have blank ends of texts.
        tiles, runs = (pooled + last_window) // windows, (inputs + (per - 1)) // per
        run = thread // warp_size * grid_dim_x() + block_idx_x()
        while run < tiles * runs:
            window, n = run % tiles * windows + local, run // tiles * per
            last = min(inputs, n + per)
            run += warps * grid_dim_x()
            if window < pooled and channel < channels:
                begin = window * pool
                if layernorm:
                    for j in range(pool):
                        load_affine(gamma, (begin + j) * channels + channel, gammas, WORDS * j)
                        load_affine(beta, (begin + j) * channels + channel, betas, WORDS * j)
                row_at = uint64(window) * uint64(channels) + uint64(channel)
                to = uint64(n) * (uint64(reach) * uint64(channels)) + row_at
                at = uint64(n) * (uint64(pooled) * uint64(channels)) + row_at
                for q in range(word_count):
                    own[q] = quads[n, begin + 4 * q]
                mean = rate = float32(0)
                if layernorm:
                    mean, rate = moments[n, 0], moments[n, 1]
                while n < last:
                    other = (own[word_count - 1] ^ blanks) & end_mask
                    for q in range(word_count - 1):
                        other |= own[q] ^ blanks
                    for p in range(span):
                        rows_at[p] = ptx.prmt(own[p // 4], 0, of_byte + p % 4) * row_bytes + origin
                    scale = pack(rate, rate)
                    if layernorm:  # a difference in float32: the sums are small
                        for c in range(WORDS):
                            start[c] = pack(offsets[2 * c] - mean, offsets[2 * c + 1] - mean)
                    n += 1
                    if n < last:  # while this one's are added
                        for q in range(word_count):
                            own[q] = quads[n, begin + 4 * q]
                        if layernorm:
                            mean, rate = moments[n, 0], moments[n, 1]
                    for j in range(pool):
                        for c in range(WORDS):
                            acc[WORDS * j + c] = start[c]
                    if other != 0:  # else rows of zeros
                        for j in range(pool):
                            s = WORDS * j
                            for k in range(taps):
                                a, b, c, d = ptx.ld_shared_v4_b32_at(kept, rows_at[j + k], k * slab_bytes)
                                acc[s], acc[s + 1] = add(acc[s], a), add(acc[s + 1], b)
                                acc[s + 2], acc[s + 3] = add(acc[s + 2], c), add(acc[s + 3], d)
                    for c in range(WORDS):
                        for j in range(pool):
                            s = WORDS * j + c
                            x = value = acc[s]
                            if layernorm:
                                x = multiply(x, scale)
                                value = multiply_add(x, gammas[s], betas[s])
                            if j == 0:
                                best[c], chosen[c], places[c] = value, x, 0
                            else:  # of equals the first
                                mask = greater(value, best[c])
                                best[c] = peak(best[c], value)
                                chosen[c] = chosen[c] ^ ((chosen[c] ^ x) & mask)
                                places[c] = places[c] ^ ((places[c] ^ (first if j == 1 else second)) & mask)
                        places[c] = places[c] | (greater(best[c], 0) ^ every) & below
                        best[c], chosen[c] = rounded(peak(best[c], multiply(best[c], slope))), rounded(chosen[c])
                    ptx.st_global_v4_b32(y, to, best[0], best[1], best[2], best[3])
                    low, high = ptx.prmt(places[0], places[1], evens), ptx.prmt(places[2], places[3], evens)
                    ptx.st_global_v2_b32(place, at, low, high)
                    if layernorm:
                        ptx.st_global_v4_b32(normalised, at, chosen[0], chosen[1], chosen[2], chosen[3])
                    to += uint64(reach) * uint64(channels)
                    at += uint64(pooled) * uint64(channels)

    return kernel


class TokenForward:
    """Block 1 forward: tables, and the words and moments that `forward` writes anew for each batch.

    Attributes:
        tables: `TrainingTables`, of the last weights.
        quads: uint32 (N, L_in): of each position its character and the three behind it, blanks behind the end.
        windows: P = (L_in - K + 1) // 3.

    Args:
        shape: (K, depth, C) of the weight, C a multiple of 8, depth at most 255.
        ids_shape: (N, L_in).
        layernorm: whether the block normalises.
        eps: added to the variance.
        stream: a CUDA stream; the default stream where None.
        ptx_type: of features, bf16 or f16.

    Raises:
        ValueError: a shape does not fit, or shared memory does not hold the table of eight channels.
        DeviceError: no usable GPU.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        ids_shape: tuple[int, int],
        *,
        layernorm: bool = True,
        eps: float = 1e-5,
        stream: Stream = None,
        ptx_type: str = "bf16",
    ) -> None:
        kernel_size, depth, channels = shape
        (n, length), of = ids_shape, device.as_stream(stream)
        self.windows = (length - kernel_size + 1) // POOL
        if n < 1 or self.windows < 1 or n * length >= 1 << 32:
            raise ValueError(f"{ids_shape=}: need (N, L_in), N * L_in below 2^32, and a window, {kernel_size + 2} ids")
        self.tables = TrainingTables(shape, layernorm=layernorm, stream=stream)
        self.layernorm, self.eps, self.ptx_type = layernorm, eps, ptx_type
        rows, limit = kernel_size * (depth + 1), device.shared_limit()
        self._lanes = min(MOST_LANES, shapes.power_of_two(channels // OCTET))
        while self._lanes > 1 and 16 * rows * self._lanes > limit:
            self._lanes //= 2
        if 16 * rows > limit:
            raise ValueError(f"{shape=}: {rows} rows of 8 channels need {16 * rows} bytes of {limit} of shared memory")
        self.quads = device.empty(ids_shape, np.uint32, of)
        self._stat = device.empty((n, 2), np.float64, of)

    def forward(
        self,
        ids: Array,
        weight: Array,
        bias: Array,
        affine: tuple[Array, Array] | None,
        factors: Array,
        pooled: Array,
        place: Array,
        normalised: Array = None,
        moments: Array = None,
        *,
        stream: Stream = None,
    ) -> None:
        """Start the block; all arrays lie on the GPU, nothing is allocated or waited for.

        Weights are rounded to fp16. So are sums, from bias - mean on, gamma, beta and what is compared. An input's
        moments are those of the sums before they are rounded.

        Args:
            ids: uint8 (N, L_in); an id >= depth is a blank.
            weight, bias: float32 (K, depth, C) and (C,).
            affine: gamma and beta, float32 (L, C), L = L_in - K + 1; None without LayerNorm.
            factors: float32 (2,), of which the second is the slope of leaky ReLU, from 0 to less than 1.
            pooled: written, 16 bits as uint16 (N, S, C), S >= P: rows from P on are left as they are.
            place: written, uint8 (N, P, C): which of the window has the maximum, of equals the first, and BELOW more
                where that is not above 0.
            normalised: written, 16 bits as uint16 (N, P, C): the maximum before gamma and beta; None without
                LayerNorm.
            moments: written, float32 (N, 2): mean and 1 / sqrt(variance + eps); None without LayerNorm.
            stream: a CUDA stream; the default stream where None.

        Raises:
            ValueError: an argument's shape, dtype or side does not fit.
        """
        (n, length), tables = self.quads.shape, self.tables
        kernel_size, depth, channels = tables.kernel_size, tables.depth, tables.channels
        if (affine is None) == self.layernorm:
            raise ValueError(f"affine is {affine and 'given'}: need gamma and beta with LayerNorm, and None without")
        shapes.expect("ids", ids, (n, length))
        reach = shapes.ranked("pooled", pooled, "N, S, C")[1]
        shapes.expect("pooled", pooled, (n, max(reach, self.windows), channels))
        shapes.expect("factors", factors, (2,))
        written, given = {"place": place}, {"ids": ids, "factors": factors}
        dtypes: dict[str, DType] = {"place": np.uint8, "normalised": np.uint16}
        shapes.expect("place", place, (n, self.windows, channels))
        if affine is not None:
            for name, array in zip(("gamma", "beta"), affine, strict=True):
                shapes.expect(name, array, (length - kernel_size + 1, channels))
                given[name] = array
            shapes.expect("normalised", normalised, (n, self.windows, channels))
            shapes.expect("moments", moments, (n, 2))
            written |= {"normalised": normalised, "moments": moments}
        call = Call(
            pooled, stream, pooled.shape, np.uint16, dtypes, named="pooled", written=tuple(written), **given, **written
        )
        tables.update(weight, bias, stream=stream)
        blocks = -(-n * length // SMALL_THREADS)
        call.launch(_quads_kernel, blocks, SMALL_THREADS, ids, self.quads, *map(np.uint32, (depth,)))
        if self.layernorm:
            tables(ids, out=self._stat, stream=stream)
            blocks = -(-n // SMALL_THREADS)
            call.launch(_rates_kernel, blocks, SMALL_THREADS, self._stat, moments, np.float64(self.eps))
        lanes = self._lanes
        slices, tiles = -(-channels // (OCTET * lanes)), -(-self.windows // (WARP // lanes))
        blocks = min(tiles * n, max(1, device.multiprocessors() // slices))
        per = run_length(n, tiles, blocks * THREADS // WARP, RUN)
        kernel = _gather_kernel(kernel_size, depth, lanes, self.layernorm, self.ptx_type)
        call.launch(
            kernel, (blocks, slices), THREADS, self.quads, tables.words, bias,
            *((moments, *affine) if affine else (bias, bias, bias)), factors, pooled, place,
            normalised if affine else pooled, *map(np.uint32, (per,)), shared=16 * kernel_size * (depth + 1) * lanes,
        )  # fmt: skip
