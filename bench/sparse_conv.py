"""conv3 with 2:4 sparse weights, relative to the tuned dense kernel: rates, W and joules, 4,096 inputs in fp16.

Sums are transposed, as sparse weights have to be A: rows are output channels, columns positions. A block has 128
channels of COLUMNS positions, and two warpgroups that multiply 64 channels each. Its producer asks for features by TMA,
and for packed weights and metadata of all taps. Dense and sparse kernels are checked against the float64 reference, and
take turns. It needs a Hopper GPU, and adds to results/designs/MACHINE-sparse.json.

Exit status: 0 measured, 1 a result is wrong, 2 unusable machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import energy
import numpy as np
import raw
import steps
from numba import cuda, float32, types
from tensor_energy import FEATURES, swizzled
from turns import Ready, by_turns

from charcnn.aliases import Array, Kernel, Stream
from charcnn.gpu import device, ptx, tensor_map
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_idx_x, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.host import machine
from charcnn.host.arguments import HelpFormatter
from charcnn.ops.common import ring
from charcnn.ops.common.epilogues import pattern_of
from charcnn.ops.common.sparse import compressed, largest
from charcnn.ops.conv1d.ladder import K_BLOCK, ROW_BYTES
from charcnn.ops.conv1d.wgmma.layer import WgmmaConv
from charcnn.ops.conv1d.wgmma.steps.common import make_descriptor, whole_groups

TAPS, COLUMNS, CHANNELS, WARPGROUPS = 3, 248, 128, 2

STAGES = 3

KEPT_BYTES, METADATA_BYTES = 64 * 64, 4 * 128
"""Of a warpgroup's weights of one tap."""

PRODUCER_REGISTERS, MATH_REGISTERS = 56, 224

THREADS = 128 * (WARPGROUPS + 1)

WARM, SECONDS, ROUNDS = 0.3, 1.5, 2

CALLS = 10
"""Of a kernel that are waited for together."""


