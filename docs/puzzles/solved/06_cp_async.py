# %% [markdown]
# # 6. A copy by cp.async, while the threads work
#
# `ptx.cp_async_16(to, source, 16)` starts to copy 16 bytes to shared memory, and does not wait; of the 16 it reads as
# many as the last argument says. Both places are addresses, in bytes, of which a float has four. Copies are closed into
# a *group* by `ptx.cp_async_commit_group()`. `wait_but_one()` waits until all groups of this thread but the
# latest one are there. Other threads' copies need a barrier on top.
#
# The kernel reverses rows. While it writes row r, the copy of row r + 1 is to be under way: `words` has room for two.
#
# **Task**: in each step start the next row's copy, close the group, and wait for the current row.

# %%
import numpy as np
import puzzle
from numba import cuda, float32

from charcnn.gpu import ptx

# %%
ROWS, COLUMNS, THREADS = 5, 256, 64
wait_but_one = ptx.cp_async_wait_group(1)


@cuda.jit
def reverse(x, y):
    """y = the rows of x (ROWS, COLUMNS), each in reverse; x is an address."""
    words = cuda.shared.array((2, COLUMNS), float32)
    base, i = ptx.cvta_to_shared(words), cuda.threadIdx.x
    ptx.cp_async_16(base + 16 * i, x + 16 * i, 16)
    ptx.cp_async_commit_group()
    for row in range(ROWS):
        # gap: row + 1 comes, if there is one; row is there
        if row + 1 < ROWS:
            place, source = 4 * COLUMNS * ((row + 1) % 2) + 16 * i, 4 * COLUMNS * (row + 1) + 16 * i
            ptx.cp_async_16(base + place, x + source, 16)
        ptx.cp_async_commit_group()  # an empty one behind the last row
        wait_but_one()
        cuda.syncthreads()
        # end
        for j in range(4):
            y[row, 4 * i + j] = words[row % 2, COLUMNS - 1 - 4 * i - j]
        cuda.syncthreads()  # all have read it


# %%
x = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
puzzle.check(reverse, 1, THREADS, [puzzle.Address(x)], np.ascontiguousarray(x[:, ::-1]))

# %% [markdown]
# <details><summary>Hint</summary>
#
# A row has 4 · COLUMNS bytes, of which thread i copies 16, from 16 · i on. Row r lies in half r % 2. Close a group in
# the last step, too, although nothing is in it: then "all but the latest" are those that you need.
# `cuda.syncthreads()` comes last.
#
# </details>
#
# Next: [a product by wgmma](07_wgmma.ipynb).
