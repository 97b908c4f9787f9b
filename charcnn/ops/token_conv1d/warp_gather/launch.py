"""How the kernel is started: what channels a block keeps, and what inputs and windows it goes through."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from charcnn.gpu import device
from charcnn.gpu.launch import Call
from charcnn.ops.common import shapes
from charcnn.ops.token_conv1d.cluster_moments import CLUSTER, HELD_BYTES, LANES, MOST_INPUTS, SLOT
from charcnn.ops.token_conv1d.lags import PairTables
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


class Tiles(NamedTuple):
    """What a block keeps."""

    channels: int
    threads: int
    windows: int
    """Of a warp."""
    record_bytes: int
    """Of all its warps, at `windows` of 32 inputs."""
    shared_bytes: int
    across: int
    """Blocks that have all channels."""

    @staticmethod
    def of(
        shape: tuple[int, int, int], pool_size: int, layernorm: bool, wide: bool, *,
        channel_tile: int = PITCH, threads: int = THREADS, more: int = 0,
    ) -> Tiles:  # fmt: skip
        """As many channels and threads as fit shared memory, with `more` bytes of it; arguments as of `launch`.

        Raises:
            ValueError: shared memory does not hold the fewest.
        """
        kernel_size, depth, channels = shape
        held = 4 if wide else 8
        rows, limit = kernel_size * (depth + 1), device.shared_limit()
        record = 4 * record_words(kernel_size, pool_size, layernorm, wide)
        lanes = min(channel_tile // VECTOR_BYTES, shapes.power_of_two(-(-channels // held)))  # so that sizes share one

        def shared() -> int:
            return rows * lanes * VECTOR_BYTES + threads * windows() * record + more

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
        across = -(-channels // (lanes * held))
        return Tiles(lanes * held, threads, windows(), threads * windows() * record, shared(), across)


def launch(
    call: Call,
    ids: Any,
    table: Any,
    bias: Any,
    normalisation: tuple[Any, Any, Any] | None,
    y: Any,
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
    cluster: int = CLUSTER,
) -> None:
    """Start the kernel, with (stat, gamma, beta) or None, to write y, (N, L_out // pool_size, C_out or 2 C_out).

    Args:
        call: which launches.
        ids: uint8 (N, L).
        table: the weights, of this (K, depth, C_out) `shape`: with `wide` as they are, otherwise in fp16, two in a
            word, with a row of zeros more, and channels in whole vectors.
        bias, normalisation: float32 and for stat float64, or `PairTables` for the kernel to take it by; without `wide`
            gamma and beta in fp16 with such channels.
        form: see `_warp_gather_pool_kernel`.
        early: whether table and bias were complete before the kernel before this one began.
        channel_tile: of the table's channels, the most bytes that a block keeps of a row; fewer where shared memory
            does not hold them.
        per: inputs that a warp takes at a time, fewer where these would not keep all busy.
        cluster: with `PairTables`, the most blocks that share inputs.

    Raises:
        ValueError: shared memory does not hold what it must, or a cluster has too few blocks.
    """
    if y.size == 0:
        return
    n, pooled, _ = y.shape
    kernel_size, depth, channels = shape
    layernorm, overlaps = normalisation is not None, device.begins_early()
    stat, *affine = normalisation or (ids, y, y)
    tables = stat if isinstance(stat, PairTables) else None
    tile = Tiles.of(
        shape, pool_size, layernorm, wide,
        channel_tile=channel_tile, threads=threads, more=HELD_BYTES if tables else 0,
    )  # fmt: skip
    held = 4 if wide else 8
    vectors = channels % held == 0 and device.address(y) % VECTOR_BYTES == 0
    kind = kernel_size, depth, pool_size, tile.channels, tile.threads, layernorm, form, vectors, wide, overlaps
    of_clusters: dict[str, int] = {}
    grid: tuple[int, ...]
    sharing: tuple[int, ...] = ()
    if tables:
        blocks, per = _clusters(n, tile, cluster, per)
        of_clusters, stat, sharing = {"cluster": blocks}, tables.flat, (blocks, blocks // tile.across)
        grid, table = (-(-n // per),), table.view(np.uint32)
    else:
        tiles = -(-pooled // tile.windows)
        grid = min(tiles * n, max(1, device.multiprocessors() // tile.across)), tile.across
        per = _run(n, tiles, grid[0] * tile.threads // WARP, per)
    call.launch(
        _warp_gather_pool_kernel(*kind, *sharing), grid, tile.threads,
        ids, device.address(ids) % WORDS, table, bias, stat, *affine, y, per, np.float32(eps),
        shared=tile.shared_bytes, early=early and overlaps, **of_clusters,
    )  # fmt: skip


def _run(n: int, tiles: int, warps: int, most: int) -> int:
    """Inputs of a run: `most` where warps have several runs each, else as many as have warps end at the same time."""
    if n * tiles >= most * warps:
        return most
    # A run takes its inputs' time, and about that of one more, to begin.
    return min(range(1, most + 1), key=lambda per: (-(-tiles * -(-n // per) // warps) * (per + 1), per))


def _clusters(n: int, tile: Tiles, most: int, per: int) -> tuple[int, int]:
    """Blocks of a cluster, all tiles of channels as often as `most` blocks have them; and inputs that it takes.

    So many inputs that all clusters run at once. Large clusters thus take more of them, for which they read gamma and
    beta once: for each input they are 1 MB in 16 bits, as much as all blocks of a cluster have of tables.
    """
    blocks = most // tile.across * tile.across
    if not 2 <= blocks <= CLUSTER:  # `st.async` of a block alone is an illegal instruction on an H100
        raise ValueError(f"cluster={most}: need at least {max(2, tile.across)} blocks, which have all channels, and "
                         f"at most {CLUSTER}")  # fmt: skip
    at_once = max(1, device.multiprocessors() // device.GPC * (device.GPC // blocks))
    return blocks, min(per, MOST_INPUTS, tile.record_bytes // (SLOT * LANES), -(-n // at_once))
