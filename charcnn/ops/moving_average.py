"""A moving average of weights on a GPU: a second buffer that follows the first."""

from __future__ import annotations

import numpy as np
from numba import float32

from charcnn.aliases import Array, Stream
from charcnn.gpu import device, ptx
from charcnn.gpu.arrays import expect
from charcnn.gpu.device import uint64
from charcnn.gpu.indices import block_dim_x, block_idx_x, grid_dim_x, thread_idx_x
from charcnn.gpu.launch import jit, start
from charcnn.ops.common.columns import placed

THREADS = device.block_size(256)

QUAD = ptx.VECTOR


@jit(device=True, forceinline=True)
def _moved(average, weight, share):
    """As torch.lerp has it: exact at both ends."""
    apart = weight - average
    return average + share * apart if share < float32(0.5) else weight - apart * (float32(1) - share)


@jit()
def _follow_kernel(average, weights, quads, share):
    i, stride = block_idx_x() * block_dim_x() + thread_idx_x(), grid_dim_x() * block_dim_x()
    while i < quads:
        at = uint64(i) * uint64(16)
        a, b, c, d = ptx.ld_global_v4_f32(average + at)
        e, f, g, h = ptx.ld_global_v4_f32(weights + at)
        a, b, c, d = _moved(a, e, share), _moved(b, f, share), _moved(c, g, share), _moved(d, h, share)
        ptx.st_global_v4_f32(average + at, a, b, c, d)
        i += stride


def follow(average: Array, weights: Array, share: float, *, stream: Stream = None) -> None:
    """Move an average towards weights, by a share of what is between them.

    Args:
        average: float32 (size,), a multiple of 4, on the GPU; written.
        weights: float32 (size,), likewise.
        share: from 0 to 1.
        stream: a CUDA stream.

    Raises:
        ValueError: an array's dtype, shape or layout does not fit, or the share.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"{share=}: need 0 to 1")
    expect("average", average, (average.size // QUAD * QUAD,))
    addresses = [
        placed(name, array, average.shape, np.float32) for name, array in (("average", average), ("weights", weights))
    ]
    quads = average.size // QUAD
    blocks = max(1, min(-(-quads // THREADS), 8 * device.multiprocessors()))
    start(_follow_kernel, blocks, THREADS, device.as_stream(stream), *addresses, np.uint32(quads), np.float32(share))
