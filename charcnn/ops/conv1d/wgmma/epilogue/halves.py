"""The epilogue of results in 16 bits."""

from __future__ import annotations

from typing import Any

from numba import cuda

from charcnn.aliases import Function
from charcnn.gpu import ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.ops.conv1d.wgmma.config import NO_ROW
from charcnn.ops.conv1d.wgmma.epilogue.common import (
    Case,
    make_stage_for_pool,
    make_store,
    make_store_lines,
    make_store_words,
)


def make_read_words(read_four: Function, ptx_type: str, rectified: bool) -> Function:
    """The device function read_words; ReLU and rounding are one instruction."""
    pack, inline = ptx.cvt_f16x2(ptx_type, rectified), cuda.jit(device=True, forceinline=True)

    @inline
    def read_words(acc, i, scale):
        """Eight channels, in four words."""
        a, b, c, d = read_four(acc, i, scale)
        e, f, g, h = read_four(acc, i + 8, scale)
        return pack(a, b), pack(c, d), pack(e, f), pack(g, h)

    return read_words


def make_16_bits(case: Case, read_four: Any, ptx_type: str) -> tuple[Any, Any, int]:
    """Results in fp16 or bf16, exchanged as such."""
    inline = cuda.jit(device=True, forceinline=True)
    pooled = case.pooled
    read_words = make_read_words(read_four, ptx_type, case.rectified and not pooled)
    pack_max = ptx.max_nan_f16x2(ptx_type)
    store_words = make_store_words(case.vector_store)
    exchange_bytes = case.config.exchange_bytes
    no_row = NO_ROW

    @inline
    def pool_max(at, a, b, c, d):
        """Of eight channels, the greater of them, of what the others staged, and of 0: ReLU is done."""
        for giver in range(2):
            e, f, g, h = ptx.ld_shared_v4_b32(at + giver * exchange_bytes)
            a, b, c, d = pack_max(a, e), pack_max(b, f), pack_max(c, g), pack_max(d, h)
        return pack_max(a, uint32(0)), pack_max(b, uint32(0)), pack_max(c, uint32(0)), pack_max(d, uint32(0))

    @inline
    def stage_octet(acc, i, at, scale):
        j, k, m, n = read_words(acc, i, scale)
        ptx.st_shared_v4_b32(at, j, k, m, n)

    @inline
    def store_octet(acc, i, at, column, row, scale, y, c_out):
        j, k, m, n = read_words(acc, i, scale)
        if pooled:
            j, k, m, n = pool_max(at, j, k, m, n)
        if row != no_row:
            to = y + (uint64(row) * uint64(c_out) + uint64(column)) * uint64(2)
            store_words(to, column, j, k, m, n, c_out)

    stage_for_pool, passes = make_stage_for_pool(case, 2, stage_octet), case.passes(2)
    octets = case.octets(passes)
    if pooled or not case.vector_store or octets % 2:
        return stage_for_pool, make_store(case, 2, store_octet), passes

    @inline
    def read_runs(acc, i, scale):
        return (read_words(acc, i, scale),)

    return stage_for_pool, make_store_lines(case, 2, read_runs), passes
