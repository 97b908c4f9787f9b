# %% [markdown]
# # 10. A warp that only copies
#
# So far thread 0 starts copies between two products, and all wait at a barrier for it. Now a fifth warp does nothing
# else: the *producer*. The warpgroup of *consumers* only multiplies. Each stage has two mbarriers. `full` ends a
# phase when the boxes have come, `empty` when all 128 consumers have arrived.
#
# A new mbarrier is in its first phase, of parity 0. The phase before that, of parity 1, counts as ended: so the
# producer can wait for `empty` in the first round, too.
#
# **Task**: write both sides' waits and arrivals.

# %%
import numpy as np
import puzzle
from numba import cuda, float32, types

from charcnn.gpu import ptx
from charcnn.gpu.device import uint32

# %%
BOX, STAGES, CONSUMERS = 64 * 128, 2, 128
LOW = ptx.DESCRIPTOR_LOW
multiply, wait_all = ptx.wgmma("f16", 64), ptx.wgmma_wait_group(0)


@cuda.jit
def product(a, b, y, steps):
    """y (64, 64) = a b^T; a and b are tensor maps of (64, 64 * steps) halves."""
    shared = cuda.shared.array(0, types.uint16, alignment=1024)
    acc = cuda.local.array(32, float32)
    base, thread = ptx.cvta_to_shared(shared), cuda.threadIdx.x
    full, empty = uint32(base + 2 * BOX * STAGES), uint32(base + 2 * BOX * STAGES + 8 * STAGES)
    if thread == 0:
        for stage in range(STAGES):
            ptx.mbarrier_init(full + 8 * stage, 1)
            ptx.mbarrier_init(empty + 8 * stage, CONSUMERS)
        ptx.fence_mbarrier_init()
    cuda.syncthreads()
    if thread >= CONSUMERS:
        if thread == CONSUMERS:
            for step in range(steps):
                stage, turn = step % STAGES, step // STAGES
                at, barrier = uint32(base + 2 * BOX * stage), uint32(full + 8 * stage)
                # gap: wait until the stage is empty; announce two boxes
                ptx.mbarrier_wait(empty + 8 * stage, (turn + 1) % 2)
                ptx.mbarrier_arrive_expect_tx(barrier, 2 * BOX)
                # end
                ptx.tma_load_2d(at, a, barrier, 64 * step, 0)
                ptx.tma_load_2d(at + BOX, b, barrier, 64 * step, 0)
        return
    for i in range(32):
        acc[i] = 0
    for step in range(steps):
        stage, turn = step % STAGES, step // STAGES
        a_at, b_at = uint32(base + 2 * BOX * stage), uint32(base + 2 * BOX * stage + BOX)
        # gap: wait until the stage is full; multiply; say that it is empty
        ptx.mbarrier_wait(full + 8 * stage, turn % 2)
        ptx.wgmma_fence()
        multiply(acc, uint32(a_at >> 4 | LOW), uint32(b_at >> 4 | LOW))
        wait_all()
        ptx.mbarrier_arrive(empty + 8 * stage)
        # end
    row, column = thread // 32 * 16 + thread % 32 // 4, thread % 4 * 2
    for i in range(32):
        y[row + 8 * (i // 2 % 2), column + 8 * (i // 4) + i % 2] = acc[i]


# %%
STEPS = 5
a, b = np.random.default_rng(0).standard_normal((2, 64, 64 * STEPS)).astype(np.float16)
wanted = a.astype(np.float32) @ b.astype(np.float32).T
args = [puzzle.Map(a), puzzle.Map(b), STEPS]
puzzle.check(product, 1, CONSUMERS + 32, args, wanted, shared=STAGES * (2 * BOX + 16))

# %% [markdown]
# <details><summary>Hint</summary>
#
# The producer waits with parity `(turn + 1) % 2`, which passes at once in the first round. The consumers wait with
# `turn % 2`, and arrive at `empty` once `wait_all()` has shown that the stage is read.
#
# </details>
#
# Next: [a cluster that shares its copies](11_cluster.ipynb).
