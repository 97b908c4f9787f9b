"""Training: rows to weights with PyTorch, on one GPU or on the CPU. `charcnn train` is its command."""
