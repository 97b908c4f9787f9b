"""Two linear layers in one kernel, with ReLU or GELU between them, whose values never leave the chip."""

from __future__ import annotations

import math
from functools import cache

from numba import cuda, float32

from charcnn.aliases import Array
from charcnn.gpu import device
from charcnn.gpu.device import uint32
from charcnn.gpu.indices import extents, thread_idx_x
from charcnn.gpu.launch import Call, jit
from charcnn.ops.common.epilogue_functions import epilogue
from charcnn.ops.common.moments import block_sum
from charcnn.ops.linear.linear import PART

THREADS = device.block_size(256)
SHARED_FLOATS = 47 * 1024 // 4
"""What a block may share with no special leave is 48 KB; 1 KB is for the sums."""
MOST_ROWS = 8


@cache
def _kernel(name, rows):
    # A block takes `rows` inputs, so that each weight that it reads serves as many.
    step, finished = THREADS, epilogue(name)

    @jit()
    def kernel(x, weight1, bias1, weight2, bias2, y):
        hidden = cuda.shared.array(0, float32)  # (rows, C_mid)
        smem = cuda.shared.array(THREADS, float32)
        totals = cuda.local.array(rows, float32)
        chunk_sums = cuda.local.array(rows, float32)
        first, middle = cuda.blockIdx.x * rows, extents(weight1)[0]
        for c in range(thread_idx_x(), middle, step):
            row_weights = weight1[c]
            for r in range(rows):
                totals[r] = bias1[c]
            c_in, end = uint32(0), extents(x)[1]
            while c_in < end:
                for r in range(rows):
                    chunk_sums[r] = float32(0)
                stop = min(c_in + uint32(PART), end)
                while c_in < stop:
                    value = row_weights[c_in]
                    for r in range(rows):
                        chunk_sums[r] += x[min(first + r, x.shape[0] - 1), c_in] * value
                    c_in += uint32(1)
                for r in range(rows):
                    totals[r] += chunk_sums[r]
            for r in range(rows):
                hidden[uint32(r) * middle + c] = finished(totals[r])
        cuda.syncthreads()
        for r in range(min(rows, y.shape[0] - first)):
            for c_out in range(y.shape[1]):
                part = float32(0)
                for c in range(thread_idx_x(), middle, step):
                    part += hidden[uint32(r) * middle + c] * weight2[c_out, c]
                total = block_sum(part, smem)
                if cuda.threadIdx.x == 0:
                    y[first + r, c_out] = total + bias2[c_out]

    return kernel


def launch(call: Call, x: Array, weight1: Array, bias1: Array, weight2: Array, bias2: Array, *, epilogue: str) -> None:
    """One block for up to 8 inputs, their middle layer in shared memory; with GELU a transformer's feed-forward block.

    Raises:
        ValueError: C_mid is more than 12,032, which shared memory holds.
    """
    (middle, c_in), (*leading, c_out) = weight1.shape, call.out.shape
    inputs = math.prod(leading)
    rows = min(MOST_ROWS, SHARED_FLOATS // max(1, middle))
    if rows < 1:
        raise ValueError(f"weight1 has C_mid={middle}: need at most {SHARED_FLOATS}, which shared memory holds")
    arguments = x.reshape(inputs, c_in), weight1, bias1, weight2, bias2, call.out.reshape(inputs, c_out)
    call.launch(_kernel(epilogue, rows), -(-inputs // rows), THREADS, *arguments, shared=4 * rows * middle)
