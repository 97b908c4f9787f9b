"""conv1d on Hopper's tensor cores in nine steps, each a kernel in a file of its own: the way to `wgmma`, told by diffs.

README.md in this folder has the ladder as a table, implicit GEMM and the swizzle.
"""
