"""The sum of arrays that lie in GPU memory or in the host's pinned pages, in their order, rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numba import cuda, float32

from charcnn.aliases import Kernel, Stream
from charcnn.gpu import device, ptx
from charcnn.gpu.collectives.kernels import load, store, sums_of
from charcnn.gpu.device import block_size
from charcnn.gpu.indices import block_idx_x, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import jit, start

THREADS = block_size(256)
"""Of a block."""

TOGETHER = 8
"""Numbers that a thread adds up at once: one vector of 16 bytes in half precision, two of float32."""


@cache
def make_kernel(of: str, to: str, count: int, early: bool, epilogue: Kernel | None = None) -> Kernel:
    """The kernel of `launch_sum`."""
    add, words = sums_of(of)[0], sums_of(to)[1]
    read, written = (2 if one == "f32" else 1 for one in (of, to))
    threads, together, ends, wide = THREADS, TOGETHER, epilogue is not None, to == "f32"

    @jit(launch_bounds=(threads, 1))
    def kernel(y, xs, size):
        if early:
            ptx.griddepcontrol_launch()
            ptx.griddepcontrol_wait()
        total = cuda.local.array(together, float32)
        stride = grid_dim_x() * threads
        for i in range(block_idx_x() * threads + thread_idx_x(), (size + together - 1) // together, stride):
            for v in range(together):
                total[v] = float32(0)
            for source in range(count):
                for part in range(read):
                    a, b, c, d = load(xs[source], 0, i * read + part, size * read)
                    add(total, part * 4, a, b, c, d)
            if ends:
                for v in range(together):
                    total[v] = epilogue(total[v])
            for part in range(written):
                if wide:
                    a, b = ptx.bitcast_b32(total[part * 4]), ptx.bitcast_b32(total[part * 4 + 1])
                    c, d = ptx.bitcast_b32(total[part * 4 + 2]), ptx.bitcast_b32(total[part * 4 + 3])
                else:
                    a, b, c, d = words(total)
                store(y, 0, i * written + part, size * written, a, b, c, d)

    return kernel


def launch_sum(
    y: int, to: str, xs: Sequence[int], of: str, size: int, stream: Stream, epilogue: Kernel | None = None
) -> None:  # fmt: skip
    """Start to add up arrays in float32, in their order.

    Args:
        y: the address of the result, a multiple of 16; one of `xs` will do where both have the same type.
        to: its PTX type: f32, f16 or bf16.
        xs: addresses of the arrays, multiples of 16.
        of: their PTX type.
        size: numbers of each.
        stream: a CUDA stream.
        epilogue: a device function of a float32, which each sum passes through before it is rounded.
    """
    if size:
        early = device.begins_early()
        kernel = make_kernel(of, to, len(xs), early, epilogue)
        blocks = min(device.multiprocessors() * 4, -(-size // (THREADS * TOGETHER)))
        start(kernel, blocks, THREADS, stream, np.uint64(y), tuple(map(np.uint64, xs)), np.uint32(size), early=early)
