"""conv2d on all CPU cores, by the GEMM over overlapping rows: conv1d's, with a run of taps a kernel row."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from charcnn.layers import windows
from charcnn.layers.windows import Padding, Pair, Window
from charcnn.ops.common import arrays, shapes2d
from charcnn.ops.common.cpu_gemm import Packed
from charcnn.ops.common.cpu_tile import Tile


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


def conv2d_cpu_gemm(
    x: Any, weight: Any, bias: Any, *, stride: Pair = 1, padding: Padding = 0, dilation: Pair = 1, groups: int = 1,
    out: Any = None,
) -> Any:  # fmt: skip
    """`reference.conv2d` on all CPU cores, by the micro-kernel over overlapping rows.

    Packs the weights at each call, and each task turns its share of x; `CpuConv2d` keeps weights, and takes
    channels-last features.

    Args:
        x: float32 (N, C_in, H, W), C-contiguous, NumPy; weight (C_out, C_in / groups, KH, KW) and bias (C_out,)
            likewise.
        stride, padding, dilation, groups: as `reference.conv2d` takes them.
        out: where to write, (N, C_out, H_out, W_out); made where None.

    Returns:
        float32 (N, C_out, H_out, W_out); the same bits for any number of threads.

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit, a group has one input channel, or the
            environment's CHARCNN_CPU_TILE.
    """
    return _launch(x, weight, bias, out, False, stride=stride, padding=padding, dilation=dilation, groups=groups)


def conv2d_relu_cpu_gemm(
    x: Any, weight: Any, bias: Any, *, stride: Pair = 1, padding: Padding = 0, dilation: Pair = 1, groups: int = 1,
    out: Any = None,
) -> Any:  # fmt: skip
    """The same with ReLU in its last pass, over sums in cache. Arguments as there."""
    return _launch(x, weight, bias, out, True, stride=stride, padding=padding, dilation=dilation, groups=groups)


def conv2d_nhwc_cpu_gemm(
    x: Any, weight: Any, bias: Any, *, stride: Pair = 1, padding: Padding = 0, dilation: Pair = 1, groups: int = 1,
    out: Any = None,
) -> Any:  # fmt: skip
    """`reference.conv2d_nhwc` on all CPU cores: the same on channels-last features.

    Args:
        x: float32 (N, H, W, C_in), C-contiguous, NumPy; weight (KH, KW, C_in / groups, C_out), as `arrays.pack` gives
            it, and bias (C_out,) likewise.
        stride, padding, dilation, groups: as there.
        out: where to write, (N, H_out, W_out, C_out); made where None.

    Returns:
        float32 (N, H_out, W_out, C_out); the same bits for any number of threads.

    Raises: as there.
    """
    return _launch_nhwc(x, weight, bias, out, False, stride=stride, padding=padding, dilation=dilation, groups=groups)


def conv2d_relu_nhwc_cpu_gemm(
    x: Any, weight: Any, bias: Any, *, stride: Pair = 1, padding: Padding = 0, dilation: Pair = 1, groups: int = 1,
    out: Any = None,
) -> Any:  # fmt: skip
    """`conv2d_nhwc_cpu_gemm` with ReLU in its last pass, over sums in cache. Arguments as there."""
    return _launch_nhwc(x, weight, bias, out, True, stride=stride, padding=padding, dilation=dilation, groups=groups)


def _launch(x, weight, bias, out, relu, **how):
    out = arrays.host(out, shapes2d.conv2d(x, weight, bias, **how), x=x, weight=weight, bias=bias)
    CpuConv2d(weight, bias, **how)(x.transpose(0, 2, 3, 1), out.transpose(0, 2, 3, 1), relu=relu)
    return out


def _launch_nhwc(x, weight, bias, out, relu, **how):
    out = arrays.host(out, shapes2d.conv2d_nhwc(x, weight, bias, **how), x=x, weight=weight, bias=bias)
    return CpuConv2d(weight.transpose(3, 2, 0, 1), bias, **how)(x, out, relu=relu)
