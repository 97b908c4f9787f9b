"""The kernel of one step over images: links that run one after another on a block's tile, maps in shared memory."""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import cuda, float32

from charcnn.aliases import Kernel
from charcnn.gpu import ptx
from charcnn.gpu.device import int32, uint32
from charcnn.gpu.indices import block_idx_x, thread_idx_x
from charcnn.gpu.launch import jit
from charcnn.ops.chain.maps2d import make_fill, make_load, make_maxpool2d, make_norm, make_store, place_of
from charcnn.ops.chain.step2d import Step2d
from charcnn.ops.chain.tiling2d import FAR, Link
from charcnn.ops.common.epilogue_functions import inlined

# Device functions are made for a step and link, whose sizes are their constants, and inlined: a kernel is one function.
# Of a map they take rows [begin, end) and columns [first, last), and where its rows in shared memory begin, a column
# `origin`. As in kernel.py constants of indices are uint32, and loops over register tiles unroll. One function makes a
# link's map, `make` in `_make_advance`: products by other units, as of tensor cores, would be another one in its place.


@cache
def make_kernel(step: Step2d) -> Kernel:
    """The kernel (x, weights, biases, y), launched with N * step.tiles blocks.

    x (N, C_in, H, W) and y (N, C_out, H_out, W_out) float32; weights and biases tuples, an array a convolution.
    """
    tiling = step.tiling
    across, tiles = tiling.grid[1], step.tiles
    (rows, columns), (_, height, width) = map(uint32, tiling.tile), map(uint32, tiling.shapes[-1])
    hold, walk, held = _make_hold(step, len(step.links) - 1), _make_walk(step, len(tiling.walks) - 1), not step.stage

    @jit(launch_bounds=(step.threads, step.resident))
    def kernel(x, weights, biases, y):
        n = block_idx_x() // tiles
        tile = block_idx_x() % tiles
        begin, first = int32(tile // across * rows), int32(tile % across * columns)
        if held:
            hold(weights)
        end, last = int32(min(begin + int32(rows), int32(height))), int32(min(first + int32(columns), int32(width)))
        walk(x, weights, biases, y, n, begin, end, first, last, int32(0))

    return kernel


@cache
def _make_walk(step: Step2d, number: int) -> Any:
    """Make all that the last map of this walk needs, and that map, strip by strip."""
    tiling, far = step.tiling, -FAR
    start, rows = tiling.ends[number - 1] if number else 0, tiling.walks[number][1]
    advance, more = _make_advance(step, tiling.ends[number], start), number > 0
    walk_before = _make_walk(step, number - 1) if more else None
    back = _make_back(step, start, tiling.ends[number])

    @jit(device=True, forceinline=True)
    def walk(x, weights, biases, y, n, begin, end, first, last, origin):
        if more:
            a, b, c, d, e = back(begin, end, first, last)
            walk_before(x, weights, biases, y, n, a, b, c, d, e)
        before, top = int32(far), begin
        while top < end:
            cuda.syncthreads()  # what a strip puts in the place of other rows, the one before has read
            bottom = int32(min(top + rows, end))
            advance(x, weights, biases, y, n, before, top, bottom, first, last, origin)
            before = bottom
            top = bottom

    return walk


@cache
def _make_back(step: Step2d, i: int, to: int) -> Any:
    """What of map i makes these rows and columns of map `to`, and where its rows begin."""
    wants, far, more = _make_wants(step.links[i]), -FAR, i + 1 < to
    later = _make_back(step, i + 1, to) if more else None
    stride, pad = step.links[i].window.stride[1], step.links[i].window.padding[2]

    @jit(device=True, forceinline=True)
    def back(begin, end, first, last):
        if more:
            begin, end, first, last, _ = later(begin, end, first, last)
        _, a, b, c, d = wants(far, begin, end, first, last)
        return a, b, c, d, int32(first * stride - pad)

    return back


@cache
def _make_wants(link: Link) -> Any:
    """`Link.wants` of both axes: wants(before, begin, end, first, last) -> the same of what it reads."""
    (down, right), (top, _, left, _) = link.window.stride, link.window.padding
    bottom, beyond = link.window.span[0] - top, link.window.span[1] - left
    _, height, width = link.in_shape

    @jit(device=True, forceinline=True)
    def wants(before, begin, end, first, last):
        had = int32(min((before - 1) * down + bottom, height))
        a = int32(min(max(begin * down - top, had, 0), height))
        b = int32(max(min((end - 1) * down + bottom, height), a))
        c = int32(min(max(first * right - left, 0), width))
        return had, a, b, c, int32(max(min((last - 1) * right + beyond, width), c))

    return wants


@cache
def _make_advance(step: Step2d, i: int, start: int) -> Any:
    """Make rows of map i, of which those up to `before` are there, and what they need of maps behind map `start`."""
    if i == 0:
        return make_load(step)
    link, more = step.links[i - 1], i - 1 > start or start == 0
    make = _make_conv2d(step, i - 1) if link.groups else make_maxpool2d(step, i - 1)
    normalises = link.norm is not None
    normalise = make_norm(step, i - 1) if normalises else None
    fill, wants = make_fill(step, i), _make_wants(link)
    stride, pad = link.window.stride[1], link.window.padding[2]
    advance_before = _make_advance(step, i - 1, start) if more else None

    @jit(device=True, forceinline=True)
    def advance(x, weights, biases, y, n, before, begin, end, first, last, origin):
        if more:
            had, a, b, c, d = wants(before, begin, end, first, last)
            advance_before(x, weights, biases, y, n, had, a, b, c, d, int32(first * stride - pad))
            cuda.syncthreads()
        make(weights, biases, y, n, begin, end, first, last, origin)
        if normalises:
            cuda.syncthreads()
            normalise(y, n, begin, end, first, last, origin)
        fill(begin, end, origin)

    return advance


@cache
def _make_hold(step: Step2d, i: int) -> Any:
    """Bring all weights of the links up to i to shared memory."""
    link, more = step.links[i], i > 0
    at = sum(one.groups > 0 for one in step.links[:i])
    multiplies, to, wait = link.groups > 0, uint32(step.weight_offsets[i]), ptx.cp_async_wait_group(0)
    bring = _make_bring(step, i) if multiplies else None
    hold_before = _make_hold(step, i - 1) if more else None

    @jit(device=True, forceinline=True)
    def hold(weights):
        if multiplies:
            bring(weights[at], uint32(0), to)
        if more:
            hold_before(weights)
        else:
            ptx.cp_async_commit_group()
            wait()

    return hold


@cache
def _make_bring(step: Step2d, i: int) -> Any:
    """Start to copy a stage of link i's weights to shared memory, turned from (C_out, taps) to (taps, C_out)."""
    link = step.links[i]
    run, depth = uint32(step.staged_lines(i) * link.window.kernel[1]), link.depth
    outs, channels = link.out_shape[0] // link.groups, uint32(link.out_shape[0])
    padded, pitch, threads = step.padded(i) // link.groups, step.weight_pitch(i), uint32(step.threads)
    copy, size, none = ptx.cp_async(1), uint32(4), uint32(0)

    @jit(device=True, forceinline=True)
    def bring(weight, begin, to):
        shared = cuda.shared.array(0, float32)
        for at in range(thread_idx_x(), channels * run, threads):
            channel, tap = at // run, at % run
            if begin + tap < depth:
                place = to + tap * pitch + channel // outs * padded + channel % outs
                copy(shared, place, none, weight, channel * depth + begin + tap, size)

    return bring


@cache
def _make_multiply(taps: int, tm: int, tn: int, stride: int, dilation: int, pitch: int) -> Any:
    """A row of taps of one input channel: tm weights, the same in lanes of a channel tile, times tn features a tap."""
    more, tap = taps > 1, taps - 1
    before = _make_multiply(tap, tm, tn, stride, dilation, pitch) if more else None
    weights, features = tap * pitch, tap * dilation
    down, across, step = tm, tn, stride

    @jit(device=True, forceinline=True)
    def multiply(shared, maps, acc, weight, feature):
        if more:
            before(shared, maps, acc, weight, feature)
        for i in range(down):
            value = shared[weight + weights + i]
            for j in range(across):
                acc[i * across + j] += value * float32(maps[feature + features + j * step])

    return multiply


@cache
def _make_conv2d(step: Step2d, i: int) -> Any:
    """Make rows and columns of map i + 1 by a convolution: a register tile a thread, in passes."""
    link, (tm, tn), staged = step.links[i], step.sums[i], step.stage > 0
    value_type, place, ring, pitch, _ = place_of(step, i)
    store, number, biased = make_store(step, i), sum(one.groups > 0 for one in step.links[:i]), link.bias
    accumulators, down, across_tile = tm * tn, tm, tn
    (stride, right), (top, *_) = link.window.stride, link.window.padding
    dilation, height, kernel_rows = link.window.dilation[0], link.in_shape[1], link.window.kernel[0]
    group_size = link.in_shape[0] // link.groups * ring * pitch
    step_right, plane, threads = right, ring * pitch, step.threads
    outs, group_tiles = link.out_shape[0] // link.groups, step.padded(i) // link.groups // tm
    channel_tiles, lines, chunk = step.padded(i) // tm, uint32(link.lines), step.staged_lines(i)
    weights_at, stage, line_size = step.weight_offsets[i], step.stage, step.line_size(i)
    kernel_columns, one = link.window.kernel[1], uint32(1)
    multiply = _make_multiply(link.window.kernel[1], tm, tn, right, link.window.dilation[1], step.weight_pitch(i))
    bring, wait, finished = _make_bring(step, i), ptx.cp_async_wait_group(0), inlined(link.epilogue)
    alignment = ptx.ALIGNMENT

    @jit(device=True, forceinline=True)
    def conv2d(weights, biases, y, n, begin, end, first, last, origin):
        maps, shared = cuda.shared.array(0, value_type), cuda.shared.array(0, float32, alignment=alignment)
        acc = cuda.local.array(accumulators, float32)
        across = (uint32(last - first) + across_tile - one) // across_tile
        positions = uint32(end - begin) * across
        tiles = positions * channel_tiles
        for start in range(0, tiles, threads):
            tile = start + thread_idx_x()
            active = tile < tiles
            channel, position = tile // positions, tile % positions
            row, column = int32(begin + int32(position // across)), position % across * across_tile
            feature = place + channel // group_tiles * group_size + column * step_right
            over = int32(row * stride - top)
            for j in range(accumulators):
                acc[j] = float32(0)
            slot, line = (
                uint32(0),
                uint32(0),
            )  # where a slot begins is a product, by which loads of four weights show as aligned
            if staged:
                cuda.syncthreads()
                bring(weights[number], uint32(0), uint32(0))
                ptx.cp_async_commit_group()
            while line < lines:
                following = line + chunk
                if staged:
                    wait()
                    cuda.syncthreads()
                    if following < lines:  # on its way while this one is multiplied
                        bring(weights[number], following * kernel_columns, (one - slot) * stage)
                        ptx.cp_async_commit_group()
                if active:
                    weight = weights_at + slot * stage + channel * down
                    for at in range(line, min(following, lines)):
                        read = over + int32(at % kernel_rows) * dilation
                        if read >= 0 and read < height:
                            from_row = at // kernel_rows * plane + uint32(read) % ring * pitch
                            multiply(shared, maps, acc, weight, feature + from_row)
                        weight += line_size
                slot, line = one - slot, following
            if active:
                inner = channel % group_tiles * down
                for k in range(down):
                    if inner + k < outs:
                        out = channel // group_tiles * outs + inner + k
                        offset = biases[number][out] if biased else float32(0)
                        for j in range(across_tile):
                            if int32(column + j) + first < last:
                                value = finished(acc[k * across_tile + j] + offset)
                                store(y, n, out, row, first + int32(column + j), origin, value)

    return conv2d
