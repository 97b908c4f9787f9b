"""relu_maxpool1d_backward_nlc by the kernels of training, which keep the place of a window's maximum."""

from __future__ import annotations

import numpy as np

from charcnn.aliases import Array
from charcnn.gpu import device
from charcnn.gpu.launch import Call
from charcnn.ops import maxpool1d_training as pools
from charcnn.ops.common import columns
from charcnn.ops.common.cast import cut, narrow
from charcnn.ops.common.precision import HALF_PRECISIONS
from charcnn.ops.conv1d.products import WIDTH


def launch(call: Call, dy: Array, x: Array, pool_size: int) -> None:
    """A thread has eight channels of a window, in bf16: of values that are the same there, the first is the maximum.

    Where a window has NaN, its gradient goes to the last position.

    Raises:
        ValueError: pool_size is not 3.
    """
    if pool_size != pools.WINDOW:
        raise ValueError(f"pool_size={pool_size!r}: need {pools.WINDOW}")
    (n, length, channels), windows, of = map(int, tuple(x.shape)), int(dy.shape[1]), HALF_PRECISIONS["bf16"]
    if not call.out.size:
        return
    wide = -(-channels // WIDTH) * WIDTH
    features, slopes = narrow(call, x, length, wide, of), narrow(call, dy, windows, wide, of)
    place = call.scratch((n, windows, wide), np.uint8)
    pools.pool_forward(features, length, call.scratch(slopes.shape, of.dtype), place, call.stream)
    factors = device.to_device(np.array([1, 0], np.float32), call.stream)
    sums = call.scratch((columns.parts_of(n * length // pools.WINDOW, wide), wide), np.float32)
    pools.pool_backward(slopes, place, factors, features, sums, call.stream)
    cut(call, features, call.out, of)
