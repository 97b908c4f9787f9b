"""Maps of a chain over images in a block's shared memory: how they get there, are pooled, normalised and padded."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from numba import cuda, float32, types

from charcnn.gpu.device import int32, uint32
from charcnn.gpu.indices import thread_idx_x
from charcnn.gpu.launch import jit
from charcnn.ops.chain.step2d import Step2d
from charcnn.ops.common.epilogue_functions import inlined
from charcnn.ops.local_response_norm_nhwc import inverse_power

# As in kernel2d.py: device functions of a step and link, inlined; constants of indices are uint32.


def place_of(step: Step2d, i: int) -> tuple[Any, ...]:
    """Of map i in shared memory: its type, where it begins, rows, values from a row to the next, and padding."""
    tiling = step.tiling
    padding = -math.inf if i < len(step.links) and not step.links[i].groups else 0.0
    place = step.offsets[i] if i < len(step.links) else 0
    value_type = float32 if step.itemsize == 4 else types.float16
    return value_type, uint32(place), uint32(tiling.rings[i] or 1), uint32(tiling.pitches[i]), float32(padding)


@cache
def make_load(step: Step2d) -> Any:
    """Bring rows of the image to shared memory."""
    value_type, place, ring, pitch, padding = place_of(step, 0)
    channels, width, threads = step.links[0].in_shape[0], step.links[0].in_shape[2], step.threads

    @jit(device=True, forceinline=True)
    def load(x, weights, biases, y, n, before, begin, end, first, last, origin):
        maps = cuda.shared.array(0, value_type)
        for at in range(thread_idx_x(), uint32(end - begin) * channels * pitch, threads):
            line = at // pitch
            c, row, column = line % channels, uint32(begin) + line // channels, origin + int32(at % pitch)
            value = padding
            if column >= 0 and column < width:
                value = x[n, c, row, uint32(column)]
            maps[place + (c * ring + row % ring) * pitch + at % pitch] = value_type(value)

    return load


@cache
def make_fill(step: Step2d, i: int) -> Any:
    """Fill what lies beside the image in rows of map i, where the next link reads that."""
    value_type, place, ring, pitch, padding = place_of(step, i)
    left = right = 0
    if i < len(step.links):
        link = step.links[i]
        left = link.window.padding[2]
        right = (link.out_shape[2] - 1) * link.window.stride[1] - left + link.window.span[1] - link.in_shape[2]
    sides, any_sides = left + max(0, right), left + max(0, right) > 0
    channels, width, threads = step.tiling.shapes[i][0], step.tiling.shapes[i][2], step.threads

    @jit(device=True, forceinline=True)
    def fill(begin, end, origin):
        if any_sides:
            maps = cuda.shared.array(0, value_type)
            for at in range(thread_idx_x(), uint32(end - begin) * channels * sides, threads):
                line, side = at // sides, int32(at % sides)
                c, row = line % channels, uint32(begin) + line // channels
                column = (side - left if side < left else width + side - left) - origin
                if column >= 0 and column < pitch:
                    maps[place + (c * ring + row % ring) * pitch + uint32(column)] = value_type(padding)

    return fill


@cache
def make_maxpool2d(step: Step2d, i: int) -> Any:
    """Make rows of a map by pooling, a value a thread."""
    link = step.links[i]
    value_type, place, ring, pitch, lowest = place_of(step, i)
    store, finished = make_store(step, i), inlined(link.epilogue)
    (stride, right), (top, *_) = link.window.stride, link.window.padding
    (down, across), height = link.window.kernel, link.in_shape[1]
    channels, threads = link.out_shape[0], step.threads

    @jit(device=True, forceinline=True)
    def maxpool2d(weights, biases, y, n, begin, end, first, last, origin):
        maps, columns = cuda.shared.array(0, value_type), uint32(last - first)
        for at in range(thread_idx_x(), uint32(end - begin) * channels * columns, threads):
            line, column = at // columns, at % columns
            c, row = line % channels, begin + int32(line // channels)
            best = lowest
            for k in range(down):
                read = row * stride - top + k
                if read >= 0 and read < height:
                    feature = place + (c * ring + uint32(read) % ring) * pitch + column * uint32(right)
                    for j in range(across):
                        value = float32(maps[feature + j])
                        if value > best or value != value:  # NaN wins, and nothing is greater
                            best = value
            store(y, n, c, row, first + int32(column), origin, finished(best))

    return maxpool2d


@cache
def make_norm(step: Step2d, i: int) -> Any:
    """Normalise rows and columns of map i + 1 where they lie, or of y: a thread has all channels of a pixel."""
    norm: Any = step.links[i].norm
    value_type, place, ring, pitch, _ = place_of(step, i + 1)
    final, power, channels = i + 1 == len(step.links), inverse_power(norm.beta, norm.k), step.links[i].out_shape[0]
    size, below, above = norm.size, norm.size // 2, (norm.size - 1) // 2
    share, beta, k = float32(norm.alpha / norm.size), float32(norm.beta), float32(norm.k)
    plane, threads = uint32(ring * pitch), uint32(step.threads)

    @jit(device=True, forceinline=True)
    def normalise(y, n, begin, end, first, last, origin):
        maps, columns = cuda.shared.array(0, value_type), uint32(last - first)
        near = cuda.local.array(size, float32)
        for at in range(thread_idx_x(), uint32(end - begin) * columns, threads):
            row, column = uint32(begin) + uint32(at) // columns, uint32(first) + uint32(at) % columns
            here = uint32(place + row % ring * pitch + uint32(int32(column) - origin)) if not final else uint32(0)
            for j in range(size):
                near[j] = float32(0)
            for c in range(-above, channels):
                for j in range(size - 1):
                    near[j] = near[j + 1]
                near[size - 1] = float32(0)
                if c + above < channels:
                    if final:
                        near[size - 1] = y[n, uint32(c + above), row, column]
                    else:
                        near[size - 1] = float32(maps[here + uint32(c + above) * plane])
                if c >= 0:
                    total = float32(0)
                    for j in range(size):
                        total += near[j] * near[j]
                    value = near[below] * power(k + share * total, beta)
                    if final:
                        y[n, uint32(c), row, column] = value
                    else:
                        maps[here + uint32(c) * plane] = value_type(value)

    return normalise


@cache
def make_store(step: Step2d, i: int) -> Any:
    """Put a value of map i + 1 to shared memory, or to y."""
    value_type, place, ring, pitch, _ = place_of(step, i + 1)
    final = i + 1 == len(step.links)

    @jit(device=True, forceinline=True)
    def store(y, n, c, row, column, origin, value):
        if final:
            y[n, c, uint32(row), uint32(column)] = value
        else:
            maps = cuda.shared.array(0, value_type)
            maps[place + (c * ring + uint32(row) % ring) * pitch + uint32(column - origin)] = value_type(value)

    return store
