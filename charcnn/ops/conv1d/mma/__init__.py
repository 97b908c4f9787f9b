"""conv1d_nlc on tensor cores of any GPU since compute capability 8.0: by mma.sync, ldmatrix and cp.async; fp16 on 7.5.

The product is that of `double_buffered`, in one of four precisions: a block's warps have a part of its tile each.
README.md, beside this file, says how features, weights and sums lie, and why.
"""
