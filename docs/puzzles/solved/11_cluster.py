# %% [markdown]
# # 11. A cluster that shares its copies
#
# Two blocks multiply different rows of A by the same B. In a *cluster* they run at once, and can write into each
# other's shared memory. So each block fetches half of B, and has it copied to both: `to_both(to, source, size,
# mbarrier)`. In each of the two blocks the bytes come to the same place `to`, and count at the mbarrier in the same
# place. B crosses the cache once for both.
#
# This copy does not swizzle: `packed` has swizzled B on the host.
#
# **Task**: let thread 0 announce and start its copies, the block's box of A by TMA and its half of B to both blocks.
# Mind that the other block's copy may come early.

# %%
import numpy as np
import puzzle
from numba import cuda, float32, types

from charcnn.gpu import ptx
from charcnn.gpu.device import uint32

# %%
BOX, HALF = 64 * 128, 64 * 64
LOW = ptx.DESCRIPTOR_LOW
multiply, wait_all, to_both = ptx.wgmma("f16", 64), ptx.wgmma_wait_group(0), ptx.bulk_load_multicast(2)


@cuda.jit
def product(a, b, y):
    """y (128, 64) = a b^T: a is a tensor map of (128, 64) halves, b the address of (64, 64), packed."""
    shared = cuda.shared.array(0, types.uint16, alignment=1024)
    acc = cuda.local.array(32, float32)
    base, thread, rank = ptx.cvta_to_shared(shared), cuda.threadIdx.x, cuda.blockIdx.x % 2
    a_at, b_at, full = uint32(base), uint32(base + BOX), uint32(base + 2 * BOX)
    if thread == 0:
        ptx.mbarrier_init(full, 1)
        ptx.fence_mbarrier_init()
    # gap: announce both boxes; A's rows from 64 * rank on; half of B, from HALF * rank on, to both blocks
    cuda.syncwarp()
    ptx.cluster_sync()  # both blocks have made their mbarrier
    if thread == 0:
        ptx.mbarrier_arrive_expect_tx(full, 2 * BOX)
        ptx.tma_load_2d(a_at, a, full, 0, 64 * rank)
        to_both(b_at + HALF * rank, b + HALF * rank, HALF, full)
    # end
    ptx.mbarrier_wait(full, 0)
    for i in range(32):
        acc[i] = 0
    ptx.wgmma_fence()
    multiply(acc, uint32(a_at >> 4 | LOW), uint32(b_at >> 4 | LOW))
    wait_all()
    row, column = 64 * rank + thread // 32 * 16 + thread % 32 // 4, thread % 4 * 2
    for i in range(32):
        y[row + 8 * (i // 2 % 2), column + 8 * (i // 4) + i % 2] = acc[i]


# %%
def packed(b):
    """The pieces of each row of (64, 64) halves, swizzled."""
    rows = np.arange(64)[:, None]
    return np.ascontiguousarray(b.reshape(64, 8, 8)[rows, np.arange(8) ^ rows % 8])


draw = np.random.default_rng(0)
a, b = (draw.standard_normal((rows, 64)).astype(np.float16) for rows in (128, 64))
wanted = a.astype(np.float32) @ b.astype(np.float32).T
args = [puzzle.Map(a), puzzle.Address(packed(b))]
puzzle.check(product, 2, 128, args, wanted, cluster=2, shared=2 * BOX + 8)

# %% [markdown]
# <details><summary>Hint</summary>
#
# No block may copy into another one before that has made its mbarrier: `ptx.cluster_sync()`, by all threads of both
# blocks. Each block expects all of B, although it asks for half.
#
# </details>
#
# Next: [all of it](12_persistent.ipynb).
