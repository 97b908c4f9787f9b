"""linear_gelu_linear_backward: the kernels of both linear layers and of GELU, what is between them computed again."""

from __future__ import annotations

import numpy as np

from charcnn.aliases import Array
from charcnn.ops import pointwise, pointwise_backward
from charcnn.ops.common.calls import ResultsCall
from charcnn.ops.linear import backward, linear


def launch_loops(
    out: tuple[np.ndarray, ...], dy: np.ndarray, x: np.ndarray, weight1: np.ndarray, bias1: np.ndarray,
    weight2: np.ndarray, *, epilogue: str,
) -> None:  # fmt: skip
    """The loops of its parts, one after another."""
    dx, dweight1, dbias1, dweight2, dbias2 = out
    sums, hidden, slopes = np.empty((3, len(x), len(weight1)), np.float32)
    linear.launch_loops(sums, x, weight1, bias1)
    pointwise.launch_loops(hidden, sums, epilogue=epilogue)
    backward.launch_loops((slopes, dweight2, dbias2), dy, hidden, weight2)
    pointwise_backward.launch_loops(hidden, slopes, sums, epilogue=epilogue)
    backward.launch_loops((dx, dweight1, dbias1), hidden, x, weight1)


def launch_naive(
    call: ResultsCall, dy: Array, x: Array, weight1: Array, bias1: Array, weight2: Array, *, epilogue: str
) -> None:  # fmt: skip
    """Its parts' kernels, which leave what is between them in global memory."""
    dx, dweight1, dbias1, dweight2, dbias2 = call.outs
    sums, hidden, slopes = (call.scratch((x.shape[0], weight1.shape[0]), np.float32) for _ in range(3))
    linear.start(call, x, weight1, bias1, sums)
    pointwise.start(call, sums, hidden, epilogue)
    backward.gradients(call, (slopes, dweight2, dbias2), dy, hidden, weight2)
    pointwise_backward.start(call, slopes, sums, hidden, epilogue)
    backward.gradients(call, (dx, dweight1, dbias1), hidden, x, weight1)
