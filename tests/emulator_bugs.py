"""Kernels with a mistake each: the line that makes it ends with its kind, behind `# bug: `."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import cuda, float32, uint32

from charcnn.gpu import device, ptx, tensor_map
from charcnn.gpu.device import uint64

HALVES = np.arange(64 * 64, dtype=np.float16).reshape(64, 64) / np.float16(512)
BOX = 8192
"""Bytes of 64 rows of 64 halves."""

ROOM = 2 * BOX + 64
"""Two boxes, and mbarriers behind them."""

copy, drain, drain_but_one = ptx.cp_async(1), ptx.cp_async_wait_group(0), ptx.cp_async_wait_group(1)
stores_read, half_block, too_many = (
    ptx.bulk_wait_group_read(0),
    ptx.named_barrier_sync(1, 64),
    ptx.named_barrier_sync(2, 96),
)
everywhere = ptx.bulk_load_multicast(4)


class Bug(NamedTuple):
    kernel: object
    threads: int
    words: str
    """What it takes: x, y, d, 64 words each, a, the address of HALVES, m, the address of their tensor map."""
    shared: int = 0
    cluster: int = 1
    early: bool = False
    """Whether it may begin while a kernel before still writes d and HALVES."""


def arguments(words):
    halves, words_there = device.to_device(HALVES), device.to_device(np.arange(64, dtype=np.float32))
    made = tensor_map.encode(halves, (64, 64), (128,), (64, 64))
    found = {
        "x": np.arange(64, dtype=np.float32), "y": np.zeros(64, np.float32),
        "d": words_there, "a": device.address(halves), "m": device.address(made),
    }  # fmt: skip
    return [found[word] for word in words], (halves, words_there, made)


@cuda.jit
def beyond_an_array(x, y):
    shared, i = cuda.shared.array(64, float32), cuda.threadIdx.x
    shared[i + 1] = x[i]  # bug: out of bounds


@cuda.jit
def before_an_array(x, y):
    shared, i = cuda.shared.array(64, float32), cuda.threadIdx.x
    shared[i] = x[i]
    cuda.syncthreads()
    y[i] = shared[i - 1]  # bug: out of bounds


@cuda.jit
def beyond_dynamic_memory(y):
    at = ptx.cvta_to_shared(cuda.shared.array(0, uint32))
    y[0] = ptx.ld_shared_b32(at + 256)  # bug: out of bounds


@cuda.jit
def beyond_global_memory(x, y):
    i = cuda.threadIdx.x
    y[i] = x[i + 1]  # bug: out of bounds


@cuda.jit
def no_address(y):
    y[0] = ptx.ld_global_f32(uint64(64))  # bug: out of bounds


@cuda.jit
def never_written(y):
    shared = cuda.shared.array(64, float32)
    shared[cuda.threadIdx.x // 2] = 1
    cuda.syncthreads()
    y[cuda.threadIdx.x] = shared[cuda.threadIdx.x]  # bug: uninitialised read


@cuda.jit
def never_written_matrix(y):
    at = ptx.cvta_to_shared(cuda.shared.array(256, uint32))
    y[cuda.threadIdx.x] = ptx.ldmatrix_x4(at + 16 * (cuda.threadIdx.x % 32))[0]  # bug: uninitialised read


@cuda.jit
def misaligned_load(y):
    shared, i = cuda.shared.array(68, float32), cuda.threadIdx.x
    shared[i], shared[i + 4] = 0, 0
    cuda.syncthreads()
    if i == 0:
        y[0] = ptx.ld_shared_v4_f32(ptx.cvta_to_shared(shared) + 4)[0]  # bug: misaligned address


@cuda.jit
def misaligned_bulk_copy(a):
    at = ptx.cvta_to_shared(cuda.shared.array(0, uint32))
    if cuda.threadIdx.x == 0:
        ptx.mbarrier_init(at + 2 * BOX, 1)
        ptx.mbarrier_arrive_expect_tx(at + 2 * BOX, 64)
        ptx.bulk_load(at + 8, a, 64, at + 2 * BOX)  # bug: misaligned address


@cuda.jit
def misaligned_box(m):
    at = ptx.cvta_to_shared(cuda.shared.array(0, uint32))
    if cuda.threadIdx.x == 0:
        ptx.mbarrier_init(at + 2 * BOX, 1)
        ptx.mbarrier_arrive_expect_tx(at + 2 * BOX, BOX)
        ptx.tma_load_2d(at + 64, m, at + 2 * BOX, 0, 0)  # bug: misaligned address


@cuda.jit
def no_barrier_before_the_read(x, y):
    shared, i = cuda.shared.array(64, float32), cuda.threadIdx.x
    shared[i] = x[i]
    y[i] = shared[63 - i]  # bug: race


@cuda.jit
def no_barrier_before_the_next_store(x, y):
    shared, i = cuda.shared.array(64, float32), cuda.threadIdx.x
    for _ in range(2):
        shared[i] = x[i]  # bug: race
        cuda.syncthreads()
        y[i] += shared[63 - i]


@cuda.jit
def two_warps_store_one_word(y):
    shared = cuda.shared.array(64, float32)
    shared[cuda.threadIdx.x % 32] = cuda.threadIdx.x  # bug: race


@cuda.jit
def copied_and_not_waited_for(x, y):
    shared, i = cuda.shared.array(64, float32), cuda.threadIdx.x
    copy(shared, i, 0, x, i, 4)
    ptx.cp_async_commit_group()
    y[i] = shared[i]  # bug: copy before wait
    drain()


@cuda.jit
def waits_for_another_group(x, y):
    shared, i = cuda.shared.array(64, float32), cuda.threadIdx.x
    copy(shared, i, 0, x, i, 4)
    ptx.cp_async_commit_group()
    drain_but_one()
    y[i] = shared[i]  # bug: copy before wait
    drain()


@cuda.jit
def waits_and_no_barrier(x, y):
    shared, i = cuda.shared.array(64, float32), cuda.threadIdx.x
    copy(shared, i, 0, x, i, 4)
    ptx.cp_async_commit_group()
    drain()
    cuda.syncwarp()
    if i < 32:
        y[i] = shared[i]
    else:
        y[i] = shared[i - 32]  # bug: race


@cuda.jit
def a_barrier_for_some(y):
    if cuda.threadIdx.x < 32:
        cuda.syncthreads()  # bug: deadlock
    half_block()


@cuda.jit
def a_barrier_of_too_many(y):
    too_many()  # bug: deadlock


@cuda.jit
def arrives_too_often(y):
    at = ptx.cvta_to_shared(cuda.shared.array(2, uint32))
    if cuda.threadIdx.x == 0:
        ptx.mbarrier_init(at, 1)
        ptx.mbarrier_arrive_expect_tx(at, 16)
        ptx.mbarrier_arrive(at)  # bug: barrier


@cuda.jit
def nobody_made_the_mbarrier(y):
    at = ptx.cvta_to_shared(cuda.shared.array(4, uint32))
    if cuda.threadIdx.x == 0:
        ptx.mbarrier_init(at, 1)
        ptx.mbarrier_arrive(at + 8)  # bug: barrier


BUGS = [
    Bug(beyond_an_array, 64, "xy"),
    Bug(before_an_array, 64, "xy"),
    Bug(beyond_dynamic_memory, 1, "y", 256),
    Bug(beyond_global_memory, 64, "xy"),
    Bug(no_address, 1, "y"),
    Bug(never_written, 64, "y"),
    Bug(never_written_matrix, 32, "y"),
    Bug(misaligned_load, 64, "y"),
    Bug(misaligned_bulk_copy, 32, "a", ROOM),
    Bug(misaligned_box, 32, "m", ROOM),
    Bug(no_barrier_before_the_read, 64, "xy"),
    Bug(no_barrier_before_the_next_store, 64, "xy"),
    Bug(two_warps_store_one_word, 64, "y"),
    Bug(copied_and_not_waited_for, 64, "xy"),
    Bug(waits_for_another_group, 64, "xy"),
    Bug(waits_and_no_barrier, 64, "xy"),
    Bug(a_barrier_for_some, 64, "y"),
    Bug(a_barrier_of_too_many, 64, "y"),
    Bug(arrives_too_often, 32, "y"),
    Bug(nobody_made_the_mbarrier, 32, "y"),
]
