"""conv2d_nhwc on all CPU cores with fewer multiplications: conv1d's filtering, along rows and columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from charcnn.layers import windows
from charcnn.layers.windows import Padding, Pair
from charcnn.ops.common import arrays, shapes2d
from charcnn.ops.common.cpu_tile import Tile
from charcnn.ops.conv1d.winograd_cpu import Filtered, nested
from charcnn.ops.conv2d.cpu_gemm import window


class CpuWinogradConv2d:
    """A convolution over channels-last images on the CPU, its weights transformed and packed once.

    Args:
        weight: float32 (C_out, C_in / groups, KH, KW); bias (C_out,).
        padding, groups: as `charcnn.ops.reference.conv2d` takes them; several groups only of 3 to 5 rows and columns.
        tile: the micro-kernel's, from `cpu_gemm.choose_tile`; the best for this processor where None.
    """

    def __init__(
        self, weight: np.ndarray, bias: np.ndarray, *, padding: Padding = 0, groups: int = 1, tile: Tile | None = None
    ) -> None:
        self._kernel, self._padding = weight.shape[2:], padding
        self._filtered = Filtered(weight.transpose(0, 2, 3, 1), bias, tile, groups)

    @staticmethod
    def takes(kernel: Pair, stride: Pair, dilation: Pair, groups: int) -> bool:
        """Whether such a convolution can be filtered."""
        sizes = windows.pair("kernel", kernel)
        return all(one in (1, (1, 1)) for one in (stride, dilation)) and (groups == 1 or nested(*sizes))

    def __call__(self, x: np.ndarray, out: np.ndarray, *, relu: bool = False) -> np.ndarray:
        """x float32 (N, H, W, C_in), C-contiguous -> out (N, H_out, W_out, C_out), any strides; ReLU'd where asked.

        The same bits for any number of threads.
        """
        top, _, left, _ = window(*x.shape[1:3], self._kernel, 1, self._padding).padding
        return self._filtered(x, out, corner=(top, left), relu=relu)


def conv2d_nhwc_winograd_cpu(
    x: Any, weight: Any, bias: Any, *, stride: Pair = 1, padding: Padding = 0, dilation: Pair = 1, groups: int = 1,
    out: Any = None,
) -> Any:  # fmt: skip
    """`reference.conv2d_nhwc` on all CPU cores with a half to a quarter of the multiplications.

    Transforms and packs the weights at each call; `CpuWinogradConv2d` keeps them. A feature that is not finite may make
    NaN of all pixels that share a tile with one that reads it.

    Args:
        x: float32 (N, H, W, C_in), C-contiguous, NumPy; weight (KH, KW, C_in / groups, C_out), as `arrays.pack` gives
            it, and bias (C_out,) likewise.
        padding: as `reference.conv2d` takes it.
        stride, dilation: 1.
        groups: 1, or of a kernel of 3 to 5 rows and columns any.
        out: where to write, (N, H_out, W_out, C_out); made where None.

    Returns:
        float32 (N, H_out, W_out, C_out); the same bits for any number of threads.

    Raises:
        ValueError: an argument's shape, dtype or layout does not fit, or the environment's CHARCNN_CPU_TILE.
    """
    return _launch(x, weight, bias, stride, padding, dilation, groups, out, relu=False)


def conv2d_relu_nhwc_winograd_cpu(
    x: Any, weight: Any, bias: Any, *, stride: Pair = 1, padding: Padding = 0, dilation: Pair = 1, groups: int = 1,
    out: Any = None,
) -> Any:  # fmt: skip
    """`conv2d_nhwc_winograd_cpu` with ReLU in its last pass, over sums in cache. Arguments as there."""
    return _launch(x, weight, bias, stride, padding, dilation, groups, out, relu=True)


def _launch(x, weight, bias, stride, padding, dilation, groups, out, *, relu):
    shape = shapes2d.conv2d_nhwc(x, weight, bias, stride, padding, dilation, groups)
    if not CpuWinogradConv2d.takes(weight.shape[:2], stride, dilation, groups):
        raise ValueError(
            f"{stride=}, {dilation=}, {groups=}: Winograd's filtering needs 1, of 3 to 5 rows and columns any groups; "
            "conv2d_nhwc's cpu_gemm takes any"
        )
    out = arrays.host(out, shape, x=x, weight=weight, bias=bias)
    conv = CpuWinogradConv2d(weight.transpose(3, 2, 0, 1), bias, padding=padding, groups=groups)
    return conv(x, out, relu=relu)
