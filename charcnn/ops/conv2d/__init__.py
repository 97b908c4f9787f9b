"""conv2d: a file a technique. The fast kernels are those of conv1d, as a sequence is an image of one row.

Weights are (C_out, C_in / groups, KH, KW), as PyTorch has them; with channels last, as TensorFlow has them.
"""
