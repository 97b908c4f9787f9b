# %% [markdown]
# # 1. Convolution in plain loops
#
# A window of weights lies on an image. Each weight is multiplied with the pixel below it, and all products are added
# up: that is one output. Then the window moves on by `stride` pixels.
#
# **Task**: write the loops that make one output, `y[p, q]`. The check has an image from the [lecture's
# page](../lecture.md#convolution), where the first output is 1·1 + 2·2 + 4·3 + 5·4 = 37.

# %%
import numpy as np
from puzzle import check_function


# %%
def convolve(x, weight, stride):
    """x (H, W) and weight (KH, KW) -> y, float32."""
    rows = (x.shape[0] - weight.shape[0]) // stride + 1
    columns = (x.shape[1] - weight.shape[1]) // stride + 1
    y = np.zeros((rows, columns), np.float32)
    for p in range(rows):
        for q in range(columns):
            # gap: add up the products of the window whose first pixel is in row p * stride
            for i in range(weight.shape[0]):
                for j in range(weight.shape[1]):
                    y[p, q] += x[p * stride + i, q * stride + j] * weight[i, j]
            # end
    return y


# %%
small = np.arange(1, 10, dtype=np.float32).reshape(3, 3)
image = np.arange(49, dtype=np.float32).reshape(7, 7) % 5
cases = [
    ((small, np.array([[1, 2], [3, 4]], np.float32), 1), np.array([[37, 47], [67, 77]])),
    ((image, np.ones((3, 3), np.float32), 2), np.array([[17, 20, 18], [18, 16, 19], [19, 17, 20]])),
]
check_function(convolve, cases)

# %% [markdown]
# <details><summary>Hint</summary>
#
# Two loops, over the window's rows `i` and its columns `j`. Weight `[i, j]` lies on pixel `[p * stride + i, q *
# stride + j]`.
#
# </details>
#
# Next: [pooling](02_pooling.ipynb).
