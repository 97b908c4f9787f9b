"""The epilogue of results in 16 bits."""

from __future__ import annotations

from typing import Any

from numba import cuda

from charcnn.gpu import ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.ops.conv1d.wgmma.config import NO_ROW
from charcnn.ops.conv1d.wgmma.epilogue.common import Case, make_stage_for_pool, make_store, make_store_words


def make_16_bits(case: Case, read_four: Any, ptx_type: str) -> tuple[Any, Any, int]:
    """Results in fp16 or bf16, exchanged as such."""
    inline = cuda.jit(device=True, forceinline=True)
    pooled, full_n_tiles = case.pooled, case.full_n_tiles
    relu_in_pack = case.rectified and not pooled  # ReLU and rounding are one instruction
    pack, pack_max = ptx.cvt_f16x2(ptx_type, relu_in_pack), ptx.max_nan_f16x2(ptx_type)
    store_words = make_store_words(case.vector_store)
    exchange_bytes = uint32(case.config.exchange_bytes)
    exchange, exchange_rows = ptx.shfl_exchange(4, 4), ptx.shfl_exchange(1, 4)
    zero, four, no_row = uint32(0), uint32(4), uint32(NO_ROW)

    @inline
    def read_words(acc, i, scale):
        """Eight channels, in four words."""
        a, b, c, d = read_four(acc, i, scale)
        e, f, g, h = read_four(acc, i + 8, scale)
        return pack(a, b), pack(c, d), pack(e, f), pack(g, h)

    @inline
    def pool_max(at, a, b, c, d):
        """Of eight channels, the greater of them, of what the others staged, and of 0: ReLU is done."""
        for giver in range(2):
            e, f, g, h = ptx.ld_shared_v4_b32(uint32(at + uint32(giver) * exchange_bytes))
            a, b, c, d = pack_max(a, e), pack_max(b, f), pack_max(c, g), pack_max(d, h)
        return pack_max(a, zero), pack_max(b, zero), pack_max(c, zero), pack_max(d, zero)

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
    def store_row(acc, first, odd, column, row, scale, y, c_out):
        """All columns of a row, together with the lanes of the row after, or before where `odd`: whole lines."""
        even_row, odd_row = exchange_rows((row,), (row,), odd)
        at = uint32(column + uint32(32)) if odd else column
        to_even = y + (uint64(even_row) * uint64(c_out) + uint64(at)) * uint64(2)
        to_odd = y + (uint64(odd_row) * uint64(c_out) + uint64(at)) * uint64(2)
        for k in range(octets // 2):
            i = 32 * k + first
            a, b, c, d, e, f, g, h = exchange(read_words(acc, i, scale), read_words(acc, i + 16, scale), odd)
            inside = full_n_tiles or uint32(at + uint32(64 * k)) < c_out
            if even_row != no_row and inside:
                ptx.st_global_v4_b32(to_even + uint64(128 * k), a, b, c, d)
            if odd_row != no_row and inside:
                ptx.st_global_v4_b32(to_odd + uint64(128 * k), e, f, g, h)

    @inline
    def store_row_pairs(acc, pool_pass, base, thread, column, row, row_8, scale, y, c_out):
        """All columns of this thread's two rows."""
        store_row(acc, 0, uint32(thread & four), column, row, scale, y, c_out)
        store_row(acc, 2, uint32(thread & four), column, row_8, scale, y, c_out)

    return stage_for_pool, store_row_pairs, passes
