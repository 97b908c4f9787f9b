# %% [markdown]
# # 2. Pooling in plain loops
#
# Max pooling keeps the largest number of each window: what stands out stays, and the image becomes smaller. Average
# pooling keeps the mean. Windows of `size` x `size` lie side by side here.
#
# **Task**: find the largest number of one window. Numbers may all be negative.

# %%
import numpy as np
from puzzle import check_function


# %%
def maxpool(x, size):
    """x (H, W) -> y (H // size, W // size), float32."""
    rows, columns = x.shape[0] // size, x.shape[1] // size
    y = np.zeros((rows, columns), np.float32)
    for p in range(rows):
        for q in range(columns):
            # gap: y[p, q] = the largest number of the window
            y[p, q] = x[p * size, q * size]
            for i in range(size):
                for j in range(size):
                    y[p, q] = max(y[p, q], x[p * size + i, q * size + j])
            # end
    return y


# %%
x = np.array([[1, 3, 2, 1], [4, 2, 0, 5], [-1, -2, 7, 8], [-3, -4, 9, 6]], np.float32)
check_function(maxpool, [((x, 2), np.array([[4, 5], [-1, 9]])), ((x - 10, 4), np.array([[-1]]))])

# %% [markdown]
# <details><summary>Hint</summary>
#
# A convolution begins its sum with 0. A maximum has no such number: begin with the window's first pixel.
#
# </details>
#
# Next: [softmax](03_softmax.ipynb).
