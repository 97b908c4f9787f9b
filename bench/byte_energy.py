"""Energy of a byte that is read, by where it lies: DRAM, the second cache, shared memory, registers; and of an FMA.

All multiprocessors read normal numbers, 16 bytes a thread at once, and add up one of four. Registers are read and
written by multiplications and additions in float32, whose energy is in it: 16 bytes each. First sums are compared with
NumPy's. Rounds take turns.

It needs an NVIDIA GPU, except with --tiny. It adds to results/MACHINE-costs.json.

Exit status: 0 measured, 1 a sum is wrong, 2 unusable machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import energy
import numpy as np
import raw
from numba import cuda, float32, uint64

from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32
from charcnn.gpu.indices import block_dim_x, block_idx_x, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import jit, start
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter

THREADS, PIECE, AT_ONCE = 1024, 16, 4
"""Of a block; bytes of a load; loads that a thread has under way."""

HELD = {"DRAM": 1 << 31, "L2": 1 << 24, "shared memory": 1 << 16}
"""Bytes that are read again and again: far more than the second cache holds, a third of it, and a block's."""

STEPS = {"DRAM": 512, "L2": 512, "shared memory": 1 << 14, "registers": 1 << 14}
"""Of a call: of `AT_ONCE` loads a thread, or of eight FMAs."""

ALIGNMENT = ptx.ALIGNMENT  # as only a module's own constant will do

FMAS, FMA_BYTES = 8, 16
"""Of a step; of registers that one reads and writes."""


@jit(launch_bounds=(THREADS, 1))
def read_kernel(begin, mask, steps, sums):
    """sums float32 (threads,): what a thread reads of mask + 1 pieces of 16 bytes, one number of each."""
    threads, me = uint64(grid_dim_x() * block_dim_x()), block_idx_x() * block_dim_x() + thread_idx_x()
    at, total = uint64(me), float32(0)
    for _ in range(steps):
        a, _, _, _ = ptx.ld_cg_v4_f32(begin + (at & mask) * uint64(16))
        _, b, _, _ = ptx.ld_cg_v4_f32(begin + (at + threads & mask) * uint64(16))
        _, _, c, _ = ptx.ld_cg_v4_f32(begin + (at + uint64(2) * threads & mask) * uint64(16))
        _, _, _, d = ptx.ld_cg_v4_f32(begin + (at + uint64(3) * threads & mask) * uint64(16))
        total += (a + b) + (c + d)
        at += uint64(4) * threads
    sums[me] = total


@jit(launch_bounds=(THREADS, 1))
def shared_kernel(x, mask, steps, sums):
    """sums as of `read_kernel`, of x float32, (mask + 1) * 4 numbers, in each block's shared memory."""
    smem = cuda.shared.array(0, float32, alignment=ALIGNMENT)
    for i in range(thread_idx_x(), x.size, block_dim_x()):
        smem[i] = x[i]
    cuda.syncthreads()
    threads, at, total = block_dim_x(), thread_idx_x(), float32(0)
    for _ in range(steps):
        a, _, _, _ = ptx.ld_shared_v4_f32(smem, 4 * (at & mask), 0)
        _, b, _, _ = ptx.ld_shared_v4_f32(smem, 4 * (at + threads & mask), 0)
        _, _, c, _ = ptx.ld_shared_v4_f32(smem, 4 * (at + uint32(2) * threads & mask), 0)
        _, _, _, d = ptx.ld_shared_v4_f32(smem, 4 * (at + uint32(3) * threads & mask), 0)
        total += (a + b) + (c + d)
        at += uint32(4) * threads
    sums[block_idx_x() * block_dim_x() + thread_idx_x()] = total


@jit(launch_bounds=(THREADS, 1))
def fma_kernel(x, steps, sums):
    """Four pairs of numbers a thread swing for ever, by two FMAs a step each: sums float32 (threads,), of all.

    x is float32 (threads,), from 0.5 to 1.5.
    """
    me = block_idx_x() * block_dim_x() + thread_idx_x()
    e = x[me]
    minus = -e
    a, b, c, d = e, e + float32(0.125), e + float32(0.25), e + float32(0.375)
    p, q, r, s = minus, minus - float32(0.125), minus - float32(0.25), minus - float32(0.375)
    for _ in range(steps):
        a += e * p
        b += e * q
        c += e * r
        d += e * s
        p += minus * a
        q += minus * b
        r += minus * c
        s += minus * d
    sums[me] = (a + b + c + d) + (p + q + r + s)


