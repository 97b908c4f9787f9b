"""Step 5: a warp has 64 rows and 64 columns, in its registers. Since step 4: what a warp reads for a product.

For each 16 channels a warp of 32 x 32 reads 64 rows and columns for 1,024 sums, one of 64 x 64 reads 128 for 4,096:
half as much a product. The sums take 128 registers a thread, so a block has 4 warps for the same tile, not 16, and a
multiprocessor 8, not 32: what hides a wait is the many products that a warp has to start.
"""

from __future__ import annotations

from dataclasses import replace

from charcnn.ops.conv1d.mma.steps import common, ring

BLOCKS, make_kernel = ring.BLOCKS, ring.make_kernel


def config(taps: int, block_n: int) -> common.MmaStepTile:
    """The ring's tile, with four times the sums of a warp."""
    return replace(ring.config(taps, block_n), warp_m=64, warp_n=64)
