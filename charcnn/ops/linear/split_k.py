"""A linear layer for up to 64 inputs: its weights stream through shared memory, as fast as memory gives them.

A block has 16 output units, and its eight warps share the depth out. A lane copies its own part of the weights, as
`small_batch` packs them, and of the features to a ring of its own, and is the only one to read it: no warp waits for
another one before the sums. The ring is filled with weights before the kernel before has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
from numba import cuda, float32, types

from charcnn.aliases import Array, Kernel
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_idx_x, block_idx_y, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.layers import Linear
from charcnn.layers.layer import Shape
from charcnn.ops.common import epilogue_functions
from charcnn.ops.common.conv import PreparedConv
from charcnn.ops.common.epilogues import Pattern
from charcnn.ops.common.former import of_arrays
from charcnn.ops.common.precision import FP32, HALF_PRECISIONS, choose
from charcnn.ops.linear.small_batch import GROUP, MOST, THREADS, UNITS, WARPS, SplitWeights

K_BLOCK = 32
"""Inputs' features that a warp takes at once: a lane has eight, for two products."""

STAGES = {1: 9, 2: 5, 4: 4}
"""By eights of inputs, the k blocks of a warp's ring: two blocks of a multiprocessor have 96 KB of weights or more on
their way. Of one input 6 took 5 % longer, and 4 took 16 %, though they leave room for a convolution that still runs."""


def stage_bytes(columns: int) -> int:
    """Of a warp: a k block's weights, and so many eights of inputs."""
    return 1024 + 512 * columns


def smem_bytes(columns: int) -> int:
    """Of a block: its warps' rings."""
    return WARPS * STAGES[columns] * stage_bytes(columns)


