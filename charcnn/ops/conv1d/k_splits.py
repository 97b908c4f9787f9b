"""A linear layer by the kernel of `double_buffered`, its depth split over blocks where it is great."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from numba import cuda, float32

from charcnn.aliases import Array
from charcnn.gpu.launch import Call, jit
from charcnn.layers.layer import Shape
from charcnn.ops.common import epilogue_functions
from charcnn.ops.conv1d.double_buffered import chosen, launch

DEPTH = 512
"""Terms summed in one go at most. A greater depth is split over blocks: of a linear layer there are few, and the
rounding error grows with the number of terms."""


@cache
def _make_join(epilogue: str) -> Any:
    function = epilogue_functions.epilogue(epilogue)

    @jit()
    def join_kernel(k_splits, bias, y):
        i = cuda.grid(1)
        if i < y.size:
            c_out = i % y.shape[1]
            n = i // y.shape[1]
            total = float32(0)
            for split in range(k_splits.shape[0]):
                total += k_splits[split, n, 0, c_out]
            y[n, c_out] = function(total + bias[c_out])

    return join_kernel


def splits_shape(n: int, c_in: int, c_out: int) -> Shape:
    """Of the sums of parts of the depth, (k splits, N, 1, C_out); () where one block sums all of it."""
    count = -(-c_in // DEPTH)
    if count <= 1:
        return ()
    tile = chosen("k_split", (1, c_in, c_out), n)
    return -(-c_in // _split_depth(c_in, count, tile.depth)), n, 1, c_out


def _split_depth(c_in: int, count: int, multiple: int) -> int:
    return -(-c_in // (count * multiple)) * multiple


def start(call: Call, inputs: Sequence[Array], k_splits: Any, epilogue: str, out: Array = None) -> None:
    """Start the kernels on the call's stream, for arrays on the device.

    Args:
        inputs: x (N, C_in), weight (C_in, C_out), and bias.
        k_splits: an array of `splits_shape`; None where that is ().
        epilogue: what follows, a row of `common.epilogues`.
        out: where to write, (N, C_out); the call's result where None.
    """
    (x, weight, bias), y = inputs, call.out if out is None else out
    n, (c_in, c_out) = x.shape[0], weight.shape
    x, product = x.reshape((n, 1, c_in)), weight.reshape((1, c_in, c_out))
    if k_splits is None:
        launch(call, (x, product, bias), y.reshape((n, 1, c_out)), epilogue or "store")
        return
    tile = chosen("k_split", product.shape, n)
    depth = _split_depth(c_in, -(-c_in // DEPTH), tile.depth)
    launch(call, (x, product, bias), k_splits, "k_split", split_depth=depth, tile=tile)
    call.launch_over(y, _make_join(epilogue), k_splits, bias, y)
