"""one_hot_conv1d_relu_maxpool1d_backward_nlc by the kernels of training: forward again, for places, then back."""

from __future__ import annotations

import numpy as np

from charcnn.aliases import Array
from charcnn.gpu import device
from charcnn.ops.common.calls import ResultsCall
from charcnn.ops.common.cast import cut, narrow
from charcnn.ops.common.precision import FP32, HALF_PRECISIONS
from charcnn.ops.token_conv1d.training import POOL, TokenForward
from charcnn.ops.token_conv1d.training_backward import TokenBackward


def launch(call: ResultsCall, dy: Array, ids: Array, weight: Array, bias: Array, pool_size: int) -> None:
    """Rows of weights are added up in fp16, and choose the maximum; sums of gradients, in bf16, are by character.

    Raises:
        ValueError: pool_size is not 3, C_out is no multiple of 8, depth is above 255, or shared memory does not hold
            the rows of eight channels.
    """
    if pool_size != POOL:
        raise ValueError(f"pool_size={pool_size!r}: need {POOL}")
    (dweight, dbias), stream = call.outs, call.stream
    if not ids.shape[0]:
        for out in (dweight, dbias.reshape((1, 1, dbias.size))):
            cut(call, device.to_device(np.zeros(tuple(out.shape), np.float32), stream), out, FP32)
        return
    block = TokenForward(tuple(weight.shape), tuple(ids.shape), layernorm=False, stream=stream)
    slopes = narrow(call, dy, dy.shape[1], dy.shape[2], HALF_PRECISIONS["bf16"])
    pooled, place = call.scratch(slopes.shape, np.uint16), call.scratch(slopes.shape, np.uint8)
    factors = device.to_device(np.array([1, 0], np.float32), stream)
    block.forward(ids, weight, bias, None, factors, pooled, place, stream=stream)
    back = TokenBackward(block, stream=stream)
    back.backward(slopes, place, dweight, dbias, bias, factors, stream=stream)
