"""The epilogue of results in e4m3."""

from __future__ import annotations

from typing import Any

from numba import cuda

from charcnn.aliases import Function
from charcnn.gpu import ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.ops.conv1d.wgmma.config import NO_ROW
from charcnn.ops.conv1d.wgmma.epilogue.common import PLACE, Case, make_store


def make_read_words(read_four: Function, rectified: bool) -> Function:
    """The device function read_words; ReLU and rounding are one instruction."""
    narrow, inline = ptx.cvt_relu_e4m3x4 if rectified else ptx.cvt_e4m3x4, cuda.jit(device=True, forceinline=True)

    @inline
    def read_words(acc, i, scale):
        """Eight channels, in two words."""
        a, b, c, d = read_four(acc, i, scale)
        e, f, g, h = read_four(acc, i + 8, scale)
        return narrow(a, b, c, d), narrow(e, f, g, h)

    return read_words


def make_read_sixteen(read_four: Function, rectified: bool) -> Function:
    """The device function read_sixteen."""
    read_words, exchange = make_read_words(read_four, rectified), ptx.shfl_exchange(2, 1)
    inline = cuda.jit(device=True, forceinline=True)

    @inline
    def read_sixteen(acc, i, scale, odd):
        """16 channels, in four words: of the lane's and the next one's octet, or where `odd` of those behind them."""
        return exchange(read_words(acc, i, scale), read_words(acc, i + 16, scale), odd)

    return read_sixteen


def make_e4m3(case: Case, read_four: Any) -> tuple[Any, Any, int]:
    """Results in e4m3, exchanged as such; always in words, since C_out is a multiple of 8."""
    inline = cuda.jit(device=True, forceinline=True)
    pooled, full_n_tiles, passes = case.pooled, case.full_n_tiles, case.passes(1)
    octets = case.octets(passes)
    read_words = make_read_words(read_four, case.rectified)
    exchange_at, exchange_bytes = case.config.exchange_at, case.config.exchange_bytes
    pack, pack_max = ptx.cvt_f16x2("f16"), ptx.max_nan_f16x2("f16")
    read_sixteen = make_read_sixteen(read_four, case.rectified)
    in_warpgroup, place, no_row = 127, PLACE, NO_ROW

    @inline
    def read_halves(acc, i, scale):
        """Eight channels in fp16, in four words."""
        a, b, c, d = read_four(acc, i, scale)
        e, f, g, h = read_four(acc, i + 8, scale)
        return pack(a, b), pack(c, d), pack(e, f), pack(g, h)

    @inline
    def stage_for_pool(acc, pool_pass, base, thread, warpgroup, scale):
        """All columns, for the warpgroup that pools: a row's octets two by two, which share 16 bytes."""
        for k in range(octets):
            i = k // 2 * 32 + k % 2 * 2
            at = base + (exchange_at + warpgroup * exchange_bytes + k * place)
            at += (thread & in_warpgroup) * 16
            a, b = read_words(acc, i, scale)
            c, d = read_words(acc, i + 16, scale)
            ptx.st_shared_v4_b32(at, a, b, c, d)

    @inline
    def greater(word, a, b):
        """Of four e4m3 and of four halves, the greater ones, as halves."""
        c, d = ptx.cvt_f16x2_e4m3x4(word)
        return pack_max(a, c), pack_max(b, d)

    @inline
    def store_pool_max(acc, i, at, column, row, scale, y, c_out):
        """Two octets' maxima with what the others staged, which is no less than 0: ReLU is done."""
        to = y + (uint64(row) * uint64(c_out) + uint64(column))
        for half in range(2):
            a, b, c, d = read_halves(acc, i + 16 * half, scale)
            for giver in range(2):
                e, f = ptx.ld_shared_v2_b32(at + giver * exchange_bytes + 8 * half)
                a, b = greater(e, a, b)
                c, d = greater(f, c, d)
            # In the branch they would cost registers.
            low, high = ptx.cvt_e4m3x4_f16x2(a, b), ptx.cvt_e4m3x4_f16x2(c, d)
            if row != no_row and column < c_out:
                ptx.st_global_v2_b32(to, low, high)
            to, column = to + uint64(32), column + 32

    @inline
    def store_pooled(acc, pool_pass, base, thread, column, row, row_8, scale, y, c_out):
        """All columns' maxima, of this thread's two rows."""
        for k in range(octets):
            at = base + (exchange_at + k * place)
            at += (thread & in_warpgroup) * 16
            i, to = k // 2 * 32 + k % 2 * 2, column + k // 2 * 64
            store_pool_max(acc, i, at, to, row_8 if k % 2 else row, scale, y, c_out)

    @inline
    def store_octet(acc, i, at, column, row, scale, y, c_out):
        low, high = read_words(acc, i, scale)
        if row != no_row and column < c_out:
            ptx.st_global_v2_b32(y + (uint64(row) * uint64(c_out) + uint64(column)), low, high)

    @inline
    def store_row(acc, first, odd, column, row, scale, y, c_out):
        """All columns of a row, together with the lane after this one, or before where `odd`: 16 bytes at once."""
        at = column + 24 if odd else column
        to = y + (uint64(row) * uint64(c_out) + uint64(at))
        for k in range(octets // 2):
            a, b, c, d = read_sixteen(acc, 32 * k + first, scale, odd)
            if row != no_row and (full_n_tiles or at + uint32(64 * k) < c_out):
                ptx.st_global_v4_b32(to + uint64(64 * k), a, b, c, d)

    @inline
    def store_row_pairs(acc, pool_pass, base, thread, column, row, row_8, scale, y, c_out):
        """All columns of this thread's two rows."""
        store_row(acc, 0, thread & 1, column, row, scale, y, c_out)
        store_row(acc, 2, thread & 1, column, row_8, scale, y, c_out)

    if pooled:
        return stage_for_pool, store_pooled, passes
    if case.vector_store and octets % 2 == 0:
        return stage_for_pool, store_row_pairs, passes
    return stage_for_pool, make_store(case, 2, store_octet), passes
