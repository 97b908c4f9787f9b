"""How values and the news that they have come reach another GPU: lines and tiles. docs/collectives.md tells why.

A block of a kernel talks to the blocks of the same number on the other ranks alone, in steps: in each, every rank puts
vectors of 16 bytes into the others' mailboxes, and takes those that came into its own. A mailbox has two places for
each rank, used by turns. A rank puts step t + 2 once it has what all others put in step t + 1, and those had then taken
step t: so no place is written that is still read, and nobody says that it has read. In the second of two shots a rank
whose part is empty sends nothing. The first rank's part never is: from it all receive, after it has received from all.

`lines` has each word together with the step's number, 8 bytes that are written and seen whole: the values are their own
news, at twice the bytes. `tiles` has values alone, then a word that is released and acquired.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from numba import cuda

from charcnn.aliases import Kernel
from charcnn.gpu import ptx
from charcnn.gpu.device import uint64
from charcnn.gpu.indices import thread_idx_x

VECTOR = 16
"""Bytes that a thread moves at once."""

BLOCKS = 128
"""Of a kernel, at most, and no more than multiprocessors: all run at once, each by itself on one of them."""

LINES, TILE = 1024, 4096
"""Vectors that a block puts in a step, at most."""

HEADER = 4096
"""Bytes at a region's begin: whether a peer was given up, and how many steps each block has taken, of each protocol."""

LOOKS = 1 << 12
"""At what has not come, before the clock is looked at."""

_FLAG = 32
"""Bytes from one flag to the next."""


class Mailboxes(NamedTuple):
    """Where everything is in a rank's region, in bytes from its begin, for so many ranks."""

    ranks: int

    @property
    def flags(self) -> int:
        """Of tiles: (BLOCKS, ranks) of them."""
        return HEADER

    @property
    def lines(self) -> int:
        """(BLOCKS, 2, ranks, 2, LINES) of 16 bytes."""
        return self.flags + BLOCKS * self.ranks * _FLAG

    @property
    def tiles(self) -> int:
        """(BLOCKS, 2, ranks, TILE) of 16 bytes."""
        return self.lines + BLOCKS * 2 * self.ranks * 2 * LINES * VECTOR

    @property
    def nbytes(self) -> int:
        """Of the region."""
        return self.tiles + BLOCKS * 2 * self.ranks * TILE * VECTOR


class Protocol(NamedTuple):
    """Device functions of a protocol; in each a step is known by its number, which begins at 1."""

    put: Kernel
    """put(region, block, source, step, i, a, b, c, d): vector i of this rank, the source, for the region's."""
    posted: Kernel
    """posted(regions, block, rank, step): all threads of the block have put theirs."""
    arrived: Kernel
    """arrived(regions, block, rank, step, patience, fault): until what all others put is there; False if it is not."""
    take: Kernel
    """take(regions, block, source, step, i, patience, fault): (a, b, c, d, came), vector i of that rank, if it came."""


@cuda.jit(device=True)
def too_late(regions, since, patience, fault, source):
    """Whether to wait no longer: another thread or rank gave up, or this one does, and tells all ranks and the host."""
    lost = ptx.ld_acquire_sys_b32(regions[0])
    if lost == 0:
        if ptx.globaltimer() - since <= patience:
            return False
        lost = source + 1
        for region in regions:
            ptx.st_release_sys_b32(region, lost)
    ptx.st_release_sys_b32(fault, lost)
    return True


