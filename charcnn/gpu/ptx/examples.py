"""Small complete kernels on `charcnn.gpu.ptx`, shown in docs/ptx.md: an instruction, an mbarrier, TMA, one wgmma."""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import cuda, float32, types

from charcnn.aliases import Array, Intrinsic
from charcnn.gpu import device, ptx, tensor_map
from charcnn.gpu.device import uint32

WORDS = 256
"""What `reverse` copies: 1,024 bytes."""

MBARRIER = 8
"""Bytes of an mbarrier."""

REVERSE_SMEM = WORDS + MBARRIER // 4

ROWS, COLUMNS = 64, 64
"""Of a box: 64 rows of 128 bytes in fp16, as `tensor_map` has them."""

BOX_BYTES = 2 * ROWS * COLUMNS

COPY_SMEM, PRODUCT_SMEM = (BOX_BYTES + MBARRIER) // 2, (2 * BOX_BYTES + MBARRIER) // 2
"""Numbers of 16 bits: one or two boxes, and an mbarrier behind them. Numba wants constants, not what gives them."""


@ptx.instruction(
    "bfind.u32 $0, $1;", "r", "r", pure=True, simulated=lambda word: int(word).bit_length() - 1 & 0xFFFFFFFF
)
def bfind_u32(word):
    """The place of the highest bit of a uint32 that is 1; 0xFFFFFFFF where none is.

    PTX: bfind.u32; section "Integer Arithmetic Instructions: bfind". Since compute capability 2.0.
    """


@cuda.jit
def highest_bits(x, y):
    """y[i] = the place of the highest bit of x[i]; both uint32."""
    i = cuda.grid(1)
    if i < x.size:
        y[i] = bfind_u32(x[i])


@cuda.jit
def reverse(x, y):
    """y = WORDS words in reverse, by a block of so many threads; x is the address of uint32, y an array of them."""
    smem = cuda.shared.array(REVERSE_SMEM, types.uint32, alignment=16)
    base, thread = ptx.cvta_to_shared(smem), cuda.threadIdx.x
    full = uint32(base + 4 * WORDS)
    if thread == 0:
        ptx.mbarrier_init(full, 1)  # a phase ends when one thread has arrived, and all bytes it expects
        ptx.fence_mbarrier_init()
        ptx.mbarrier_arrive_expect_tx(full, 4 * WORDS)
        ptx.bulk_load(base, x, 4 * WORDS, full)
    cuda.syncthreads()  # no thread looks at the mbarrier before it is made
    ptx.mbarrier_wait(full, 0)
    y[thread] = smem[WORDS - 1 - thread]


@cuda.jit
def copy_box(x, y, row, column):
    """y = the box of x that begins at (row, column), zeros where x has ended; x is the address of a tensor map.

    TMA swizzles: of row r, the 16-byte piece p lies where p xor r % 8 would.
    """
    smem = cuda.shared.array(COPY_SMEM, types.uint16, alignment=1024)
    base, thread = ptx.cvta_to_shared(smem), cuda.threadIdx.x
    full = uint32(base + BOX_BYTES)
    if thread == 0:
        ptx.mbarrier_init(full, 1)
        ptx.fence_mbarrier_init()
        ptx.fence_proxy_tensormap(x)
        ptx.mbarrier_arrive_expect_tx(full, BOX_BYTES)
        ptx.tma_load_2d(base, x, full, column, row)
    cuda.syncthreads()
    ptx.mbarrier_wait(full, 0)
    for r in range(ROWS):
        y[r, thread] = smem[r * COLUMNS + (thread // 8 ^ r % 8) * 8 + thread % 8]


@cache
def make_product() -> Intrinsic:
    """The kernel (a, b, d): d = a b^T, 64 x 64, by a warpgroup: 128 threads.

    a and b are addresses of tensor maps of fp16, 64 x 64; d is a float32 array.
    """
    acc_size = COLUMNS // 2  # of 128 threads' sums
    multiply, products_done = ptx.wgmma("f16", COLUMNS, accumulate=False), ptx.wgmma_wait_group(0)

    @cuda.jit()
    def product(a, b, d):
        smem = cuda.shared.array(PRODUCT_SMEM, types.uint16, alignment=1024)
        acc = cuda.local.array(acc_size, float32)
        base, thread = ptx.cvta_to_shared(smem), cuda.threadIdx.x
        b_at, full = uint32(base + BOX_BYTES), uint32(base + 2 * BOX_BYTES)
        if thread == 0:
            ptx.mbarrier_init(full, 1)
            ptx.fence_mbarrier_init()
            ptx.fence_proxy_tensormap(a)
            ptx.fence_proxy_tensormap(b)
            ptx.mbarrier_arrive_expect_tx(full, 2 * BOX_BYTES)
            ptx.tma_load_2d(base, a, full, 0, 0)
            ptx.tma_load_2d(b_at, b, full, 0, 0)
        cuda.syncthreads()
        ptx.mbarrier_wait(full, 0)
        ptx.wgmma_fence()
        multiply(acc, uint32(base >> 4 | ptx.DESCRIPTOR_LOW), uint32(b_at >> 4 | ptx.DESCRIPTOR_LOW))
        products_done()  # before it, acc must not be touched
        row, column = thread // 32 * 16 + thread % 32 // 4, thread % 4 * 2
        for k in range(COLUMNS // 8):
            d[row, 8 * k + column] = acc[4 * k]
            d[row, 8 * k + column + 1] = acc[4 * k + 1]
            d[row + 8, 8 * k + column] = acc[4 * k + 2]
            d[row + 8, 8 * k + column + 1] = acc[4 * k + 3]

    return product


def encode(x: Array) -> Array:
    """A tensor map of a device array of fp16, C-contiguous: its boxes are 64 rows of 64 columns."""
    rows, columns = x.shape
    return tensor_map.encode(x, (columns, rows), (2 * columns,), (COLUMNS, ROWS))


def run_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a b^T on the GPU: float16 (64, 64), float32 (64, 64). The maps hold addresses: the arrays must outlive them."""
    arrays = device.to_device(a), device.to_device(b)
    a_map, b_map = map(encode, arrays)
    d, launch = device.empty((ROWS, COLUMNS), np.float32), make_product()[1, 128]
    launch(device.address(a_map), device.address(b_map), d)
    result: np.ndarray = d.copy_to_host()
    return result
