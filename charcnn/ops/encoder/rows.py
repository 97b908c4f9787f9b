"""Rows in 16 bits: embeddings summed and normalised, and a sum of two normalised. A warp holds a row in registers.

Where the product that follows multiplies e4m3, the same kernel stores the row in that, too, divided by a unit.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np
from numba import cuda, float32

from charcnn.aliases import Array, Kernel, Stream
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint64
from charcnn.gpu.indices import block_idx_x, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common.moments import LANES, warp_sum
from charcnn.ops.common.precision import NumberFormat

THREADS = device.block_size(128)
"""Of a block that has a warp for each row."""

OCTET = 8
"""Values that a thread reads at once, in 16 bits."""

FEW_ROWS = 1024
"""Up to so many, gamma and beta are asked for before the kernel before has ended: more rows find them in caches."""

LARGEST = 2048
"""Values of a row, 64 of a thread."""


class Eighths(NamedTuple):
    """Where rows are stored in e4m3 as well."""

    out: Array
    """uint8 (T, H), on the GPU; begins at a multiple of 8 bytes."""
    unit: float
    """What 1 stands for there, a power of two."""


def _also(eighths: Eighths | None, out: Array) -> tuple[np.uint64, np.float32]:
    """What the kernels are told of it: an address, which they do not use where there are none, and a factor."""
    there, unit = eighths or (out, 1.0)
    return np.uint64(device.address(there)), np.float32(1 / unit)


@cache
def finish_of(
    ptx_type: str, octets: int, copies: int = 0, *, eighths: bool = False, ahead: bool = False,
    sent: Kernel | None = None,
) -> Kernel:  # fmt: skip
    """The device function finish: it normalises the values that a warp holds of a row, and stores them at y.

    With `copies`, y is a tuple of so many addresses, and all get the row. With `eighths`, y is a tuple of an address,
    that of the row in e4m3, and what its values are multiplied by. With `ahead`, gamma and beta are local arrays. With
    `sent`, a device function gets y, the column and four words of each eight values instead.
    """
    sends, send = sent is not None, sent or ptx.st_global_v4_b32
    pack, lanes, narrow = ptx.cvt_f16x2(ptx_type), LANES, ptx.cvt_e4m3x4

    @cuda.jit(device=True, forceinline=True)
    def finish(values, total, size, gamma, beta, y, begin, lane, eps):
        mean = warp_sum(total) / float32(size)
        total = float32(0)
        for i in range(octets):
            if (i * lanes + lane) * 8 < size:
                for t in range(8):
                    deviation = values[i * 8 + t] - mean
                    total += deviation * deviation
        scale = float32(1) / math.sqrt(warp_sum(total) / float32(size) + eps)
        for i in range(octets):
            c, v = (i * lanes + lane) * 8, i * 8
            if c < size:
                at = uint64(c) * uint64(4)
                for t in range(0, 8, 4):
                    if ahead:
                        e, f, g, h = gamma[v + t], gamma[v + t + 1], gamma[v + t + 2], gamma[v + t + 3]
                        p, q, r, s = beta[v + t], beta[v + t + 1], beta[v + t + 2], beta[v + t + 3]
                    else:
                        e, f, g, h = ptx.ld_global_v4_f32(gamma + (at + uint64(t * 4)))
                        p, q, r, s = ptx.ld_global_v4_f32(beta + (at + uint64(t * 4)))
                    values[v + t] = (values[v + t] - mean) * scale * e + p
                    values[v + t + 1] = (values[v + t + 1] - mean) * scale * f + q
                    values[v + t + 2] = (values[v + t + 2] - mean) * scale * g + r
                    values[v + t + 3] = (values[v + t + 3] - mean) * scale * h + s
                a, b = pack(values[v], values[v + 1]), pack(values[v + 2], values[v + 3])
                d, e = pack(values[v + 4], values[v + 5]), pack(values[v + 6], values[v + 7])
                if sends:
                    send(y, c, a, b, d, e)
                elif copies:
                    for copy in range(copies):
                        ptx.st_global_v4_b32(y[copy] + (begin + uint64(c)) * uint64(2), a, b, d, e)
                elif eighths:
                    ptx.st_global_v4_b32(y[0] + (begin + uint64(c)) * uint64(2), a, b, d, e)
                    for t in range(8):
                        values[v + t] *= y[2]
                    low = narrow(values[v], values[v + 1], values[v + 2], values[v + 3])
                    high = narrow(values[v + 4], values[v + 5], values[v + 6], values[v + 7])
                    ptx.st_global_v2_b32(y[1] + begin + uint64(c), low, high)
                else:
                    ptx.st_global_v4_b32(y + (begin + uint64(c)) * uint64(2), a, b, d, e)

    return finish


@cache
def _add_kernel(ptx_type: str, octets: int, early: bool, eighths: bool, ahead: bool) -> Kernel:
    finish = finish_of(ptx_type, octets, eighths=eighths, ahead=ahead)
    unpack, held = ptx.cvt_f32x2(ptx_type), octets * OCTET
    lanes, warps, kept = LANES, THREADS // LANES, held if ahead else 1

    @jit()
    def kernel(x, residual, gamma, beta, y, y_eighths, factor, rows, size, eps):
        if early:
            ptx.griddepcontrol_launch()
        values = cuda.local.array(held, float32)
        gammas, betas = cuda.local.array(kept, float32), cuda.local.array(kept, float32)
        lane, row, total = thread_idx_x() % lanes, block_idx_x() * warps + thread_idx_x() // lanes, float32(0)
        if ahead:
            for i in range(octets):
                for t in range(0, 8, 4):
                    c, v = (i * lanes + lane) * 8 + t, i * 8 + t
                    if c < size:
                        at = uint64(c) * uint64(4)
                        gammas[v], gammas[v + 1], gammas[v + 2], gammas[v + 3] = ptx.ld_global_v4_f32(gamma + at)
                        betas[v], betas[v + 1], betas[v + 2], betas[v + 3] = ptx.ld_global_v4_f32(beta + at)
        if early:
            ptx.griddepcontrol_wait()
        if row >= rows:
            return
        begin = uint64(row) * uint64(size)
        for i in range(octets):
            c, v = (i * lanes + lane) * 8, i * 8
            if c < size:
                at = (begin + uint64(c)) * uint64(2)
                a, b, d, e = ptx.ld_global_v4_b32(x + at)
                p, q, r, s = ptx.ld_global_v4_b32(residual + at)
                (values[v], values[v + 1]), (f, g) = unpack(a), unpack(p)
                values[v], values[v + 1] = values[v] + f, values[v + 1] + g
                (values[v + 2], values[v + 3]), (f, g) = unpack(b), unpack(q)
                values[v + 2], values[v + 3] = values[v + 2] + f, values[v + 3] + g
                (values[v + 4], values[v + 5]), (f, g) = unpack(d), unpack(r)
                values[v + 4], values[v + 5] = values[v + 4] + f, values[v + 5] + g
                (values[v + 6], values[v + 7]), (f, g) = unpack(e), unpack(s)
                values[v + 6], values[v + 7] = values[v + 6] + f, values[v + 7] + g
                for t in range(8):
                    total += values[v + t]
        to = (y, y_eighths, factor) if eighths else y
        if ahead:
            finish(values, total, size, gammas, betas, to, begin, lane, eps)
        else:
            finish(values, total, size, gamma, beta, to, begin, lane, eps)

    return kernel


@cache
def _embedding_kernel(ptx_type: str, octets: int, early: bool, eighths: bool) -> Kernel:
    finish = finish_of(ptx_type, octets, eighths=eighths)
    lanes, warps, held = LANES, THREADS // LANES, octets * OCTET

    @jit()
    def kernel(tokens, places, words, positions, kinds, gamma, beta, y, y_eighths, factor, vocabulary, size, eps):
        if early:
            ptx.griddepcontrol_launch()
            ptx.griddepcontrol_wait()
        values = cuda.local.array(held, float32)
        lane, row, total = thread_idx_x() % lanes, block_idx_x() * warps + thread_idx_x() // lanes, float32(0)
        if row >= tokens.size:
            return
        token = tokens[row]
        known = 0 <= token < vocabulary
        word = words + uint64(token if known else 0) * uint64(size * 4)
        position = positions + uint64(places[row]) * uint64(size * 4)
        for i in range(octets):
            c = (i * lanes + lane) * 8
            if c < size:
                for t in range(0, 8, 4):
                    v, at = i * 8 + t, uint64(c + t) * uint64(4)
                    a, b, d, e = ptx.ld_global_v4_f32(word + at)
                    if not known:
                        a = b = d = e = float32(0)
                    p, q, r, s = ptx.ld_global_v4_f32(kinds + at)
                    a, b, d, e = a + p, b + q, d + r, e + s
                    p, q, r, s = ptx.ld_global_v4_f32(position + at)
                    values[v], values[v + 1], values[v + 2], values[v + 3] = a + p, b + q, d + r, e + s
                    total += (values[v] + values[v + 1]) + (values[v + 2] + values[v + 3])
        to = (y, y_eighths, factor) if eighths else y
        finish(values, total, size, gamma, beta, to, uint64(row) * uint64(size), lane, eps)

    return kernel


def check_width(size: int) -> None:
    """Raise ValueError unless a warp can hold a row of so many values."""
    if size % OCTET or not 0 < size <= LARGEST:
        raise ValueError(f"rows have {size} values: need a multiple of {OCTET}, at most {LARGEST}")


def launch_add(
    x: Array, residual: Array, gamma: Array, beta: Array, out: Array, eps: float, of: NumberFormat, stream: Stream,
    eighths: Eighths | None = None,
) -> None:  # fmt: skip
    """rownorm(x + residual) of rows (T, H) of 16 bits, sums in float32; all arrays on the GPU, none begins between 16s.

    Args:
        x, residual, out: (T, H) of the format, C-contiguous; `out` is none of the others.
        gamma, beta: float32 (H,).
        eps: added to the variance.
        of: fp16 or bf16.
        stream: a CUDA stream.
        eighths: where the rows are to be in e4m3, too; None: nowhere.
    """
    rows, size = x.shape
    check_width(size)
    call = Call(out, stream, x.shape, of.dtype, {"x": of.dtype, "residual": of.dtype}, x=x, residual=residual)
    addresses = (np.uint64(device.address(one)) for one in (x, residual, gamma, beta, out))
    early = device.begins_early()
    kernel = _add_kernel(of.ptx_type, -(-size // (LANES * OCTET)), early, eighths is not None, rows <= FEW_ROWS)
    numbers = *_also(eighths, out), *map(np.uint32, (rows, size)), np.float32(eps)
    call.launch(kernel, -(-rows // (THREADS // LANES)), THREADS, *addresses, *numbers, early=early)


def launch_embedding(
    tokens: Array, places: Array, tables: tuple[Array, Array, Array], norm: tuple[Array, Array], out: Array, eps: float,
    of: NumberFormat, stream: Stream, eighths: Eighths | None = None,
) -> None:  # fmt: skip
    """rownorm of the sum of a token's row, its position's and that of type 0, to rows of 16 bits; all on the GPU.

    Args:
        tokens, places: int32 (T,): ids, zeros for one that is no row; positions, which are rows.
        tables: of tokens (V, H), positions (P, H) and types (K, H), float32.
        norm: gamma and beta, float32 (H,).
        out: (T, H) of the format.
        eps, of, stream, eighths: as of `launch_add`.
    """
    vocabulary, size = tables[0].shape
    check_width(size)
    call = Call(out, stream, out.shape, of.dtype, {"tokens": np.int32}, tokens=tokens)
    addresses = (np.uint64(device.address(one)) for one in (*tables, *norm, out))
    early, blocks = device.begins_early(), -(-tokens.size // (THREADS // LANES))
    kernel = _embedding_kernel(of.ptx_type, -(-size // (LANES * OCTET)), early, eighths is not None)
    numbers = *_also(eighths, out), *map(np.uint32, (vocabulary, size)), np.float32(eps)
    call.launch(kernel, blocks, THREADS, tokens, places, *addresses, *numbers, early=early)