@cache
def lines(ranks: int) -> Protocol:
    """Values that are their own news."""
    begin, plane = Mailboxes(ranks).lines, np.uint64(LINES * VECTOR)

    @cuda.jit(device=True, forceinline=True)
    def place(region, block, source, step, i):
        slot = (block * 2 + (step & 1)) * ranks + source
        return region + uint64(begin + slot * (2 * LINES * VECTOR) + i * VECTOR)

    @cuda.jit(device=True, forceinline=True)
    def put(region, block, source, step, i, a, b, c, d):
        at = place(region, block, source, step, i)
        ptx.st_relaxed_sys_v2_b64(at, ptx.pack_b64(a, step), ptx.pack_b64(b, step))
        ptx.st_relaxed_sys_v2_b64(at + plane, ptx.pack_b64(c, step), ptx.pack_b64(d, step))

    @cuda.jit(device=True, forceinline=True)
    def posted(regions, block, rank, step):
        pass

    @cuda.jit(device=True, forceinline=True)
    def arrived(regions, block, rank, step, patience, fault):
        return True

    @cuda.jit(device=True, forceinline=True)
    def take(regions, block, source, step, i, patience, fault):
        at, looks, since, came = place(regions[0], block, source, step, i), 0, ptx.pack_b64(0, 0), True
        while True:
            p, q = ptx.ld_relaxed_sys_v2_b64(at)
            r, s = ptx.ld_relaxed_sys_v2_b64(at + plane)
            a, first = ptx.unpack_b64(p)
            b, second = ptx.unpack_b64(q)
            c, third = ptx.unpack_b64(r)
            d, fourth = ptx.unpack_b64(s)
            if first == step and second == step and third == step and fourth == step:
                break
            looks += 1
            if looks == LOOKS:
                since = ptx.globaltimer()
            elif looks % LOOKS == 0 and too_late(regions, since, patience, fault, source):
                came = False
                break
        return a, b, c, d, came

    return Protocol(put, posted, arrived, take)


@cache
def tiles(ranks: int) -> Protocol:
    """Values, then a word for all that a block has put."""
    layout = Mailboxes(ranks)
    begin, flags = layout.tiles, layout.flags

    @cuda.jit(device=True, forceinline=True)
    def place(region, block, source, step, i):
        slot = (block * 2 + (step & 1)) * ranks + source
        return region + uint64(begin + (slot * TILE + i) * 16)

    @cuda.jit(device=True, forceinline=True)
    def flag(region, block, source):
        return region + uint64(flags + (block * ranks + source) * _FLAG)

    @cuda.jit(device=True, forceinline=True)
    def put(region, block, source, step, i, a, b, c, d):
        ptx.st_global_v4_b32(place(region, block, source, step, i), a, b, c, d)

    @cuda.jit(device=True, forceinline=True)
    def posted(regions, block, rank, step):
        cuda.syncthreads()
        if thread_idx_x() == 0:
            for away in range(1, ranks):
                ptx.st_release_sys_b32(flag(regions[away], block, rank), step)

    @cuda.jit(device=True, forceinline=True)
    def arrived(regions, block, rank, step, patience, fault):
        source, since, looks, late = thread_idx_x(), ptx.pack_b64(0, 0), 0, 0
        if source < ranks and source != rank:
            at = flag(regions[0], block, source)
            while (ptx.ld_acquire_sys_b32(at) - step) & 0xFFFFFFFF > 1:  # a rank may be a step ahead
                looks += 1
                if looks == LOOKS:
                    since = ptx.globaltimer()
                elif looks % LOOKS == 0 and too_late(regions, since, patience, fault, source):
                    late = 1
                    break
        return cuda.syncthreads_or(late) == 0

    @cuda.jit(device=True, forceinline=True)
    def take(regions, block, source, step, i, patience, fault):
        a, b, c, d = ptx.ld_cg(place(regions[0], block, source, step, i), 1)
        return a, b, c, d, True

    return Protocol(put, posted, arrived, take)


PROTOCOLS = {"lines": lines, "tiles": tiles}
"""By name."""

CAPACITIES = {"lines": LINES, "tiles": TILE}
"""Vectors that a block takes in a step, at most."""

COUNTERS = {"lines": 128, "tiles": 128 + 4 * BLOCKS}
"""Where blocks' steps are counted in a region's header."""
