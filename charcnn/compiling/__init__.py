"""Kernels compiled before they are launched: for any GPU, without one, in several processes, into Numba's cache.

`stand_in` is a GPU that compiles what it would launch; `networks` says what levels launch; `workers` shares that out
among processes. `charcnn compile` uses them, and a level's first start on a GPU.
"""
