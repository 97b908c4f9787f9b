"""The gradient of block 1's weight and bias where it trains, from dy of its pooled features.

No gradient of the convolution's results is formed. What passes through the maxima is scattered (`training_scatter`).
What LayerNorm's mean and variance add depends on the ids alone, but for sums of weights: it takes weighted counts of
which characters any two taps met, times the weights. The README.md of this folder derives it. Counts are whole numbers
of fixed steps, so that their order does not matter.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numba import cuda, float32, float64, int64, types

from charcnn.aliases import Array, Kernel, Stream
from charcnn.gpu import device, ptx
from charcnn.gpu.device import int32, uint32, uint64
from charcnn.gpu.indices import block_idx_x, block_idx_y, extents, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common import shapes
from charcnn.ops.token_conv1d import training_scatter
from charcnn.ops.token_conv1d.gather import ALIGNED, RESERVED
from charcnn.ops.token_conv1d.training import TokenForward
from charcnn.ops.token_conv1d.training_scatter import GROUP, SLICE, STAGE, TAPS, quads_of, static_bytes
from charcnn.ops.token_conv1d.training_tables import SIDE

DIGIT = 13
"""Bits of the lower of two digits of a weight of counts, which are added up apart, in 32 bits."""

WEIGHT_BITS = 2 * DIGIT

MOST_COUNTS = 1 << 30 - DIGIT
"""Of a block: then no digit's sum overflows."""

LEAST_INPUTS = 32
"""Of a block that counts: to add its counts to those of all blocks takes as long as some inputs' counts."""

THREADS = device.block_size(256)

COLUMNS = 4
"""Channels of a thread of the kernel that joins everything, SIDE apart."""

WIDE = SIDE * COLUMNS

LEAST, INFINITE = WEIGHT_BITS + 126, 0x7F800000
"""The exponent of a weight's steps is LEAST less the exponent bits of the largest weight; bits of infinity."""

AT_ONCE = 8
"""Partial sums that a thread asks for before it needs the first."""


@cuda.jit(device=True, forceinline=True)
def _weights_of(moments, sums, n, values):
    """What counts of input n are multiplied by: those of pairs, and those of characters alone."""
    rate = float64(moments[n, 1])
    w = rate * rate * float64(sums[n, 1]) / values
    return w, rate * float64(sums[n, 0]) / values - w * float64(moments[n, 0])


@jit()
def _weights_kernel(moments, sums, weights, units, counts, values):
    # Each block finds the largest weights for itself, and writes a part of all.
    peaks = cuda.shared.array(2, types.uint32)
    thread, step, inputs = thread_idx_x(), grid_dim_x() * THREADS, extents(moments)[0]
    if thread < 2:
        peaks[thread] = 0
    cuda.syncthreads()
    n = thread
    while n < inputs:
        w, z = _weights_of(moments, sums, n, values)
        cuda.atomic.max(peaks, 0, ptx.bitcast_b32(abs(float32(w))))  # of what is not negative bits are in order
        cuda.atomic.max(peaks, 1, ptx.bitcast_b32(abs(float32(z))))
        n += THREADS
    cuda.syncthreads()
    # A float32 is below 2 to its exponent bits less 126.
    exponent_w, exponent_z = LEAST - int32(peaks[0] >> 23), LEAST - int32(peaks[1] >> 23)
    unit_w, unit_z = math.ldexp(1.0, int32(exponent_w)), math.ldexp(1.0, int32(exponent_z))
    n = block_idx_x() * THREADS + thread
    while n < inputs:
        w, z = _weights_of(moments, sums, n, values)
        weights[n, 0] = math.floor(w * unit_w + 0.5) if peaks[0] < INFINITE else 0
        weights[n, 1] = math.floor(z * unit_z + 0.5) if peaks[1] < INFINITE else 0
        n += step
    i = block_idx_x() * THREADS + thread
    while i < counts.size:
        counts[i] = 0
        i += step
    if block_idx_x() == 0 and thread < 2:  # what is not finite makes all NaN
        finite = peaks[thread] < INFINITE
        units[thread] = (1 / unit_w if thread == 0 else 1 / unit_z) if finite else math.nan


