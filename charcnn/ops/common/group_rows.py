"""Rows of the last axis, each of which a group of neighbouring lanes of a warp has: short rows share a warp."""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import cuda

from charcnn.aliases import Kernel
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint64
from charcnn.ops.common.moments import LANES

THREADS = device.block_size(128)
"""Of a block."""

LARGEST = 2048
"""Values of a row that a warp keeps in registers, 64 of a thread."""


def lanes_of(size: int) -> int:
    """How many lanes have a row of so many values: a power of 2, four values of each where that is enough."""
    return min(LANES, 1 << (-(-size // ptx.VECTOR) - 1).bit_length())


def quads_of(size: int) -> int:
    """How many fours of values a lane has of such a row."""
    return -(-size // (lanes_of(size) * ptx.VECTOR))


def blocks_of(rows: int, size: int) -> int:
    """Of THREADS, for so many rows of so many values."""
    return -(-rows // (THREADS // lanes_of(size)))


def vector_width(*arrays: Any) -> int:
    """Floats that a kernel moves at once: 4 where every array's rows begin at a multiple of 16 bytes, else 1."""
    whole = all(
        tuple(array.shape)[-1] % ptx.VECTOR == 0 and device.address(array) % (4 * ptx.VECTOR) == 0 for array in arrays
    )
    return ptx.VECTOR if whole else 1


@cache
def make_moves(quads: int, lanes: int, width: int) -> tuple[Kernel, Kernel]:
    """The device functions load and store, of the `quads` fours of a row that each of its `lanes` has.

    load(x, begin, size, lane, rest, values): the row at `begin` of x.flat to a local array, `rest` behind its end.
    store(y, begin, size, lane, values): back. `width` is 4 where a four may be moved at once, else 1.
    """
    vector, inline = ptx.VECTOR, cuda.jit(device=True, forceinline=True)

    @inline
    def load(x, begin, size, lane, rest, values):
        for i in range(quads):
            c, v = (i * lanes + lane) * vector, i * vector
            for t in range(vector):
                values[v + t] = rest
            if width == 1:
                for t in range(vector):
                    if c + t < size:
                        values[v + t] = x.flat[begin + uint64(c + t)]
            elif c < size:
                values[v], values[v + 1], values[v + 2], values[v + 3] = ptx.ld_global_v4_f32(x, begin + uint64(c))

    @inline
    def store(y, begin, size, lane, values):
        for i in range(quads):
            c, v = (i * lanes + lane) * vector, i * vector
            if width == 1:
                for t in range(vector):
                    if c + t < size:
                        y.flat[begin + uint64(c + t)] = values[v + t]
            elif c < size:
                ptx.st_global_v4_f32(y, begin + uint64(c), values[v], values[v + 1], values[v + 2], values[v + 3])

    return load, store


@cache
def make_sums(lanes: int) -> tuple[Kernel, Kernel]:
    """The device functions total and greatest: of a value of each of a row's lanes, the same in all of them.

    No NaN is the greatest.
    """
    first, inline = lanes // 2, cuda.jit(device=True, forceinline=True)

    @inline
    def total(value):
        apart = first
        while apart > 0:
            value += cuda.shfl_xor_sync(0xFFFFFFFF, value, apart)
            apart //= 2
        return value

    @inline
    def greatest(value):
        apart = first
        while apart > 0:
            value = max(value, cuda.shfl_xor_sync(0xFFFFFFFF, value, apart))
            apart //= 2
        return value

    return total, greatest


def check_size(name: str, size: int, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless a warp can hold a row of so many values."""
    if size > LARGEST:
        raise ValueError(f"{name} has shape {shape}: need at most {LARGEST} values a row, or the technique naive")
