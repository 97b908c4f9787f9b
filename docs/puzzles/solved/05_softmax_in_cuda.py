# %% [markdown]
# # 5. Softmax in CUDA, a block a row
#
# The threads of a block share memory. In a *tree* half of them combine two numbers each, then a quarter, until one
# number is left. Between two steps stands `cuda.syncthreads()`: no thread passes it before all are there. Where it is
# missing, a warp may read what another has not written yet. On a GPU that goes wrong now and then. The emulator finds
# it always, and calls it a *race*.
#
# **Task**: the kernel finds the largest score by a tree. Add up the powers by another one, and store the quotients.
# Reuse `shared`.

# %%
import math

import numpy as np
import puzzle
from numba import cuda, float32

# %%
CLASSES = 128


@cuda.jit
def softmax(x, y):
    """x (N, 128) -> y (N, 128), by N blocks of 128 threads."""
    shared = cuda.shared.array(CLASSES, float32)
    n, i = cuda.blockIdx.x, cuda.threadIdx.x
    shared[i] = x[n, i]
    cuda.syncthreads()
    step = CLASSES // 2
    while step > 0:
        if i < step:
            shared[i] = max(shared[i], shared[i + step])
        cuda.syncthreads()
        step //= 2
    most = shared[0]
    # gap: y[n, i], by a sum of all threads' powers
    cuda.syncthreads()  # all have read shared[0]
    power = math.exp(x[n, i] - most)
    shared[i] = power
    cuda.syncthreads()
    step = CLASSES // 2
    while step > 0:
        if i < step:
            shared[i] += shared[i + step]
        cuda.syncthreads()
        step //= 2
    y[n, i] = power / shared[0]
    # end


# %%
x = np.random.default_rng(0).standard_normal((2, CLASSES)).astype(np.float32)
powers = np.exp(x.astype(np.float64))
puzzle.check(softmax, 2, CLASSES, [x], (powers / powers.sum(1, keepdims=True)).astype(np.float32))

# %% [markdown]
# <details><summary>Hint</summary>
#
# Four barriers, of which one is in the tree: before you overwrite `shared`, as others may not have read `shared[0]`
# yet; before the tree begins; after each of its steps.
#
# </details>
#
# Next: [copies that run beside the threads](06_cp_async.ipynb).
