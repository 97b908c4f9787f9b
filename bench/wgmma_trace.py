"""Trace when the parts of the wgmma kernel wait, and for which mbarrier, on one block's multiprocessor in conv2.

It needs a Hopper GPU. The kernel is compiled again, so that each wait also notes when it began and ended; its results
must keep the same bits. The trace's own cost is measured, too. Kept are the last waits of each warpgroup's first warp.
It writes results/MACHINE-wgmma-trace.json.

Exit status: 0 traced, 1 the bits differ, 2 unusable machine.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from charcnn.host.arguments import HelpFormatter
from charcnn.ops.common.epilogues import pattern_of

if __name__ == "__main__":
    os.environ["NUMBA_CACHE_DIR"] = tempfile.mkdtemp()  # kernels with traced waits are nobody else's

import numpy as np
import raw
import steps
import traces
from numba import cuda
from traces import microseconds

from charcnn.gpu import device, ptx
from charcnn.gpu.launch import Call
from charcnn.ops.common.cast import narrow
from charcnn.ops.conv1d.wgmma import epilogue, kernel, loads
from charcnn.ops.conv1d.wgmma.config import Barrier, WgmmaTile
from charcnn.ops.conv1d.wgmma.layer import WgmmaConv

WARPGROUPS, WAITS, FIELDS = 4, 1 << 13, 4
"""Of a block; waits of each that have a place, by time and kind of mbarrier; numbers of each: begin, end, mbarrier,
warpgroup."""

SPAN = WAITS // 8 * 128
"""Cycles that are kept: of each kind of mbarrier a wait every 128."""

CONV2 = next(one for one in steps.MEASURED if one.name == "conv2")


@ptx.instruction("mov.u32 $0, %clock;", "r", simulated=lambda: 0)
def clock():
    """Cycles of this multiprocessor; uint32."""


def traced_wait(log: int) -> Any:
    """`ptx.mbarrier_wait` that keeps its times at an address on the GPU.

    Where follows from the time and the mbarrier: so nobody waits for a counter, and what is kept last stays.
    """
    uint32, uint64 = device.uint32, device.uint64
    to, size, leading, waits, kinds = uint64(log), uint64(4 * FIELDS), uint32(127), uint32(WAITS), uint32(7)
    four, six, seven = uint32(4), uint32(6), uint32(7)

    @cuda.jit(device=True, forceinline=True)
    def mbarrier_wait(mbarrier, parity):
        begin = clock()
        ptx.mbarrier_wait(mbarrier, parity)
        end, thread = clock(), uint32(cuda.threadIdx.x)
        if uint32(thread & leading) == uint32(0) and cuda.blockIdx.x == 0:
            kind, warpgroup = uint32(uint32(mbarrier >> six) & kinds), uint32(thread >> seven)
            at = uint32(uint32(uint32(begin >> four) & uint32(waits - uint32(8))) | kind)
            at = uint32(uint32(warpgroup * waits) + at)
            ptx.st_global_v4_b32(to + uint64(at) * size, begin, end, mbarrier, warpgroup)

    return mbarrier_wait


@contextmanager
def traced(log: int) -> Iterator[None]:
    """Kernels that are made in the block keep the times of their waits."""
    theirs = ModuleType(ptx.__name__)
    vars(theirs).update(vars(ptx), mbarrier_wait=traced_wait(log))
    modules = [module for module in (kernel, loads, epilogue) if getattr(module, "ptx", None) is ptx]
    kernel.make_kernel.cache_clear()
    for module in modules:
        module.ptx = theirs  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module in modules:
            module.ptx = ptx  # type: ignore[attr-defined]
        kernel.make_kernel.cache_clear()


def decoded(words: np.ndarray, config: WgmmaTile) -> list[dict[str, Any]]:
    """Waits as rows, sorted by their beginning, in cycles from the first one's.

    Args:
        words: uint32 (E, FIELDS), as the kernel wrote them: zeros where it wrote none, or of a time long gone.
        config: says where which mbarriers lie; the first of them that anyone waits for is the first of B's.
    """
    words = words[words[:, 2] > 0].astype(np.int64)
    first = int(words[:, 2].min()) - Barrier.B_FULL
    if np.ptp(words[:, :2]) > 1 << 31:  # the clock began anew
        words[:, :2] += (words[:, :2] < 1 << 31) * np.int64(1 << 32)
    words = words[words[:, 0] >= words[:, 0].max() - SPAN]
    words[:, :2] -= words[:, 0].min()
    rows = []
    for begin, end, mbarrier, warpgroup in words.tolist():
        kind = max(one for one in Barrier if one <= mbarrier - first)
        part = "producer" if warpgroup == config.math_warpgroups else f"warpgroup {warpgroup}"
        stage = (mbarrier - first - kind) // 8
        rows.append({"part": part, "waits_for": kind.name.lower(), "stage": stage, "begin": begin, "end": end})
    return sorted(rows, key=lambda row: (row["part"], row["begin"]))


def trace(batch: int) -> dict[str, Any] | None:
    """Waits of a run, and what tracing costs; None where it changed a bit of the results."""
    length, c_in, taps, c_out = steps.sizes(CONV2)
    rng = np.random.default_rng(0)
    x = np.maximum(rng.standard_normal((steps.DRAWN, length, c_in)), 0).astype(np.float32)
    weight = rng.standard_normal((taps, c_in, c_out)).astype(np.float32) / np.float32((taps * c_in) ** 0.5)
    bias = rng.standard_normal(c_out).astype(np.float32)
    made = WgmmaConv(pattern_of(weight, "relu", 3), {"weight": weight, "bias": bias}, precision="fp16")
    source = device.to_device(np.resize(x, (batch, length, c_in)))
    features = narrow(Call(None, None, source.shape, x=source), source, length, c_in, made.precision)
    nothing = np.zeros((WARPGROUPS * WAITS, FIELDS), np.uint32)
    log = device.to_device(nothing)
    plain, out = (device.empty((batch, (length - taps + 1) // 3, c_out), np.float16) for _ in range(2))
    made.apply(features, out=plain)

    def start():
        made.apply(features, out=out)

    before = microseconds(start)
    with traced(device.address(log)):
        start()
        cuda.synchronize()
        log.copy_to_device(nothing)
        start()
        cuda.synchronize()
        words = log.copy_to_host()
        while_traced = microseconds(start)
    if not np.array_equal(plain.copy_to_host(), out.copy_to_host()):
        return None
    config = made._cut_rows(features, out, made._rows(features), True).tile
    return {
        "layer": CONV2.name, "batch": batch, "precision": "fp16",
        "microseconds": before, "microseconds_traced": while_traced,
        "stages": {"a": config.a_stages, "b": config.b_stages}, "math_warpgroups": config.math_warpgroups,
        "events": decoded(words, config),
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--batch", type=int, default=4096, metavar="N", help="inputs per batch (default 4096)")
    parser.add_argument("--results-dir", type=Path, default=raw.RESULTS, metavar="DIR", help="default: bench/results")
    options = parser.parse_args(argv)
    if options.batch < 1:
        parser.error(f"--batch {options.batch}: need 1 or more")
    return traces.kept("wgmma_trace", lambda: trace(options.batch), options.results_dir)


if __name__ == "__main__":
    sys.exit(main())
