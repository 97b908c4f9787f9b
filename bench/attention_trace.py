"""Trace when each warpgroup of one block of attention by wgmma waits, and for what, and when its copies land.

It needs a Hopper GPU. The kernel is compiled again, so that each wait also notes when it began and ended; its results
must keep the same bits. A warp that else has nothing to do waits for each copy. The trace's own cost is measured, too.
It writes results/MACHINE-attention-trace.json.

Exit status: 0 traced, 1 the bits differ, 2 unusable machine.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from charcnn.host.arguments import HelpFormatter

if __name__ == "__main__":
    os.environ["NUMBA_CACHE_DIR"] = tempfile.mkdtemp()  # kernels with traced waits are nobody else's

import numpy as np
import raw
import traces
from numba import cuda
from traces import microseconds

from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_idx_x, grid_dim_x, thread_idx_x
from charcnn.ops.attention import wgmma, wgmma_layer, wgmma_tile
from charcnn.ops.attention.wgmma_tile import WGMMA_M, ZERO, AttentionBarrier, AttentionTile
from charcnn.ops.common import ring

SHAPE = 22, 12, 1024, 64
"""Inputs, heads, positions and features of a head: each of 132 multiprocessors has twelve tasks."""

KINDS = (*(barrier.name.lower() for barrier in AttentionBarrier), "turn", "scores", "values")
"""What is waited for: mbarriers in the order of `AttentionBarrier`, then the turn and the two products."""

PARTS, WAITS, FIELDS, STEP = 5, 1 << 12, 4, 64
"""Parts of a block; waits of each that have a place, by time and kind; and numbers of a wait: begin, end, kind and
stage, part. A kind is STEP more than the one before, as in `AttentionBarrier`."""

_ticks = itertools.count(1 << 12, 1 << 6)


@ptx.instruction("mov.u32 $0, %clock;", "r", simulated=lambda: 0 if thread_idx_x() & 31 else next(_ticks))
def clock():
    """Cycles of this multiprocessor; uint32."""


def make_note(log: int, lead: int, part: int) -> Any:
    """The device function note(begin, what): keep a wait that ends now, in a block's and a warpgroup's `lead` thread.

    Where follows from the time and from what is waited for: so nobody waits for a counter, and what is kept last stays.
    """
    to, size, waits, step = uint64(log), uint64(4 * FIELDS), WAITS, STEP

    @cuda.jit(device=True, forceinline=True)
    def note(begin, what):
        end, thread = clock(), thread_idx_x()
        if thread & 127 == lead and block_idx_x() == 0:
            row = (thread >> 7) + part
            at = row * waits + ((begin >> 4 & (waits - 16)) | what // step)
            ptx.st_global_v4_b32(to + uint64(at) * size, begin, end, what, row)

    return note


def make_traced(log: int, wait: Any, what: int, waited: Sequence[int] = ()) -> Any:
    """A wait without arguments, or of a warpgroup where some are `waited` for, that is noted as `what`."""
    note, what = make_note(log, 0, 0), uint32(what)

    @cuda.jit(device=True, forceinline=True)
    def traced():
        begin = clock()
        wait()
        note(begin, what)

    @cuda.jit(device=True, forceinline=True)
    def traced_of(warpgroup):
        begin = clock()
        wait(warpgroup)
        note(begin, what)

    return traced_of if waited else traced


def make_ring_wait(log: int, lead: int = 0, part: int = 0) -> Any:
    """`ring.wait` that is noted: mbarriers begin at a multiple of 1,024 bytes, and so say of which kind they are."""
    note = make_note(log, lead, part)

    @cuda.jit(device=True, forceinline=True)
    def wait(barriers, stage):
        begin = clock()
        ptx.mbarrier_wait(barriers + stage.slot * 8, stage.parity)
        note(begin, barriers + stage.slot * 8 & 1023)

    return wait


def make_watch(log: int, tile: AttentionTile, count: Any) -> Any:
    """In place of `clean`, which whole tiles leave nothing to do: wait for each copy of keys and of values."""
    wait, advance, block_m = make_ring_wait(log, 32, 1), ring.make_advance(tile.stages), tile.block_m
    k_full, v_full = (tile.barriers_at + kind for kind in (AttentionBarrier.K_FULL, AttentionBarrier.V_FULL))

    @cuda.jit(device=True, forceinline=True)
    def watch(base, lane, heads, tasks, q_tiles, positions, row_step, bounds):
        stage, task = ring.to_read(), block_idx_x()
        while task < tasks:
            tiles = count(task % q_tiles * block_m, positions)
            while tiles > ZERO:
                wait(base + k_full, stage)
                wait(base + v_full, stage)
                stage = advance(stage)
                tiles -= 1
            task += grid_dim_x()

    return watch


@contextmanager
def traced(log: int) -> Iterator[None]:
    """Kernels that are made in the block keep the times of their waits."""
    turns, produce, kernel = wgmma.make_turns, wgmma.make_produce, wgmma.make_kernel
    theirs, rings = ModuleType(ptx.__name__), ModuleType(ring.__name__)
    vars(theirs).update(vars(ptx), wgmma_wait_group=lambda left: make_traced(
        log, ptx.wgmma_wait_group(left), STEP * KINDS.index("scores" if left else "values")
    ))  # fmt: skip
    vars(rings).update(vars(ring), wait=make_ring_wait(log))

    def make_turns(warpgroups: int) -> tuple[Any, Any]:
        my_turn, next_turn = turns(warpgroups)
        return make_traced(log, my_turn, STEP * KINDS.index("turn"), range(warpgroups)), next_turn

    def make_produce(tile: AttentionTile, seen: Any) -> tuple[Any, Any]:
        return produce(tile, seen)[0], make_watch(log, tile, wgmma.make_tasks(tile, seen)[1])

    def make_kernel(ptx_type: str, tile: AttentionTile, seen: Any, eighths: bool = False) -> Any:
        return kernel(ptx_type, tile, replace(seen, cleaned=True), eighths)

    changed = [
        (wgmma, {"ptx": theirs, "ring": rings, "make_turns": make_turns, "make_produce": make_produce}),
        (wgmma_layer, {"make_kernel": make_kernel}),
    ]
    before = [(module, {name: vars(module)[name] for name in more}) for module, more in changed]
    for module, more in changed:
        vars(module).update(more)
    kernel.cache_clear()
    try:
        yield
    finally:
        for module, more in before:
            vars(module).update(more)
        kernel.cache_clear()


def decoded(words: np.ndarray, warpgroups: int) -> list[dict[str, Any]]:
    """Waits as rows, sorted by part and beginning, in cycles from the first one's.

    Args:
        words: uint32 (E, FIELDS), as the kernel wrote them: zeros where it wrote none, or of a time long gone.
        warpgroups: those that multiply; behind them come the one that asks for copies, and the warp that waits for all.
    """
    words = words[words[:, 1] > 0].astype(np.int64)
    if np.ptp(words[:, :2]) > 1 << 31:  # the clock began anew
        words[:, :2] += (words[:, :2] < 1 << 31) * np.int64(1 << 32)
    words[:, :2].sort(axis=1)  # where nothing is waited for, ptxas may have the clock read behind the wait first
    words = words[words[:, 0] >= words[:, 0].max() - WAITS // 16 * 256]  # of each kind one in 256 cycles has a place
    words[:, :2] -= words[:, 0].min()
    parts = [*(f"warpgroup {i}" for i in range(warpgroups)), "producer", "copies"]
    rows = [
        {"part": parts[part], "waits_for": KINDS[what // STEP], "stage": what % STEP // 8, "begin": begin, "end": end}
        for begin, end, what, part in words.tolist()
    ]
    return sorted(rows, key=lambda row: (row["part"], row["begin"]))


def trace(shape: Sequence[int]) -> dict[str, Any] | None:
    """Waits of a run, and what tracing costs; None where it changed a bit of the results."""
    _, heads, positions, depth = shape
    tile = wgmma_tile.choose(depth, positions)
    draw = np.random.default_rng(0)
    q, k, v = (device.to_device(draw.standard_normal(shape, np.float32).astype(np.float16)) for _ in range(3))
    plain, out = (device.empty(shape, np.float16) for _ in range(2))
    nothing = np.zeros((PARTS * WAITS, FIELDS), np.uint32)
    log = device.to_device(nothing)

    def start(layer: wgmma_layer.WgmmaAttention, y: Any) -> Callable[[], Any]:
        return lambda: layer.apply(q, k, v, out=y)

    usual = start(wgmma_layer.WgmmaAttention(heads, depth), plain)
    usual()
    before = microseconds(usual)
    with traced(device.address(log)):
        again = start(wgmma_layer.WgmmaAttention(heads, depth), out)
        again()
        cuda.synchronize()
        log.copy_to_device(nothing)
        again()
        cuda.synchronize()
        words = log.copy_to_host()
        while_traced = microseconds(again)
    if not np.array_equal(plain.copy_to_host(), out.copy_to_host()):
        return None
    return {
        "shape": dict(zip(("n", "heads", "positions", "depth"), shape, strict=True)), "precision": "fp16",
        "microseconds": before, "microseconds_traced": while_traced,
        "keys": tile.keys, "warpgroups": tile.warpgroups, "queries": WGMMA_M, "stages": tile.stages,
        "events": decoded(words, tile.warpgroups),
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--results-dir", type=Path, default=raw.RESULTS, metavar="DIR", help="default: bench/results")
    options = parser.parse_args(argv)
    return traces.kept("attention_trace", lambda: trace(SHAPE), options.results_dir)


if __name__ == "__main__":
    sys.exit(main())