@cache
def make_kernel(ptx_type: str, wide: bool, epilogue: str, columns: int) -> Kernel:
    """The kernel (x, weight, bias, y, n, c_in, units, k_blocks).

    Its arguments: addresses of x (n, c_in); of the packed weights; of the bias (units,), padded to whole tiles; of y
    (n, units); inputs; features; units; k blocks. Grid: tiles of units, and groups of inputs. Dynamic shared memory:
    `smem_bytes(columns)`.

    Args:
        ptx_type: of features and weights, as PTX calls it.
        wide: whether y is float32, and not of that type.
        epilogue: of `common.epilogues`.
        columns: eights of inputs.
    """
    multiply, pack, apply = ptx.mma_sync(ptx_type), ptx.cvt_f16x2(ptx_type), epilogue_functions.inlined(epilogue)
    depth = STAGES[columns]
    wait, drain = ptx.cp_async_wait_group(depth - 1), ptx.cp_async_wait_group(0)
    sums_of_lane, b_size, slot_bytes = 4 * columns, 4 * columns, stage_bytes(columns)
    ring_bytes, group_rows, outputs = depth * stage_bytes(columns), 8 * columns, -(-columns // 2)
    lanes, warps, k_block_features, unit_tile = 31, WARPS, K_BLOCK, UNITS
    all_sums, warp_count, ahead, k_block_bytes = sums_of_lane, WARPS, WARPS * depth, uint64(1024)
    item_bytes, step = uint64(4 if wide else 2), uint64(WARPS * 1024)

    @jit(launch_bounds=(THREADS, 2))
    def kernel(x, weight, bias, y, n, c_in, units, k_blocks):
        shared = cuda.shared.array(0, float32, alignment=16)
        sums = cuda.local.array(sums_of_lane, float32)
        b = cuda.local.array(b_size, types.uint32)
        totals = cuda.local.array(outputs, float32)
        thread = thread_idx_x()
        warp, lane = thread >> 5, thread & lanes
        g, t = lane >> 2, lane & 3
        tile, first_row = block_idx_x(), block_idx_y() * group_rows
        begin = uint32(ptx.cvta_to_shared(shared) + (warp * ring_bytes + lane * 16))
        end, slot, k_block = begin + ring_bytes, begin, warp
        at = weight + uint64(tile * k_blocks + warp) * k_block_bytes + uint64(lane * 16)
        for _ in range(depth):
            wanted = uint32(16) if k_block < k_blocks else uint32(0)
            ptx.cp_async_16(slot, at, wanted)
            ptx.cp_async_16(slot + 512, at + uint64(512), wanted)
            at, slot, k_block = at + step, slot + slot_bytes, k_block + warps
        for i in range(sums_of_lane):
            sums[i] = float32(0)
        for o in range(outputs):
            i = warp + o * warp_count
            unit = tile * unit_tile + (g + (i >> 1 & 1) * 8)
            totals[o] = float32(0)
            if unit < units:
                totals[o] = ptx.ld_global_f32(bias + uint64(unit) * uint64(4))
        ptx.griddepcontrol_launch()
        ptx.griddepcontrol_wait()
        slot, k_block = begin, warp
        for _ in range(depth):
            for c in range(columns):
                row = first_row + g + 8 * c
                feature = k_block * k_block_features + t * 8
                source, wanted = x, uint32(0)
                if row < n and feature < c_in:
                    source, wanted = x + (uint64(row) * uint64(c_in) + uint64(feature)) * uint64(2), uint32(16)
                ptx.cp_async_16(slot + (1024 + 512 * c), source, wanted)
            ptx.cp_async_commit_group()
            slot, k_block = slot + slot_bytes, k_block + warps

        slot, k_block = begin, warp
        while k_block < k_blocks:
            wait()
            a0, a1, a2, a3 = ptx.ld_shared_v4_b32(slot)
            a4, a5, a6, a7 = ptx.ld_shared_v4_b32(slot + 512)
            for c in range(columns):
                b0, b1, b2, b3 = ptx.ld_shared_v4_b32(slot + (1024 + 512 * c))
                k = 4 * c
                b[k], b[k + 1], b[k + 2], b[k + 3] = b0, b1, b2, b3
            for c in range(columns):
                k = 4 * c
                sums[k], sums[k + 1], sums[k + 2], sums[k + 3] = multiply(
                    a0, a1, a2, a3, b[k], b[k + 1], sums[k], sums[k + 1], sums[k + 2], sums[k + 3]
                )
            for c in range(columns):
                k = 4 * c
                sums[k], sums[k + 1], sums[k + 2], sums[k + 3] = multiply(
                    a4, a5, a6, a7, b[k + 2], b[k + 3], sums[k], sums[k + 1], sums[k + 2], sums[k + 3]
                )
            later = k_block + ahead
            if later < k_blocks:
                ptx.cp_async_16(slot, at, uint32(16))
                ptx.cp_async_16(slot + 512, at + uint64(512), uint32(16))
                for c in range(columns):
                    row = first_row + g + 8 * c
                    feature = later * k_block_features + t * 8
                    source, wanted = x, uint32(0)
                    if row < n and feature < c_in:
                        source, wanted = x + (uint64(row) * uint64(c_in) + uint64(feature)) * uint64(2), uint32(16)
                    ptx.cp_async_16(slot + (1024 + 512 * c), source, wanted)
            ptx.cp_async_commit_group()
            at, k_block, slot = at + step, k_block + warps, slot + slot_bytes
            slot = begin if slot == end else slot

        # The warps' sums, where the rings were.
        drain()
        cuda.syncthreads()
        for i in range(sums_of_lane):
            shared[(warp * all_sums + i) * 32 + lane] = sums[i]
        cuda.syncthreads()
        for o in range(outputs):
            i = warp + o * warp_count
            unit = tile * unit_tile + (g + (i >> 1 & 1) * 8)
            row = (i >> 2) * 8 + (t * 2 + (i & 1))
            row += first_row
            if i < all_sums and row < n and unit < units:
                total = totals[o]
                for w in range(warp_count):
                    total += shared[(w * sums_of_lane + i) * 32 + lane]
                total = apply(total)
                to = y + (uint64(row) * uint64(units) + uint64(unit)) * item_bytes
                if wide:
                    ptx.st_global_f32(to, total)
                else:
                    ptx.st_global_b16(to, pack(total, float32(0)))

    return kernel


class SplitKLinear(PreparedConv):
    """A linear layer for up to 64 inputs on Hopper's tensor cores, weights read at the rate of memory.

    Args:
        pattern: `Linear`, and a function of each value, a row of `common.epilogues`.
        weights: float32 "weight" (C_in, C_out), as `arrays.pack` gives it, and "bias" (C_out,), NumPy arrays; C_in is a
            multiple of 8.
        precision: of features and weights, "fp16", the default, or "bf16"; sums are float32.
        results: "float32", or None: in the precision.

    Raises:
        ValueError: it does not compute the pattern, an argument's shape does not fit, or there is no such precision.
        DeviceError: no usable GPU, or none of Hopper's (compute capability 9.0).
    """

    products, precisions, hopper, most = (Linear,), tuple(HALF_PRECISIONS), True, MOST

    @of_arrays
    def __init__(
        self, pattern: Pattern, weights: Mapping[str, Array], *, precision: str = "fp16", results: str | None = None
    ) -> None:
        device.require_hopper("split_k")
        of = choose(precision, HALF_PRECISIONS)
        made = FP32 if results == FP32.name else choose(results or precision, {precision: of})
        weight, bias = self._read(pattern, weights, of, made, 8)
        self._check_unpadded(weights)
        self._weight = SplitWeights(weight[0], of)
        self.words = self._weight.words
        """Its packed weights, on the GPU."""
        self._bias = device.to_device(np.ascontiguousarray(bias, np.float32))
        self.nbytes = self._weight.nbytes + self._bias.nbytes

    def _check(self, x: Array) -> Shape:
        if x.shape[0] > MOST:
            raise ValueError(f"x has shape {tuple(x.shape)}: need at most {MOST} inputs")
        return super()._check(x)

    def _start(self, call: Call, partial_moments: Array = None) -> None:
        x, weight = call.inputs[0], self._weight
        columns = 1 << max(0, -(-min(len(x), GROUP) // 8) - 1).bit_length()
        kernel = make_kernel(self.precision.ptx_type, self.results is FP32, self.epilogue.pointwise, columns)
        addresses = (np.uint64(device.address(array)) for array in (x, weight.words, self._bias, call.out))
        sizes = map(np.uint32, (len(x), weight.c_in, weight.c_out, weight.k_blocks))
        blocks = weight.tiles, -(-len(x) // (8 * columns))
        call.launch(kernel, blocks, THREADS, *addresses, *sizes, shared=smem_bytes(columns), early=True)
