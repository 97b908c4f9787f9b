"""Block 1 from token ids in half precision: the gather with a table, sums and LayerNorm in fp16.

What limits the gather is the bandwidth of shared memory: seven rows an output position. In 16 bits they are half as
long, and two channels are added by one instruction. A thread has eight channels, one 16-byte load a tap, and eight
neighbouring threads a whole row, so that no two of a load meet in a bank. The characters of a pooled window come in one
word, which the threads of three windows read: three loads a window in place of nine. Windows of blanks alone, most of
a short text, pick rows of zeros only, and skip them.

Sums are in fp16: of few terms, and rounded once a pair of taps. They begin with bias - mean, a difference taken in
float32. Values past 65504 become infinite; a mean 2^11 deviations from zero leaves nothing of them.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32, types

from charcnn import device
from charcnn.device import uint32, uint64
from charcnn.ops import ptx, shapes
from charcnn.ops.half import HALVES, half, narrow, widen
from charcnn.ops.one_hot_conv1d.gather import ALIGNED, RESERVED

OCTET = 8
"""Channels of a thread: 16 bytes, the most that it loads or stores at once."""

WORDS = 4
"""Words that hold them, and characters that one word holds."""

SHORT = 32
"""Items of a run, below which what comes before the first one counts."""

STAGED = 8 * 1024
"""Bytes of shared memory for staged characters and moments, beside the table."""


@cache
def _pooled_kernel(
    kernel_size, alphabet, pool_size, channel_tile, window_tile, stage, resident, layernorm, kind, vectors
):
    # A block keeps `channel_tile` channels of the whole table in shared memory, with a row of zeros for the blank. Its
    # work are runs of `per` items, (tile of windows, input) in this order: gamma and beta of a thread's window stay in
    # registers until the tile changes. Characters are staged, `stage` inputs at a time, a pooled window's in a word.
    lanes = channel_tile // OCTET
    threads = lanes * window_tile
    span = pool_size + kernel_size - 1  # positions that a window reads
    window_words = -(-pool_size // WORDS)
    held_words = -(-span // pool_size) * window_words
    reach_words = (window_tile - 1) * window_words + held_words
    staged_words, affine = stage * reach_words, pool_size * WORDS
    blank = sum(alphabet << 8 * (p % WORDS) for p in range(min(pool_size, WORDS)))
    taps, pool, tile, window_lanes = uint32(kernel_size), uint32(pool_size), uint32(channel_tile), uint32(lanes)
    windows, step, held_most, reach = uint32(window_tile), uint32(threads), uint32(stage), uint32(reach_words)
    row_words, row_octets, spread = uint32(channel_tile // 2), uint32(lanes), uint32(window_words)
    depth, all_blank = uint32(alphabet), uint32(blank)
    rows, pitch = uint32(alphabet + 1), uint32((alphabet + 1) * (channel_tile // 2))  # pitch: words from tap to tap
    zero, one, two, three, four, octet = (uint32(value) for value in (0, 1, 2, 3, WORDS, OCTET))
    first_tap, held, positions, eight_bits = uint32(kernel_size % 2), uint32(held_words), uint32(span), uint32(8)
    byte, full = uint32(255), uint32(16)
    pack, peak, rounded = ptx.pack_halves("f16"), ptx.max_halves("f16"), kind == "bf16"
    add, multiply, multiply_add = ptx.add_halves, ptx.multiply_halves, ptx.multiply_add_halves
    copy, drain = ptx.copy_async(WORDS), ptx.wait(0)

    @device.jit(launch_bounds=(threads, resident))
    def kernel(ids, table, bias, stat, gamma, beta, y, per, eps):
        kept = cuda.shared.array(0, types.uint32, ALIGNED)  # (K, depth + 1, channel_tile) in 16 bits
        characters = cuda.shared.array(staged_words, types.uint32)
        means = cuda.shared.array(stage, float32)
        scales = cuda.shared.array(stage, types.uint32)
        gammas = cuda.local.array(affine, types.uint32)
        betas = cuda.local.array(affine, types.uint32)
        offsets = cuda.local.array(OCTET, float32)
        start = cuda.local.array(WORDS, types.uint32)
        sums = cuda.local.array(WORDS, types.uint32)
        best = cuda.local.array(WORDS, types.uint32)
        read = cuda.local.array(held_words, types.uint32)
        places = cuda.local.array(span, types.uint32)
        thread = uint32(cuda.threadIdx.x)
        lane, local = uint32(thread % window_lanes), uint32(thread // window_lanes)
        first_channel = uint32(uint32(cuda.blockIdx.y) * tile)
        channel = uint32(first_channel + lane * octet)
        length, inputs = uint32(ids.shape[1]), uint32(ids.shape[0])
        pooled, channels, pitch_out = uint32(y.shape[1]), uint32(y.shape[2]), uint32(table.shape[2])
        tiles = uint32(uint32(pooled + windows - one) // windows)
        item, total = uint32(uint32(cuda.blockIdx.x) * uint32(per)), uint32(tiles * inputs)
        end = min(uint32(item + uint32(per)), total)
        apart = uint32(uint32(uint32(cuda.gridDim.x) - one) * uint32(per))  # from a run's end to the block's next run

        i = thread
        while i < uint32(taps * rows * row_octets):
            c = uint32(uint32(i % row_octets) * four)
            row = uint32(i // row_octets)
            inside = uint32(first_channel // two + c) < pitch_out
            at = uint64(row) * uint64(pitch_out) + uint64(uint32(first_channel // two + c))
            copy(kept, uint32(row * row_words), c, table, at if inside else uint64(0), full if inside else zero)
            i = uint32(i + step)
        ptx.commit()
        for c in range(octet):
            offsets[c] = float32(0)
            if uint32(channel + c) < channels:
                offsets[c] = bias[uint32(channel + c)]
        for c in range(four):
            start[c] = pack(offsets[uint32(two * c)], offsets[uint32(two * c + one)])
        drain()

        while item < end:
            first_window = uint32(uint32(item // inputs) * windows)
            n = uint32(item % inputs)
            last = min(inputs, uint32(n + uint32(end - item)))
            item = uint32(item + uint32(last - n))
            if item == end:
                item = uint32(item + apart)
                end = min(uint32(item + uint32(per)), total)
            window = uint32(first_window + local)
            active = window < pooled and channel < channels
            if layernorm:
                for j in range(pool):
                    s = uint32(j * four)
                    for c in range(four):
                        gammas[uint32(s + c)] = zero
                        betas[uint32(s + c)] = zero
                    if active:
                        at = uint64(uint32(window * pool + j)) * uint64(uint32(pitch_out * two)) + uint64(channel)
                        a0, a1, a2, a3 = ptx.load8(gamma, at)
                        b0, b1, b2, b3 = ptx.load8(beta, at)
                        gammas[s], betas[s] = a0, b0
                        gammas[uint32(s + one)], betas[uint32(s + one)] = a1, b1
                        gammas[uint32(s + two)], betas[uint32(s + two)] = a2, b2
                        gammas[uint32(s + three)], betas[uint32(s + three)] = a3, b3
            while n < last:
                count = min(held_most, uint32(last - n))
                cuda.syncthreads()  # the stage before this one may still be read
                i = thread
                while i < uint32(count * reach):
                    word = uint32(i % reach)
                    position = uint32(uint32(first_window + uint32(word // spread)) * pool)
                    fewer = uint32(uint32(word % spread) * four)
                    value = zero
                    for p in range(min(four, pool)):
                        t = uint32(position + uint32(fewer + p))
                        a = depth
                        if t < length and uint32(fewer + p) < pool:
                            a = min(uint32(ids[uint32(n + uint32(i // reach)), t]), depth)
                        value = uint32(value | uint32(a << uint32(eight_bits * p)))
                    characters[i] = value
                    i = uint32(i + step)
                i = thread
                while layernorm and i < count:
                    means[i] = float32(stat[uint32(n + i), zero])
                    scale = float32(1) / math.sqrt(float32(stat[uint32(n + i), one]) + eps)
                    scales[i] = pack(scale, scale)
                    i = uint32(i + step)
                cuda.syncthreads()
                m = zero
                while active and m < count:
                    at_word = uint32(uint32(m * reach) + uint32(local * spread))
                    other = zero
                    for q in range(held):
                        read[q] = characters[uint32(at_word + q)]
                        other = uint32(other | uint32(read[q] ^ all_blank))
                    if layernorm:
                        mean = means[m]
                        for c in range(four):
                            start[c] = pack(offsets[uint32(two * c)] - mean, offsets[uint32(two * c + one)] - mean)
                    for p in range(positions):
                        inner = uint32(p % pool)
                        word = read[uint32(uint32(uint32(p // pool) * spread) + uint32(inner // four))]
                        a = uint32(uint32(word >> uint32(uint32(inner % four) * eight_bits)) & byte)
                        places[p] = uint32(uint32(a * row_words) + uint32(lane * four))
                    for c in range(four):
                        best[c] = zero  # ReLU: no maximum is less
                    for j in range(pool):  # all are normalised before the maximum is taken: gamma may be negative
                        for c in range(four):
                            sums[c] = start[c]
                        if other != zero:
                            if first_tap == one:
                                a0, a1, a2, a3 = ptx.load8_shared(kept, places[j], zero)
                                sums[0], sums[1] = add(sums[0], a0), add(sums[1], a1)
                                sums[2], sums[3] = add(sums[2], a2), add(sums[3], a3)
                            for k in range(first_tap, taps, two):
                                at_tap, next_tap = uint32(k * pitch), uint32(uint32(k + one) * pitch)
                                a0, a1, a2, a3 = ptx.load8_shared(kept, places[uint32(j + k)], at_tap)
                                b0, b1, b2, b3 = ptx.load8_shared(kept, places[uint32(uint32(j + k) + one)], next_tap)
                                sums[0], sums[1] = add(sums[0], add(a0, b0)), add(sums[1], add(a1, b1))
                                sums[2], sums[3] = add(sums[2], add(a2, b2)), add(sums[3], add(a3, b3))
                        for c in range(four):
                            value, at = sums[c], uint32(j * four + c)
                            if layernorm:
                                value = multiply_add(multiply(value, scales[m]), gammas[at], betas[at])
                            best[c] = peak(best[c], value)
                    if rounded:
                        for c in range(four):
                            best[c] = ptx.bf16_of_halves(best[c])
                    first = (uint64(uint32(n + m)) * uint64(pooled) + uint64(window)) * uint64(channels) + uint64(
                        channel
                    )
                    if vectors:
                        ptx.store8(y, first, best[0], best[1], best[2], best[3])
                    else:
                        for c in range(octet):
                            if uint32(channel + c) < channels:
                                word = best[uint32(c // two)]
                                y.flat[first + uint64(c)] = uint32(
                                    uint32(word >> uint32(uint32(c % two) * full)) & uint32(65535)
                                )
                    m = uint32(m + one)
                n = uint32(n + count)

    return kernel


def _launch(
    call: device.Call,
    ids: Any,
    block: HalfBlock,
    normalisation: tuple[Any, Any, Any] | None,
    y: Any,
    pool_size: int,
    eps: float = 1e-5,
    *,
    channel_tile: int = 64,
    window_tile: int = 16,
    staged: int = STAGED,
    resident: int = 3,
    runs: int = 8,
) -> None:
    """Start the kernel, with (stat, gamma, beta) or None, to write y, uint16 (N, L_out // pool_size, C_out).

    The grid has as many blocks as the GPU holds at once, `resident` a multiprocessor where their tables fit, and each
    takes `runs` equal parts of the work, which lie far apart, so that all have their share of a text's blank end; fewer
    where these would be short. The defaults are the fastest of those tried at the network's block 1 on an H200.
    """
    if y.size == 0:
        return
    n, pooled, channels = y.shape
    kernel_size, depth, _ = block.shape
    rows, channel_tile = kernel_size * (depth + 1), min(channel_tile, -(-channels // OCTET) * OCTET)
    resident = max(1, min(resident, device.shared_limit() // (2 * rows * channel_tile + staged + RESERVED)))
    free = device.shared_limit() // resident - staged
    channel_tile = min(channel_tile, free // (2 * rows) // OCTET * OCTET)
    if channel_tile == 0:
        raise ValueError(
            f"weight has shape {block.shape}: its {rows} rows, with the blank's, need {2 * OCTET * rows} bytes of "
            f"shared memory for {OCTET} channels, and {free} are free"
        )
    window_words = -(-pool_size // WORDS)
    more = -(-(pool_size + kernel_size - 1) // pool_size) - 1  # windows whose characters the last one reads too
    most = staged // 4 // window_words - 2
    if more >= most:
        raise ValueError(f"{pool_size=}: K={kernel_size} needs the characters of {more + 1} windows, {most} fit")
    window_tile = max(1, min(window_tile, pooled, most - more))
    stage = staged // (4 * ((window_tile + more) * window_words) + 8)
    tiles, groups = -(-pooled // window_tile), -(-channels // channel_tile)
    blocks = min(tiles * n, max(1, resident * device.multiprocessors() // groups))
    runs = max(1, min(runs, tiles * n // (blocks * SHORT)))
    kernel = _pooled_kernel(
        kernel_size, depth, pool_size, channel_tile, window_tile, stage, resident,
        normalisation is not None, block.format.kind, channels % OCTET == 0 and device.address(y) % 16 == 0,
    )  # fmt: skip
    call.launch(
        kernel,
        (blocks, groups),
        channel_tile // OCTET * window_tile,
        ids, block.table, block.bias, *(normalisation or (ids, y, y)), y, -(-tiles * n // (blocks * runs)),
        np.float32(eps),
        shared=2 * rows * channel_tile,
    )  # fmt: skip


class HalfBlock:
    """Block 1's parameters on the current GPU in half precision, made once: operators on token ids as methods.

    Args:
        weight: float32 (K, depth, C_out), as `arrays.pack` gives it, C-contiguous; bias (C_out,) likewise; both NumPy
            arrays, or both device arrays.
        gamma, beta: float32 (L_out, C_out), C-contiguous, on the same side; None for a network without LayerNorm.
        precision: of the features that are written, fp16 or bf16; table and sums are fp16.
        stream: a CUDA stream; the default stream where None.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """

    def __init__(
        self,
        weight: Any,
        bias: Any,
        gamma: Any = None,
        beta: Any = None,
        *,
        precision: str = "fp16",
        stream: Any = None,
    ) -> None:
        self.format = half(precision)
        kernel_size, depth, channels = shapes.ranked("weight", weight, "K, depth, C_out")
        # An input of the least length stands for all: it checks what can be checked of weight and bias.
        shapes.one_hot_conv1d_nlc(np.empty((0, max(1, kernel_size))), weight, bias)
        if gamma is not None:
            shapes.expect("beta", beta, shapes.ranked("gamma", gamma, "L_out, C_out"))
        self.shape = kernel_size, depth, channels
        padded = -(-channels // OCTET) * OCTET
        more = {} if gamma is None else {"gamma": gamma, "beta": beta}
        call = device.Call(None, stream, (0,), weight=weight, bias=bias, **more)
        device.require_capability((8, 0), "half precision", "use float32")
        weight, self.bias, *affine = call.inputs
        self.table = narrow(call, weight, depth + 1, padded, HALVES["fp16"]).view(np.uint32)
        self.affine = tuple(
            narrow(call, array.reshape((1, *array.shape)), array.shape[0], padded, HALVES["fp16"]).view(np.uint16)
            for array in affine
        )

    def relu_maxpool1d(self, ids: Any, pool_size: int, *, out: Any = None, stream: Any = None) -> Any:
        """`reference.one_hot_conv1d_relu_maxpool1d_nlc`.

        Args:
            ids: uint8 (N, L), C-contiguous: a NumPy array, or a device array; an id >= depth is blank.
            pool_size: positions that a maximum is taken of.
            out: where to write, (N, L_out // pool_size, C_out), on the same side; made where None.
            stream: a CUDA stream; the default stream where None.

        Returns:
            float16 (N, L_out // pool_size, C_out), for bf16 its bits in uint16, where ids lies; device results are not
            waited for.

        Raises:
            ValueError: an argument's shape, dtype, layout or side does not fit, or shared memory does not hold the
                table of eight channels, or a window's characters.
        """
        shape = shapes.one_hot_conv1d_relu_maxpool1d_nlc(ids, self._weight(), self.bias, pool_size)
        call = device.Call(out, stream, shape, self.format.dtype, ids=ids)
        _launch(call, call.inputs[0], self, None, call.out.view(np.uint16), pool_size)
        return call.result()

    def layernorm_relu_maxpool1d(
        self, ids: Any, stat: Any, pool_size: int, *, eps: float = 1e-5, out: Any = None, stream: Any = None
    ) -> Any:
        """`reference.one_hot_conv1d_layernorm_relu_maxpool1d_nlc`: the whole of block 1 in one pass.

        Args:
            ids, pool_size, out, stream: as for `relu_maxpool1d`.
            stat: float64 (N, 2): each input's mean and biased variance, as `LagTables` gives them.
            eps: added to the variance.

        Returns, raises:
            As there.
        """
        shape = shapes.one_hot_conv1d_layernorm_relu_maxpool1d_nlc(
            ids, stat, self._weight(), self.bias, *self._like_affine(), pool_size, eps
        )
        call = device.Call(out, stream, shape, self.format.dtype, ids=ids, stat=stat)
        ids, stat = call.inputs
        _launch(call, ids, self, (stat, *self.affine), call.out.view(np.uint16), pool_size, eps)
        return call.result()

    def _weight(self) -> Any:
        """For `shapes`: an array of the weights' shape."""
        return np.broadcast_to(np.float32(0), self.shape)

    def _like_affine(self) -> tuple[Any, Any]:
        """For `shapes`: arrays of gamma's and beta's shape."""
        if not self.affine:
            raise ValueError("gamma is None: need LayerNorm's parameters when the object is made")
        like = np.broadcast_to(np.float32(0), (self.affine[0].shape[1], self.shape[2]))
        return like, like


def one_hot_conv1d_relu_maxpool1d_nlc_gather_fp16(
    ids: Any, weight: Any, bias: Any, pool_size: int, *, out: Any = None, stream: Any = None
) -> Any:
    """`reference.one_hot_conv1d_relu_maxpool1d_nlc` on a GPU in half precision, fp16.

    It rounds the weights first, and widens the result last; `HalfBlock` keeps the one and leaves out the other.
    Arguments, result and errors as for `one_hot_conv1d_relu_maxpool1d_nlc_gather`, and DeviceError where the GPU has
    compute capability below 8.0.
    """
    return _once(ids, None, weight, bias, (), pool_size, 1e-5, "fp16", out, stream)


def one_hot_conv1d_relu_maxpool1d_nlc_gather_bf16(
    ids: Any, weight: Any, bias: Any, pool_size: int, *, out: Any = None, stream: Any = None
) -> Any:
    """`one_hot_conv1d_relu_maxpool1d_nlc_gather_fp16`, its features bf16. Arguments, result and errors as there."""
    return _once(ids, None, weight, bias, (), pool_size, 1e-5, "bf16", out, stream)


def one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather_fp16(
    ids: Any,
    stat: Any,
    weight: Any,
    bias: Any,
    gamma: Any,
    beta: Any,
    pool_size: int,
    *,
    eps: float = 1e-5,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """`reference.one_hot_conv1d_layernorm_relu_maxpool1d_nlc` on a GPU in half precision.

    The rest as for `one_hot_conv1d_relu_maxpool1d_nlc_gather_fp16`; arguments, result and errors as for
    `one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather`.
    """
    return _once(ids, stat, weight, bias, (gamma, beta), pool_size, eps, "fp16", out, stream)


def one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather_bf16(
    ids: Any,
    stat: Any,
    weight: Any,
    bias: Any,
    gamma: Any,
    beta: Any,
    pool_size: int,
    *,
    eps: float = 1e-5,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """As `one_hot_conv1d_layernorm_relu_maxpool1d_nlc_gather_fp16`, in arguments, result and errors; bf16 features."""
    return _once(ids, stat, weight, bias, (gamma, beta), pool_size, eps, "bf16", out, stream)


def _once(ids, stat, weight, bias, affine, pool_size, eps, precision, out, stream):
    if affine:
        shape = shapes.one_hot_conv1d_layernorm_relu_maxpool1d_nlc(ids, stat, weight, bias, *affine, pool_size, eps)
        more = {"stat": stat, "gamma": affine[0], "beta": affine[1]}
    else:
        shape, more = shapes.one_hot_conv1d_relu_maxpool1d_nlc(ids, weight, bias, pool_size), {}
    call = device.Call(out, stream, shape, ids=ids, weight=weight, bias=bias, **more)
    ids, weight, bias, *stat_affine = call.inputs
    block = HalfBlock(weight, bias, *stat_affine[1:], precision=precision, stream=call.stream)
    y = call.scratch(shape, block.format.dtype)
    normalisation = (stat_affine[0], *block.affine) if affine else None
    _launch(call, ids, block, normalisation, y.view(np.uint16), pool_size, eps)
    widen(call, y, call.out, block.format)
    return call.result()
