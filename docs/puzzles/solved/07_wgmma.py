# %% [markdown]
# # 7. One product by wgmma
#
# The 128 threads of a *warpgroup* multiply 64 x 64 by 64 x 64 halves with one call, `multiply(acc, a, b)`. A and B
# lie in shared memory, in rows of 128 bytes. `a` and `b` are *descriptors*: the address, shifted right by 4, and
# `LOW`, a distance between matrices that rows of 128 bytes do not use. The sums lie in registers, 32 in each thread.
#
# Rows are *swizzled*: piece p of row r, 16 bytes, lies at place p ^ (r % 8), so that eight rows of a column lie in
# different banks. wgmma reads shared memory by another path, the *async proxy*: a fence has to stand between.
#
# **Task**: say where each piece goes; then fence, multiply, and wait.

# %%
import numpy as np
import puzzle
from numba import cuda, float32, types

from charcnn.gpu import ptx
from charcnn.gpu.device import uint32

# %%
BOX, COLUMNS = 64 * 128, 128  # bytes of 64 rows in shared memory; numbers of a row in global memory
LOW = ptx.DESCRIPTOR_LOW
multiply, wait_all, copied = ptx.wgmma("f16", 64), ptx.wgmma_wait_group(0), ptx.cp_async_wait_group(0)


@cuda.jit
def product(a, b, y):
    """y (64, 64) = a b^T of their first 64 columns; a and b are addresses of (64, COLUMNS) halves."""
    shared = cuda.shared.array(0, types.uint16, alignment=1024)
    acc = cuda.local.array(32, float32)
    base, thread = ptx.cvta_to_shared(shared), cuda.threadIdx.x
    a_at, b_at = uint32(base), uint32(base + BOX)
    for i in range(4):
        piece = 128 * i + thread
        row, p = piece // 8, piece % 8
        to = 128 * row + 16 * p
        # gap: to = where in a box piece p of the row lies
        to = 128 * row + 16 * (p ^ row % 8)
        # end
        source = 2 * COLUMNS * row + 16 * p
        ptx.cp_async_16(a_at + to, a + source, 16)
        ptx.cp_async_16(b_at + to, b + source, 16)
    ptx.cp_async_commit_group()
    copied()
    for i in range(32):
        acc[i] = 0
    # gap: let wgmma see what was copied by all threads; multiply; wait
    ptx.fence_proxy_async()
    cuda.syncthreads()
    ptx.wgmma_fence()
    multiply(acc, uint32(a_at >> 4 | LOW), uint32(b_at >> 4 | LOW))
    wait_all()
    # end
    row, column = thread // 32 * 16 + thread % 32 // 4, thread % 4 * 2
    for i in range(32):
        y[row + 8 * (i // 2 % 2), column + 8 * (i // 4) + i % 2] = acc[i]


# %%
a, b = np.random.default_rng(0).standard_normal((2, 64, COLUMNS)).astype(np.float16)
wanted = a[:, :64].astype(np.float32) @ b[:, :64].astype(np.float32).T
puzzle.check(product, 1, 128, [puzzle.Address(a), puzzle.Address(b)], wanted, shared=2 * BOX)

# %% [markdown]
# <details><summary>Hint</summary>
#
# In this order: `ptx.fence_proxy_async()`, by each thread for its own copies; `cuda.syncthreads()`;
# `ptx.wgmma_fence()`, as `acc` was written; `multiply` with `uint32(a_at >> 4 | LOW)` and the same of `b_at`;
# `wait_all()`. Nobody touches `acc` before.
#
# </details>
#
# Next: [boxes by TMA](08_tma.ipynb).