def packed(weight: np.ndarray) -> np.ndarray:
    """Weights as stages take them: uint32 (channel tiles, k blocks, words).

    Kept ones come first, by tap and warpgroup, then metadata. Of 16 channels, the even ones come first, so that a
    thread's two sums of a position are neighbours.

    Args:
        weight: float32 (TAPS, C_in, C_out), 2:4 sparse along C_in.
    """
    _, c_in, c_out = weight.shape
    tiles, k_blocks = c_out // CHANNELS, c_in // K_BLOCK
    rows = weight.astype(np.float16).transpose(2, 1, 0).reshape(c_out, k_blocks, K_BLOCK, TAPS).transpose(0, 1, 3, 2)
    rows = rows.reshape(c_out // 16, 8, 2, -1).transpose(0, 2, 1, 3).reshape(c_out, -1)
    kept, metadata = compressed(rows)
    shape = tiles, WARPGROUPS, k_blocks, TAPS
    kept = kept.reshape(*shape, *kept.shape[2:]).transpose(0, 2, 3, 1, 4, 5)
    places = metadata.reshape(*shape, -1).transpose(0, 2, 3, 1, 4)
    return np.concatenate([one.reshape(tiles, k_blocks, -1) for one in (swizzled(kept), places)], 2)


@cache
def make_kernel(columns: int) -> Kernel:
    """The kernel (x, weight, bias, y, k_blocks, c_out, rows, length, length_out): x is the tensor map, length even."""
    x_rows = whole_groups(columns + TAPS - 1)
    x_bytes, group_bytes = uint32(x_rows * ROW_BYTES), uint32(KEPT_BYTES)
    tap_bytes, tap_metadata = uint32(WARPGROUPS * KEPT_BYTES), uint32(WARPGROUPS * METADATA_BYTES)
    metadata_at = uint32(TAPS * WARPGROUPS * KEPT_BYTES)
    weight_bytes = uint32(TAPS * WARPGROUPS * (KEPT_BYTES + METADATA_BYTES))
    stage_bytes = uint32(x_bytes + weight_bytes)
    full_at, empty_at = uint32(STAGES * stage_bytes), uint32(STAGES * stage_bytes + 64)
    init, advance, descriptor = ring.make_init(STAGES, 4 * WARPGROUPS), ring.make_advance(STAGES), make_descriptor()
    multiply, wait_all = ptx.wgmma_sparse("f16", columns), ptx.wgmma_wait_group(0)
    dealloc, alloc = ptx.setmaxnreg(PRODUCER_REGISTERS, False), ptx.setmaxnreg(MATH_REGISTERS, True)
    pack, acc_size, eighths = ptx.cvt_f16x2("f16", True), columns // 2, columns // 8
    channels, k_block_size, warpgroups, row_bytes = CHANNELS, K_BLOCK, WARPGROUPS, ROW_BYTES

    @cuda.jit(device=True, forceinline=True)
    def tap_products(acc, e, x, weight, tap):
        """A tap's, with its metadata."""
        multiply(acc, descriptor(weight + tap * tap_bytes), descriptor(x + tap * row_bytes), e)

    @jit(launch_bounds=(THREADS, 1))
    def kernel(x, weight, bias, y, k_blocks, c_out, rows, length, length_out):
        smem = cuda.shared.array(0, types.uint16, alignment=1024)
        acc = cuda.local.array(acc_size, float32)
        e0, e1, e2 = cuda.local.array(1, uint32), cuda.local.array(1, uint32), cuda.local.array(1, uint32)
        base, thread = ptx.cvta_to_shared(smem), thread_idx_x()
        warpgroup, warp, lane = thread >> 7, thread >> 5, thread & 31
        leads, m_tiles = thread & 127 == 0, c_out // channels
        tiles = (rows + columns - 1) // columns * m_tiles
        full, empty = base + full_at, base + empty_at
        if thread == 0:
            init(full, empty)
            ptx.fence_mbarrier_init()
        cuda.syncthreads()

        # Producer.
        if warpgroup == warpgroups:
            dealloc()
            if leads:
                ptx.fence_proxy_tensormap(x)
                stage = ring.to_fill()
                for t in range(block_idx_x(), tiles, grid_dim_x()):
                    source = weight + uint64(t % m_tiles * k_blocks) * uint64(weight_bytes)
                    for k_block in range(k_blocks):
                        barrier, to = ring.barrier(full, stage), base + stage.slot * stage_bytes
                        ring.wait(empty, stage)
                        ptx.mbarrier_arrive_expect_tx(barrier, stage_bytes)
                        ptx.tma_load_2d(to, x, barrier, k_block * k_block_size, t // m_tiles * columns)
                        ptx.bulk_load(to + x_bytes, source, weight_bytes, barrier)
                        source += uint64(weight_bytes)
                        stage = advance(stage)
            return
        alloc()

        # Main loop.
        stage = ring.to_read()
        for t in range(block_idx_x(), tiles, grid_dim_x()):
            for i in range(acc_size):
                acc[i] = float32(0)  # the bias comes later: a value that many registers begin with makes spills
            for _ in range(k_blocks):
                ring.wait(full, stage)
                x_at = base + stage.slot * stage_bytes
                weight_at = x_at + x_bytes + warpgroup * group_bytes
                metadata = x_at + x_bytes + metadata_at + thread * 4
                e0[0] = ptx.ld_shared_b32(metadata)
                e1[0] = ptx.ld_shared_b32(metadata + tap_metadata)
                e2[0] = ptx.ld_shared_b32(metadata + 2 * tap_metadata)
                ptx.wgmma_fence()
                tap_products(acc, e0, x_at, weight_at, uint32(0))
                tap_products(acc, e1, x_at, weight_at, uint32(1))
                tap_products(acc, e2, x_at, weight_at, uint32(2))
                wait_all()
                cuda.syncwarp()
                if lane == 0:  # each warp has read its metadata
                    ring.arrive(empty, stage)
                stage = advance(stage)

            # Epilogue: two channels of two positions of every eight.
            channel = t % m_tiles * channels + warp * 16 + (lane >> 2) * 2
            even = ptx.ld_global_f32(bias + uint64(channel) * uint64(4))
            odd = ptx.ld_global_f32(bias + uint64(channel + 1) * uint64(4))
            row = t // m_tiles * columns + (lane & 3) * 2
            n = row // length
            at, short = row - n * length, length - length_out
            for k in range(eighths):
                to = y + (uint64(row - n * short) * uint64(c_out) + uint64(channel)) * uint64(2)
                if row < rows and at < length_out:
                    ptx.st_global_b32(to, pack(acc[4 * k] + even, acc[4 * k + 2] + odd))
                if row < rows and at + 1 < length_out:
                    ptx.st_global_b32(to + uint64(c_out) * uint64(2), pack(acc[4 * k + 1] + even, acc[4 * k + 3] + odd))
                row, at = row + 8, at + 8
                if at >= length:
                    n, at = n + 1, at - length

    return kernel


class SparseConv1d:
    """conv1d_relu_nlc of three taps in fp16 by sparse weights.

    Args:
        weight: float32 (3, C_in, C_out), 2:4 sparse along C_in; C_in in whole 64s, C_out in whole 128s.
        bias: float32 (C_out,).
        columns: positions of a block.
    """

    def __init__(self, weight: np.ndarray, bias: np.ndarray, columns: int = COLUMNS) -> None:
        self._columns, (_, c_in, self._c_out) = columns, weight.shape
        self._weight, self._bias = device.to_device(packed(weight)), device.to_device(bias)
        self._k_blocks, self._maps = c_in // K_BLOCK, dict[tuple[int, int], Array]()

    def __call__(self, x: Array, *, out: Array = None, stream: Stream = None) -> Array:
        """y float16 (N, L - 2, C_out) of x float16 (N, L, C_in) on the GPU; L is even."""
        n, length, channels = x.shape
        if length % 2:
            raise ValueError(f"x has {length} positions: need an even number")
        call = Call(out, stream, (n, length - TAPS + 1, self._c_out), np.float16, dtypes={"x": np.float16}, x=x)
        x_rows, rows = whole_groups(self._columns + TAPS - 1), n * length
        key = device.address(x), rows
        if key not in self._maps:
            self._maps[key] = tensor_map.encode(x, (channels, rows), (2 * channels,), (K_BLOCK, x_rows))
        addresses = (np.uint64(device.address(one)) for one in (self._maps[key], self._weight, self._bias, call.out))
        sizes = map(np.uint32, (self._k_blocks, self._c_out, rows, length, length - TAPS + 1))
        blocks = min(-(-rows // self._columns) * (self._c_out // CHANNELS), device.multiprocessors())
        stage = x_rows * ROW_BYTES + TAPS * WARPGROUPS * (KEPT_BYTES + METADATA_BYTES)
        kernel = make_kernel(self._columns)
        call.launch(kernel, blocks, THREADS, *addresses, *sizes, shared=STAGES * stage + 128)
        return call.result()


def kernels(product: steps.Product) -> list[Ready]:
    """The tuned kernel by dense weights and by pruned ones, and the sparse one; each checked, as a graph."""
    dense = product.weight
    pruned = np.ascontiguousarray(np.where(largest(dense.transpose(0, 2, 1)).transpose(0, 2, 1), dense, 0))
    found = []
    for name, weight in (("dense", dense), ("dense, zeros", pruned)):
        product.weight, weights = weight, {"weight": weight, "bias": product.bias}
        tuned = WgmmaConv(pattern_of(weight, "relu", 1), weights, precision="fp16")
        found.append(product.kernel("wgmma", name, "conv1d_relu", tuned.apply))
    found.append(product.kernel("wgmma", "sparse", "conv1d_relu", SparseConv1d(pruned, product.bias)))
    return found


def measure(batch: int, features: str) -> list[dict[str, Any]]:
    """Rows by turns, with what each draws, of normal features, or of those behind a ReLU."""
    product = steps.Product(steps.MEASURED[1], batch)
    if features == "relu":
        product.drawn = np.maximum(product.drawn, 0)
        product.x = device.to_device(product.drawn[np.arange(batch) % steps.DRAWN])
    ready, counter = kernels(product), energy.Counter()
    rows = [
        {**row, "features": features, "weights": row["step"], "rates": row["rounds"], "rounds": []}
        for row in by_turns(ready)
    ]
    for _ in range(ROUNDS):
        for one, row in zip(ready, rows, strict=True):

            def start(one: Ready = one) -> Callable[[], object]:
                for _ in range(CALLS):
                    one.call()
                return energy.marked()

            drawn = energy.drawn(start, counter, warm=WARM, seconds=SECONDS)
            joules = drawn.joules / (drawn.calls * CALLS)
            row["rounds"].append({"mJ": 1e3 * joules, "W": drawn.joules / drawn.seconds, "MHz": drawn.mhz})
    return rows


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--results-dir", default=raw.RESULTS / "designs", metavar="DIR", type=Path)
    parser.add_argument("--batch", default=4096, type=int, metavar="N", help="inputs (default 4096)")
    options = parser.parse_args()
    if device.SIMULATED or not device.has_tensor_cores(hopper=True):
        print("sparse_conv: needs a Hopper GPU", file=sys.stderr)
        return 2
    rows, here = [row for one in FEATURES for row in measure(options.batch, one)], machine.describe()
    for row in rows:
        print(row, flush=True)
    file = options.results_dir / f"{machine.name(here)}-sparse.json"
    raw.add(file, "sparse", {"conv3": {"machine": here, "commit": machine.commit(), "rows": rows}})
    return 0


if __name__ == "__main__":
    sys.exit(main())
