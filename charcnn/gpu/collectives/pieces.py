"""Parts of each row of an array, written straight to where the other ranks read them: an all-gather into place.

A rank knows where its piece of a row lies in every rank's result, and stores it there. Nothing passes through a
mailbox. So a result may be written again only after all ranks have read it: of two exchanges that take turns, each
says so for the other (`launch_pieces`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from charcnn.aliases import Kernel, Stream
from charcnn.gpu import device, ptx
from charcnn.gpu.collectives.group import MOST, Group
from charcnn.gpu.collectives.kernels import given_up
from charcnn.gpu.collectives.protocols import COUNTERS, VECTOR, tiles
from charcnn.gpu.device import block_size, uint64
from charcnn.gpu.indices import block_idx_x, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import jit, start

THREADS = block_size(1024)
"""Of a block."""

UNITS = VECTOR, 4, 2
"""Bytes that a thread may move at once."""


class Piece(NamedTuple):
    """What one rank gives another of each row, in bytes."""

    begin: int
    """In a row of the rank that gives it."""
    size: int
    place: int
    """In a row of the other's result."""


@cache
def make_kernel(unit: int, ranks: int, early: bool) -> Kernel:
    """The kernel of `launch_pieces`, which moves so many bytes at once.

    Its tuples begin with what is for this rank itself, then for those behind it.
    """
    of, counter, threads = tiles(ranks), COUNTERS["tiles"], THREADS
    posted, arrived = of.posted, of.arrived

    @jit(launch_bounds=(threads, 1))
    def kernel(x, x_row, ys, y_rows, begins, sizes, places, rows, regions, rank, patience, fault):
        if early:
            ptx.griddepcontrol_launch()
            ptx.griddepcontrol_wait()
        block, thread, own = block_idx_x(), thread_idx_x(), regions[0]
        if given_up(own, fault):
            return
        counted = own + uint64(counter + block * 4)
        step = ptx.ld_acquire_sys_b32(counted) + 1
        for turn in range(ranks):
            away = (turn + 1) % ranks  # what stays here goes last, while the rest is on its way
            size = sizes[away]
            for i in range(block * threads + thread, rows * size, grid_dim_x() * threads):
                row, v = i // size, i % size
                source = x + (uint64(row) * uint64(x_row) + uint64((begins[away] + v) * unit))
                to = ys[away] + (uint64(row) * uint64(y_rows[away]) + uint64((places[away] + v) * unit))
                if unit == 16:
                    a, b, c, d = ptx.ld_cg(source, 1)
                    ptx.st_global_v4_b32(to, a, b, c, d)
                elif unit == 4:
                    # In halves: a load of 32 bits here is of what was there before the kernel began.
                    high = ptx.ld_global_b16(source + uint64(2), 1) << 16
                    ptx.st_global_b32(to, ptx.ld_global_b16(source, 1) | high)
                else:
                    ptx.st_global_b16(to, ptx.ld_global_b16(source, 1))
        posted(regions, block, rank, step)
        if not arrived(regions, block, rank, step, patience, fault):
            return
        if thread == 0:
            ptx.st_release_sys_b32(counted, step)

    return kernel


def unit_of(numbers: Sequence[int]) -> int:
    """Bytes to move at once, of which all these are multiples.

    Raises:
        ValueError: one is odd.
    """
    for unit in UNITS:
        if all(number % unit == 0 for number in numbers):
            return unit
    raise ValueError(f"rows and pieces of {sorted(set(numbers))} bytes: need multiples of {UNITS[-1]}")


def launch_pieces(
    group: Group, x: int, x_row: int, ys: Sequence[int], y_rows: Sequence[int], pieces: Sequence[Sequence[Piece]],
    rows: int, stream: Stream,
) -> None:  # fmt: skip
    """Start to write this rank's pieces of all rows to every rank's result, and wait there for the others'.

    All ranks call it with the same `pieces` and `rows`. A result is written again by a later call: before that every
    rank must have read it, and another collective of the group must have been started since.

    Args:
        group: the ranks.
        x: the address of this rank's rows, a multiple of 16.
        x_row: bytes of one.
        ys: by rank, the address of its result on this GPU, in memory of `group.share`.
        y_rows: by rank, bytes of a row of it.
        pieces: by the rank that gives, then by the rank that takes; of size 0 where it gives nothing.
        rows: of all arrays.
        stream: a CUDA stream.

    Raises:
        ValueError: a piece or a row has an odd number of bytes, or pieces more than the kernel counts.
    """
    ranks, rank = group.ranks, group.rank
    unit = unit_of([x_row, *y_rows, *(number for of in pieces for piece in of for number in piece)])
    largest = max(max(rows * size // unit, begin + size, place + size) for of in pieces for begin, size, place in of)
    if largest > MOST:
        raise ValueError(f"{rows=} of pieces that take numbers up to {largest:,}: need at most {MOST:,}, of 32 bits")
    behind = [(rank + away) % ranks for away in range(ranks)]
    early, most = device.begins_early(), max(rows * piece.size // VECTOR for of in pieces for piece in of)
    blocks = max(1, min(group.blocks, -(-most // THREADS)))
    own = [pieces[rank][other] for other in behind]
    columns = (tuple(np.uint32(piece[field] // unit) for piece in own) for field in (0, 1, 2))
    places = tuple(np.uint64(ys[other]) for other in behind), tuple(np.uint32(y_rows[other]) for other in behind)
    kernel = make_kernel(unit, ranks, early)
    start(
        kernel, blocks, THREADS, stream, np.uint64(x), np.uint32(x_row), *places, *columns, np.uint32(rows),
        group.regions, np.uint32(rank), *group.waiting, early=early,
    )  # fmt: skip
