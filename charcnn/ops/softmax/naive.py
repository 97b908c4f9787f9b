"""softmax on a GPU, one block an input."""

from __future__ import annotations

import math

from numba import cuda, float32

from charcnn.aliases import Array
from charcnn.gpu import device
from charcnn.gpu.launch import Call, jit

THREADS = 128
"""A block an input, of at most so many threads, a power of two; a thread has every so manieth class."""


@jit()
def _softmax_naive_kernel(x, y):
    shared = cuda.shared.array(THREADS, float32)
    n, thread, threads = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    greatest = float32(-math.inf)
    for c in range(thread, x.shape[1], threads):
        value = x[n, c]
        greatest = value if value > greatest or value != value else greatest
    shared[thread] = greatest
    cuda.syncthreads()
    width = threads // 2
    while width > 0:
        if thread < width:
            value = shared[thread + width]
            shared[thread] = value if value > shared[thread] or value != value else shared[thread]
        cuda.syncthreads()
        width //= 2
    greatest = shared[0]
    cuda.syncthreads()
    part = float32(0)
    for c in range(thread, x.shape[1], threads):
        value = math.exp(x[n, c] - greatest)  # at most 1: can't overflow
        y[n, c] = value  # which this thread alone reads again
        part += value
    shared[thread] = part
    cuda.syncthreads()
    width = threads // 2
    while width > 0:
        if thread < width:
            shared[thread] += shared[thread + width]
        cuda.syncthreads()
        width //= 2
    total = shared[0]
    for c in range(thread, x.shape[1], threads):
        y[n, c] /= total


def launch(call: Call, x: Array) -> None:
    """One block a row."""
    *others, classes = x.shape  # the simulator's shapes have no [-1]
    rows = math.prod(others), classes
    start(call, x.reshape(rows), call.out.reshape(rows))


def start(call: Call, x: Array, y: Array) -> None:
    """Write each row's softmax to y, which may be x: x and y (rows, classes), float32 on the GPU."""
    n, classes = x.shape
    call.launch(_softmax_naive_kernel, n, threads_of(classes), x, y)


def threads_of(classes: int) -> int:
    """Of a block that has a row."""
    return device.block_size(min(THREADS, max(32, 1 << (classes - 1).bit_length())))
