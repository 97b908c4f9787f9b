"""Kernels of Hopper's instructions, with a mistake each, as `emulator_bugs` has them."""

from __future__ import annotations

from emulator_bugs import BOX, ROOM, Bug
from numba import cuda, float32, uint32

from charcnn.gpu import ptx

multiply, wait_all, wait_but_one = ptx.wgmma("f16", 64), ptx.wgmma_wait_group(0), ptx.wgmma_wait_group(1)
copies_done = ptx.cp_async_wait_group(0)
stores_read, everywhere = ptx.bulk_wait_group_read(0), ptx.bulk_load_multicast(4)


@cuda.jit
def bytes_are_not_expected(m, y):
    shared = cuda.shared.array(0, uint32)
    at, i = ptx.cvta_to_shared(shared), cuda.threadIdx.x
    if i == 0:
        ptx.mbarrier_init(at + 2 * BOX, 1)
    cuda.syncthreads()
    if i == 0:
        ptx.tma_load_2d(at, m, at + 2 * BOX, 0, 0)
        ptx.mbarrier_arrive(at + 2 * BOX)  # bug: missing expect_tx
    ptx.mbarrier_wait(at + 2 * BOX, 0)
    y[i] = ptx.ld_shared_b32(at + 4 * i)


@cuda.jit
def too_many_bytes_are_expected(m, y):
    shared = cuda.shared.array(0, uint32)
    at, i = ptx.cvta_to_shared(shared), cuda.threadIdx.x
    if i == 0:
        ptx.mbarrier_init(at + 2 * BOX, 1)
    cuda.syncthreads()
    if i == 0:
        ptx.mbarrier_arrive_expect_tx(at + 2 * BOX, 2 * BOX)
        ptx.tma_load_2d(at, m, at + 2 * BOX, 0, 0)
    ptx.mbarrier_wait(at + 2 * BOX, 0)  # bug: deadlock


@cuda.jit
def one_arrives_of_two(m, y):
    shared = cuda.shared.array(0, uint32)
    at, i = ptx.cvta_to_shared(shared), cuda.threadIdx.x
    if i == 0:
        ptx.mbarrier_init(at + 2 * BOX, 2)
    cuda.syncthreads()
    if i == 0:
        ptx.mbarrier_arrive_expect_tx(at + 2 * BOX, BOX)
        ptx.tma_load_2d(at, m, at + 2 * BOX, 0, 0)
    ptx.mbarrier_wait(at + 2 * BOX, 0)  # bug: deadlock


@cuda.jit
def wrong_first_parity(m, y):
    shared = cuda.shared.array(0, uint32)
    at, i = ptx.cvta_to_shared(shared), cuda.threadIdx.x
    if i == 0:
        ptx.mbarrier_init(at + 2 * BOX, 1)
        ptx.mbarrier_arrive_expect_tx(at + 2 * BOX, 2 * BOX)
        ptx.tma_load_2d(at, m, at + 2 * BOX, 0, 0)
    cuda.syncthreads()
    ptx.mbarrier_wait(at + 2 * BOX, 1)  # bug: wrong parity
    y[i] = ptx.ld_shared_b32(at + 4 * i)


@cuda.jit
def parity_that_stays(m, y):
    shared = cuda.shared.array(0, uint32)
    at, i = ptx.cvta_to_shared(shared), cuda.threadIdx.x
    if i == 0:
        ptx.mbarrier_init(at + 2 * BOX, 1)
    cuda.syncthreads()
    for _ in range(2):
        if i == 0:
            ptx.mbarrier_arrive_expect_tx(at + 2 * BOX, 2 * BOX)
            ptx.tma_load_2d(at, m, at + 2 * BOX, 0, 0)
            ptx.tma_load_2d(at + BOX, m, at + 2 * BOX, 0, 0)
        ptx.mbarrier_wait(at + 2 * BOX, 0)  # bug: wrong parity
        y[i] = ptx.ld_shared_b32(at + 4 * i)
        cuda.syncthreads()


