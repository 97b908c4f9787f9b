"""Convolutions and linear layers by 2:4 sparse weights on Hopper's tensor cores (wgmma.mma_async.sp)."""
