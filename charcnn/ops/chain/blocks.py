"""The chain of conv_block_3 to conv_block_6: four convolutions, ReLU between them, and LayerNorm's statistics."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from charcnn.layers import Conv1d, Relu
from charcnn.ops.chain.fused import Fused
from charcnn.ops.chain.plan import Stat, plan
from charcnn.ops.common import shapes


def conv1d_relu_conv1d_relu_conv1d_relu_conv1d_stat_whole(
    x: Any, weight1: Any, bias1: Any, weight2: Any, bias2: Any, weight3: Any, bias3: Any, weight4: Any, bias4: Any,
    *, out: Any = None, stream: Any = None,
) -> Any:  # fmt: skip
    """Four convolutions in one kernel, one block an input, every feature map in shared memory, nothing recomputed.

    Args:
        x: float32 (N, C_in, L), C-contiguous; each weight (C_out, C_in, K), its C_in the C_out before; each bias
            (C_out,). All NumPy, or all on the device.
        out: where to write, a pair (y, stat); made where None.
        stream: a CUDA stream; the default stream where None.

    Returns:
        y, float32 (N, C_out, L_out), and stat, (N, 2): mean and biased variance of each input's y.
        Device results are not waited for.

    Raises:
        ValueError: an argument's shape, dtype, layout or side does not fit, or the maps do not fit shared memory.
        DeviceError: no usable GPU.
    """
    weights, biases = (weight1, weight2, weight3, weight4), (bias1, bias2, bias3, bias4)
    return _fused("whole", x, weights)(x, weights, biases, out=out, stream=stream)


def conv1d_relu_conv1d_relu_conv1d_relu_conv1d_stat_pairs(
    x: Any, weight1: Any, bias1: Any, weight2: Any, bias2: Any, weight3: Any, bias3: Any, weight4: Any, bias4: Any,
    *, out: Any = None, stream: Any = None,
) -> Any:  # fmt: skip
    """The same in two kernels of two convolutions, a block a tile of positions: the tiles' halos are recomputed.

    One map goes through global memory, and a third kernel joins the statistics of an input's tiles. Arguments,
    result and errors as for the one kernel. Each call allocates that map: `plan(...).compile()` takes a workspace.
    """
    weights, biases = (weight1, weight2, weight3, weight4), (bias1, bias2, bias3, bias4)
    return _fused("pairs", x, weights)(x, weights, biases, out=out, stream=stream)


def _fused(method: str, x: Any, weights: tuple[Any, ...]) -> Fused:
    sizes = tuple(shapes.ranked(f"weight{i}", weight, "C_out, C_in, K") for i, weight in enumerate(weights, 1))
    _, in_channels, length = shapes.ranked("x", x, "N, C_in, L")
    return _compiled(method, in_channels, length, tuple((c_out, taps) for c_out, _, taps in sizes))


@lru_cache(maxsize=64)
def _compiled(method: str, in_channels: int, length: int, sizes: tuple[tuple[int, int], ...]) -> Fused:
    layers = [layer for size in sizes for layer in (Conv1d(*size), Relu())]
    return plan([*layers[:-1], Stat()], in_channels=in_channels, length=length, method=method).compile()
