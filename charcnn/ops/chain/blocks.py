"""The chain of conv_block_3 to conv_block_6: four convolutions, ReLU between them, and LayerNorm's statistics."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from charcnn.aliases import Array, Stream
from charcnn.layers import Conv1d, Relu
from charcnn.ops.chain.fused import Fused
from charcnn.ops.chain.plan import Stat, plan
from charcnn.ops.common import shapes


def whole(x: Array, *parameters: Any, out: Array, stream: Stream) -> Array:
    """Four convolutions in one kernel, one block an input, every feature map in shared memory, nothing recomputed.

    Raises:
        ValueError: the maps do not fit shared memory.
    """
    return _fused("whole", x, parameters, out, stream)


def pairs(x: Array, *parameters: Any, out: Array, stream: Stream) -> Array:
    """Two kernels of two convolutions, a block a tile of positions: the tiles' halos are recomputed.

    One map goes through global memory, and a third kernel joins the statistics of an input's tiles. Each call allocates
    that map: `plan(...).compile()` takes a workspace.

    Raises:
        ValueError: the maps do not fit shared memory.
    """
    return _fused("pairs", x, parameters, out, stream)


def _fused(method, x, parameters, out, stream):
    weights, biases = parameters[::2], parameters[1::2]
    sizes = tuple(shapes.ranked(f"weight{i}", weight, "C_out, C_in, K") for i, weight in enumerate(weights, 1))
    _, in_channels, length = shapes.ranked("x", x, "N, C_in, L")
    fused = _compiled(method, in_channels, length, tuple((c_out, taps) for c_out, _, taps in sizes))
    return fused(x, weights, biases, out=out, stream=stream)


@lru_cache(maxsize=64)
def _compiled(method: str, in_channels: int, length: int, sizes: tuple[tuple[int, int], ...]) -> Fused:
    layers = [layer for size in sizes for layer in (Conv1d(*size), Relu())]
    return plan([*layers[:-1], Stat()], in_channels=in_channels, length=length, method=method).compile()
