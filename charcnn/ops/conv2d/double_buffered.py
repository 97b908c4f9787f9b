"""conv2d_nhwc by the double-buffered kernel of conv1d_nlc: a sequence is an image of one row."""

from __future__ import annotations

from typing import Any

from charcnn.gpu.launch import Call
from charcnn.layers import windows
from charcnn.layers.windows import Padding, Pair
from charcnn.ops.common import shapes2d
from charcnn.ops.conv1d.double_buffered import launch_windows


def convolved(
    epilogue: str, x: Any, weight: Any, bias: Any, *, stride: Pair = 1, padding: Padding = 0, dilation: Pair = 1,
    groups: int = 1, out: Any = None, stream: Any = None,
) -> Any:  # fmt: skip
    """The operators below, by the name of the kernel's epilogue."""
    shape = shapes2d.conv2d_nhwc(x, weight, bias, stride, padding, dilation, groups)
    window = windows.window(x.shape[1], x.shape[2], weight.shape[:2], stride, padding, dilation)
    call = Call(out, stream, shape, x=x, weight=weight, bias=bias)
    launch_windows(call, call.inputs, call.out, epilogue, window, groups=groups)
    return call.result()


def conv2d_nhwc_double_buffered(
    x: Any, weight: Any, bias: Any, *, stride: Pair = 1, padding: Padding = 0, dilation: Pair = 1, groups: int = 1,
    out: Any = None, stream: Any = None,
) -> Any:  # fmt: skip
    """`reference.conv2d_nhwc` on a GPU as a matrix product in register tiles, the next stage's copies under way.

    Nothing is copied beforehand: copies from an image leave zeros in shared memory for what lies outside. Needs compute
    capability 8.0. The copies are of 32 bits where C_in or C_out of a group is no multiple of 4, or an array starts at
    no multiple of 16 bytes.

    Args:
        x: float32 (N, H, W, C_in), C-contiguous.
        weight: float32 (KH, KW, C_in / groups, C_out), C-contiguous; bias (C_out,) likewise; all on one side.
        stride, padding, dilation, groups: as of `reference.conv2d`.
        out: where to write, (N, H_out, W_out, C_out), on the same side; made where None.
        stream: a CUDA stream; the default stream where None.

    Returns:
        float32 (N, H_out, W_out, C_out) where the inputs lie; device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit.
        DeviceError: no usable GPU, or one of compute capability below 8.0.
    """
    moves: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return convolved("store", x, weight, bias, **moves, out=out, stream=stream)


def conv2d_relu_nhwc_double_buffered(
    x: Any, weight: Any, bias: Any, *, stride: Pair = 1, padding: Padding = 0, dilation: Pair = 1, groups: int = 1,
    out: Any = None, stream: Any = None,
) -> Any:  # fmt: skip
    """The same with ReLU in the same kernel. Arguments, result and errors as there."""
    moves: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return convolved("relu", x, weight, bias, **moves, out=out, stream=stream)