class Reading:
    """What is read by all blocks, and what it sums up to.

    Args:
        memory: of `STEPS`.
        held: bytes.
        blocks: of `threads` threads.
        threads: of a block.
    """

    def __init__(self, memory: str, held: int, blocks: int, threads: int) -> None:
        self.memory, self.held, self.blocks, self.threads = memory, held, blocks, threads
        rng = np.random.default_rng(0)
        of_all = blocks * threads
        drawn = rng.uniform(0.5, 1.5, of_all) if memory == "registers" else rng.standard_normal(min(held, 1 << 26) // 4)
        self.part = drawn.astype(np.float32)
        self.x = device.empty((max(held // 4, self.part.size),), np.float32)
        part = device.to_device(self.part)
        for begin in range(0, self.x.size, self.part.size):
            self.x[begin : begin + self.part.size].copy_to_device(part)
        self.sums = device.empty((of_all,), np.float32)

    def start(self, steps: int) -> None:
        """Queue a call."""
        mask, stream = self.held // PIECE - 1, device.as_stream(None)
        given = self.blocks, self.threads, stream
        if self.memory == "registers":
            start(fma_kernel, *given, self.x, steps, self.sums)
        elif self.memory == "shared memory":
            start(shared_kernel, *given, self.x, uint32(mask), steps, self.sums, shared=self.held)
        else:
            begin = np.uint64(device.address(self.x))
            start(read_kernel, *given, begin, np.uint64(mask), steps, self.sums)

    def bytes_of(self, steps: int) -> int:
        """Of a call."""
        each = FMAS * FMA_BYTES if self.memory == "registers" else AT_ONCE * PIECE
        return steps * each * self.blocks * self.threads

    def wrong(self, steps: int = 3) -> float:
        """The most that a thread's sum is off NumPy's in float64."""
        self.start(steps)
        sums = device.to_host(self.sums)
        return float(np.abs(sums - self.expected(steps)).max())

    def expected(self, steps: int) -> np.ndarray:
        """Sums (threads,) in float64."""
        if self.memory == "registers":
            e = self.part.astype(np.float64)[:, None]
            x = e + np.arange(4) / 8
            y = -x
            for _ in range(steps):
                x = x + e * y
                y = y - e * x
            return np.asarray((x + y).sum(1))
        per_block = self.memory == "shared memory"
        of_all = self.threads if per_block else self.blocks * self.threads
        at = np.arange(of_all)[:, None, None] + of_all * np.arange(AT_ONCE * steps).reshape(steps, AT_ONCE)
        places = 4 * (at % (self.held // PIECE)) + np.arange(AT_ONCE)
        sums = self.part[places % self.part.size].astype(np.float64).sum((1, 2))
        return np.tile(sums, self.blocks) if per_block else sums


def readings(tiny: bool) -> list[Reading]:
    """One of each kind; `tiny`: as small as shows that it runs."""
    blocks, threads = (2, 32) if tiny else (device.multiprocessors(), THREADS)
    twice = 2 if not tiny else 1  # blocks of a multiprocessor that read memory, so that it is busy
    held = dict.fromkeys(HELD, 1 << 12) if tiny else HELD
    return [
        *(Reading(memory, held[memory], twice * blocks, threads) for memory in held),
        Reading("registers", 0, twice * blocks, threads),
    ]


def works(every: Sequence[Reading], meter: energy.Meter) -> list[energy.Work]:
    """What is metered: calls, by the byte."""

    def call(one: Reading) -> Callable[[], None]:
        return lambda: one.start(STEPS[one.memory])

    return [meter.repeated(call(one), one.bytes_of(STEPS[one.memory])) for one in every]


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    energy.add_option(parser.add_argument)
    parser.add_argument("--results-dir", default=raw.RESULTS, metavar="DIR", type=Path, help="default: bench/results")
    parser.add_argument("--tiny", action="store_true", help="only show that it runs, with few threads")
    options = parser.parse_args(argv)
    here = machine.describe()
    if not options.tiny and (device.SIMULATED or not here["gpus"]):
        print("byte_energy: needs a GPU", file=sys.stderr)
        return 2
    meter = energy.NONE if options.tiny else energy.meter(options.joules)
    every = readings(options.tiny)
    for one in every:
        if not (off := one.wrong()) <= 1e-4:
            print(f"byte_energy: {one.memory}: a sum is off by {off:.2g}", file=sys.stderr)
            return 1
    print("sums are NumPy's", flush=True)
    rows: list[dict[str, Any]] = [
        {"memory": one.memory, "held": one.held, **drawn}
        for one, drawn in zip(every, meter.by_turns(works(every, meter)), strict=True)
    ]
    for row in rows:
        print(row["memory"], {name: value for name, value in row.get("energy", {}).items() if name != "rounds"})
    if meter is not energy.NONE:
        part = {"machine": here, "commit": machine.commit(), "idle_watts": meter.idle, "rows": rows}
        raw.add(options.results_dir / f"{machine.name(here)}-costs.json", "costs", {"bytes": part})
    return 0


if __name__ == "__main__":
    sys.exit(main())
