"""The mean of each input's rows, of length 1 where that is asked for."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numba import cuda, float32

from charcnn.aliases import Array, Kernel, Stream
from charcnn.gpu import device, ptx
from charcnn.gpu.device import uint64
from charcnn.gpu.indices import block_idx_x, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common.moments import block_sum
from charcnn.ops.common.precision import FP32, NumberFormat

THREADS = device.block_size(512)

LEAST = 1e-12
"""What a vector is divided by where its length is less."""


@cache
def _kernel(ptx_type: str, size: int, normalized: bool, early: bool) -> Kernel:
    wide = ptx_type == FP32.ptx_type
    together = 4 if wide else 8
    columns, unpack = size // together, None if wide else ptx.cvt_f32x2(ptx_type)
    groups, threads, row_bytes = max(1, THREADS // columns), THREADS, size * (4 if wide else 2)
    held = groups * size

    @jit()
    def kernel(x, offsets, y, least):
        if early:
            ptx.griddepcontrol_launch()
            ptx.griddepcontrol_wait()
        # A thread adds up some columns of every so manyth row; then all threads add up what those have.
        sums, partial = cuda.shared.array(held, float32), cuda.shared.array(threads, float32)
        n, thread = block_idx_x(), thread_idx_x()
        first, end = offsets[n], offsets[n + 1]
        for task in range(thread, groups * columns, threads):
            group, column = task // columns, task % columns
            a = b = c = d = e = f = g = h = float32(0)
            for row in range(first + group, end, groups):
                at = x + (uint64(row) * uint64(row_bytes) + uint64(column * 16))
                if wide:
                    p, q, r, s = ptx.ld_global_v4_f32(at)
                    a, b, c, d = a + p, b + q, c + r, d + s
                else:
                    p, q, r, s = ptx.ld_global_v4_b32(at)
                    (i, j), (k, l), (m, o), (u, v) = unpack(p), unpack(q), unpack(r), unpack(s)  # noqa: E741
                    a, b, c, d, e, f, g, h = a + i, b + j, c + k, d + l, e + m, f + o, g + u, h + v
            to = group * size + column * together
            sums[to], sums[to + 1], sums[to + 2], sums[to + 3] = a, b, c, d
            if not wide:
                sums[to + 4], sums[to + 5], sums[to + 6], sums[to + 7] = e, f, g, h
        cuda.syncthreads()
        squares, count = float32(0), float32(max(end - first, 1))
        for i in range(thread, size, threads):
            total = sums[i]
            for group in range(1, groups):
                total += sums[group * size + i]
            sums[i] = total / count
            squares += sums[i] * sums[i]
        scale = float32(1)
        if normalized:
            scale = float32(1) / max(math.sqrt(block_sum(squares, partial)), least)
        for i in range(thread, size, threads):
            y[n, i] = sums[i] * scale

    return kernel


def launch(x: Array, offsets: Array, out: Array, normalized: bool, of: NumberFormat, stream: Stream) -> None:
    """The mean of each input's rows, zeros of one that has none; all arrays on the GPU.

    Args:
        x: (T, H), of the format, C-contiguous, H a multiple of 8, at most 2,048.
        offsets: int32 (N + 1,).
        out: float32 (N, H).
        normalized: whether a mean is divided by its length.
        of: fp16, bf16 or `precision.FP32`.
        stream: a CUDA stream.
    """
    call = Call(out, stream, out.shape, dtypes={"x": of.dtype, "offsets": np.int32}, x=x, offsets=offsets)
    early, address = device.begins_early(), np.uint64(device.address(x))
    kernel = _kernel(of.ptx_type, x.shape[1], normalized, early)
    call.launch(kernel, out.shape[0], THREADS, address, offsets, out, np.float32(LEAST), early=early)
