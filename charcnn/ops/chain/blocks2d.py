"""AlexNet's first two layers as one kernel: two convolutions, each with ReLU and max-pooling behind it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from charcnn.gpu import device
from charcnn.layers import Conv2d, MaxPool2d, Relu
from charcnn.layers.windows import Padding, Pair
from charcnn.ops.chain.fused import Fused
from charcnn.ops.chain.plan2d import plan2d
from charcnn.ops.common.shapes import ranked


def conv2d_relu_maxpool2d_conv2d_relu_maxpool2d_whole(
    x: Any, weight1: Any, bias1: Any, weight2: Any, bias2: Any, pool_size: Pair,
    *, pool_stride: Pair | None = None, strides: Sequence[Pair] = (1, 1), paddings: Sequence[Padding] = (0, 0),
    groups: Sequence[int] = (1, 1), out: Any = None, stream: Any = None,
) -> Any:  # fmt: skip
    """Two convolutions with ReLU and max-pooling in one kernel, a block an image, nothing recomputed.

    Args:
        x: float32 (N, C_in, H, W), C-contiguous; each weight (C_out, C_in / groups, KH, KW), of the C_out before; each
            bias (C_out,). All NumPy, or all on the device.
        pool_size: of both poolings' windows, an int, or (vertical, horizontal).
        pool_stride: from one window to the next, likewise; pool_size where None.
        strides, paddings, groups: of the first convolution and of the second, as of `charcnn.ops.reference.conv2d`.
        out: where to write, (N, C_out, H_out, W_out), on the same side; made where None.
        stream: a CUDA stream; the default stream where None.

    Returns:
        float32 (N, C_out, H_out, W_out) where the inputs lie; device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit, or the maps do not fit shared memory.
        DeviceError: no usable GPU, or one that has no cp.async.
    """
    moves, weights = (strides, paddings, groups), (weight1, weight2)
    fused = _fused("whole", x, weights, pool_size, pool_stride, moves)
    return fused(x, weights, (bias1, bias2), out=out, stream=stream)


def conv2d_relu_maxpool2d_conv2d_relu_maxpool2d_tiles(
    x: Any, weight1: Any, bias1: Any, weight2: Any, bias2: Any, pool_size: Pair,
    *, pool_stride: Pair | None = None, strides: Sequence[Pair] = (1, 1), paddings: Sequence[Padding] = (0, 0),
    groups: Sequence[int] = (1, 1), out: Any = None, stream: Any = None,
) -> Any:  # fmt: skip
    """The same with a block a tile of the result: what their halos share is recomputed. Arguments likewise."""
    moves, weights = (strides, paddings, groups), (weight1, weight2)
    fused = _fused("tiles", x, weights, pool_size, pool_stride, moves)
    return fused(x, weights, (bias1, bias2), out=out, stream=stream)


def conv2d_relu_maxpool2d_conv2d_relu_maxpool2d_rolling(
    x: Any, weight1: Any, bias1: Any, weight2: Any, bias2: Any, pool_size: Pair,
    *, pool_stride: Pair | None = None, strides: Sequence[Pair] = (1, 1), paddings: Sequence[Padding] = (0, 0),
    groups: Sequence[int] = (1, 1), out: Any = None, stream: Any = None,
) -> Any:  # fmt: skip
    """The same with blocks that walk down the image, and keep of each map the rows that windows share."""
    moves, weights = (strides, paddings, groups), (weight1, weight2)
    fused = _fused("rolling", x, weights, pool_size, pool_stride, moves)
    return fused(x, weights, (bias1, bias2), out=out, stream=stream)


def _fused(
    method: str, x: Any, weights: Sequence[Any], pool_size: Pair, pool_stride: Pair | None, moves: Sequence[Any]
) -> Fused:
    _, *image = ranked("x", x, "N, C_in, H, W")
    pool, convs = MaxPool2d(pool_size, pool_stride), []
    for i, weight in enumerate(weights):
        c_out, _, *kernel = ranked(f"weight{i + 1}", weight, "C_out, C_in/groups, KH, KW")
        stride, padding, groups = (pair[i] for pair in moves)
        convs.append(Conv2d(c_out, (kernel[0], kernel[1]), stride, padding, groups=groups))
    return _compiled(method, tuple(image), (convs[0], Relu(), pool, convs[1], Relu(), pool))


@lru_cache(maxsize=64)
def _compiled(method: str, in_shape: tuple[int, ...], layers: tuple[Any, ...]) -> Fused:
    return plan2d(layers, in_shape=in_shape, method=method, batch=device.MULTIPROCESSORS).compile()
