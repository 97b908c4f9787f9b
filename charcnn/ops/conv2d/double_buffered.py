"""conv2d_nhwc by the double-buffered kernel of conv1d_nlc: a sequence is an image of one row."""

from __future__ import annotations

from charcnn.aliases import Array, Stream
from charcnn.gpu.launch import Call
from charcnn.layers.windows import Padding, Pair
from charcnn.ops.common import shapes2d
from charcnn.ops.conv1d.double_buffered import launch_windows


def launch(
    call: Call, x: Array, weight: Array, bias: Array, stride: Pair, padding: Padding, dilation: Pair, groups: int, *,
    epilogue: str,
) -> None:  # fmt: skip
    """Nothing is copied beforehand: copies from an image leave zeros in shared memory for what lies outside.

    The copies are of 32 bits where C_in or C_out of a group is no multiple of 4, or an array starts at no multiple of
    16 bytes.
    """
    window = shapes2d.window_of(x.shape[1], x.shape[2], weight.shape[:2], stride, padding, dilation)
    launch_windows(call, (x, weight, bias), call.out, epilogue or "store", window, groups=groups)


def convolved(
    epilogue: str, x: Array, weight: Array, bias: Array, *, stride: Pair = 1, padding: Padding = 0, dilation: Pair = 1,
    groups: int = 1, out: Array = None, stream: Stream = None,
) -> Array:  # fmt: skip
    """conv2d_nhwc with any epilogue, by its name; other arguments as of `charcnn.ops.conv2d_nhwc_double_buffered`."""
    shape = shapes2d.conv2d_nhwc(x, weight, bias, stride, padding, dilation, groups)
    call = Call(out, stream, shape, x=x, weight=weight, bias=bias)
    x, weight, bias = call.inputs
    launch(call, x, weight, bias, stride, padding, dilation, groups, epilogue=epilogue)
    return call.result()
