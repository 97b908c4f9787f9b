"""The first convolution from token ids, which pick rows of the weights: by gathers on the CPU and on a GPU.

A file a technique; on a GPU, block 1 is one kernel, with its statistics from tables of the weights' products.
"""
