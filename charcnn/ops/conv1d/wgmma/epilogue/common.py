"""What the builders of epilogues share: the case, reading accumulators, going octet by octet, storing words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numba import cuda

from charcnn.gpu import ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.ops.common.epilogue_functions import inlined
from charcnn.ops.conv1d.wgmma.config import NO_ROW, WGMMA_M, WgmmaTile

CALLING = 4
"""Octets of a loop that the compiler writes out where each value goes through a function: of longer ones, accumulators
would lie in memory."""

PLACE = 16 * 128
"""Bytes of 16 of each thread of a warpgroup: one store to shared memory."""


@dataclass(frozen=True)
class Case:
    """What the builders have in common."""

    config: WgmmaTile
    scaled: bool
    """Whether accumulators are multiplied by a factor at the end."""
    rectified: bool
    pointwise: str
    """The row of `common.epilogues` that is applied to each value; ReLU is an instruction's, and not among them."""
    vector_store: bool
    full_n_tiles: bool
    measured: bool = False
    """Whether a row's moments are taken."""

    @property
    def pooled(self) -> bool:
        """Whether warpgroups share windows."""
        return self.config.pooled

    def passes(self, itemsize: int) -> int:
        """Of numbers of so many bytes, as they are exchanged; there may be room for more."""
        return max(1, WGMMA_M * self.config.block_n * itemsize // self.config.exchange_bytes) if self.pooled else 1

    def octets(self, passes: int) -> int:
        """Runs of 8 channels of a row, in a pass."""
        return self.config.block_n // 32 // passes


def make_read_four(scaled: bool, pointwise: str, *, narrow: bool) -> Any:
    """The device function read_four, of results that are `narrow`: of 16 or 8 bits, one number each."""
    applied, function = bool(pointwise), inlined(pointwise, narrow=narrow)
    inline = cuda.jit(device=True, forceinline=True)

    @inline
    def read_four(acc, i, scale):
        """Four neighbouring channels' results of a row; the next four are at i + 8."""
        a, b, c, d = acc[i], acc[i + 1], acc[i + 4], acc[i + 5]
        if scaled:
            a, b, c, d = a * scale, b * scale, c * scale, d * scale
        if applied:
            a, b, c, d = function(a), function(b), function(c), function(d)
            cuda.syncwarp()  # keeps the compiler from computing more at once than there are registers for
        return a, b, c, d

    return read_four


def make_stage_for_pool(case: Case, itemsize: int, stage_octet: Any) -> Any:
    """Stage one octet after another, in so many bytes a number."""
    inline = cuda.jit(device=True, forceinline=True)
    octets = case.octets(case.passes(itemsize))
    exchange_at, exchange_bytes = case.config.exchange_at, case.config.exchange_bytes
    row_bytes, octet_bytes, in_warpgroup = itemsize // 2 * PLACE, itemsize * PLACE, 127

    @inline
    def stage_for_pool(acc, pool_pass, base, thread, warpgroup, scale):
        """This pass's columns, for the warpgroup that pools."""
        for k in range(octets):
            i = (pool_pass * octets + k) * 16
            at = base + (exchange_at + warpgroup * exchange_bytes + k * octet_bytes)
            at += (thread & in_warpgroup) * 16
            stage_octet(acc, i, at, scale)
            stage_octet(acc, i + 2, at + row_bytes, scale)

    return stage_for_pool


def make_store(case: Case, itemsize: int, store_octet: Any) -> Any:
    """Store one octet after another, pooled with what was staged in so many bytes a number."""
    inline = cuda.jit(device=True, forceinline=True)
    octets, exchange_at = case.octets(case.passes(itemsize)), case.config.exchange_at
    row_bytes, octet_bytes, in_warpgroup = itemsize // 2 * PLACE, itemsize * PLACE, 127
    most = CALLING if case.pointwise else octets

    def up_to(end):
        begin = max(0, end - most)
        rest, more = up_to(begin) if begin else None, begin > 0

        @inline
        def store(acc, pool_pass, base, thread, column, row, row_8, scale, y, c_out):
            """This pass's columns, of this thread's two rows."""
            if more:
                rest(acc, pool_pass, base, thread, column, row, row_8, scale, y, c_out)
            for k in range(begin, end):
                i = (pool_pass * octets + k) * 16
                at = base + (exchange_at + k * octet_bytes)
                at += (thread & in_warpgroup) * 16
                to = column + uint32((pool_pass * octets + k) * 32)
                store_octet(acc, i, at, to, row, scale, y, c_out)
                store_octet(acc, i + 2, at + row_bytes, to, row_8, scale, y, c_out)

        return store

    return up_to(octets)


def make_store_lines(case: Case, itemsize: int, read_runs: Any, terms: int = 1) -> Any:
    """Store whole lines of 128 bytes, each by the lanes of two rows; no pooling, and columns in whole vectors.

    read_runs(acc, i, scale) gives 16 bytes of a row, of 2 or 4 bytes a number; of each term. Of a line a lane has two
    such runs: of 16 bits 64 bytes apart, as its next octet is; of 32 one behind the other.
    """
    inline = cuda.jit(device=True, forceinline=True)
    exchange, exchange_rows = ptx.shfl_exchange(4, 4), ptx.shfl_exchange(1, 4)
    full_n_tiles, size, no_row = case.full_n_tiles, uint64(itemsize), NO_ROW
    all_terms, columns, apart = uint64(terms), 128 // itemsize, 32 if itemsize == 2 else 4
    lines = case.config.block_n // columns

    @inline
    def store_row(acc, first, odd, column, row, scale, y, c_out):
        """All columns of a row, together with the lanes of the row after, or before where `odd`."""
        even_row, odd_row = exchange_rows((row,), (row,), odd)
        at = column + apart if odd else column
        to_even = y + (uint64(even_row) * all_terms * uint64(c_out) + uint64(at)) * size
        to_odd = y + (uint64(odd_row) * all_terms * uint64(c_out) + uint64(at)) * size
        for k in range(lines):
            i = columns // 2 * k + first
            own, others = read_runs(acc, i, scale), read_runs(acc, i + columns // 4, scale)
            inside = full_n_tiles or at + columns * k < c_out
            for term in range(terms):
                a, b, c, d, e, f, g, h = exchange(own[term], others[term], odd)
                behind = uint64(term) * uint64(c_out) * size + uint64(128 * k)
                if even_row != no_row and inside:
                    ptx.st_global_v4_b32(to_even + behind, a, b, c, d)
                if odd_row != no_row and inside:
                    ptx.st_global_v4_b32(to_odd + behind, e, f, g, h)

    @inline
    def store_lines(acc, pool_pass, base, thread, column, row, row_8, scale, y, c_out):
        """All columns of this thread's two rows."""
        store_row(acc, 0, thread & 4, column, row, scale, y, c_out)
        store_row(acc, 2, thread & 4, column, row_8, scale, y, c_out)

    return store_lines


def make_store_pair() -> Any:
    """The device function store_pair."""
    inline = cuda.jit(device=True, forceinline=True)

    @inline
    def store_pair(to, column, pair, c_out):
        """Two channels of 16 bits, where they are there."""
        if column < c_out:
            ptx.st_global_b16(to, pair)
        if column + 1 < c_out:
            ptx.st_global_b16(to + uint64(2), pair >> 16)

    return store_pair


def make_store_words(vector_store: bool) -> Any:
    """The device function store_words: in one store, or two bytes at a time."""
    inline = cuda.jit(device=True, forceinline=True)
    store_pair = make_store_pair()

    @inline
    def store_words(to, column, a, b, c, d, c_out):
        """Eight channels of 16 bits."""
        if vector_store:
            if column < c_out:
                ptx.st_global_v4_b32(to, a, b, c, d)
        else:
            store_pair(to, column, a, c_out)
            store_pair(to + uint64(4), column + 2, b, c_out)
            store_pair(to + uint64(8), column + 4, c, c_out)
            store_pair(to + uint64(12), column + 6, d, c_out)

    return store_words
