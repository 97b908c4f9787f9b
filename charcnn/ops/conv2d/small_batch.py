"""conv2d_nhwc for one image or a few, with the max-pooling behind it: cut up over all multiprocessors.

An image of 13 x 13 pixels is one or two tiles of a matrix product; all other multiprocessors would wait. Here the
depth is split, too, over the blocks of a cluster, which add their sums up through each other's shared memory, in a
fixed order: results are the same bits every time, for any number of images. Weights are on their way to shared memory
before the kernel before has ended.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import float32

from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import (
    block_dim_x,
    block_idx_x,
    extents,
    thread_idx_x,
)
from charcnn.gpu.launch import Call, jit
from charcnn.layers.layer import Shape
from charcnn.layers.windows import Padding, Pair, Window
from charcnn.ops.common import shapes2d
from charcnn.ops.common.precision import HALF_PRECISIONS, choose
from charcnn.ops.conv1d.windows import Conv2dWeights
from charcnn.ops.conv2d import small_batch_plan
from charcnn.ops.conv2d.small_batch_kernel import QUAD, make_kernel
from charcnn.ops.conv2d.small_batch_plan import CHUNK, PACK_N, STEP_BYTES, THREADS, Plan, Problem

OCTET = 8
"""Channels that lie together."""


@cache
def _pack_kernel(ptx_type):
    pack = ptx.cvt_f16x2(ptx_type)
    columns, depth = PACK_N, CHUNK

    @jit()
    def kernel(weight, to, taps, chunks, words):
        # A thread writes two neighbouring input channels of a column: a word of (columns, chunk, tap, lane, 4).
        i = block_idx_x() * block_dim_x() + thread_idx_x()
        if i < uint32(words):
            part, lane = i & 3, i // 4 & 31
            rest = i // 128
            tap, rest = rest % uint32(taps), rest // uint32(taps)
            c_in = rest % uint32(chunks) * depth + (lane & 3) * 2
            c_in += (part & 1) * 8
            column = rest // uint32(chunks) * columns + lane // 4
            column += part // 2 * 8
            low, high = float32(0), float32(0)
            if column < extents(weight)[2]:
                if c_in < extents(weight)[1]:
                    low = weight[tap, c_in, column]
                if c_in + 1 < extents(weight)[1]:
                    high = weight[tap, c_in + 1, column]
            ptx.st_global_b32(to + uint64(i) * uint64(4), pack(low, high))

    return kernel


class SmallBatchConv2dWeights(Conv2dWeights):
    """The weights of one conv2d as this kernel takes them, on the current GPU.

    Args:
        weight: float32 (KH, KW, C_in / groups, C_out), as `arrays.pack` gives it, C-contiguous, and bias (C_out,):
            NumPy arrays; C_out a multiple of 4, and of 16 in each of several groups.
        stride, padding, dilation, groups: as of `reference.conv2d`.
        pool: of the max-pooling that follows the epilogue, (kernel_size, stride), stride None as kernel_size; None:
            there is none.
        precision: "fp16" or "bf16", of weights, features and results; sums are float32.
        stream: a CUDA stream; the default stream where None.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU, or none of Hopper's (compute capability 9.0).
    """

    def __init__(
        self,
        weight: Any,
        bias: Any,
        *,
        stride: Pair = 1,
        padding: Padding = 0,
        dilation: Pair = 1,
        groups: int = 1,
        pool: tuple[Pair, Pair | None] | None = None,
        precision: str = "fp16",
        stream: Any = None,
    ) -> None:
        device.require_hopper("small_batch")
        of, moves = choose(precision, HALF_PRECISIONS), {"stride": stride, "padding": padding, "dilation": dilation}
        super().__init__(weight, bias, moves, groups, of, of, OCTET)
        if self.c_out % QUAD or (groups > 1 and self.c_out // groups % PACK_N):
            need = f"a multiple of {PACK_N} a group" if groups > 1 else f"a multiple of {QUAD}"
            raise ValueError(f"weight has C_out={self.c_out}, groups={groups}: need {need}")
        self._pool, self._plans = pool, dict[Shape, Plan | None]()
        self._ahead = 0, 0
        taps = np.ascontiguousarray(weight, np.float32).reshape((-1, *weight.shape[2:]))
        chunks, packs = -(-taps.shape[1] // CHUNK), -(-self.c_out // PACK_N)
        words = packs * chunks * taps.shape[0] * STEP_BYTES // 4
        padded = np.pad(np.ascontiguousarray(bias, np.float32), (0, -self.c_out % PACK_N))
        call = Call(None, stream, (words,), np.uint32, weight=taps)
        self._weight, self._bias = call.out, device.to_device(padded)
        self.nbytes = self._weight.nbytes + self._bias.nbytes
        arguments = np.uint64(device.address(self._weight)), taps.shape[0], chunks, words
        call.launch(_pack_kernel(of.ptx_type), -(-words // THREADS), THREADS, call.inputs[0], *arguments)

    def ask_ahead(self, array: Any, begin: int, size: int) -> None:
        """Have each call ask for `size` bytes of a device array, from byte `begin` on, in the second-level cache."""
        if begin % 16 or not 0 <= begin <= begin + size <= array.nbytes:
            raise ValueError(f"{begin=}, {size=}: need a part of {array.nbytes} bytes that begins at a multiple of 16")
        self._held, self._ahead = array, (device.address(array) + begin, size)

    def out_shape(self, x: Shape) -> Shape:
        """The result's, of x (N, H, W, C), pooled."""
        window = self.window(x)
        size = window.out(x[1], x[2])
        if self._pool is not None:
            size = shapes2d.pool2d_window(*size, *self._pool).out(*size)
        return x[0], *size, self.c_out

    def plan(self, x: Shape) -> Plan | None:
        """How images of x (N, H, W, C) are cut up; None where a block cannot hold even a row's part."""
        if x[1:] not in self._plans:
            window, (_, rows, columns, _) = self.window(x), self.out_shape(x)
            pool, steps = (1, 1), (1, 1)
            if self._pool is not None:
                moved = shapes2d.pool2d_window(*window.out(x[1], x[2]), *self._pool)
                pool, steps = moved.kernel, moved.stride
            problem = Problem(
                x[1], x[2], x[3], self.c_in // self.groups if self.groups > 1 else self.width, self.c_out, self.groups,
                window.kernel, window.stride, window.dilation, (window.padding[0], window.padding[2]), (rows, columns),
                pool, steps,
            )  # fmt: skip
            self._plans[x[1:]] = small_batch_plan.best(problem)
        return self._plans[x[1:]]

    def _start(self, call: Call, epilogue: str, window: Window, pixels: int) -> None:
        x = call.inputs[0]
        plan = self.plan(tuple(x.shape))
        if plan is None:
            raise ValueError(f"x has shape {tuple(x.shape)}: need images of which a block can hold a row; use wgmma")
        kernel = make_kernel(self.precision.ptx_type, "" if epilogue == "store" else epilogue, plan)
        blocks, (ahead, size) = x.shape[0] * plan.blocks, self._ahead
        addresses = *map(device.address, (x, self._weight, self._bias, call.out)), ahead
        arguments = *map(np.uint64, addresses), np.uint32(size // blocks // 16 * 16)
        clusters, shared = blocks // plan.splits, plan.smem_bytes
        call.launch(kernel, clusters, THREADS, *arguments, shared=shared, cluster=plan.splits, early=True)
