"""conv2d_nhwc with fewer multiplications, by Winograd's filtering along both axes: its operators on float32 arrays."""

from __future__ import annotations

from typing import Any

from charcnn.gpu.launch import Call
from charcnn.layers.windows import Padding, Pair
from charcnn.ops.common import shapes2d
from charcnn.ops.common.epilogues import pattern_of
from charcnn.ops.conv1d.winograd import WinogradConv


def conv2d_nhwc_winograd(
    x: Any, weight: Any, bias: Any, *, stride: Pair = 1, padding: Padding = 0, dilation: Pair = 1, groups: int = 1,
    out: Any = None, stream: Any = None,
) -> Any:  # fmt: skip
    """`reference.conv2d_nhwc` on a GPU with as few multiplications as float32 allows.

    It transforms the weights first; `WinogradConv` keeps them. A feature that is not finite may make NaN of
    all pixels that share a tile with one that reads it.

    Args:
        stride, dilation, groups: 1.
        x, weight, bias, padding, out, stream: as of `conv2d.double_buffered`.

    Returns:
        As there.

    Raises:
        ValueError, DeviceError: as there.
    """
    return _once(x, weight, bias, stride, padding, dilation, groups, out, stream, "")


def conv2d_relu_nhwc_winograd(
    x: Any, weight: Any, bias: Any, *, stride: Pair = 1, padding: Padding = 0, dilation: Pair = 1, groups: int = 1,
    out: Any = None, stream: Any = None,
) -> Any:  # fmt: skip
    """The same with ReLU in the last of its kernels. Arguments, result and errors as there."""
    return _once(x, weight, bias, stride, padding, dilation, groups, out, stream, "relu")


def _once(x, weight, bias, stride, padding, dilation, groups, out, stream, epilogue):
    shape = shapes2d.conv2d_nhwc(x, weight, bias, stride, padding, dilation, groups)
    for name, value in {"stride": stride, "dilation": dilation, "groups": groups}.items():
        if value not in (1, (1, 1)):
            raise ValueError(f"{name}={value!r}: Winograd's filtering needs 1; conv2d_nhwc's double_buffered takes any")
    call = Call(out, stream, shape, x=x, weight=weight, bias=bias)
    x, weight, bias = call.inputs
    pattern, weights = pattern_of(weight, epilogue, padding=padding), {"weight": weight, "bias": bias}
    WinogradConv(pattern, weights, stream=call.stream).apply(x, out=call.out, stream=call.stream)
    return call.result()
