"""Training: rows to weights, by own kernels or PyTorch, on one GPU or on the CPU. `charcnn train` is its command."""