@cache
def _count_kernel(kernel_size: int, alphabet: int, row_count: int) -> Kernel:
    # A block has a pair of taps, and of its table some rows, or a tap alone; and some inputs.
    ranges, pairs = -(-alphabet // row_count), kernel_size * (kernel_size - 1) // 2
    taps, depth, rows, step, low_bits = map(uint32, (kernel_size, alphabet, row_count, THREADS, DIGIT))
    size, low_mask, byte, singles = max(row_count, 2) * alphabet, (1 << DIGIT) - 1, 255, pairs * alphabet * alphabet
    pair_units, totals = pairs * ranges, singles + 2 * kernel_size * alphabet

    @jit(launch_bounds=THREADS)
    def kernel(quads, weights, counts, per):
        kept = cuda.shared.array(0, types.int32, ALIGNED)  # lower digits' sums, then higher ones'
        firsts = cuda.local.array(AT_ONCE, types.uint32)
        seconds = cuda.local.array(AT_ONCE, types.uint32)
        thread, unit = thread_idx_x(), block_idx_x()
        windows = extents(quads)[1] - (taps - 1)
        alone = unit >= pair_units
        k, other, begin, slots = unit - pair_units if alone else unit // ranges, unit, unit, 2 * depth
        to = uint64(singles)
        if alone:
            other, begin = k, depth
            to += uint64(k * slots)
        else:
            left, begin, k = k, unit % ranges * rows, taps - taps
            slots = min(rows, depth - begin) * depth
            to = uint64(left * depth + begin) * uint64(depth)
            while left >= taps - 1 - k:
                left -= taps - 1 - k
                k += 1
            other = k + 1 + left
        end = min(begin + rows, depth)
        i = thread
        while i < 2 * size:
            kept[i] = 0
            i += step
        cuda.syncthreads()
        n = block_idx_y() * per
        last, total, singles_total = min(n + per, extents(quads)[0]), int64(0), int64(0)
        while n < last:
            w, z = int64(weights[n, 0]), int64(weights[n, 1])
            total, singles_total = total + w, singles_total + z
            t = thread
            while t < windows:
                for u in range(AT_ONCE):
                    at = min(t + u * step, windows - 1)
                    firsts[u], seconds[u] = quads[n, at + k] & byte, quads[n, at + other] & byte
                for u in range(AT_ONCE):
                    a, b = firsts[u], seconds[u]
                    if t + u * step < windows and a < depth and b < depth:
                        if alone:
                            cuda.atomic.add(kept, a, w & low_mask)
                            cuda.atomic.add(kept, size + a, w >> low_bits)
                            cuda.atomic.add(kept, depth + a, z & low_mask)
                            cuda.atomic.add(kept, size + depth + a, z >> low_bits)
                        elif begin <= a and a < end:
                            at = (a - begin) * depth + b
                            cuda.atomic.add(kept, at, w & low_mask)
                            cuda.atomic.add(kept, size + at, w >> low_bits)
                t += AT_ONCE * step
            n += 1
        cuda.syncthreads()
        i = thread
        while i < slots:
            counted = (int64(kept[size + i]) << int64(low_bits)) + int64(kept[i])
            if counted != 0:
                cuda.atomic.add(counts, to + uint64(i), counted)
            i += step
        if unit == pair_units and thread == 0:  # of the first tap alone: what is always there
            cuda.atomic.add(counts, uint64(totals), total * int64(windows))
            cuda.atomic.add(counts, uint64(totals + 1), singles_total * int64(windows))

    return kernel


@cache
def _join_kernel(layernorm: bool) -> Kernel:
    # A block has SIDE rows of the gradient, that of the bias behind all others, and COLUMNS times SIDE channels.
    side, wide, step, columns, at_once = *map(uint32, (SIDE, SIDE * COLUMNS, SIDE * SIDE)), COLUMNS, AT_ONCE
    unpack, pairs = ptx.cvt_f32x2("f16"), SIDE * COLUMNS // 2

    @cuda.jit(device=True)
    def pair_count(counts, first, second, taps, depth):
        """How often two rows met, weighted; row taps * depth is the bias, which meets every window."""
        low, high, last = min(first, second), max(first, second), taps * depth
        singles = uint64(taps * (taps - 1) // 2 * depth) * uint64(depth)
        if high > last:
            return float64(0)
        if low == last:
            return float64(counts[singles + uint64(2 * last)])
        k, a, other, b = low // depth, low % depth, high // depth, high % depth
        if high == last or low == high:
            return float64(counts[singles + uint64(2 * depth * k + a)])
        if k == other:
            return float64(0)
        pair = k * taps - k * (k + 1) // 2 + (other - k - 1)
        return float64(counts[uint64(pair * depth + a) * uint64(depth) + uint64(b)])

    @jit(launch_bounds=SIDE * SIDE)
    def kernel(partial, counts, units, table, bias, dweight, dbias):
        met = cuda.shared.array((SIDE, SIDE), float64)
        weights = cuda.shared.array((SIDE, WIDE), float32)
        totals = cuda.local.array(COLUMNS, float64)
        more = cuda.local.array(COLUMNS, float64)
        parts, last, channels = extents(partial)[0], extents(partial)[1] - 1, extents(partial)[2]
        taps, depth, thread = extents(table)[0], extents(table)[1] - 1, thread_idx_x()
        own, lane, first_channel = thread // side, thread % side, block_idx_y() * wide
        row = block_idx_x() * side + own
        for j in range(columns):
            totals[j] = more[j] = float64(0)
        for part in range(0, parts, AT_ONCE):
            for j in range(columns):
                channel = min(first_channel + j * side + lane, channels - 1)
                for u in range(at_once):
                    value = partial[min(part + u, parts - 1), min(row, last), channel]
                    totals[j] += float64(value if part + u < parts else float32(0))
        if layernorm:
            for begin in range(0, last + 1, SIDE):
                cuda.syncthreads()  # the tiles before these may still be read
                met[own, lane] = pair_count(counts, row, begin + lane, taps, depth)
                i = thread
                while i < side * pairs:
                    at, c = begin + i // pairs, first_channel + 2 * (i % pairs)
                    low = high = float32(0)
                    if c < channels and at < last:
                        low, high = unpack(table[at // depth, at % depth, c // 2])
                    elif c < channels and at == last:
                        low, high = bias[c], bias[c + 1]
                    weights[i // pairs, 2 * (i % pairs)], weights[i // pairs, 2 * (i % pairs) + 1] = low, high
                    i += step
                cuda.syncthreads()
                for r in range(SIDE):
                    for j in range(columns):
                        more[j] += met[own, r] * float64(weights[r, j * side + lane])
        for j in range(columns):
            channel = first_channel + j * side + lane
            if row <= last and channel < channels:
                total = totals[j]
                if layernorm:
                    at = uint64(taps * (taps - 1) // 2 * depth) * uint64(depth)  # where counts of single ones begin
                    at += uint64(2 * depth * (row // depth) + depth + row % depth if row < last else 2 * last + 1)
                    total -= more[j] * units[0] + float64(counts[at]) * units[1]
                if row < last:
                    dweight[row, channel] = total
                else:
                    dbias[channel] = total

    return kernel


class TokenBackward:
    """Block 1's gradient, after `TokenForward.forward` of the same batch; it has memory for partial sums.

    Args:
        block: the block, whose words of ids and rounded weights it reads.
        stream: a CUDA stream; the default stream where None.
        taps: of a warp that scatters, 1 to TAPS.

    Raises:
        ValueError: shared memory does not hold a warp's taps' rows of 32 channels, or inputs are longer than 131,072.
        DeviceError: no usable GPU.
    """

    def __init__(self, block: TokenForward, *, stream: Stream = None, taps: int = TAPS) -> None:
        if taps not in range(1, TAPS + 1):
            raise ValueError(f"{taps=}: need 1 to {TAPS}")
        self._block, self._each, tables = block, taps, block.tables
        (n, length), of = block.quads.shape, device.as_stream(stream)
        taps, depth, channels = shape = tables.kernel_size, tables.depth, tables.channels
        limit, self._warps = device.shared_limit(), -(-taps // self._each)
        while self._warps > 1 and self._bytes() > limit:
            self._warps -= 1
        if self._bytes() > limit:
            raise ValueError(f"weight has {shape=}: 32 channels need {self._bytes()} bytes of {limit} of shared memory")
        if length > MOST_COUNTS:
            raise ValueError(f"inputs have {length} ids: need at most {MOST_COUNTS}")
        self._slices, self._groups = -(-channels // SLICE), -(-taps // (self._each * self._warps))
        resident = min(16, (limit + RESERVED) // (self._bytes() + RESERVED)) * device.multiprocessors()
        items = -(-block.windows // GROUP) * -(-n // STAGE)
        self._items = -(-items // max(1, resident // (self._slices * self._groups)))  # of a block
        self._partial = device.empty((-(-items // self._items), taps * depth + 1, channels), np.float32, of)
        if block.layernorm:
            pairs = taps * (taps - 1) // 2
            self._counts = device.empty((pairs * depth * depth + 2 * taps * depth + 2,), np.int64, of)
            self._weights, self._units = device.empty((n, 2), np.int32, of), device.empty((2,), np.float64, of)

    def _bytes(self) -> int:
        tables, taps = self._block.tables, min(self._block.tables.kernel_size, self._each * self._warps)
        return 4 * SLICE * taps * (tables.depth + 1) + static_bytes(quads_of(self._warps, self._each))

    def backward(
        self,
        dy: Array,
        place: Array,
        dweight: Array,
        dbias: Array,
        bias: Array,
        factors: Array,
        gamma: Array = None,
        moments: Array = None,
        sums: Array = None,
        *,
        stream: Stream = None,
    ) -> None:
        """Start the kernels; all arrays lie on the GPU, nothing is allocated or waited for.

        y is taken as a sum of the weights as rounded to fp16, as the forward pass added them, not yet rounded itself.

        Args:
            dy: of the block's features' type, as uint16 (N, S, C), S >= P: rows from P on are not read.
            place: uint8 (N, P, C), as `TokenForward.forward` wrote it.
            dweight, dbias: written, float32 (K, depth, C) and (C,).
            bias: float32 (C,), of the forward pass.
            factors: float32 (2,), of which the second is the slope of leaky ReLU.
            gamma: float32 (L, C); None without LayerNorm, and so are moments and sums.
            moments: float32 (N, 2), as the forward pass wrote them.
            sums: float32 (N, 2): of g gamma, and of g gamma xhat, over an input's windows and channels, where g is dy
                with place < 3.
            stream: a CUDA stream; the default stream where None.

        Raises:
            ValueError: an argument's shape, dtype or side does not fit.
        """
        block, tables = self._block, self._block.tables
        (n, length), (taps, depth, channels) = block.quads.shape, (tables.kernel_size, tables.depth, tables.channels)
        kept, norm = length - taps + 1, {"gamma": gamma, "moments": moments, "sums": sums}
        reach = shapes.ranked("dy", dy, "N, S, C")[1]
        expected = {
            "dy": (dy, (n, max(reach, block.windows), channels)), "place": (place, (n, block.windows, channels)),
            "dbias": (dbias, (channels,)), "bias": (bias, (channels,)), "factors": (factors, (2,)),
        }  # fmt: skip
        if block.layernorm:
            expected |= {"gamma": (gamma, (kept, channels)), "moments": (moments, (n, 2)), "sums": (sums, (n, 2))}
        elif any(array is not None for array in norm.values()):
            raise ValueError("gamma, moments or sums is given: need None without LayerNorm")
        for name, (array, shape) in expected.items():
            shapes.expect(name, array, shape)
        call = Call(
            dweight, stream, (taps, depth, channels), dtypes={"dy": np.uint16, "place": np.uint8}, named="dweight",
            written=("dbias",), **{name: array for name, (array, _) in expected.items()},
        )  # fmt: skip
        (parts, rows, _), warps = self._partial.shape, self._warps
        scatter = training_scatter.make_kernel(taps, depth, warps, block.layernorm, block.ptx_type, self._each)
        call.launch(
            scatter, (parts, self._slices, self._groups), SLICE * warps,
            dy, place, block.quads, *((moments, gamma) if block.layernorm else (bias, bias)), factors, self._partial,
            *map(np.uint32, (self._items,)), shared=self._bytes() - static_bytes(quads_of(warps, self._each)),
        )  # fmt: skip
        counted = (bias, bias)
        if block.layernorm:
            counted = self._counts, self._units
            blocks = min(-(-self._counts.size // THREADS), device.multiprocessors())
            call.launch(
                _weights_kernel, blocks, THREADS, moments, sums, self._weights, self._units, self._counts,
                np.float64(kept * channels),
            )  # fmt: skip
            self._count(call)
        blocks = -(-rows // SIDE), -(-channels // (SIDE * COLUMNS))
        call.launch(
            _join_kernel(block.layernorm), blocks, SIDE * SIDE, self._partial, *counted, tables.words, bias,
            dweight.reshape((rows - 1, channels)), dbias,
        )  # fmt: skip

    def _count(self, call: Call) -> None:
        tables, (n, length) = self._block.tables, self._block.quads.shape
        taps, depth, limit = tables.kernel_size, tables.depth, device.shared_limit()
        rows = min(depth, limit // (8 * depth))
        units = taps * (taps - 1) // 2 * -(-depth // rows) + taps
        shared = 8 * depth * max(2, rows)
        room = max(1, (limit + RESERVED) // (shared + RESERVED) * device.multiprocessors() // units)
        inputs = min(max(LEAST_INPUTS, -(-n // room)), MOST_COUNTS // length)
        call.launch(
            _count_kernel(taps, depth, rows), (units, -(-n // inputs)), THREADS, self._block.quads, self._weights,
            self._counts, *map(np.uint32, (inputs,)), shared=shared,
        )  # fmt: skip
