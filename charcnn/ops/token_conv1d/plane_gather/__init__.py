"""Block 1 from token ids, written as the planes that Toom-Cook's products take: the kernel, its launch."""
