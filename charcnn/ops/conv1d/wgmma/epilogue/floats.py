"""Epilogues whose warpgroups exchange float32: results in float32 or tf32, and in two fp16."""

from __future__ import annotations

from typing import Any

from numba import cuda, float32

from charcnn.gpu import ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.ops.conv1d.wgmma.config import NO_ROW
from charcnn.ops.conv1d.wgmma.epilogue.common import (
    PLACE,
    Case,
    make_stage_for_pool,
    make_store,
    make_store_lines,
    make_store_pair,
    make_store_words,
)


def make_pool_max(case: Case) -> Any:
    """The device function pool_max, of float32."""
    inline = cuda.jit(device=True, forceinline=True)
    pooled, rectified, vector_store = case.pooled, case.rectified, case.vector_store
    exchange_bytes = case.config.exchange_bytes

    @inline
    def pool_max(at, a, b, c, d):
        """Of four channels' results in float32, the greater of them and of what others staged, if any; ReLU of that."""
        if pooled:
            e, f, g, h = ptx.ld_shared_v4_f32(at)
            a, b, c, d = ptx.max_nan_f32(a, e), ptx.max_nan_f32(b, f), ptx.max_nan_f32(c, g), ptx.max_nan_f32(d, h)
            if vector_store:
                cuda.syncwarp()  # keeps the compiler from loading more at once than there are registers for
            e, f, g, h = ptx.ld_shared_v4_f32(at + exchange_bytes)
            a, b, c, d = ptx.max_nan_f32(a, e), ptx.max_nan_f32(b, f), ptx.max_nan_f32(c, g), ptx.max_nan_f32(d, h)
            if vector_store:
                cuda.syncwarp()
        if rectified:
            nothing = float32(0)
            a, b = ptx.max_nan_f32(a, nothing), ptx.max_nan_f32(b, nothing)
            c, d = ptx.max_nan_f32(c, nothing), ptx.max_nan_f32(d, nothing)
        return a, b, c, d

    return pool_max


def make_stage_octet(read_four: Any) -> Any:
    """The device function that stages eight channels in float32: two times 16 bytes."""
    inline = cuda.jit(device=True, forceinline=True)
    place = PLACE

    @inline
    def stage_octet(acc, i, at, scale):
        a, b, c, d = read_four(acc, i, scale)
        ptx.st_shared_v4_f32(at, a, b, c, d)
        a, b, c, d = read_four(acc, i + 8, scale)
        ptx.st_shared_v4_f32(at + place, a, b, c, d)

    return stage_octet


def make_32_bits(case: Case, read_four: Any, ptx_type: str) -> tuple[Any, Any, int]:
    """Results in float32, or rounded to tf32; exchanged in float32."""
    inline = cuda.jit(device=True, forceinline=True)
    rounded, vector_store, pool_max = ptx_type == "tf32", case.vector_store, make_pool_max(case)
    place, no_row = PLACE, NO_ROW
    nowhere = uint32(0)

    @inline
    def bits(value):
        return ptx.cvt_tf32(value) if rounded else ptx.bitcast_b32(value)

    @inline
    def store_floats(to, column, a, b, c, d, c_out):
        """Four channels."""
        if vector_store:
            if column < c_out:
                ptx.st_global_v4_b32(to, bits(a), bits(b), bits(c), bits(d))
        else:
            if column < c_out:
                ptx.st_global_b32(to, bits(a))
            if column + 1 < c_out:
                ptx.st_global_b32(to + uint64(4), bits(b))
            if column + 2 < c_out:
                ptx.st_global_b32(to + uint64(8), bits(c))
            if column + 3 < c_out:
                ptx.st_global_b32(to + uint64(12), bits(d))

    @inline
    def store_octet(acc, i, at, column, row, scale, y, c_out):
        to = y + (uint64(row) * uint64(c_out) + uint64(column)) * uint64(4)
        for half in range(2):
            a, b, c, d = read_four(acc, i + 8 * half, scale)
            a, b, c, d = pool_max(at + half * place, a, b, c, d)
            if row != no_row:
                store_floats(to, column, a, b, c, d, c_out)
            to, column = to + uint64(16), column + 4

    @inline
    def read_runs(acc, i, scale):
        """Four channels."""
        a, b, c, d = read_four(acc, i, scale)
        a, b, c, d = pool_max(nowhere, a, b, c, d)
        return ((bits(a), bits(b), bits(c), bits(d)),)

    stage_for_pool = make_stage_for_pool(case, 4, make_stage_octet(read_four))
    # Of e4m3, whose sums have a scale, a line's words would be more than there are registers.
    eighths = case.scaled and case.config.terms == 1
    if case.pooled or not vector_store or eighths:
        return stage_for_pool, make_store(case, 4, store_octet), case.passes(4)
    return stage_for_pool, make_store_lines(case, 4, read_runs), case.passes(4)


def make_two_terms(case: Case, read_four: Any) -> tuple[Any, Any, int]:
    """Results in two fp16, the low terms of all channels behind the high ones; exchanged in float32."""
    inline = cuda.jit(device=True, forceinline=True)
    vector_store, pool_max = case.vector_store, make_pool_max(case)
    pack_terms, store_pair, store_words = ptx.pack_floats("halves"), make_store_pair(), make_store_words(vector_store)
    place, no_row = PLACE, NO_ROW
    nowhere = uint32(0)

    @inline
    def store_terms(to, low_stride, column, a, b, c_out):
        high, low = pack_terms(a, b)
        store_pair(to, column, high, c_out)
        store_pair(to + low_stride, column, low, c_out)

    @inline
    def store_octet(acc, i, at, column, row, scale, y, c_out):
        a, b, c, d = read_four(acc, i, scale)
        e, f, g, h = read_four(acc, i + 8, scale)
        a, b, c, d = pool_max(at, a, b, c, d)
        e, f, g, h = pool_max(at + place, e, f, g, h)
        if row != no_row:
            to = y + (uint64(row) * uint64(c_out) * uint64(2) + uint64(column)) * uint64(2)
            low_stride = uint64(c_out) * uint64(2)
            if vector_store:
                (j, p), (k, q) = pack_terms(a, b), pack_terms(c, d)
                (m, r), (n, s) = pack_terms(e, f), pack_terms(g, h)
                store_words(to, column, j, k, m, n, c_out)
                store_words(to + low_stride, column, p, q, r, s, c_out)
            else:
                store_terms(to, low_stride, column, a, b, c_out)
                store_terms(to + uint64(4), low_stride, column + 2, c, d, c_out)
                store_terms(to + uint64(8), low_stride, column + 4, e, f, c_out)
                store_terms(to + uint64(12), low_stride, column + 6, g, h, c_out)

    @inline
    def read_runs(acc, i, scale):
        """Eight channels' high terms, and low ones."""
        a, b, c, d = read_four(acc, i, scale)
        a, b, c, d = pool_max(nowhere, a, b, c, d)
        (j, p), (k, q) = pack_terms(a, b), pack_terms(c, d)
        a, b, c, d = read_four(acc, i + 8, scale)
        a, b, c, d = pool_max(nowhere, a, b, c, d)
        (m, r), (n, s) = pack_terms(a, b), pack_terms(c, d)
        return (j, k, m, n), (p, q, r, s)

    stage_for_pool = make_stage_for_pool(case, 4, make_stage_octet(read_four))
    if case.pooled or not vector_store or case.measured or case.octets(1) % 2:  # moments need their registers
        return stage_for_pool, make_store(case, 4, store_octet), case.passes(4)
    return stage_for_pool, make_store_lines(case, 2, read_runs, 2), case.passes(4)
