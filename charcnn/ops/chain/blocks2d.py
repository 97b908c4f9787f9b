"""AlexNet's first two layers as one kernel: two convolutions, each with ReLU and max-pooling behind it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from charcnn.aliases import Array, Stream
from charcnn.gpu import device
from charcnn.layers import Conv2d, MaxPool2d, Relu
from charcnn.ops.chain.fused import Fused
from charcnn.ops.chain.plan2d import plan2d
from charcnn.ops.common.shapes import ranked


def whole(*arguments: Any, out: Array, stream: Stream) -> Array:
    """A block an image, nothing recomputed.

    Needs cp.async, of compute capability 8.0.

    Raises:
        ValueError: the maps do not fit shared memory.
    """
    return _fused("whole", *arguments, out=out, stream=stream)


def tiles(*arguments: Any, out: Array, stream: Stream) -> Array:
    """A block a tile of the result: what their halos share is recomputed.

    Needs cp.async, of compute capability 8.0.

    Raises:
        ValueError: the maps do not fit shared memory.
    """
    return _fused("tiles", *arguments, out=out, stream=stream)


def rolling(*arguments: Any, out: Array, stream: Stream) -> Array:
    """Blocks walk down the image, and keep of each map the rows that windows share.

    Needs cp.async, of compute capability 8.0.

    Raises:
        ValueError: the maps do not fit shared memory.
    """
    return _fused("rolling", *arguments, out=out, stream=stream)


def _fused(method, x, weight1, bias1, weight2, bias2, pool_size, pool_stride, *moves, out, stream):
    _, *image = ranked("x", x, "N, C_in, H, W")
    pool, convs = MaxPool2d(pool_size, pool_stride), []
    for i, weight in enumerate((weight1, weight2)):
        c_out, _, *kernel = ranked(f"weight{i + 1}", weight, "C_out, C_in/groups, KH, KW")
        stride, padding, groups = (pair[i] for pair in moves)
        convs.append(Conv2d(c_out, (kernel[0], kernel[1]), stride, padding, groups=groups))
    fused = _compiled(method, tuple(image), (convs[0], Relu(), pool, convs[1], Relu(), pool))
    return fused(x, (weight1, weight2), (bias1, bias2), out=out, stream=stream)


@lru_cache(maxsize=64)
def _compiled(method: str, in_shape: tuple[int, ...], layers: tuple[Any, ...]) -> Fused:
    return plan2d(layers, in_shape=in_shape, method=method, batch=device.MULTIPROCESSORS).compile()
