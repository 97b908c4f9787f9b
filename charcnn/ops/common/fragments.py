"""What a lane holds of `mma_sync`'s operands where it loads them itself: 16 bytes of a row, for two products.

Depth may be in any order, so a lane has neighbouring numbers, whose words two products share out: the first two words
are the first one's. Numbers of all sizes lie alike: a *k block* is 64 bytes of depth, 16 of each of four lanes.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32

from charcnn.aliases import Array, Stream
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_dim_x, block_idx_x, extents, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common.cast import unit_of
from charcnn.ops.common.precision import NumberFormat

THREADS = device.block_size(256)

LANE_BYTES = 16

TILE = 16
"""Rows or columns that lie together."""

OCTET = 8
"""Neighbouring channels of a lane, in kernels without a product."""


def lane_numbers(of: NumberFormat) -> int:
    """Neighbouring numbers of a lane."""
    return LANE_BYTES // of.itemsize


def k_block(of: NumberFormat) -> int:
    """Numbers of a k block."""
    return 4 * lane_numbers(of)


class PackedFragments(NamedTuple):
    """Weights on the current GPU, as lanes load them."""

    words: Any
    """uint32: of (tile, k block, term, tap, product, lane) four words."""
    tiles: int
    k_blocks: int
    unit: float
    """What the weights were divided by: a power of two, so that the division rounded nothing."""


@cache
def _pack_kernel(of, rows):
    terms, in_word, tile = of.terms, 4 // of.itemsize, TILE
    of_lane, of_block = lane_numbers(of), k_block(of)
    split, tf32, eighths = of.terms == 2, of.ptx_type == "tf32", of.ptx_type == "e4m3"
    pack, pack_terms = ptx.cvt_f16x2("bf16" if of.ptx_type == "bf16" else "f16"), ptx.pack_floats("halves")

    @cuda.jit(device=True, forceinline=True)
    def number(weight, factor, tap, c_in, column):
        if column < extents(weight)[2] and c_in < extents(weight)[1]:
            return weight[tap, c_in, column] * factor
        return float32(0)

    @jit()
    def kernel(weight, factor, to, taps, k_blocks, words):
        # A thread writes a word. Of rows, the second word is the row eight further; of columns, the other half's depth.
        i = block_idx_x() * block_dim_x() + thread_idx_x()
        if i < uint32(words):
            part, lane = i & 3, i // 4 & 31
            rest = i // 128
            product, rest = rest & 1, rest // 2
            tap, rest = rest % uint32(taps), rest // uint32(taps)
            term, rest = rest % terms, rest // terms
            near, far = part & 1, part // 2
            if rows:
                near, far = far, near
            c_in = rest % uint32(k_blocks) * of_block + (lane & 3) * of_lane
            c_in += (product * 2 + near) * in_word
            column = rest // uint32(k_blocks) * tile + lane // 4
            column += far * 8
            a = number(weight, factor, tap, c_in, column)
            if tf32:
                word = ptx.cvt_tf32(a)
            else:
                b = number(weight, factor, tap, c_in + 1, column)
                if eighths:
                    c = number(weight, factor, tap, c_in + 2, column)
                    d = number(weight, factor, tap, c_in + 3, column)
                    word = ptx.cvt_e4m3x4(a, b, c, d)
                elif split:
                    high, low = pack_terms(a, b)
                    word = low if term == 1 else high
                else:
                    word = pack(a, b)
            ptx.st_global_b32(to + uint64(i) * uint64(4), word)

    return kernel


def packed(weight: Array, of: NumberFormat, *, rows: bool, stream: Stream = None) -> PackedFragments:
    """Lay out a weight (K, C_in, C_out), float32: outputs are a product's columns, or its rows.

    Its scale, where the precision has one, is a power of two: the greatest weight then uses the range that there is.
    """
    taps, c_in, c_out = weight.shape
    tiles, k_blocks = -(-c_out // TILE), -(-c_in // k_block(of))
    words = tiles * k_blocks * of.terms * taps * 256
    call = Call(None, stream, (words,), np.uint32, weight=weight)
    (weight,) = call.inputs
    unit = unit_of(call, weight, of) if of.scaled else 1.0
    arguments = np.float32(1 / unit), np.uint64(device.address(call.out)), taps, k_blocks, words
    call.launch(_pack_kernel(of, rows), -(-words // THREADS), THREADS, weight, *arguments)
    return PackedFragments(call.out, tiles, k_blocks, unit)


@cache
def store_number(results: NumberFormat) -> Any:
    """store(to, low, value): a float32 as a number in a format, to an address; its low term so many bytes behind."""
    floats, tf32 = results.ptx_type == "f32", results.ptx_type == "tf32"
    eighths, split = results.ptx_type == "e4m3", results.terms == 2
    pack, pack_terms = ptx.cvt_f16x2("bf16" if results.ptx_type == "bf16" else "f16"), ptx.pack_floats("halves")

    @cuda.jit(device=True, forceinline=True)
    def store(to, low, value):
        if floats:
            ptx.st_global_f32(to, value)
        elif tf32:
            ptx.st_global_b32(to, ptx.cvt_tf32(value))
        elif eighths:
            ptx.st_global_b8(to, ptx.cvt_e4m3x4(value, float32(0), float32(0), float32(0)))
        elif split:
            upper, rest = pack_terms(value, float32(0))
            ptx.st_global_b16(to, upper)
            ptx.st_global_b16(to + low, rest)
        else:
            ptx.st_global_b16(to, pack(value, float32(0)))

    return store


@cache
def store_octet(of: NumberFormat) -> Any:
    """store(to, low, values): an array of OCTET float32 in a format, to an address; low terms so many bytes behind."""
    floats, eighths, tf32 = of.size == 4, of.itemsize == 1, of.ptx_type == "tf32"
    pack = ptx.cvt_f16x2("bf16" if of.ptx_type == "bf16" else "f16")
    pack_words = ptx.pack_floats("tf32" if tf32 else "halves")

    @cuda.jit(device=True, forceinline=True)
    def store(to, low, values):
        if eighths:
            first_four = ptx.cvt_e4m3x4(values[0], values[1], values[2], values[3])
            ptx.st_global_v2_b32(to, first_four, ptx.cvt_e4m3x4(values[4], values[5], values[6], values[7]))
        elif floats:
            a, b = pack_words(values[0], values[1])
            c, d = pack_words(values[2], values[3])
            e, f = pack_words(values[4], values[5])
            g, h = pack_words(values[6], values[7])
            if tf32:
                ptx.st_global_v4_b32(to, a, b, c, d)
                ptx.st_global_v4_b32(to + uint64(16), e, f, g, h)
            else:
                ptx.st_global_v4_b32(to, a, c, e, g)
                ptx.st_global_v4_b32(to + low, b, d, f, h)
        else:
            ptx.st_global_v4_b32(
                to, pack(values[0], values[1]), pack(values[2], values[3]), pack(values[4], values[5]),
                pack(values[6], values[7]),
            )  # fmt: skip

    return store
