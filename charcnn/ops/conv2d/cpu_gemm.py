"""conv2d on all CPU cores, by the GEMM over overlapping rows: conv1d's, with a run of taps a kernel row."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from charcnn.aliases import Record
from charcnn.layers import windows
from charcnn.layers.windows import Padding, Pair, Window
from charcnn.ops.common.cpu_gemm import Packed
from charcnn.ops.common.cpu_tile import Tile
from charcnn.ops.common.keep import Apply, keeping


@lru_cache
def _window(*arguments: Any) -> Window:
    return windows.window(*arguments)


def window(*arguments: Any) -> Window:
    """`windows.window`, kept: it takes as long as a small convolution."""
    return _window(*(tuple(one) if isinstance(one, list) else one for one in arguments))


class CpuConv2d:
    """A convolution over channels-last images, its weights packed once.

    Args:
        weight: float32 (C_out, C_in / groups, KH, KW); bias (C_out,).
        stride, padding, dilation, groups: as `charcnn.ops.reference.conv2d` takes them.
        tile: the micro-kernel's, from `cpu_gemm.choose_tile`; the best for this processor where None.

    Raises:
        ValueError: a group has one input channel: there is nothing to multiply by a matrix.
    """

    def __init__(
        self, weight: np.ndarray, bias: np.ndarray, *, stride: Pair = 1, padding: Padding = 0, dilation: Pair = 1,
        groups: int = 1, tile: Tile | None = None,
    ) -> None:  # fmt: skip
        if groups > 1 and weight.shape[1] == 1:
            raise ValueError(
                f"groups={groups}: a group has one input channel, which makes no matrix product; conv2d's loops and "
                "naive take any"
            )
        self._kernel, self._how = weight.shape[2:], (stride, padding, dilation)
        self._packed = Packed(weight.transpose(0, 2, 3, 1), bias, tile, groups)

    def __call__(self, x: np.ndarray, out: np.ndarray, *, relu: bool = False) -> np.ndarray:
        """x float32 (N, H, W, C_in), of contiguous memory in any order -> out (N, H_out, W_out, C_out), any strides.

        The same bits for any number of threads.
        """
        how = window(*x.shape[1:3], self._kernel, *self._how)
        corner = how.padding[0], how.padding[2]
        self._packed.multiply(x, out, stride=how.stride, corner=corner, dilation=how.dilation, relu=relu)
        return out


@keeping
def launch(
    weight: np.ndarray, bias: np.ndarray, stride: Pair, padding: Padding, dilation: Pair, groups: int,
    *, epilogue: str,
) -> Apply:  # fmt: skip
    """Packs the weights at each call, and each task turns its share of x; `CpuConv2d` keeps weights.

    It takes channels-last features. ReLU is in the last pass, over sums in cache. The same bits for any number of
    threads.

    Raises:
        ValueError: a group has one input channel; or the environment's CHARCNN_CPU_TILE does not fit.
    """

    conv = CpuConv2d(weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)
    return lambda out, x: conv(x.transpose(0, 2, 3, 1), out.transpose(0, 2, 3, 1), relu=epilogue == "relu")


@keeping
def launch_nhwc(
    weight: np.ndarray, bias: np.ndarray, stride: Pair, padding: Padding, dilation: Pair, groups: int,
    *, epilogue: str,
) -> Apply:  # fmt: skip
    """Packs the weights at each call; `CpuConv2d` keeps them.

    ReLU is in the last pass, over sums in cache. The same bits for any number of threads.

    Raises:
        ValueError: a group has one input channel; or the environment's CHARCNN_CPU_TILE does not fit.
    """

    moves: Record = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    conv = CpuConv2d(weight.transpose(3, 2, 0, 1), bias, **moves)
    return lambda out, x: conv(x, out, relu=epilogue == "relu")
