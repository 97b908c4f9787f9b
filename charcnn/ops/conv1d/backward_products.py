"""conv1d_backward_nlc and linear_backward_nlc by tensor cores: the products of training, from and to float32.

Features are (rows, channels) in 16 bits, channels padded to a multiple of 8. dy has zeros behind an input's last
result. So no product needs to know where an input ends. Where ReLU gave x, the product by features has its mask.
"""

from __future__ import annotations

import numpy as np

from charcnn.aliases import Array
from charcnn.gpu import device
from charcnn.ops.common import columns
from charcnn.ops.common.calls import ResultsCall
from charcnn.ops.common.cast import cut, narrow
from charcnn.ops.common.precision import FP32, HALF_PRECISIONS, NumberFormat, choose
from charcnn.ops.conv1d.mma.products_layer import MmaProduct
from charcnn.ops.conv1d.products import BY_FEATURES, BY_WEIGHTS, WIDTH, TrainingProduct
from charcnn.ops.conv1d.wgmma.products_layer import WgmmaProduct


def _wide(channels: int) -> int:
    return max(1, -(-channels // WIDTH)) * WIDTH


def _rows(call: ResultsCall, features: Array, length: int, of: NumberFormat) -> Array:
    """Features (N, L, C) as (N * length, channels) in the format; a row of zeros where there is none."""
    width = _wide(features.shape[2])
    if not features.shape[0]:
        return device.to_device(np.zeros((1, width), of.dtype), call.stream)
    return narrow(call, features, length, width, of).reshape((features.shape[0] * length, width))


def _gradients(
    product: type[TrainingProduct], call: ResultsCall, dy: Array, x: Array, weight: Array, precision: str, epilogue: str
) -> None:  # fmt: skip
    """Compute them from dy (N, L_out, C_out), x (N, L, C_in), weight (K, C_in, C_out) into the call's results."""
    of, stream, length = choose(precision, HALF_PRECISIONS), call.stream, x.shape[1]
    features, slopes = _rows(call, x, length, of), _rows(call, dy, length, of)
    taps, c_in, c_out = weight.shape[0], features.shape[1], slopes.shape[1]
    flat = narrow(call, weight, c_in, c_out, of).reshape((taps * c_in, c_out))
    dx, dweight = call.scratch(features.shape, of.dtype), call.scratch((taps, c_in, c_out), np.float32)
    masked = {}
    if epilogue:
        masked = {"mask": features, "factors": device.to_device(np.array([1, 0], np.float32), stream)}
    product(BY_FEATURES, slopes, flat, dx, of, taps=taps, **masked).start(stream)
    by_weights = product(BY_WEIGHTS, features, slopes, dweight, of, taps=taps)
    by_weights.start(stream)
    partial = call.scratch((columns.parts_of(len(slopes), c_out), c_out), np.float32)
    dbias = call.scratch((1, 1, c_out), np.float32)
    columns.column_sums(slopes.view(np.uint16), partial, stream, of.ptx_type)
    sums = [(partial, dbias), *([by_weights.partial] if by_weights.partial else [])]
    columns.Sums(sums, stream).start(stream)
    by_x, by_weight, by_bias = call.outs
    cut(call, dx.reshape((1, *dx.shape)), by_x.reshape((1, x.shape[0] * length, x.shape[2])), of)
    cut(call, dweight, by_weight.reshape(tuple(weight.shape)), FP32)
    cut(call, dbias, by_bias.reshape((1, 1, by_bias.size)), FP32)


def _of_one_position(product: type[TrainingProduct], call: ResultsCall, *arrays: Array, **how: str) -> None:
    """Those of a linear layer, which is a convolution of inputs of one position."""
    dy, x, weight = arrays
    dy, x = (array.reshape((array.shape[0], 1, array.shape[1])) for array in (dy, x))
    _gradients(product, call, dy, x, weight.reshape((1, *weight.shape)), **how)


def launch_mma(call: ResultsCall, dy: Array, x: Array, weight: Array, *, precision: str, epilogue: str) -> None:
    """Features and their gradient are rounded to 16 bits, dy as well; the weight's gradient is summed in float32.

    What is not finite in x may make all taps of its channel NaN, if windows with it would begin before an input, or end
    behind it.
    """
    _gradients(MmaProduct, call, dy, x, weight, precision, epilogue)


def launch_wgmma(call: ResultsCall, dy: Array, x: Array, weight: Array, *, precision: str, epilogue: str) -> None:
    """Tensor maps are encoded at each call, and TMA copies; else it is mma's way.

    What is not finite in x may make all taps of its channel NaN, if windows with it would begin before an input, or end
    behind it.
    """
    _gradients(WgmmaProduct, call, dy, x, weight, precision, epilogue)


def launch_linear_mma(call: ResultsCall, dy: Array, x: Array, weight: Array, *, precision: str, epilogue: str) -> None:
    """Features and their gradient are rounded to 16 bits, dy as well; the weight's gradient is summed in float32."""
    _of_one_position(MmaProduct, call, dy, x, weight, precision=precision, epilogue=epilogue)


def launch_linear_wgmma(
    call: ResultsCall, dy: Array, x: Array, weight: Array, *, precision: str, epilogue: str
) -> None:  # fmt: skip
    """Tensor maps are encoded at each call, and TMA copies; else it is mma's way."""
    _of_one_position(WgmmaProduct, call, dy, x, weight, precision=precision, epilogue=epilogue)
