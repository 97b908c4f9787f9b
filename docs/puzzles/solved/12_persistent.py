# %% [markdown]
# # 12. A clustered, persistent product
#
# A *persistent* kernel has as many blocks as run at once. Each cluster computes one tile of the result after another.
# The producer needs not wait for a tile's end: it fetches the next tile's boxes while the consumers store.
#
# So stages and parities go on from tile to tile. `done` counts the steps of all tiles. And a stage that both blocks'
# copies fill is empty when *both* blocks have read it: one consumer of each block arrives at the mbarriers of both,
# at an address that `ptx.mapa(mbarrier, block)` gives.
#
# **Task**: write both sides' steps.

# %%
import numpy as np
import puzzle
from numba import cuda, float32, types

from charcnn.gpu import ptx
from charcnn.gpu.device import uint32

# %%
BOX, HALF, STAGES, CONSUMERS = 64 * 128, 64 * 64, 2, 128
LOW = ptx.DESCRIPTOR_LOW
multiply, wait_all, to_both = ptx.wgmma("f16", 64), ptx.wgmma_wait_group(0), ptx.bulk_load_multicast(2)


@cuda.jit
def product(a, b, y, steps, columns, tiles):
    """y = a b^T, in so many tiles of 128 x 64, `columns` of them side by side; b is packed by tiles, then steps."""
    shared = cuda.shared.array(0, types.uint16, alignment=1024)
    acc = cuda.local.array(32, float32)
    base, thread, rank = ptx.cvta_to_shared(shared), cuda.threadIdx.x, cuda.blockIdx.x % 2
    first, clusters = cuda.blockIdx.x // 2, cuda.gridDim.x // 2
    full, empty = uint32(base + 2 * BOX * STAGES), uint32(base + 2 * BOX * STAGES + 8 * STAGES)
    if thread == 0:
        for stage in range(STAGES):
            ptx.mbarrier_init(full + 8 * stage, 1)
            ptx.mbarrier_init(empty + 8 * stage, 2)  # a thread of each block
        ptx.fence_mbarrier_init()
    cuda.syncwarp()
    ptx.cluster_sync()
    done = 0
    for tile in range(first, tiles, clusters):
        top, left = tile // columns * 128 + 64 * rank, tile % columns
        if thread == CONSUMERS:
            for step in range(steps):
                stage, turn = done % STAGES, done // STAGES
                at, barrier = uint32(base + 2 * BOX * stage), uint32(full + 8 * stage)
                source = b + BOX * (left * steps + step) + HALF * rank
                # gap: wait; announce; A's box from row top on; half of B's, from source on, to both blocks
                ptx.mbarrier_wait(empty + 8 * stage, (turn + 1) % 2)
                ptx.mbarrier_arrive_expect_tx(barrier, 2 * BOX)
                ptx.tma_load_2d(at, a, barrier, 64 * step, top)
                to_both(at + BOX + HALF * rank, source, HALF, barrier)
                # end
                done += 1
        if thread < CONSUMERS:
            for i in range(32):
                acc[i] = 0
            for _ in range(steps):
                stage, turn = done % STAGES, done // STAGES
                a_at, b_at = uint32(base + 2 * BOX * stage), uint32(base + 2 * BOX * stage + BOX)
                # gap: wait; multiply; tell both blocks' producers
                ptx.mbarrier_wait(full + 8 * stage, turn % 2)
                ptx.wgmma_fence()
                multiply(acc, uint32(a_at >> 4 | LOW), uint32(b_at >> 4 | LOW))
                wait_all()
                if thread < 2:
                    ptx.mbarrier_arrive_cluster(ptx.mapa(empty + 8 * stage, thread))
                cuda.syncwarp()
                # end
                done += 1
            row, column = top + thread // 32 * 16 + thread % 32 // 4, 64 * left + thread % 4 * 2
            for i in range(32):
                y[row + 8 * (i // 2 % 2), column + 8 * (i // 4) + i % 2] = acc[i]
    cuda.syncwarp()
    ptx.cluster_sync()  # no block ends while the other one arrives there


# %%
def packed(b):
    """(64 * columns, 64 * steps) halves as boxes (columns, steps, 64 rows, 8 pieces), pieces swizzled."""
    rows = np.arange(64)[:, None]
    boxes = b.reshape(len(b) // 64, 64, -1, 8, 8).transpose(0, 2, 1, 3, 4)
    return np.ascontiguousarray(boxes[:, :, rows, np.arange(8) ^ rows % 8])


STEPS, COLUMNS, TILES, CLUSTERS = 3, 2, 4, 2
draw = np.random.default_rng(0)
a, b = (draw.standard_normal((rows, 64 * STEPS)).astype(np.float16) for rows in (256, 128))
wanted = a.astype(np.float32) @ b.astype(np.float32).T
args = [puzzle.Map(a), puzzle.Address(packed(b)), STEPS, COLUMNS, TILES]
shared = STAGES * (2 * BOX + 16)
puzzle.check(product, 2 * CLUSTERS, CONSUMERS + 32, args, wanted, cluster=2, shared=shared)

# %% [markdown]
# <details><summary>Hint</summary>
#
# It is puzzle 10 with puzzle 11's copies. What changes: `empty` waits for two arrivals, so threads 0 and 1 arrive,
# thread i at block i's: `ptx.mbarrier_arrive_cluster(ptx.mapa(empty + 8 * stage, thread))`. A `cuda.syncwarp()`
# behind it brings the warp together again, which wgmma needs.
#
# </details>
#
# From here the ladder of nine kernels goes on: [nine steps to wgmma](../../charcnn/ops/conv1d/wgmma/steps/README.md).
