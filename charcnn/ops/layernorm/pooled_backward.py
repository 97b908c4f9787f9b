"""layernorm_relu_maxpool1d_backward_nlc by the kernels of training: forward again, for places, then back."""

from __future__ import annotations

import numpy as np

from charcnn.aliases import Array
from charcnn.gpu import device
from charcnn.ops.common import columns
from charcnn.ops.common.calls import ResultsCall
from charcnn.ops.common.cast import cut, narrow
from charcnn.ops.common.precision import FP32, HALF_PRECISIONS
from charcnn.ops.layernorm import training, training_backward
from charcnn.ops.maxpool1d_training import WINDOW


def launch(call: ResultsCall, dy: Array, x: Array, gamma: Array, beta: Array, pool_size: int, eps: float) -> None:
    """A thread has eight channels of a window; x, what is normalised, and gradients of features are bf16.

    Raises:
        ValueError: pool_size is not 3, C is no multiple of 8, or gamma or beta begins at no multiple of 16 bytes. Or an
            input of x in bf16 is larger than shared memory.
    """
    if pool_size != WINDOW:
        raise ValueError(f"pool_size={pool_size!r}: need {WINDOW}")
    (n, length, channels), of, stream = map(int, tuple(x.shape)), HALF_PRECISIONS["bf16"], call.stream
    columns.lanes_of(channels)
    dx, *sums = call.outs
    if not n:
        nothing = device.to_device(np.zeros((1, length, channels), np.float32), stream)
        for out in sums:
            cut(call, nothing, out.reshape((1, length, channels)), FP32)
        return
    shape, rows = (n, length // WINDOW, channels), (n, length, channels)
    features, slopes = narrow(call, x, length, channels, of), narrow(call, dy, shape[1], channels, of)
    pooled, normalised, back = (call.scratch(one, of.dtype) for one in (shape, shape, rows))
    place, (moments, by_input) = call.scratch(shape, np.uint8), (call.scratch((n, 2), np.float32) for _ in range(2))
    factors = device.to_device(np.array([1, 0], np.float32), stream)
    training.norm_pool_forward(features, gamma, beta, factors, pooled, place, normalised, moments, eps, stream)
    parts, inputs = (call.scratch(one, np.float32) for one in training_backward.columns_shapes(*rows))
    read = slopes, place, factors
    training_backward.norm_columns(*read, normalised, gamma, inputs, parts, by_input, stream)
    by_channel = call.scratch((training_backward.backward_parts(*rows), channels), np.float32)
    training_backward.norm_pool_backward(*read, features, moments, by_input, gamma, back, by_channel, stream)
    columns.Sums([(parts[0], sums[0]), (parts[1], sums[1])], stream).start(stream)
    cut(call, back, dx, of)
