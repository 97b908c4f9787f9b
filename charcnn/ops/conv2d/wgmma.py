"""conv2d on Hopper's tensor cores, on float32 arrays: each call lays out weights and features, and gives float32."""

from __future__ import annotations

from typing import Any

from charcnn.layers.windows import Padding, Pair
from charcnn.ops.conv1d import one_shot
from charcnn.ops.conv1d.wgmma.layer import compute


def conv2d_nhwc_wgmma(
    x: Any,
    weight: Any,
    bias: Any,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    precision: str = "fp16",
    out: Any = None,
    stream: Any = None,
) -> Any:
    """`reference.conv2d_nhwc` on Hopper's tensor cores, with float32 sums.

    Each call lays out its weights, casts the features and the result; the layer `WgmmaConv` leaves all that out.

    Args:
        x: float32 (N, H, W, C_in), C-contiguous.
        weight: float32 (KH, KW, C_in / groups, C_out), as `arrays.pack` gives it and TensorFlow has it, C-contiguous;
            bias (C_out,) likewise; all on one side.
        stride: an int, or (vertical, horizontal); up to 8.
        padding: zeros on all sides; (vertical, horizontal); (top, bottom, left, right); "valid"; "same", as TensorFlow.
        dilation: an int, or (vertical, horizontal); a window spans up to 128 pixels.
        groups: with more than 1, each has a multiple of 32 output channels, and of 16 bytes of input channels.
        precision: what is multiplied, as in one dimension.
        out: where to write, (N, H_out, W_out, C_out), on the same side; made where None.
        stream: a CUDA stream; the default stream where None.

    Returns:
        float32 (N, H_out, W_out, C_out) where the inputs lie; device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit, or precision is none of these.
        DeviceError: no usable GPU, or none with these tensor cores (compute capability 9.0).
    """
    moves = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return one_shot.conv2d(compute, "", x, weight, bias, precision=precision, out=out, stream=stream, **moves)


def conv2d_relu_nhwc_wgmma(
    x: Any,
    weight: Any,
    bias: Any,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    precision: str = "fp16",
    out: Any = None,
    stream: Any = None,
) -> Any:
    """`conv2d_nhwc_wgmma` with ReLU in the same kernel. Arguments, result and errors as there."""
    moves = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return one_shot.conv2d(compute, "relu", x, weight, bias, precision=precision, out=out, stream=stream, **moves)
