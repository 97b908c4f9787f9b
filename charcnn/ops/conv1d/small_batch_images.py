"""conv2d_nhwc for one image or a few, with the max-pooling behind it: cut up over all multiprocessors.

An image of 13 x 13 pixels is one or two tiles of a matrix product; all other multiprocessors would wait. Here the
depth is split, too, over the blocks of a cluster, which add their sums up through each other's shared memory, in a
fixed order: results are the same bits every time, for any number of images. Weights are on their way to shared memory
before the kernel before has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numba import float32

from charcnn.aliases import Array, Stream
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint32, uint64
from charcnn.gpu.indices import block_dim_x, block_idx_x, extents, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.layers.layer import Shape
from charcnn.layers.windows import Window
from charcnn.ops.common.epilogues import Epilogue
from charcnn.ops.common.precision import NumberFormat
from charcnn.ops.conv1d import small_batch_images_plan
from charcnn.ops.conv1d.small_batch_images_kernel import QUAD, make_kernel
from charcnn.ops.conv1d.small_batch_images_plan import CHUNK, PACK_N, STEP_BYTES, THREADS, Problem, SmallBatchPlan

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


def packed(weight: Array, bias: Array, of: NumberFormat, stream: Stream) -> tuple[Array, Array]:
    """A weight (taps, C_in / groups, C_out) and a bias, NumPy arrays, as this kernel takes them, on the current GPU."""
    taps, c_in, c_out = weight.shape
    chunks, packs = -(-c_in // CHUNK), -(-c_out // PACK_N)
    words = packs * chunks * taps * STEP_BYTES // 4
    padded = np.pad(np.ascontiguousarray(bias, np.float32), (0, -c_out % PACK_N))
    call = Call(None, stream, (words,), np.uint32, weight=np.ascontiguousarray(weight, np.float32))
    laid, to = call.out, device.to_device(padded)
    arguments = np.uint64(device.address(laid)), taps, chunks, words
    call.launch(_pack_kernel(of.ptx_type), -(-words // THREADS), THREADS, call.inputs[0], *arguments)
    return laid, to


class ImageTiling:
    """How images of a convolution are cut up, by their size.

    Args:
        groups: of its channels.
        width: channels of a pixel.
        kernel: rows and columns of its window.
        c_out: output channels: a multiple of 4, and of 16 in each of several groups.

    Raises:
        ValueError: they are no such multiple.
    """

    def __init__(self, groups: int, width: int, kernel: tuple[int, int], c_out: int) -> None:
        if c_out % QUAD or (groups > 1 and c_out // groups % PACK_N):
            need = f"a multiple of {PACK_N} a group" if groups > 1 else f"a multiple of {QUAD}"
            raise ValueError(f"weight has C_out={c_out}, groups={groups}: need {need}")
        self._groups, self._width, self._c_out = groups, width, c_out
        self._plans = dict[Shape, SmallBatchPlan | None]()

    def plan(self, x: Shape, window: Window, pool: Window | None, out: Shape) -> SmallBatchPlan | None:
        """Of images x (N, H, W, C), to a result of this shape; None where a block cannot hold even a row's part."""
        if x[1:] not in self._plans:
            moved = pool or Window((1, 1))
            problem = Problem(
                x[1], x[2], x[3], self._width // self._groups, self._c_out, self._groups, window.kernel, window.stride,
                window.dilation, (window.padding[0], window.padding[2]), (out[1], out[2]), moved.kernel, moved.stride,
            )  # fmt: skip
            self._plans[x[1:]] = small_batch_images_plan.best(problem)
        return self._plans[x[1:]]


def start(
    call: Call, plan: SmallBatchPlan | None, of: NumberFormat, epilogue: Epilogue, arrays: Sequence[Any],
    ahead: tuple[int, int],
) -> None:  # fmt: skip
    """Start the kernel on the call's stream.

    Args:
        arrays: x, packed weight and bias, and y.
        ahead: the address of what is asked for in the second-level cache, and its bytes.
    """
    x = arrays[0]
    if plan is None:
        raise ValueError(f"x has shape {tuple(x.shape)}: need images of which a block can hold a row; use wgmma")
    blocks, (address, size) = x.shape[0] * plan.blocks, ahead
    addresses = *map(device.address, arrays), address
    arguments = *map(np.uint64, addresses), np.uint32(size // blocks // 16 * 16)
    kernel, shared = make_kernel(of.ptx_type, epilogue.pointwise, plan), plan.smem_bytes
    call.launch(kernel, blocks // plan.splits, THREADS, *arguments, shared=shared, cluster=plan.splits, early=True)
