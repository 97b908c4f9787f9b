"""How the kernel is started: what channels a block keeps, and what inputs and windows it goes through."""

from __future__ import annotations

from typing import Any

import numpy as np

from charcnn.aliases import Array
from charcnn.gpu import device
from charcnn.gpu.launch import Call
from charcnn.ops.common import shapes
from charcnn.ops.token_conv1d.warp_gather.config import (
    MOST_WINDOWS,
    PITCH,
    RUN,
    THREADS,
    VECTOR_BYTES,
    WARP,
    WORDS,
    record_words,
)
from charcnn.ops.token_conv1d.warp_gather.kernel import _warp_gather_pool_kernel


def launch(
    call: Call,
    ids: Array,
    table: Array,
    bias: Array,
    normalisation: tuple[Any, Any, Any] | None,
    y: Array,
    pool_size: int,
    eps: float,
    shape: tuple[int, int, int],
    form: str,
    wide: bool,
    *,
    early: bool = False,
    channel_tile: int = PITCH,
    threads: int = THREADS,
    per: int = RUN,
) -> None:
    """Start the kernel, with (stat, gamma, beta) or None, to write y, (N, L_out // pool_size, C_out or 2 C_out).

    Args:
        call: which launches.
        ids: uint8 (N, L).
        table: the weights, of this (K, depth, C_out) `shape`: with `wide` as they are, otherwise in fp16, two in a
            word, with a row of zeros more, and channels in whole vectors.
        bias, normalisation: float32 and for stat float64; without `wide` gamma and beta in fp16 with such channels.
        form: see `_warp_gather_pool_kernel`.
        early: whether table and bias were complete before the kernel before this one began.
        channel_tile: of the table's channels, the most bytes that a block keeps of a row; fewer where shared memory
            does not hold them.
        per: inputs that a warp takes at a time, fewer where these would not keep all busy.
    """
    if y.size == 0:
        return
    n, pooled, _ = y.shape
    kernel_size, depth, channels = shape
    held = 4 if wide else 8
    rows, limit = kernel_size * (depth + 1), device.shared_limit()
    record = 4 * record_words(kernel_size, pool_size, normalisation is not None, wide)
    lanes = min(channel_tile // VECTOR_BYTES, shapes.power_of_two(-(-channels // held)))  # so that sizes share kernels

    def shared() -> int:
        return rows * lanes * VECTOR_BYTES + threads * windows() * record

    def windows() -> int:  # of a warp
        return min(WARP // lanes, MOST_WINDOWS)

    while lanes > 1 and shared() > limit:
        lanes -= 1
    while threads > WARP and shared() > limit:
        threads -= WARP
    if shared() > limit:
        raise ValueError(
            f"weight has shape {shape}, {pool_size=}: {rows} rows of {held} channels, with the blank's, and the "
            f"characters of {WARP} inputs need {shared()} bytes of shared memory, and {limit} are free"
        )
    channel_tiles, tiles = -(-channels // (lanes * held)), -(-pooled // windows())
    blocks = min(tiles * n, max(1, device.multiprocessors() // channel_tiles))
    per = run_length(n, tiles, blocks * threads // WARP, per)
    vectors = channels % held == 0 and all(device.address(array) % VECTOR_BYTES == 0 for array in (table, y))
    table = table.view(np.uint32)
    layernorm, overlaps = normalisation is not None, device.begins_early()
    kernel = _warp_gather_pool_kernel(
        kernel_size, depth, pool_size, lanes * held, threads, layernorm, form, vectors, wide, overlaps
    )
    call.launch(
        kernel, (blocks, channel_tiles), threads,
        ids, device.address(ids) % WORDS, table, bias, *(normalisation or (ids, y, y)), y, per, np.float32(eps),
        shared=shared(), early=early and overlaps,
    )  # fmt: skip


def run_length(n: int, tiles: int, warps: int, most: int) -> int:
    """Inputs of a run: `most` where warps have several runs each, else as many as have warps end at the same time."""
    if n * tiles >= most * warps:
        return most
    # A run takes its inputs' time, and about that of one more, to begin.
    return min(range(1, most + 1), key=lambda per: (-(-tiles * -(-n // per) // warps) * (per + 1), per))
