"""linear with packed weights: the double-buffered matrix product of conv1d_nlc, for inputs of one position."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32

from charcnn.gpu import device
from charcnn.gpu.launch import Call, jit
from charcnn.layers.layer import Shape
from charcnn.ops.common import epilogues, shapes
from charcnn.ops.common.layer import Array, NoScratch, Space
from charcnn.ops.conv1d.double_buffered import chosen, launch

DEPTH = 512
"""Terms summed in one go at most. A greater depth is split over blocks: of a linear layer there are few, and the
rounding error grows with the number of terms."""


@cache
def _make_join(epilogue: str) -> Any:
    function = epilogues.epilogue(epilogue)

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


def launch_once(call: Call, x: Any, weight: Any, bias: Any, *, epilogue: str) -> None:
    """Sums of many inputs' values are split, and joined by a second kernel."""
    splits = splits_shape(x.shape[0], *weight.shape)
    start(call, (x, weight, bias), call.scratch(splits, np.float32) if splits else None, epilogue)


def splits_shape(n: int, c_in: int, c_out: int) -> Shape:
    """Of the sums of parts of the depth, (k splits, N, 1, C_out); () where one block sums all of it."""
    count = -(-c_in // DEPTH)
    if count <= 1:
        return ()
    tile = chosen("k_split", (1, c_in, c_out), n)
    return -(-c_in // _split_depth(c_in, count, tile.depth)), n, 1, c_out


def _split_depth(c_in: int, count: int, multiple: int) -> int:
    return -(-c_in // (count * multiple)) * multiple


def start(call: Call, inputs: Sequence[Any], k_splits: Any, epilogue: str) -> None:
    """Start the kernels on the call's stream, for arrays on the device.

    Args:
        inputs: x (N, C_in), weight (C_in, C_out), and bias.
        k_splits: an array of `splits_shape`; None where that is ().
        epilogue: what follows, a row of `common.epilogues`.
    """
    (x, weight, bias), (n, c_out) = inputs, call.out.shape
    c_in = weight.shape[0]
    x, product = x.reshape((n, 1, c_in)), weight.reshape((1, c_in, c_out))
    if k_splits is None:
        launch(call, (x, product, bias), call.out.reshape((n, 1, c_out)), epilogue or "store")
        return
    tile = chosen("k_split", product.shape, n)
    depth = _split_depth(c_in, -(-c_in // DEPTH), tile.depth)
    launch(call, (x, product, bias), k_splits, "k_split", split_depth=depth, tile=tile)
    call.launch_each(_make_join(epilogue), k_splits, bias, call.out)


class DoubleBufferedLinear(NoScratch):
    """linear_nlc in float32 by `double_buffered`, and a function of each value: a layer's weights on the current GPU.

    Args:
        weight: float32 (C_in, C_out), as `arrays.pack` gives it, and bias (C_out,), NumPy arrays.
        epilogue: what follows, a row of `common.epilogues`.

    Raises:
        ValueError: an argument's shape does not fit, or there is no such epilogue.
    """

    def __init__(self, weight: np.ndarray, bias: np.ndarray, *, epilogue: str = "") -> None:
        shapes.linear_nlc(np.empty((0, len(weight)), np.float32), weight, bias)
        self._weight, self._bias = device.to_device(weight), device.to_device(bias)
        self._epilogue, self.nbytes = epilogues.check(epilogue), self._weight.nbytes + self._bias.nbytes

    def writes(self, x: Shape) -> list[Array]:
        """Sums of parts of the depth, where it has several, and the result."""
        c_in, c_out = self._weight.shape
        splits = splits_shape(x[0], c_in, c_out)
        return [*([Array(splits)] if splits else []), Array((x[0], c_out))]

    def __call__(self, x: Any, space: Space) -> Any:
        """Start on features, all of an input in a row."""
        n, c_in = x.shape[0], self._weight.shape[0]
        *splits, y = (space.device(*array) for array in self.writes(x.shape))
        # By parts of the depth, y may lie where x does: the sums of parts are in between.
        call = Call(y, space.stream, y.shape, in_place="x" if splits else "", x=x)
        inputs = x.reshape((n, c_in)), self._weight, self._bias
        start(call, inputs, splits[0] if splits else None, self._epilogue)
        return y
