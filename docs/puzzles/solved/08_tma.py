# %% [markdown]
# # 8. Boxes by TMA, and an mbarrier
#
# TMA copies a whole box, here 64 x 64 halves, at the request of one thread, and swizzles it. An *mbarrier*, 8 bytes
# of shared memory, tells when it has come. It goes through *phases*. A phase ends when so many threads have arrived
# as `mbarrier_init` said, and all bytes have come that `mbarrier_arrive_expect_tx` announced.
# `mbarrier_wait(mbarrier, parity)` waits for the end of the phase of this parity: 0, 1, 0, 1 …
#
# The kernel adds up boxes of a wide matrix, one after another in the same place.
#
# **Task**: in each step let thread 0 announce and start the copy, and all wait for it.

# %%
import numpy as np
import puzzle
from numba import cuda, float32, types

from charcnn.gpu import ptx
from charcnn.gpu.device import uint32

# %%
BOX = 64 * 128  # bytes of 64 rows


@cuda.jit
def total(x, y, boxes):
    """y (64, 64) = the sum of the boxes of x (64, 64 * boxes) halves; x is a tensor map."""
    shared = cuda.shared.array(0, types.float16, alignment=1024)
    sums = cuda.local.array(64, float32)
    base, thread = ptx.cvta_to_shared(shared), cuda.threadIdx.x
    full = uint32(base + BOX)
    if thread == 0:
        ptx.mbarrier_init(full, 1)
        ptx.fence_mbarrier_init()
    cuda.syncthreads()
    for r in range(64):
        sums[r] = 0
    for box in range(boxes):
        # gap: thread 0 has TMA copy the box that begins in row 0, column 64 * box; all wait
        if thread == 0:
            ptx.mbarrier_arrive_expect_tx(full, BOX)
            ptx.tma_load_2d(base, x, full, 64 * box, 0)
        ptx.mbarrier_wait(full, box % 2)
        # end
        for r in range(64):
            sums[r] += float32(shared[64 * r + 8 * (thread // 8 ^ r % 8) + thread % 8])
        cuda.syncthreads()  # all have read it
    for r in range(64):
        y[r, thread] = sums[r]


# %%
BOXES = 3
x = np.random.default_rng(0).integers(-8, 8, (64, 64 * BOXES)).astype(np.float16)
wanted = x.astype(np.float32).reshape(64, BOXES, 64).sum(1)
puzzle.check(total, 1, 64, [puzzle.Map(x), BOXES], wanted, shared=BOX + 8)

# %% [markdown]
# <details><summary>Hint</summary>
#
# `ptx.mbarrier_arrive_expect_tx(full, BOX)`, then `ptx.tma_load_2d(base, x, full, column, row)`, both by thread 0.
# The first phase has parity 0, the next 1: box % 2.
#
# </details>
#
# Next: [a ring of stages](09_ring.ipynb).
