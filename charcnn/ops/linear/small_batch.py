"""Linear layers for up to 64 inputs: all multiprocessors read the weights, once.

As many bytes as a layer has weights, more than everything else together, have to come from the second-level cache or
from memory. The weights are the product's rows here and the inputs its columns, eight at least. A block has 16 output
units and a split of the depth, its eight warps share that out, and a thread asks for all its weights at once, before
the kernel before has ended. What the parts of the depth give is added up by the kernel that reads it, together with
bias and ReLU: blocks need not wait for each other.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32, types

from charcnn.aliases import Array, Kernel, Stream
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_idx_x, block_idx_y, block_idx_z, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.layers.layer import Shape
from charcnn.ops.common import shapes
from charcnn.ops.common.fragments import TILE, k_block, lane_numbers, packed
from charcnn.ops.common.precision import NumberFormat, choose

WARPS = 8

THREADS = 32 * WARPS

UNITS = TILE
"""Output units of a block."""

MOST = 64
"""Inputs."""

GROUP = 32
"""Inputs of a block at most: eights of columns that a warp holds the sums of."""

FINAL_THREADS = 256
"""Of a block of the last layer, which has one for each of its outputs."""


@cache
def make_kernel(of: NumberFormat, columns: int, rounds: int, k_splits: int) -> Kernel:
    """The kernel (x, bias, weight, y, n, c_in, units, k_blocks, k_blocks_of_split, scale).

    Its arguments: addresses of x; of the bias of x, where x comes in k splits; of the packed weights; of y, float32
    (k_splits, n, units); inputs; features; units; k blocks of features in all, and of a split; what
    the sums of scaled weights are multiplied by. Grid: units, k splits of y, and groups of inputs.

    Args:
        of: of features and weights. Of two terms, high by high is added up outside of tensor cores (`mma_sync_terms`).
        columns: eights of inputs.
        rounds: k blocks of a warp.
        k_splits: that x, float32 (k_splits, n, c_in), comes in, without its bias and ReLU; 0 where it is (n, c_in) of
            `of`, or with two terms (n, 2 c_in), high ones first.
    """
    two_terms, tf32, eighths, scaled = of.terms == 2, of.ptx_type == "tf32", of.ptx_type == "e4m3", of.scaled
    multiply, pack = ptx.mma_sync(of.ptx_type), ptx.cvt_f16x2("bf16" if of.ptx_type == "bf16" else "f16")
    pack_terms, of_round, features = ptx.pack_floats("halves"), 8 * of.terms, lane_numbers(of)
    a_size, sums_of_lane, fours, terms = of_round * rounds, 4 * columns, features // 4, uint64(of.terms)
    lane_features, x_bytes, multiply_terms = features, uint64(of.itemsize), ptx.mma_sync_terms
    k_block_bytes, (low_size, rest_size) = uint64(1024 * of.terms), (4, 4) if two_terms else (1, 1)
    outputs, exchanged = -(-sums_of_lane // WARPS), WARPS * sums_of_lane * 32
    lanes, warps, k_block_features, unit_tile = 31, WARPS, k_block(of), UNITS
    all_sums, warp_count, words, group_rows = sums_of_lane, WARPS, 4, 8 * columns

    @jit(launch_bounds=(THREADS, 2))
    def kernel(x, bias, weight, y, n, c_in, units, k_blocks, k_blocks_of_split, scale):
        shared = cuda.shared.array(exchanged, float32)
        sums = cuda.local.array(sums_of_lane, float32)
        a = cuda.local.array(a_size, types.uint32)
        b = cuda.local.array(4, types.uint32)
        low = cuda.local.array(low_size, types.uint32)
        rest = cuda.local.array(rest_size, float32)
        values = cuda.local.array(features, float32)
        thread = thread_idx_x()
        warp, lane = thread >> 5, thread & lanes
        g, t = lane >> 2, lane & 3
        tile, split = block_idx_x(), block_idx_y()
        first_row = block_idx_z() * group_rows
        first = split * k_blocks_of_split + warp
        end = min(k_blocks, (split + 1) * k_blocks_of_split)
        for i in range(rounds):
            k_block = first + i * warps
            at = weight + uint64(tile * k_blocks + k_block) * k_block_bytes + uint64(lane * 16)
            here = uint32(k_block < end)
            j = of_round * i
            a[j], a[j + 1], a[j + 2], a[j + 3] = ptx.ld_nc_no_allocate(at, here)
            a[j + 4], a[j + 5], a[j + 6], a[j + 7] = ptx.ld_nc_no_allocate(at + uint64(512), here)
            if two_terms:
                a[j + 8], a[j + 9], a[j + 10], a[j + 11] = ptx.ld_nc_no_allocate(at + uint64(1024), here)
                a[j + 12], a[j + 13], a[j + 14], a[j + 15] = ptx.ld_nc_no_allocate(at + uint64(1536), here)
        for i in range(sums_of_lane):
            sums[i] = float32(0)
        ptx.griddepcontrol_launch()
        ptx.griddepcontrol_wait()
        for i in range(rounds):
            k_block = first + i * warps
            feature = k_block * k_block_features + t * lane_features
            for c in range(columns):
                row = first_row + g + 8 * c
                inside = uint32(row < n and feature < c_in and k_block < end)
                if k_splits:
                    for e in range(features):
                        values[e] = float32(0)
                    if inside:
                        for p in range(k_splits):
                            at = x + (uint64(p * n + row) * uint64(c_in) + uint64(feature)) * uint64(4)
                            for h in range(fours):
                                d0, d1, d2, d3 = ptx.ld_cg_v4_f32(at + uint64(16 * h))
                                values[4 * h] += d0
                                values[4 * h + 1] += d1
                                values[4 * h + 2] += d2
                                values[4 * h + 3] += d3
                        for h in range(fours):
                            d0, d1, d2, d3 = ptx.ld_global_v4_f32(bias + uint64(feature) * uint64(4) + uint64(16 * h))
                            values[4 * h] += d0
                            values[4 * h + 1] += d1
                            values[4 * h + 2] += d2
                            values[4 * h + 3] += d3
                        for e in range(features):
                            if values[e] < float32(0):
                                values[e] = float32(0)
                    for e in range(words):
                        if tf32:
                            b[e] = ptx.cvt_tf32(values[e])
                        elif eighths:
                            f = 4 * e
                            b[e] = ptx.cvt_e4m3x4(values[f], values[f + 1], values[f + 2], values[f + 3])
                        elif two_terms:
                            b[e], low[e] = pack_terms(values[2 * e], values[2 * e + 1])
                        else:
                            b[e] = pack(values[2 * e], values[2 * e + 1])
                else:
                    at = x + (uint64(row) * uint64(c_in) * terms + uint64(feature)) * x_bytes
                    b[0], b[1], b[2], b[3] = ptx.ld_cg(at, inside)
                    if two_terms:
                        low[0], low[1], low[2], low[3] = ptx.ld_cg(at + uint64(c_in) * x_bytes, inside)
                if two_terms:
                    for e in range(4):
                        rest[e] = float32(0)
                for s in range(2):
                    j, k = of_round * i + 4 * s, 4 * c
                    if two_terms:
                        (
                            rest[0], rest[1], rest[2], rest[3], sums[k], sums[k + 1], sums[k + 2], sums[k + 3],
                        ) = multiply_terms(
                            a[j], a[j + 1], a[j + 2], a[j + 3], a[j + 8], a[j + 9], a[j + 10], a[j + 11],
                            b[2 * s], b[2 * s + 1], rest[0], rest[1], rest[2], rest[3],
                            sums[k], sums[k + 1], sums[k + 2], sums[k + 3],
                        )  # fmt: skip
                        rest[0], rest[1], rest[2], rest[3] = multiply(
                            a[j], a[j + 1], a[j + 2], a[j + 3], low[2 * s], low[2 * s + 1],
                            rest[0], rest[1], rest[2], rest[3],
                        )  # fmt: skip
                    else:
                        sums[k], sums[k + 1], sums[k + 2], sums[k + 3] = multiply(
                            a[j], a[j + 1], a[j + 2], a[j + 3], b[2 * s], b[2 * s + 1],
                            sums[k], sums[k + 1], sums[k + 2], sums[k + 3],
                        )  # fmt: skip
                if two_terms:
                    for e in range(4):
                        sums[4 * c + e] += rest[e]
        for i in range(sums_of_lane):
            shared[(warp * all_sums + i) * 32 + lane] = sums[i]
        cuda.syncthreads()
        for o in range(outputs):
            i = warp + o * warp_count
            if i < all_sums:
                total = float32(0)
                for w in range(warp_count):
                    total += shared[(w * sums_of_lane + i) * 32 + lane]
                unit = tile * unit_tile + (g + (i >> 1 & 1) * 8)
                row = (i >> 2) * 8 + (t * 2 + (i & 1))
                row += first_row
                if scaled:
                    total *= scale
                if row < n and unit < units:
                    place = uint64(split * n + row) * uint64(units) + uint64(unit)
                    ptx.st_global_f32(y + place * uint64(4), total)

    return kernel


@cache
def _final_kernel(k_splits, classes):
    threads, lanes = uint32(FINAL_THREADS), 31
    warps, exchanged = FINAL_THREADS // 32, FINAL_THREADS // 32 * classes

    @jit(launch_bounds=(FINAL_THREADS, 1))
    def kernel(x, bias, weight, bias_out, y, n, c_in):
        # A block an input: a thread has four neighbouring features at a time, of all classes.
        shared = cuda.shared.array(exchanged, float32)
        sums = cuda.local.array(classes, float32)
        values = cuda.local.array(4, float32)
        thread, row = thread_idx_x(), block_idx_x()
        for c in range(classes):
            sums[c] = float32(0)
        ptx.griddepcontrol_launch()
        ptx.griddepcontrol_wait()
        feature = thread * 4
        while feature < c_in:
            at = uint64(feature) * uint64(4)
            values[0], values[1], values[2], values[3] = ptx.ld_global_v4_f32(bias + at)
            for p in range(k_splits):
                place = uint64(p * n + row) * uint64(c_in) * uint64(4)
                d0, d1, d2, d3 = ptx.ld_cg_v4_f32(x + place + at)
                values[0] += d0
                values[1] += d1
                values[2] += d2
                values[3] += d3
            for e in range(4):
                if values[e] < float32(0):
                    values[e] = float32(0)
            for c in range(classes):
                d0, d1, d2, d3 = ptx.ld_global_v4_f32(weight + uint64(c) * uint64(c_in) * uint64(4) + at)
                sums[c] += (values[0] * d0 + values[1] * d1) + (values[2] * d2 + values[3] * d3)
            feature += threads * 4
        warp = thread >> 5
        for c in range(classes):
            total = ptx.warp_sum(sums[c])
            if thread & lanes == 0:
                shared[warp * uint32(classes) + c] = total
        cuda.syncthreads()
        if thread < uint32(classes):
            total = bias_out[thread]
            for w in range(warps):
                total += shared[w * classes + thread]
            y[row, thread] = total

    return kernel


MOST_ROUNDS = 9
"""K blocks of a warp: it asks for all their weights at once, in eight registers each. More do not stay in registers.
Of two terms they take sixteen, and half as many stay."""


class SplitWeights:
    """A linear layer's weights on the current GPU, as the kernel reads them, and how its depth is split.

    Args:
        weight: float32 (C_in, C_out), as `arrays.pack` gives it, a NumPy array.
        precision: of TENSOR_PRECISIONS.
        stream: a CUDA stream; the default stream where None.
        rounds: the most k blocks of a warp.
    """

    def __init__(
        self, weight: Array, precision: NumberFormat, stream: Stream = None, *, rounds: int = MOST_ROUNDS
    ) -> None:
        self._of = precision
        self.c_in, self.c_out = weight.shape
        laid = packed(weight.reshape((1, *weight.shape)), precision, rows=True, stream=stream)
        self.words, self.tiles, self.k_blocks = laid.words, laid.tiles, laid.k_blocks
        self.nbytes: int = laid.words.nbytes
        self._scale = np.float32(laid.unit)
        # Two blocks a multiprocessor, where a warp has a k block or more.
        k_splits = max(1, min(2 * device.multiprocessors() // self.tiles, self.k_blocks // WARPS))
        k_splits = max(k_splits, -(-self.k_blocks // (WARPS * max(1, rounds // precision.terms))))
        self._of_split = -(-self.k_blocks // k_splits)
        self.k_splits = -(-self.k_blocks // self._of_split)

    def multiply(self, call: Call, n: int, x: int, to: int, units: int, *, bias: int = 0, came: int = 0) -> None:
        """Start the product of n inputs.

        Args:
            call: whose stream it is.
            x, to: addresses of the features; of the results, float32 (k_splits, n, units).
            units: of a row of the results, C_out at least: those beyond it are 0, up to whole tiles.
            bias, came: address of the bias of x, and k splits, of an x that comes in such results.
        """
        columns = 1 << max(0, -(-min(n, GROUP) // 8) - 1).bit_length()
        kernel = make_kernel(self._of, columns, -(-self._of_split // WARPS), came)
        addresses = map(np.uint64, (x, bias, device.address(self.words), to))
        sizes = map(np.uint32, (n, self.c_in, units, self.k_blocks, self._of_split))
        grid = self.tiles, self.k_splits, -(-n // (8 * columns))
        call.launch(kernel, grid, THREADS, *addresses, *sizes, self._scale, early=True)


class SmallBatchMlp:
    """Three linear layers with ReLU between them, for up to 64 inputs, on the current GPU.

    Args:
        weights, biases: of the three: float32 (C_in, C_out), as `arrays.pack` gives it, and (C_out,), NumPy arrays;
            all C_in multiples of 8, in fp8 of 16, the last C_out at most 256.
        precision: one of `precision.TENSOR_PRECISIONS`, of features and of the first two layers' weights; sums and the
            third are float32.
        most: int, default 64: inputs of a call at most.
        stream: a CUDA stream; the default stream where None.

    Raises:
        ValueError: an argument's shape does not fit, or the GPU does not multiply the precision: compute
            capability 7.5 has fp16 alone.
        DeviceError: no usable GPU.
    """

    def __init__(
        self, weights: Array, biases: Any, *, precision: str = "fp16", most: int = MOST, stream: Stream = None
    ) -> None:
        device.require_tensor_cores("small_batch", turing=True)
        self.most = most
        self.precision = choose(precision)
        device.require_precision(precision, self.precision.capability)
        together = max(8, lane_numbers(self.precision))
        sizes = [weights[0].shape[0], *(weight.shape[1] for weight in weights)]
        for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            shapes.linear_nlc(np.empty((0, sizes[i])), weight, bias)
            if sizes[i] % together:
                raise ValueError(f"weights[{i}] has shape {weight.shape}: need a multiple of {together} inputs")
        if sizes[3] > FINAL_THREADS:
            raise ValueError(f"weights[2] has shape {weights[2].shape}: need at most {FINAL_THREADS} outputs")
        self.sizes = tuple(sizes)
        # Where x comes in k splits, one k block a warp: adding them up takes the registers that more would need.
        self.parts = [
            SplitWeights(weight, self.precision, stream, rounds=rounds)
            for weight, rounds in zip(weights, (MOST_ROUNDS, 1), strict=False)
        ]
        self.biases = [device.to_device(np.ascontiguousarray(bias)) for bias in biases]
        self.last = device.to_device(np.ascontiguousarray(weights[2].T))
        self.nbytes = sum(array.nbytes for array in (*self.parts, *self.biases, self.last))

    def k_splits_shape(self, n: int) -> Shape:
        """Of the scratch that a call needs: float32."""
        return (n * sum(part.k_splits * part.c_out for part in self.parts),)

    def __call__(self, x: Array, scratch: Array, *, out: Array = None, stream: Stream = None) -> Array:
        """x (N, C_in), with two terms (N, 2 C_in), on the GPU, in its dtype, N at most `most`; float32 (N, C_out).

        Args:
            scratch: float32 of `k_splits_shape(N)` or more, one axis.
            out: where to write; made where None.
            stream: a CUDA stream; the default stream where None.

        Raises:
            ValueError: an argument's shape, dtype, layout or side does not fit.
        """
        n, c_in = shapes.ranked("x", x, "N, C_in")
        if n > self.most or c_in != self.precision.terms * self.sizes[0]:
            need = self.precision.terms * self.sizes[0]
            raise ValueError(f"x has shape {tuple(x.shape)}: need at most {self.most} rows of {need}")
        if not device.on_device(x):
            raise ValueError(f"x is a {type(x).__name__}: need an array on the GPU")
        dtype, (space,) = self.precision.dtype, self.k_splits_shape(n)
        if scratch.ndim != 1 or scratch.size < space:
            raise ValueError(f"scratch has shape {tuple(scratch.shape)}: need {space} elements of one axis")
        call = Call(out, stream, (n, self.sizes[3]), dtypes={"x": dtype}, x=x, scratch=scratch)
        source, came = device.address(call.inputs[0]), 0
        to, bias = device.address(call.inputs[1]), device.address(self.biases[0])
        for part in self.parts:
            part.multiply(call, n, source, to, part.c_out, bias=bias, came=came)
            source, to, came = to, to + 4 * part.k_splits * n * part.c_out, part.k_splits
        last = map(np.uint64, (source, device.address(self.biases[1]), device.address(self.last)))
        final = *last, self.biases[2], call.out, np.uint32(n), np.uint32(self.sizes[2])
        call.launch(_final_kernel(came, self.sizes[3]), n, FINAL_THREADS, *final, early=True)
        return call.result()
