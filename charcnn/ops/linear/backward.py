"""linear_backward: conv1d_backward's kernels on inputs of one position, as a linear layer is a convolution of those."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from charcnn.aliases import Array
from charcnn.ops.common.calls import ResultsCall
from charcnn.ops.conv1d import backward


def _of_one_position(*arrays: Array) -> Sequence[Array]:
    """Rows of the last axis as (rows, C, 1)."""
    shapes = (tuple(array.shape) for array in arrays)
    return [array.reshape(math.prod(of[:-1]), of[-1], 1) for array, of in zip(arrays, shapes, strict=True)]


def launch_loops(out: tuple[np.ndarray, ...], dy: np.ndarray, x: np.ndarray, weight: np.ndarray) -> None:
    """Sums are in float64."""
    dx, dweight, dbias = out
    dx, dweight, dy, x, weight = _of_one_position(dx, dweight, dy, x, weight)
    backward.launch_loops((dx, dweight, dbias), dy, x, weight, 1, 0, 1)


def launch_naive(call: ResultsCall, dy: Array, x: Array, weight: Array, *, epilogue: str) -> None:
    """A thread a value of the features' and of the weights' gradient, a block a bias."""
    gradients(call, call.outs, dy, x, weight, masked=epilogue == "relu")


def gradients(
    call: ResultsCall, outs: Sequence[Array], dy: Array, x: Array, weight: Array, *, masked: bool = False
) -> None:  # fmt: skip
    """Start the kernels that write dx, dweight and dbias; `masked` as of `conv1d.backward.gradients`."""
    dx, dweight, dbias = outs
    dx, dweight, *operands = _of_one_position(dx, dweight, dy, x, weight)
    backward.gradients(call, (dx, dweight, dbias), *operands, masked=masked)
