# %% [markdown]
# # 9. A ring of stages
#
# A product of long rows goes in steps of 64. Shared memory has several *stages*, each with room for a box of A and of
# B, and with an mbarrier. While one stage is multiplied, the boxes of the next are on their way. Step s has stage s %
# STAGES, whose mbarrier lies at `full + 8 * stage`. Each time around, its parity turns. Descriptors are those of
# [puzzle 7](07_wgmma.ipynb), mbarriers those of [puzzle 8](08_tma.ipynb).
#
# **Task**: wait until the stage is full, multiply, and wait until it may be overwritten.

# %%
import numpy as np
import puzzle
from numba import cuda, float32, types

from charcnn.gpu import ptx
from charcnn.gpu.device import uint32

# %%
BOX, STAGES = 64 * 128, 2
LOW = ptx.DESCRIPTOR_LOW
multiply, wait_all = ptx.wgmma("f16", 64), ptx.wgmma_wait_group(0)


@cuda.jit
def product(a, b, y, steps):
    """y (64, 64) = a b^T; a and b are tensor maps of (64, 64 * steps) halves."""
    shared = cuda.shared.array(0, types.uint16, alignment=1024)
    acc = cuda.local.array(32, float32)
    base, thread = ptx.cvta_to_shared(shared), cuda.threadIdx.x
    full = uint32(base + 2 * BOX * STAGES)

    def load(step):
        stage = step % STAGES
        at, barrier = uint32(base + 2 * BOX * stage), uint32(full + 8 * stage)
        ptx.mbarrier_arrive_expect_tx(barrier, 2 * BOX)
        ptx.tma_load_2d(at, a, barrier, 64 * step, 0)
        ptx.tma_load_2d(at + BOX, b, barrier, 64 * step, 0)

    if thread == 0:
        for stage in range(STAGES):
            ptx.mbarrier_init(full + 8 * stage, 1)
        ptx.fence_mbarrier_init()
        for step in range(min(STAGES, steps)):
            load(step)
    cuda.syncthreads()
    for i in range(32):
        acc[i] = 0
    for step in range(steps):
        stage, turn = step % STAGES, step // STAGES
        a_at, b_at = uint32(base + 2 * BOX * stage), uint32(base + 2 * BOX * stage + BOX)
        # gap: wait for the stage; add its product to acc; wait until the warpgroup has read the stage
        ptx.mbarrier_wait(full + 8 * stage, turn % 2)
        ptx.wgmma_fence()
        multiply(acc, uint32(a_at >> 4 | LOW), uint32(b_at >> 4 | LOW))
        wait_all()
        cuda.syncthreads()
        # end
        if thread == 0 and step + STAGES < steps:
            load(step + STAGES)
        cuda.syncwarp()
    row, column = thread // 32 * 16 + thread % 32 // 4, thread % 4 * 2
    for i in range(32):
        y[row + 8 * (i // 2 % 2), column + 8 * (i // 4) + i % 2] = acc[i]


# %%
STEPS = 5
a, b = np.random.default_rng(0).standard_normal((2, 64, 64 * STEPS)).astype(np.float16)
wanted = a.astype(np.float32) @ b.astype(np.float32).T
args = [puzzle.Map(a), puzzle.Map(b), STEPS]
puzzle.check(product, 1, 128, args, wanted, shared=STAGES * (2 * BOX + 8))

# %% [markdown]
# <details><summary>Hint</summary>
#
# The parity is `turn % 2`. TMA and wgmma are both of the async proxy: no `fence_proxy_async` is needed.
# A warpgroup's products are done together: after `wait_all()` all of it has read the stage. `cuda.syncthreads()` keeps
# its warps in step; the check passes without it.
#
# </details>
#
# Next: [a warp that only copies](10_specialised.ipynb).
