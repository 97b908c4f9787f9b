"""Block 1 from token ids, each warp by itself: what a block keeps, the kernel, its launch."""
