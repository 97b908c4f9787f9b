# %% [markdown]
# # 4. Convolution in CUDA, a thread an output
#
# The simplest kernel gives each thread one output. A *grid* of blocks covers all outputs: thread i of block b, each
# of `cuda.blockDim.x` threads, is number b · blockDim + i. The last block may have more threads than there are
# outputs left.
#
# **Task**: let each thread find its output, and compute it. Without a GPU the check emulates the kernel, and names
# the line in which a thread leaves an array.

# %%
import numpy as np
import puzzle
from numba import cuda


# %%
@cuda.jit
def convolve(x, weight, y):
    """x (H, W), weight (KH, KW) -> y (H - KH + 1, W - KW + 1)."""
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    # gap: thread i computes the i-th output, row by row
    if i < y.size:
        p, q = i // y.shape[1], i % y.shape[1]
        total = np.float32(0)
        for k in range(weight.shape[0]):
            for j in range(weight.shape[1]):
                total += x[p + k, q + j] * weight[k, j]
        y[p, q] = total
    # end


# %%
x, weight = np.arange(64, dtype=np.float32).reshape(8, 8) % 7, np.arange(9, dtype=np.float32).reshape(3, 3)
windows = np.lib.stride_tricks.sliding_window_view(x, weight.shape)
puzzle.check(convolve, 2, 32, [x, weight], (windows * weight).sum((2, 3)))

# %% [markdown]
# <details><summary>Hint</summary>
#
# 36 outputs, 64 threads: those with `i >= y.size` do nothing. Row and column are quotient and remainder of i by
# `y.shape[1]`. Add up in a variable of the thread, and store it once.
#
# </details>
#
# Next: [softmax in CUDA](05_softmax_in_cuda.ipynb).
