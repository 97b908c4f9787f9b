"""The kernel of one step: several convolutions on one tile of one input, features in shared memory between them."""

from __future__ import annotations

from functools import cache

from numba import cuda, float32, float64

from charcnn.aliases import Kernel
from charcnn.gpu.device import uint32
from charcnn.gpu.indices import block_idx_x, thread_idx_x
from charcnn.gpu.launch import jit
from charcnn.ops.chain.step import TAPS, Step

# Constants of a kernel are uint32: an index made of signed ones would cost Numba's handling of negative indices,
# two to three times the instructions. Loops over register tiles have constant ranges, so that they unroll and the
# local arrays become registers. The functions inside the kernel are inlined, once a convolution.


def _constants(values):
    return tuple(uint32(value) for value in values)


@cache
def make_kernel(step: Step) -> Kernel:
    """The kernel (x, weights, biases, y, moments), launched with N * step.tiles blocks.

    x (N, C_in, L) and y (N, C_out, L_out) float32, weights and biases tuples. With a stat, moments has a row a block:
    mean and variance where it has all of an input, else mean, rest of the mean, and sum of squared deviations.
    """
    depth, stat, relus = len(step.kernel_sizes), step.stat, step.relus
    c_ins, c_outs = _constants(step.channels[:-1]), _constants(step.channels[1:])
    lengths_in, lengths_out = _constants(step.tile_lengths[:-1]), _constants(step.tile_lengths[1:])
    sources, targets = _constants(step.offsets[:-1]), _constants(step.offsets[1:])
    kernel_sizes = _constants(step.kernel_sizes)
    c_first, c_last, length_first = c_ins[0], c_outs[-1], lengths_in[0]
    first_map, last_map = sources[0], targets[-1]
    full_in, full_out = step.length, step.length_out
    tile, tiles = uint32(step.tile), uint32(step.tiles)
    threads, stage = uint32(step.threads), uint32(step.stage)
    stage_size, pitch = uint32(step.stage_size), uint32(step.weight_pitch)
    tm, tn = uint32(step.channel_tile), uint32(step.position_tile)
    accumulators, window_size, fetches = step.accumulators, step.position_tile + TAPS - 1, step.fetches
    window_end = window_size
    taps_a_time = uint32(TAPS)

    @jit(launch_bounds=(step.threads, step.resident))
    def kernel(x, weights, biases, y, moments):
        shared = cuda.shared.array(0, float32)  # two stages of weights, then the feature maps
        acc = cuda.local.array(accumulators, float32)
        window = cuda.local.array(window_size, float32)
        fetched = cuda.local.array(fetches, float32)
        thread = thread_idx_x()
        n = block_idx_x() // tiles
        start = block_idx_x() % tiles * tile

        def multiply(weight, tap):
            """One tap of one input channel: tm weights, the same in all lanes of a channel group, times tn features."""
            for i in range(tm):
                value = shared[weight + i]
                for j in range(tn):
                    acc[i * tn + j] += value * window[j + tap]

        def fetch(weight, at, row, rows, c_out, width):
            """Start to read this thread's weights: every rows-th output channel, `width` weights each, from `row`."""
            for i in range((c_out + rows - 1) // rows):
                if row + i * rows < c_out:
                    fetched[i] = weight.flat[at + i * rows * width]

        def place(at, row, rows, c_out):
            """Put what was fetched where `multiply` reads it."""
            for i in range((c_out + rows - 1) // rows):
                if row + i * rows < c_out:
                    shared[at + i * rows] = fetched[i]

        def conv1d(weight, bias, c_in, c_out, taps, source, length_in, target, length, relu):
            # Staging: PyTorch's weight has a row of c_in x taps for each output channel. A thread takes one place of
            # the next `run` in every `rows`-th of them, and so turns [c_out, c_in, taps] to [c_in, taps, c_out].
            width = c_in * taps
            run = stage * taps
            rows = threads // run
            row = thread // run
            column = thread % run
            weight_at = row * width + column
            staged_at = column * pitch + row
            columns = (length + tn - 1) // tn
            register_tiles = columns * ((c_out + tm - 1) // tm)
            for first in range(0, register_tiles, threads):
                active = first + thread < register_tiles
                group = (first + thread) // columns * tm
                position = (first + thread) % columns * tn
                for i in range(accumulators):
                    acc[i] = float32(0)
                if row < rows and column < width:
                    fetch(weight, weight_at, row, rows, c_out, width)
                    place(staged_at, row, rows, c_out)
                cuda.syncthreads()
                current = uint32(0)
                c0 = uint32(0)
                while c0 < c_in:
                    following = (c0 + stage) * taps
                    more = row < rows and following + column < width
                    if more:  # on their way while the staged ones are multiplied
                        fetch(weight, weight_at + following, row, rows, c_out, width)
                    if active:
                        staged = current + group
                        feature = source + c0 * length_in + position
                        end = feature + min(stage, c_in - c0) * length_in
                        while feature < end:
                            for k in range(0, taps, taps_a_time):
                                for j in range(window_end):
                                    window[j] = shared[feature + k + j]
                                multiply(staged + k * pitch, 0)
                                if k + 1 < taps:
                                    multiply(staged + (k + 1) * pitch, 1)
                                if k + 2 < taps:
                                    multiply(staged + (k + 2) * pitch, 2)
                            staged += taps * pitch
                            feature += length_in
                    current = stage_size - current
                    if more:
                        place(current + staged_at, row, rows, c_out)
                    c0 += stage
                    cuda.syncthreads()
                if active:  # every thread is past the barrier: with one buffer, no feature is read any more
                    for i in range(tm):
                        if group + i < c_out:
                            offset = bias[group + i]
                            for j in range(tn):
                                if position + j < length:
                                    value = acc[i * tn + j] + offset
                                    if relu and value < float32(0):
                                        value = float32(0)
                                    shared[target + (group + i) * length + position + j] = value
            cuda.syncthreads()

        def layer(i):
            conv1d(
                weights[i], biases[i], c_ins[i], c_outs[i], kernel_sizes[i],
                sources[i], lengths_in[i], targets[i], lengths_out[i], relus[i],
            )  # fmt: skip

        def block_sum(value):
            """The sum over the block's threads, in the same order at each run, to all of them."""
            shared[thread] = value
            width = threads
            while width > 1:
                cuda.syncthreads()
                half = (width + 1) // 2
                if thread + half < width:
                    shared[thread] += shared[thread + half]
                width = half
            cuda.syncthreads()
            total = shared[0]
            cuda.syncthreads()
            return total

        for i in range(thread, c_first * length_first, threads):
            position = start + i % length_first
            if position < full_in:
                shared[first_map + i] = x[n, i // length_first, position]
        cuda.syncthreads()

        layer(0)
        if depth > 1:
            layer(1)
        if depth > 2:
            layer(2)
        if depth > 3:
            layer(3)
        if depth > 4:
            layer(4)
        if depth > 5:
            layer(5)

        total = float32(0)
        for i in range(thread, c_last * tile, threads):
            position = start + i % tile
            if position < full_out:
                value = shared[last_map + i]
                y[n, i // tile, position] = value
                total += value
        if stat:
            # Two passes, the second corrected: deviations from a mean that is only nearly right, then what it missed.
            count = float32(c_last * min(tile, full_out - start))
            mean = block_sum(total) / count
            first_moment = float32(0)
            second_moment = float32(0)
            for i in range(thread, c_last * tile, threads):
                if start + i % tile < full_out:
                    deviation = shared[last_map + i] - mean
                    first_moment += deviation
                    second_moment += deviation * deviation
            first_moment = block_sum(first_moment)
            second_moment = block_sum(second_moment)
            if thread == 0:
                row = cuda.blockIdx.x
                rest = first_moment / count
                squares = second_moment - first_moment * rest
                if tiles == 1:
                    moments[row, 0] = float64(mean) + float64(rest)
                    moments[row, 1] = squares / count
                else:
                    moments[row, 0] = mean
                    moments[row, 1] = rest
                    moments[row, 2] = squares

    return kernel


@jit()
def merge_kernel(partial_moments, stat, tiles, tile, length, channels):
    """One thread an input joins its tiles' (mean, rest of the mean, sum of squared deviations) by Chan's formula.

    Means are taken from the first tile's, a difference of close numbers and so exact: rounded whole, a mean of 10^4
    standard deviations would be wrong by 10^-3 of one.
    """
    n = cuda.grid(1)
    if n < stat.shape[0]:
        base = partial_moments[n * tiles, 0]
        count = float32(0)
        mean = float32(0)
        squares = float32(0)
        for i in range(tiles):
            more = float32(channels * min(tile, length - i * tile))
            delta = partial_moments[n * tiles + i, 0] - base + partial_moments[n * tiles + i, 1] - mean
            both = count + more
            mean += delta * more / both
            squares += partial_moments[n * tiles + i, 2] + delta * delta * count * more / both
            count = both
        stat[n, 0] = float64(base) + float64(mean)
        stat[n, 1] = squares / count
