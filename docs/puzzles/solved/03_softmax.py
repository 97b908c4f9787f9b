# %% [markdown]
# # 3. Softmax in plain loops
#
# Softmax turns a row of scores into numbers that are positive and add up to 1: e to the power of each score, divided
# by the sum of all of them.
#
# **Task**: compute one row. Scores may be large: e to the power of 100 is more than float32 holds. But softmax stays
# the same where you subtract one number from all scores.

# %%
import math

import numpy as np
from puzzle import check_function


# %%
def softmax(x):
    """x (N, C) -> y (N, C), float32."""
    y = np.zeros(x.shape, np.float32)
    for n in range(x.shape[0]):
        # gap: y[n, c] for each class c
        most = x[n, 0]
        for c in range(x.shape[1]):
            most = max(most, x[n, c])
        total = 0.0
        for c in range(x.shape[1]):
            y[n, c] = math.exp(x[n, c] - most)
            total += y[n, c]
        for c in range(x.shape[1]):
            y[n, c] /= total
        # end
    return y


# %%
x = np.log([[1, 1, 2], [3, 6, 1]])
wanted = np.array([[0.25, 0.25, 0.5], [0.3, 0.6, 0.1]])
check_function(softmax, [((x,), wanted), ((x + 1000,), wanted)])

# %% [markdown]
# <details><summary>Hint</summary>
#
# Three loops over a row: its largest score; the powers of the differences from it, and their sum; the quotients.
#
# </details>
#
# Next: [the convolution in CUDA](04_convolution_in_cuda.ipynb).