@cuda.jit
def read_before_full(m, y):
    shared = cuda.shared.array(0, uint32)
    at, i = ptx.cvta_to_shared(shared), cuda.threadIdx.x
    if i == 0:
        ptx.mbarrier_init(at + 2 * BOX, 1)
        ptx.mbarrier_arrive_expect_tx(at + 2 * BOX, BOX)
        ptx.tma_load_2d(at, m, at + 2 * BOX, 0, 0)
    cuda.syncthreads()
    y[i] = ptx.ld_shared_b32(at + 4 * i)  # bug: read before full


@cuda.jit
def write_before_empty(m, y):
    shared = cuda.shared.array(0, uint32)
    at, i = ptx.cvta_to_shared(shared), cuda.threadIdx.x
    if i == 0:
        ptx.mbarrier_init(at + 2 * BOX, 1)
    cuda.syncthreads()
    for step in range(2):
        if i == 0:
            ptx.mbarrier_arrive_expect_tx(at + 2 * BOX, BOX)
            ptx.tma_load_2d(at, m, at + 2 * BOX, 0, 0)  # bug: write before empty
        ptx.mbarrier_wait(at + 2 * BOX, step)
        y[i] = ptx.ld_shared_b32(at + 4 * i)


@cuda.jit
def stored_before_a_product(y):
    shared = cuda.shared.array(0, uint32)
    at, i, acc = ptx.cvta_to_shared(shared), cuda.threadIdx.x, cuda.local.array(32, float32)
    for word in range(i, 2 * BOX // 4, 128):
        shared[word] = 0
    for j in range(32):
        acc[j] = 0
    cuda.syncthreads()
    ptx.wgmma_fence()
    multiply(acc, at >> 4, at + BOX >> 4)  # bug: missing proxy fence
    wait_all()


@cuda.jit
def stored_before_a_bulk_store(a):
    shared, i = cuda.shared.array(0, uint32), cuda.threadIdx.x
    shared[i] = i
    cuda.syncthreads()
    if i == 0:
        ptx.bulk_store(a, ptx.cvta_to_shared(shared), 256)  # bug: missing proxy fence
        ptx.bulk_commit_group()
        stores_read()


@cuda.jit
def misaligned_descriptor(y):
    shared = cuda.shared.array(0, uint32)
    at, i, acc = ptx.cvta_to_shared(shared), cuda.threadIdx.x, cuda.local.array(32, float32)
    for word in range(i, 3 * BOX // 4, 128):
        shared[word] = 0
    for j in range(32):
        acc[j] = 0
    ptx.fence_proxy_async()
    cuda.syncthreads()
    ptx.wgmma_fence()
    multiply(acc, at + 64 >> 4, at + BOX >> 4)  # bug: misaligned address
    wait_all()


@cuda.jit
def sums_without_a_fence(y):
    shared = cuda.shared.array(0, uint32)
    at, i, acc = ptx.cvta_to_shared(shared), cuda.threadIdx.x, cuda.local.array(32, float32)
    for word in range(i, 2 * BOX // 4, 128):
        shared[word] = 0
    ptx.fence_proxy_async()
    cuda.syncthreads()
    for _ in range(2):
        for j in range(32):
            acc[j] = 0
        multiply(acc, at >> 4, at + BOX >> 4)  # bug: missing wgmma fence
        wait_all()


@cuda.jit
def sums_written_behind_the_fence(y):
    shared = cuda.shared.array(0, uint32)
    at, i, acc = ptx.cvta_to_shared(shared), cuda.threadIdx.x, cuda.local.array(32, float32)
    for word in range(i, 2 * BOX // 4, 128):
        shared[word] = 0
    ptx.fence_proxy_async()
    cuda.syncthreads()
    for step in range(2):
        for j in range(32):
            acc[j] = 0
        if step == 0:
            ptx.wgmma_fence()
        multiply(acc, at >> 4, at + BOX >> 4)  # bug: missing wgmma fence
        wait_all()


@cuda.jit
def swizzled_by_half_of_the_row(a):
    at, i, acc = ptx.cvta_to_shared(cuda.shared.array(0, uint32)), cuda.threadIdx.x, cuda.local.array(32, float32)
    for piece in range(i, 64 * 8, 128):
        row, p = piece // 8, piece % 8
        ptx.cp_async_16(at + 128 * row + 16 * (p ^ row % 4), a + 16 * piece, 16)
    ptx.cp_async_commit_group()
    copies_done()
    ptx.fence_proxy_async()
    cuda.syncthreads()
    ptx.wgmma_fence()
    multiply(acc, at >> 4, at >> 4)  # bug: wrong swizzle
    wait_all()


@cuda.jit
def not_swizzled(a):
    at, i, acc = ptx.cvta_to_shared(cuda.shared.array(0, uint32)), cuda.threadIdx.x, cuda.local.array(32, float32)
    for piece in range(i, 64 * 8, 128):
        row, p = piece // 8, piece % 8
        ptx.cp_async_16(at + 128 * row + 16 * p, a + 128 * (2 * row % 64) + 16 * p, 16)  # of every second row
    ptx.cp_async_commit_group()
    copies_done()
    ptx.fence_proxy_async()
    cuda.syncthreads()
    ptx.wgmma_fence()
    multiply(acc, at >> 4, at >> 4)  # bug: wrong swizzle
    wait_all()


@cuda.jit
def a_box_whose_swizzle_stays(m, y):
    at, i = ptx.cvta_to_shared(cuda.shared.array(0, uint32)), cuda.threadIdx.x
    if i == 0:
        ptx.mbarrier_init(at + 2 * BOX, 1)
        ptx.mbarrier_arrive_expect_tx(at + 2 * BOX, BOX)
        ptx.tma_load_2d(at, m, at + 2 * BOX, 0, 0)
    cuda.syncthreads()
    ptx.mbarrier_wait(at + 2 * BOX, 0)
    words = ptx.ldmatrix_x4(at + 128 * (i % 32))  # bug: wrong swizzle
    y[i] = words[0]


@cuda.jit
def sums_before_the_wait(y):
    shared = cuda.shared.array(0, uint32)
    at, i, acc = ptx.cvta_to_shared(shared), cuda.threadIdx.x, cuda.local.array(32, float32)
    for word in range(i, 2 * BOX // 4, 128):
        shared[word] = 0
    for j in range(32):
        acc[j] = 0
    ptx.fence_proxy_async()
    cuda.syncthreads()
    ptx.wgmma_fence()
    multiply(acc, at >> 4, at + BOX >> 4)
    y[i % 64] = acc[0]  # bug: accumulator before wait
    wait_all()


@cuda.jit
def waits_for_all_groups_but_one(y):
    shared = cuda.shared.array(0, uint32)
    at, i, acc = ptx.cvta_to_shared(shared), cuda.threadIdx.x, cuda.local.array(32, float32)
    for word in range(i, 2 * BOX // 4, 128):
        shared[word] = 0
    for j in range(32):
        acc[j] = 0
    ptx.fence_proxy_async()
    cuda.syncthreads()
    ptx.wgmma_fence()
    for _ in range(2):
        multiply(acc, at >> 4, at + BOX >> 4)
    wait_but_one()
    y[i % 64] = acc[0]  # bug: accumulator before wait
    wait_all()


@cuda.jit
def stores_into_a_product(y):
    shared = cuda.shared.array(0, uint32)
    at, i, acc = ptx.cvta_to_shared(shared), cuda.threadIdx.x, cuda.local.array(32, float32)
    for word in range(i, 2 * BOX // 4, 128):
        shared[word] = 0
    for j in range(32):
        acc[j] = 0
    ptx.fence_proxy_async()
    cuda.syncthreads()
    ptx.wgmma_fence()
    multiply(acc, at >> 4, at + BOX >> 4)
    shared[i] = 1  # bug: write before empty
    wait_all()


@cuda.jit
def stores_into_a_bulk_store(a):
    shared, i = cuda.shared.array(0, uint32), cuda.threadIdx.x
    shared[i] = i
    ptx.fence_proxy_async()
    cuda.syncthreads()
    if i == 0:
        ptx.bulk_store(a, ptx.cvta_to_shared(shared), 256)
        ptx.bulk_commit_group()
        shared[0] = 1  # bug: write before empty
        stores_read()


@cuda.jit
def to_blocks_that_are_not_there(a):
    at = ptx.cvta_to_shared(cuda.shared.array(0, uint32))
    if cuda.threadIdx.x == 0:
        ptx.mbarrier_init(at + 2 * BOX, 1)
        ptx.cluster_sync()
        ptx.mbarrier_arrive_expect_tx(at + 2 * BOX, 64)
        if cuda.blockIdx.x == 0:
            everywhere(at, a, 64, at + 2 * BOX)  # bug: out of bounds
        ptx.mbarrier_wait(at + 2 * BOX, 0)


@cuda.jit
def reads_what_another_block_stores(y):
    at, i = ptx.cvta_to_shared(cuda.shared.array(0, uint32)), cuda.threadIdx.x
    if i == 0:
        ptx.mbarrier_init(at + 2 * BOX, 1)
        ptx.mbarrier_arrive_expect_tx(at + 2 * BOX, 16)
    ptx.cluster_sync()
    if i == 0:
        other = 1 - cuda.blockIdx.x
        ptx.st_async_v4_b32(ptx.mapa(at, other), 1, 2, 3, 4, ptx.mapa(at + 2 * BOX, other))
    ptx.cluster_sync()
    if i == 0:
        y[0] = ptx.ld_shared_b32(at)  # bug: read before full


@cuda.jit
def reads_before_the_grid_has_ended(d, y):
    y[cuda.threadIdx.x] = d[cuda.threadIdx.x]  # bug: missing grid wait
    ptx.griddepcontrol_wait()


@cuda.jit
def writes_before_the_grid_has_ended(d):
    d[cuda.threadIdx.x] = 0  # bug: missing grid wait
    ptx.griddepcontrol_wait()


@cuda.jit
def copies_before_the_grid_has_ended(m, y):
    at, i = ptx.cvta_to_shared(cuda.shared.array(0, uint32)), cuda.threadIdx.x
    if i == 0:
        ptx.mbarrier_init(at + 2 * BOX, 1)
        ptx.mbarrier_arrive_expect_tx(at + 2 * BOX, BOX)
        ptx.tma_load_2d(at, m, at + 2 * BOX, 0, 0)  # bug: missing grid wait
    cuda.syncthreads()
    ptx.griddepcontrol_wait()
    ptx.mbarrier_wait(at + 2 * BOX, 0)
    y[i] = ptx.ld_shared_b32(at + 4 * i)


@cuda.jit
def one_thread_waits_for_the_grid(a, y):
    i = cuda.threadIdx.x
    if i == 0:
        ptx.griddepcontrol_wait()
    y[i] = ptx.ld_global_b32(a + 4 * i)  # bug: missing grid wait


BUGS = [
    Bug(bytes_are_not_expected, 64, "my", ROOM),
    Bug(too_many_bytes_are_expected, 64, "my", ROOM),
    Bug(one_arrives_of_two, 64, "my", ROOM),
    Bug(wrong_first_parity, 64, "my", ROOM),
    Bug(parity_that_stays, 64, "my", ROOM),
    Bug(read_before_full, 64, "my", ROOM),
    Bug(write_before_empty, 64, "my", ROOM),
    Bug(stored_before_a_product, 128, "y", ROOM),
    Bug(stored_before_a_bulk_store, 64, "a", ROOM),
    Bug(misaligned_descriptor, 128, "y", ROOM + BOX),
    Bug(sums_without_a_fence, 128, "y", ROOM),
    Bug(sums_written_behind_the_fence, 128, "y", ROOM),
    Bug(swizzled_by_half_of_the_row, 128, "a", ROOM),
    Bug(not_swizzled, 128, "a", ROOM),
    Bug(a_box_whose_swizzle_stays, 32, "my", ROOM),
    Bug(sums_before_the_wait, 128, "y", ROOM),
    Bug(waits_for_all_groups_but_one, 128, "y", ROOM),
    Bug(stores_into_a_product, 128, "y", ROOM),
    Bug(stores_into_a_bulk_store, 64, "a", ROOM),
    Bug(reads_before_the_grid_has_ended, 64, "dy", early=True),
    Bug(writes_before_the_grid_has_ended, 64, "d", early=True),
    Bug(copies_before_the_grid_has_ended, 64, "my", ROOM, early=True),
    Bug(one_thread_waits_for_the_grid, 64, "ay", early=True),
    Bug(to_blocks_that_are_not_there, 1, "a", ROOM, 2),
    Bug(reads_what_another_block_stores, 32, "y", ROOM, 2),
]
